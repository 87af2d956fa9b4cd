"""Question answering by search: several turns over a local corpus, generated worlds or the usual data sets."""

from gongfu.envs.searchqa.env import SearchQAEnv
from gongfu.envs.searchqa.scoring import exact_match, f1_score
from gongfu.envs.searchqa.suite import SearchQASuite

__all__ = ["SearchQAEnv", "SearchQASuite", "exact_match", "f1_score"]

"""Sokoban in text: generated rooms, or Boxoban levels."""

from gongfu.envs.sokoban.env import SokobanEnv
from gongfu.envs.sokoban.expert import SokobanExpert
from gongfu.envs.sokoban.suite import SokobanSuite

__all__ = ["SokobanEnv", "SokobanExpert", "SokobanSuite"]

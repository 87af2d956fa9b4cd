"""From the settings of a suite to the suite."""

from __future__ import annotations

import importlib
import sys
from functools import cache, partial
from pathlib import Path

from gongfu.config.methods import MethodConfig
from gongfu.config.role_agent import RoleAgentConfig
from gongfu.config.schema import Recipe
from gongfu.config.suites import CustomSuiteConfig, SearchQAConfig, SokobanConfig, SuiteConfig, WebShopConfig
from gongfu.config.uniskill import UniSkillConfig
from gongfu.core.errors import ConfigError, EnvError, TaskError
from gongfu.envs.protocol import Suite, prepare
from gongfu.skills.embedding import Embedder

_SEARCH_INSTRUCTION = "Given a question, retrieve passages that help to answer it"


def build_suite(config: SuiteConfig) -> Suite:
    """The suite of a recipe, of which little is read. Raises ConfigError or TaskError before anything expensive starts."""
    if isinstance(config, CustomSuiteConfig):
        return _custom_suite(config)
    if isinstance(config, WebShopConfig):
        from gongfu.envs.webshop.suite import WebShopSuite

        return WebShopSuite(**config.model_dump(exclude={"name", "test", "dev", "train", "seen", "unseen"}), sizes=config.sizes)
    settings = config.model_dump(exclude={"name", "kinds", "embedder", "train", "seen", "unseen"})
    sizes = {"train": config.train, "seen": config.seen, "unseen": config.unseen}
    if isinstance(config, SokobanConfig):
        from gongfu.envs.sokoban.suite import SokobanSuite

        return SokobanSuite(**settings, sizes=sizes)
    if isinstance(config, SearchQAConfig):
        from gongfu.envs.searchqa.suite import SearchQASuite

        embedder = partial(_embedder, config.embedder) if config.retriever == "dense" else None
        return SearchQASuite(**settings, kinds=config.kinds or None, sizes=sizes, embedder=embedder)
    from gongfu.envs.household.suite import HouseholdSuite

    return HouseholdSuite(**settings, kinds=config.kinds or None, sizes=sizes)


def load_suite(recipe: Recipe) -> Suite:
    """The suite of a run, ready to be played: a corpus is read to its end, so that what is wrong with it is raised here.

    Workers load what they need themselves, so nothing is kept for them.
    """
    suite = build_suite(recipe.suite)
    prepare(suite)
    return build_suite(recipe.suite) if recipe.rollout.workers.count else suite


def check_offers(method: MethodConfig, suite: Suite) -> None:
    """Raises ConfigError when a method wants something of a suite that this one does not offer."""
    if isinstance(method, UniSkillConfig) and method.proposer.mode == "choose":
        instead = 'set method.proposer.mode = "generate"'
        if not hasattr(suite, "lessons"):
            raise ConfigError(f"suite {suite.name!r} lists no lessons to choose from: {instead}")
        try:
            suite.lessons(suite.tasks("train")[0])  # type: ignore[attr-defined]
        except TaskError as e:
            raise ConfigError(f"suite {suite.name!r} has no lessons for these tasks ({e}): {instead}") from e
    if isinstance(method, RoleAgentConfig) and method.failures.share:
        if not getattr(suite, "failure_modes", ()):
            raise ConfigError(
                f"suite {suite.name!r} names no failure modes (failure_modes), which Agent-In-World sorts failures by: "
                "give it some, or set method.failures.share = 0"
            )
        if method.failures.writer == "measured" and not hasattr(suite, "diagnose"):
            raise ConfigError(f'suite {suite.name!r} cannot measure failures (diagnose): set method.failures.writer = "tagged"')


@cache
def _embedder(model: str) -> Embedder:
    """An embedding model, loaded when a suite first searches by it."""
    from gongfu.engine.models import resolve_model
    from gongfu.skills.transformers_embedder import TransformersEmbedder, minilm

    return TransformersEmbedder(resolve_model(model), instruction=_SEARCH_INSTRUCTION) if model else minilm()


def _custom_suite(config: CustomSuiteConfig) -> Suite:
    module_name, _, attribute = config.object.partition(":")
    here = str(Path.cwd())  # a console script does not look into it, `python -m` does
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as e:
        raise ConfigError(
            f'suite.object = "{config.object}": {e}; write it as "package.module:factory" and make the module importable'
        ) from e
    try:
        suite = factory(**config.args)
    except Exception as e:
        raise ConfigError(
            f"suite.object = {config.object!r} could not be made with suite.args = {config.args}: {type(e).__name__}: {e}"
        ) from e
    missing = [name for name in ("name", "splits", "max_steps", "tasks", "make", "instructions") if not hasattr(suite, name)]
    if missing:
        raise EnvError(f"the suite made by {config.object} lacks {', '.join(missing)} (see gongfu.envs.protocol.Suite)")
    return suite

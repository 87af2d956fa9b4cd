"""Any Gymnasium environment that can be shown as text, as a suite: FrozenLake, Taxi, MiniGrid, one of your own.

from gongfu.envs.gymnasium import GymnasiumSuite
suite = GymnasiumSuite("FrozenLake-v1", actions=("left", "down", "right", "up"), goal="walk to G and avoid the holes H")

In a recipe, by way of the custom suite:

[suite]
name = "custom"
object = "gongfu.envs.gymnasium:GymnasiumSuite"

[suite.args]
env = "FrozenLake-v1"
actions = ["left", "down", "right", "up"]
goal = "walk to G and avoid the holes H"
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gongfu.core.errors import EnvError, MissingExtra, TaskError
from gongfu.core.records import Task
from gongfu.core.seeds import seed_for
from gongfu.envs.protocol import Env, Observation, Step

__all__ = ["GymnasiumEnv", "GymnasiumSuite", "plain_text"]

NOT_UNDERSTOOD = "Nothing happens."
_COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_PAINTED = re.compile(r"((?:\x1b\[[\d;]*m)+)(.*?)\x1b\[0m", re.DOTALL)
_CODE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")


def plain_text(text: str) -> str:
    """Text without terminal colours: what they marked is told in words.

    Toy-text environments say by colour alone where the agent is.

    >>> plain_text("F\\x1b[41mF\\x1b[0mH")
    'Fred[F]H'
    """

    def spoken(match: re.Match[str]) -> str:
        marked = match[2]
        for code in (int(c) for c in re.findall(r"\d+", match[1])):
            if 40 <= code <= 47:
                marked = f"{_COLOURS[code - 40]}[{marked}]"
            elif 30 <= code <= 37:
                marked = f"{_COLOURS[code - 30]}({marked})"
        return marked

    return _CODE.sub("", _PAINTED.sub(spoken, text)).strip("\n").rstrip()


class GymnasiumSuite:
    """Episodes of a Gymnasium environment. Implements `gongfu.envs.protocol.Suite`.

    `env`: an id of Gymnasium's registry, a factory, or one written "package.module:factory"; made with `args`.
    `actions`: what each action is called: names in the order of a Discrete space, or name -> action. None = the numbers of a
    Discrete space. An action mask in `info` (as Taxi's) limits those that are listed.
    `render`: how a state becomes text: "ansi" (the environment's own rendering; colours are told in words), "observation" (its
    observation as text), or a function (env, observation) -> text, also written "package.module:function".
    `goal`: what the task is, to be read after "Your task is to:". `instructions`: what else an agent must be told.
    `max_steps`: None = the limit that the registry states. `success`: the return (sum of rewards) from which on an episode
    counts as a success. `returns`: (low, high), the returns that are scored 0 and 1; None = 1 for success, 0 otherwise.
    `sizes`: tasks per split; each is another seed of the environment, keyed by `seed`. `failure_modes`: names of the ways in
    which episodes fail, for Role-Agent's failure curriculum (who says which it was: `method.failures.writer`).

    Raises MissingExtra without the extra "gymnasium", TaskError for an environment that cannot be made or settings that do not
    fit it.
    """

    name = "gymnasium"

    def __init__(
        self,
        env: str | Callable[..., Any],
        *,
        args: Mapping[str, Any] | None = None,
        actions: Sequence[str] | Mapping[str, Any] | None = None,
        render: str | Callable[[Any, Any], str] = "ansi",
        goal: str = "reach the highest reward",
        instructions: str = "",
        max_steps: int | None = None,
        success: float = 1.0,
        returns: tuple[float, float] | None = None,
        sizes: Mapping[str, int] | None = None,
        failure_modes: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        try:
            import gymnasium
        except ImportError as e:
            raise MissingExtra("the Gymnasium adapter", "gymnasium") from e
        if returns is not None and not returns[0] < returns[1]:
            raise TaskError(f"returns must be (low, high) with low below high, got {tuple(returns)}")
        if isinstance(failure_modes, str) or not all(isinstance(mode, str) and mode.strip() for mode in failure_modes):
            raise TaskError(f"failure_modes must be a list of names, got {failure_modes!r}")
        self.failure_modes: tuple[str, ...] = tuple(failure_modes)
        self._id = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
        self._factory = gymnasium.make if isinstance(env, str) and not _is_reference(env) else _loaded("env", env)
        self._args = dict(args or {})
        if self._factory is gymnasium.make:
            self._args = {"id": env, **({"render_mode": "ansi"} if render == "ansi" else {}), **self._args}
        self._render = render if render in ("ansi", "observation") else _loaded("render", render)
        self._goal = goal
        self._success = success
        self._returns = None if returns is None else (returns[0], returns[1])
        self._seed = seed
        self._sizes = dict(sizes or {"train": 480, "seen": 120})
        self.splits: tuple[str, ...] = tuple(self._sizes)
        probe = self._new()
        try:
            self._actions = _named_actions(probe.action_space, actions, self._id)
            limit = max_steps or getattr(probe.spec, "max_episode_steps", None)
        finally:
            probe.close()
        if not limit or limit < 1:
            raise TaskError(f"{self._id} states no limit of steps: set max_steps")
        self.max_steps: int = limit
        self._instructions = instructions

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split, always the same. Raises TaskError if it is unknown."""
        if split not in self._sizes:
            near = difflib.get_close_matches(split, self.splits, n=1, cutoff=0)
            raise TaskError(f"gymnasium has no split {split!r}; did you mean {near[0]!r}? It has {', '.join(self.splits)}")
        return [
            Task(
                f"gymnasium/{split}/{self._id}/{i:05d}",
                self.name,
                self._id,
                self._goal,
                split,
                seed_for(self._seed, purpose="gymnasium", task=split, rollout=i) % 2**31,
            )
            for i in range(self._sizes[split])
        ]

    def make(self, task: Task) -> Env:
        """A new environment for one episode of a task of this suite."""
        return GymnasiumEnv(
            self._new(),
            task,
            self._actions,
            self._render,
            max_steps=self.max_steps,
            success=self._success,
            returns=self._returns,
        )

    def instructions(self) -> str:
        return "\n".join([*([self._instructions] if self._instructions else []), f"Actions: {' | '.join(self._actions)}"])

    def _new(self) -> Any:
        try:
            env = self._factory(**self._args)
        except Exception as e:
            raise TaskError(f"the environment {self._id} could not be made with {self._args}: {type(e).__name__}: {e}") from e
        if missing := [name for name in ("reset", "step", "render", "close", "action_space") if not hasattr(env, name)]:
            raise TaskError(f"what {self._id} makes is no Gymnasium environment: it lacks {', '.join(missing)}")
        return env


class GymnasiumEnv:
    """One episode. Implements `gongfu.envs.protocol.Env`.

    Text that names no action is answered by "Nothing happens."; it costs a step, and the environment does not move.
    """

    def __init__(
        self,
        env: Any,
        task: Task,
        actions: Mapping[str, Any],
        render: str | Callable[[Any, Any], str],
        *,
        max_steps: int,
        success: float,
        returns: tuple[float, float] | None,
    ) -> None:
        self._env = env
        self._task = task
        self._actions = actions
        self._render = render
        self._max_steps = max_steps
        self._success = success
        self._returns = returns
        self._phase = "new"
        self._steps = 0
        self._return = 0.0
        self._observation: Any = None
        self._listed: tuple[str, ...] = ()

    def reset(self) -> Observation:
        if self._phase != "new":
            raise EnvError(f"a gymnasium environment plays one episode; this one is {self._phase}: make a new one")
        self._phase = "running"
        self._observation, info = self._env.reset(seed=self._task.seed)
        self._list_actions(info)
        return self._observe(f"Your task is to: {self._task.goal}.\n")

    def step(self, action: str) -> Step:
        if self._phase != "running":
            raise EnvError(f"cannot step a gymnasium environment that is {self._phase}")
        self._steps += 1
        reward, terminated, truncated, said = 0.0, False, False, ""
        if (name := action.strip()) in self._actions:
            self._observation, reward, terminated, truncated, info = self._env.step(self._actions[name])
            self._list_actions(info)
        else:
            said = f"{NOT_UNDERSTOOD}\n"
        self._return += float(reward)
        seen = self._observe(said)
        if not terminated and not truncated and self._steps < self._max_steps:
            return Step(seen, float(reward))
        self._phase = "over"
        solved = self._return >= self._success
        return Step(
            seen,
            float(reward),
            terminated=bool(terminated),
            truncated=not terminated,
            outcome="success" if solved else "failure",
            score=self._score(solved),
        )

    def close(self) -> None:
        if self._phase != "closed":
            self._phase = "closed"
            self._env.close()

    def _score(self, solved: bool) -> float:
        if self._returns is None:
            return float(solved)
        low, high = self._returns
        return min(max((self._return - low) / (high - low), 0.0), 1.0)

    def _list_actions(self, info: Mapping[str, Any]) -> None:
        names = list(self._actions)
        mask = info.get("action_mask")
        if mask is not None and len(mask) == len(names) and any(mask):
            names = [name for name, allowed in zip(names, mask, strict=True) if allowed]
        self._listed = tuple(sorted(names))

    def _observe(self, before: str) -> Observation:
        if self._render == "observation":
            text = str(self._observation)
        else:
            shown = self._env.render() if isinstance(self._render, str) else self._render(self._env, self._observation)
            if not isinstance(shown, str):
                raise EnvError(
                    f"{self._task.kind} rendered a {type(shown).__name__}, expected text; give render as a function "
                    '(env, observation) -> text, or "observation"'
                )
            text = plain_text(shown)
        return Observation(before + text, self._listed)


def _named_actions(space: Any, actions: Sequence[str] | Mapping[str, Any] | None, id: str) -> dict[str, Any]:
    """Name -> action, each of them one of the space."""
    if isinstance(actions, Mapping):
        named = dict(actions)
    else:
        count, start = int(getattr(space, "n", 0)), int(getattr(space, "start", 0))
        if not count:
            raise TaskError(f"{id} has the action space {space}, which is not Discrete: give actions as name -> action")
        names = [str(start + i) for i in range(count)] if actions is None else list(actions)
        if len(names) != count:
            raise TaskError(f"{id} has {count} actions, but {len(names)} names were given: {', '.join(names)}")
        named = {name: start + i for i, name in enumerate(names)}
        if len(named) < len(names):
            raise TaskError(f"two actions of {id} have one name: {', '.join(names)}")
    if not named or not all(isinstance(name, str) and name.strip() == name != "" for name in named):
        raise TaskError(f"actions of {id} need names without white space around them, got {list(named)}")
    for name, action in named.items():
        if not space.contains(action):
            raise TaskError(f"the action {action!r} (called {name!r}) is not in the action space {space} of {id}")
    return named


def _is_reference(name: str) -> bool:
    """Whether a text is "package.module:attribute". Gymnasium's ids may have a module too: "package.module:Id-v0"."""
    _, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and not re.search(r"-v\d+$", name)


def _loaded(what: str, given: str | Callable[..., Any]) -> Callable[..., Any]:
    if callable(given):
        return given
    module, _, attribute = given.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as e:
        raise TaskError(f'{what} = "{given}": {e}; write it as "package.module:function" and make the module importable') from e

"""The conformance kit: plays a suite and names everything in which it breaks the protocol.

from gongfu.envs.check import check
print(check(MySuite()))         # raises EnvError with all findings
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gongfu.core.errors import EnvError
from gongfu.core.records import Task, from_json, to_json
from gongfu.core.seeds import rng_for
from gongfu.envs.answers import describe, observation_faults, step_faults
from gongfu.envs.protocol import Env, Expert, Observation, Step, Suite

RULES = {
    "suite": "name, splits, max_steps, tasks, make, instructions are there and of their types",
    "tasks": "every split has tasks, and they say their suite and split",
    "ids": "task ids are unique within a split",
    "stable": "tasks(split) gives the same tasks again",
    "json": "a task is the same after a round trip through JSON",
    "splits": "no task id is in two splits",
    "raises": "make, reset and step of an admissible action raise nothing",
    "type": "observations and steps are those of the protocol",
    "text": "observations, actions and facts are text",
    "admissible": "admissible actions are sorted, unique, not empty, and each is accepted",
    "repeat": "the same task is the same episode under the same actions",
    "isolation": "an environment is the same with another one beside it",
    "reward": "rewards are finite numbers",
    "end": "terminated and truncated are never both set",
    "outcome": "the outcome is set exactly at the end",
    "score": "a score is set at the end only, from 0 to 1",
    "after end": "step after the end raises",
    "close": "close may be called at any time, also twice",
    "robust": "any text is survived as an action",
}
"""What is checked, by the name of the finding."""

ODD_ACTIONS = (
    "",
    " \n\t",
    "\x00\x1b[2J",
    "<|im_end|>",
    "{0} %s ${HOME} \\ \"'",
    "功夫 🙂 e\u0301 \u202e",
    "../../etc/passwd",
    "go " * 30_000,
)
"""Actions that no environment expects and every model produces some day."""

_SHOWN = 3  # findings of one rule that are kept; the others are counted


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach: the rule (a key of `RULES`), where it was seen, and what was seen."""

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Report:
    """What `check` played and found."""

    suite: str
    tasks: int
    episodes: int
    """Environments made."""
    steps: int
    ended: int
    """Episodes that were seen to end by themselves."""
    findings: tuple[Finding, ...]
    more: int
    """Further findings of the same rules that are not listed."""
    unchecked: tuple[str, ...]
    """Rules that these episodes gave no chance to check."""

    @property
    def ok(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        lines = [f"suite {self.suite}: {self.tasks} tasks, played {self.episodes} environments, {self.steps} steps"]
        lines += [f"  {finding}" for finding in self.findings]
        if self.more:
            lines.append(f"  and {self.more} more of the same rules")
        lines += [f"  not checked: {rule} ({RULES[rule]}); no episode ended, give an expert" for rule in self.unchecked]
        return "\n".join(lines if not self.ok else [*lines, "  conforms"])


def check(
    suite: Suite,
    *,
    splits: Sequence[str] | None = None,
    episodes: int = 3,
    seed: int = 0,
    expert: Callable[[Task], Expert] | None = None,
    raises: bool = True,
) -> Report:
    """Play `episodes` tasks of each split by seeded random admissible actions, and report every breach of `RULES`.

    `expert` makes a scripted actor for a task; half of the episodes are then its own, so that ends are reached that random
    actions do not find. Raises EnvError listing all findings, unless `raises` is False.
    """
    if episodes < 1:
        raise EnvError(f"nothing is checked by {episodes} episodes a split; ask for at least 1")
    checker = _Checker(suite, seed, expert)
    checker.run(splits, episodes)
    report = checker.report()
    if raises and not report.ok:
        raise EnvError(f"the suite does not conform\n{report}")
    return report


@dataclass
class _Play:
    """An episode as it was played: what came back for each action."""

    actions: list[str] = field(default_factory=list)
    answers: list[Observation | Step | str] = field(default_factory=list)
    """The observation of reset, then the steps; an exception is described."""

    @property
    def last(self) -> Observation | Step | str:
        return self.answers[-1]

    @property
    def over(self) -> bool:
        return not isinstance(self.last, Observation) and (isinstance(self.last, str) or _ended(self.last))


class _Checker:
    def __init__(self, suite: Suite, seed: int, expert: Callable[[Task], Expert] | None) -> None:
        self.suite, self.seed, self.expert = suite, seed, expert
        self.findings: list[Finding] = []
        self.hidden = self.task_count = self.episodes = self.steps = self.ended = 0

    def find(self, rule: str, where: str, what: str) -> None:
        finding = Finding(rule, where, what)
        if finding in self.findings:
            return
        if sum(f.rule == rule for f in self.findings) < _SHOWN:
            self.findings.append(finding)
        else:
            self.hidden += 1

    def report(self) -> Report:
        return Report(
            suite=str(getattr(self.suite, "name", type(self.suite).__name__)),
            tasks=self.task_count,
            episodes=self.episodes,
            steps=self.steps,
            ended=self.ended,
            findings=tuple(self.findings),
            more=self.hidden,
            unchecked=() if self.ended or not self.episodes else ("outcome", "score", "after end"),
        )

    def run(self, splits: Sequence[str] | None, episodes: int) -> None:
        if not self._suite():
            return
        tasks = {split: self._tasks(split) for split in splits or self.suite.splits}
        owner: dict[str, str] = {}
        for split, listed in tasks.items():
            for task in listed:
                if owner.setdefault(task.id, split) != split:
                    self.find("splits", f"task {task.id}", f"is in {owner[task.id]!r} and in {split!r}")
        everything = [task for listed in tasks.values() for task in listed]
        for split, listed in tasks.items():
            chosen = rng_for(self.seed, purpose="check", task=split).sample(listed, min(episodes, len(listed)))
            for i, task in enumerate(chosen):
                other = next((t for t in [*chosen[i + 1 :], *everything] if t.id != task.id), task)
                self._task(task, other, expert=self.expert is not None and i % 2 == 0)
            for task in chosen[:1]:
                self._opening(task)
                self._odd(task)

    # -- what is said before an episode

    def _suite(self) -> bool:
        suite = self.suite
        expected = {"name": str, "splits": tuple, "max_steps": int}
        missing = [name for name in (*expected, "tasks", "make", "instructions") if not hasattr(suite, name)]
        if missing:
            self.find("suite", type(suite).__name__, f"lacks {', '.join(missing)}")
            return False
        for name, kind in expected.items():
            if not isinstance(value := getattr(suite, name), kind) or not value:
                self.find("suite", name, f"expected {kind.__name__} with something in it, got {value!r}")
        if isinstance(suite.max_steps, int) and suite.max_steps < 1:
            self.find("suite", "max_steps", f"is {suite.max_steps}, an episode needs at least one step")
        try:
            text = suite.instructions()
        except Exception as e:
            self.find("suite", "instructions()", f"raised {describe(e)}")
        else:
            if not isinstance(text, str):
                self.find("suite", "instructions()", f"returned {text!r:.80}, expected text")
        return not self.findings

    def _tasks(self, split: str) -> list[Task]:
        where = f"split {split!r}"
        try:
            listed, again = list(self.suite.tasks(split)), list(self.suite.tasks(split))
        except Exception as e:
            self.find("tasks", where, f"tasks() raised {describe(e)}")
            return []
        if not listed:
            self.find("tasks", where, "has no tasks")
        if wrong := [task for task in listed if not isinstance(task, Task)]:
            self.find("tasks", where, f"a task is {wrong[0]!r:.80}")
            return []
        if listed != again:
            self.find("stable", where, "a second call of tasks() gives other tasks")
        seen: set[str] = set()
        for task in listed:
            if task.id in seen:
                self.find("ids", where, f"task id {task.id!r} is given twice")
            seen.add(task.id)
            if task.suite != self.suite.name or task.split != split:
                said = f"says suite {task.suite!r} and split {task.split!r}, expected {self.suite.name!r} and {split!r}"
                self.find("tasks", f"task {task.id}", said)
            self._json(task)
        self.task_count += len(listed)
        return listed

    def _json(self, task: Task) -> Task:
        """The task after a round trip."""
        try:
            back = from_json(Task, json.loads(json.dumps(to_json(task))))
        except (TypeError, ValueError) as e:
            self.find("json", f"task {task.id}", f"cannot be written and read: {describe(e)}")
            return task
        if back != task:
            self.find(
                "json", f"task {task.id}", "is another one after a round trip; payloads hold JSON values only (no tuples)"
            )
            return task
        return back

    # -- what happens in an episode

    def _task(self, task: Task, other: Task, *, expert: bool) -> None:
        where = f"task {task.id}"
        env = self._make(task)
        first = self._play(env, task, expert=expert)
        if isinstance(first.last, str) and first.last.startswith("raised") and first.actions:
            before = first.answers[-2]
            shown = before.observation if isinstance(before, Step) else before
            listed = isinstance(shown, Observation) and shown.actions is not None
            self.find("raises" if listed else "robust", self._where(task, first), f"{first.actions[-1]!r:.60} {first.last}")
        self._after_end(env, task, first)
        self._close(env, where, "after an episode")
        again = self._replay(self._json(task), first.actions)
        if not self._same("repeat", where, first, again):
            return
        companion = self._make(other)
        beside = self._replay(task, first.actions, companion=companion, other=other)
        self._same("isolation", where, first, beside)
        self._close(companion, f"task {other.id}", "in the middle of an episode")
        self._close(self._make(task), where, "before reset")

    def _opening(self, task: Task) -> None:
        """Each of the first admissible actions is accepted."""
        env = self._make(task)
        start = self._play(env, task, limit=0)
        self._close(env, f"task {task.id}", "after reset")
        if isinstance(start.last, Observation) and isinstance(start.last.actions, tuple):
            for action in start.last.actions[:20]:
                play = self._replay(task, [action])
                if isinstance(play.last, str):
                    self.find("admissible", self._where(task, play), f"{action!r} is admissible and {play.last}")

    def _odd(self, task: Task) -> None:
        env, fresh = None, _Play()
        for action in ODD_ACTIONS:
            if env is None or fresh.over:
                self._close(env, f"task {task.id}", "after an episode")
                env = self._make(task)
                fresh = self._play(env, task, limit=0)
                if env is None or fresh.over:
                    return
            self._act(env, task, fresh, action)
            if isinstance(fresh.last, str):
                self.find("robust", f"task {task.id}", f"the action {action!r:.60} {fresh.last}")
        self._close(env, f"task {task.id}", "in the middle of an episode")

    def _make(self, task: Task) -> Env | None:
        self.episodes += 1
        try:
            env = self.suite.make(task)
        except Exception as e:
            self.find("raises", f"task {task.id}, make", f"raised {describe(e)}")
            return None
        if missing := [name for name in ("reset", "step", "close") if not callable(getattr(env, name, None))]:
            self.find("type", f"task {task.id}, make", f"the environment lacks {', '.join(missing)}")
            return None
        return env

    def _play(self, env: Env | None, task: Task, *, expert: bool = False, limit: int | None = None) -> _Play:
        """Reset, then up to `limit` steps (the suite's max_steps) of the expert or of random admissible actions."""
        play = _Play()
        if not self._begin(env, task, play):
            return play
        actor = self.expert(task) if expert and self.expert is not None else None
        rng = rng_for(self.seed, purpose="check actions", task=task.id)
        for _ in range(self.suite.max_steps if limit is None else limit):
            shown = play.last.observation if isinstance(play.last, Step) else play.last
            assert env is not None and isinstance(shown, Observation)
            if actor is not None:
                action = actor.act(shown)
            else:
                action = rng.choice(shown.actions) if shown.actions else rng.choice(ODD_ACTIONS[:-1])
            self._act(env, task, play, action)
            if play.over:
                break
        return play

    def _replay(self, task: Task, actions: Sequence[str], *, companion: Env | None = None, other: Task | None = None) -> _Play:
        """The same actions in a new environment, with `companion` reset and stepped in turn."""
        env, play, beside = self._make(task), _Play(), _Play()
        if companion is not None and other is not None:
            self._begin(companion, other, beside)
        if self._begin(env, task, play):
            for action in actions:
                assert env is not None
                if companion is not None and other is not None and not beside.over:
                    shown = beside.last.observation if isinstance(beside.last, Step) else beside.last
                    assert isinstance(shown, Observation)
                    self._act(companion, other, beside, shown.actions[-1] if shown.actions else action)
                self._act(env, task, play, action)
                if play.over:
                    break
        self._close(env, f"task {task.id}", "after an episode")
        return play

    def _begin(self, env: Env | None, task: Task, play: _Play) -> bool:
        """Reset; whether the episode can go on."""
        if env is None:
            play.answers.append("could not be made")
            return False
        try:
            answer: Any = env.reset()
        except Exception as e:
            answer = f"raised {describe(e)}"
            self.find("raises", f"task {task.id}, reset", answer)
        else:
            answer = self._judged(task, play, answer, list(observation_faults(answer)), Observation)
        play.answers.append(answer)
        return isinstance(answer, Observation)

    def _act(self, env: Env, task: Task, play: _Play, action: str) -> None:
        """Step; an answer that cannot be used ends the play."""
        self.steps += 1
        play.actions.append(action)
        try:
            answer: Any = env.step(action)
        except Exception as e:
            answer = f"raised {describe(e)}"
        else:
            answer = self._judged(task, play, answer, list(step_faults(answer)), Step)
        play.answers.append(answer)

    def _judged(self, task: Task, play: _Play, answer: Any, faults: list[tuple[str, str]], kind: type) -> Any:
        """Report the faults of an answer; the answer, or words if nothing can be read from it."""
        where = self._where(task, play)
        for rule, what in faults:
            self.find(rule, where, what)
        if any(rule in ("type", "text") for rule, _ in faults):
            return f"returned {answer!r:.80}, which is no {kind.__name__} of the protocol"
        observation = answer.observation if isinstance(answer, Step) else answer
        if isinstance(observation.actions, tuple):
            actions = list(observation.actions)
            if actions != sorted(set(actions)):
                self.find("admissible", where, f"admissible actions are not sorted and unique: {actions!r:.120}")
            if not all(action.strip() for action in actions):
                self.find("admissible", where, "an admissible action is empty")
            if not actions and not (isinstance(answer, Step) and _ended(answer)):
                self.find("admissible", where, "no action is admissible although the episode goes on (None = lists none)")
        return answer

    def _after_end(self, env: Env | None, task: Task, play: _Play) -> None:
        if env is None or not isinstance(play.last, Step) or not _ended(play.last):
            return
        self.ended += 1
        try:
            env.step(play.actions[-1])
        except Exception:
            return
        self.find("after end", self._where(task, play), "step() was answered although the episode is over; it must raise")

    def _close(self, env: Env | None, where: str, when: str) -> None:
        if env is None:
            return
        for again in ("", " a second time"):
            try:
                env.close()
            except Exception as e:
                self.find("close", where, f"close(){again} {when} raised {describe(e)}")
                return

    def _same(self, rule: str, where: str, first: _Play, again: _Play) -> bool:
        for i, (a, b) in enumerate(zip(first.answers, again.answers, strict=False)):
            if a != b:
                at = f"step {i} ({first.actions[i - 1]!r:.60})" if i else "reset"
                self.find(rule, where, f"{at} gave {_difference(a, b)}")
                return False
        return True

    def _where(self, task: Task, play: _Play) -> str:
        return f"task {task.id}, " + (f"step {len(play.actions)}" if play.actions else "reset")


def _ended(step: Step) -> bool:
    return step.terminated or step.truncated


def _difference(a: Any, b: Any) -> str:
    """The first field in which two answers differ, or the answers."""
    if isinstance(a, Step) and isinstance(b, Step) and a.observation != b.observation:
        a, b = a.observation, b.observation
    if type(a) is type(b) and not isinstance(a, str):
        for name in type(a).__dataclass_fields__:
            if (x := getattr(a, name)) != (y := getattr(b, name)):
                return f"{name} {x!r:.100} first, then {y!r:.100}"
    return f"{a!r:.100} first, then {b!r:.100}"

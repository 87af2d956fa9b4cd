"""From groups of rollouts to proposals: pairs, prompts, the policy's answers, read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gongfu.core.errors import EngineError
from gongfu.core.records import Call, Choice, Task
from gongfu.core.seeds import rng_for, seed_for
from gongfu.engine.protocol import Engine, Sample, SampleRequest
from gongfu.methods.uniskill.answers import LABELS, parse_proposal, write_proposal
from gongfu.methods.uniskill.pairing import make_pairs
from gongfu.methods.uniskill.prompt import ProposerRules, proposer_prompt
from gongfu.methods.uniskill.records import Group, Op, Pair, Proposal
from gongfu.rollout.collector import wait

ROLE = "proposer"

_Wanted = tuple[Group, Pair, tuple[int, ...]]
"""A group, a pair of it, and the prompt that asks for a proposal."""
_Answer = tuple[Sample, tuple[Choice, ...]]
"""An answer and what its parts were drawn from."""


@dataclass
class Proposer:
    """The policy in its second role."""

    engine: Engine
    adapter: str | None
    """None = the weights that training started from."""
    rules: ProposerRules
    seed: int
    references: int = 0
    shared_references: bool = False
    sources: int = 0
    """Most proposals of a group, 0 = one for every rollout (but the shared references)."""
    temperature: float = 1.0
    max_prompt: int = 1024
    max_response: int = 96
    lessons: Callable[[Task], Sequence[str]] | None = None
    """The texts that may be chosen for a task; None = answers are generated."""

    def propose(self, groups: Sequence[Group], step: int) -> tuple[list[Proposal], dict[str, float]]:
        """The proposals of a step and counts of what was not asked for. Depends on seed, step and the groups only."""
        wanted: list[tuple[Group, Pair, tuple[int, ...]]] = []
        eligible = too_long = 0
        for group in groups:
            name = group.trajectories[0].group
            rng = rng_for(self.seed, purpose="pairs", step=step, task=name)
            pairs = make_pairs(group, references=self.references, rng=rng, shared=self.shared_references)
            eligible += bool(pairs)
            if self.sources and len(pairs) > self.sources:
                pairs = rng.sample(pairs, self.sources)
            for pair in pairs:
                prompt = proposer_prompt(self.rules, self.engine.tokenizer, pair.source, pair.opposite, group.skill_text)
                if len(prompt) > self.max_prompt:
                    too_long += 1
                else:
                    wanted.append((group, pair, prompt))
        answers = self._write(wanted, step) if self.lessons is None else self._choose(wanted, step)
        proposals = []
        failed = 0
        for (group, pair, prompt), answer in zip(wanted, answers, strict=True):
            if answer is None:
                failed += 1
            else:
                proposals.append(self._read(group, pair, prompt, *answer))
        counts = {"eligible_groups": eligible, "prompts_too_long": too_long, "unanswered": failed}
        return proposals, {f"proposals/{name}": float(value) for name, value in counts.items()}

    def _write(self, wanted: Sequence[_Wanted], step: int) -> list[_Answer | None]:
        answers = self._sample([self._request(pair, prompt, step) for _, pair, prompt in wanted])
        return [None if answer is None else (answer, ()) for answer in answers]

    def _choose(self, wanted: Sequence[_Wanted], step: int) -> list[_Answer | None]:
        """The operation among the legal ones, then the text of an edit among the task's lessons."""
        requests = []
        for group, pair, prompt in wanted:
            listed = tuple(self._label(op) for op in self._legal(group))
            requests.append(replace(self._request(pair, prompt, step), choices=listed))
        found: list[_Answer | None] = []
        edits: list[tuple[int, SampleRequest]] = []
        for (group, pair, prompt), answer in zip(wanted, self._sample(requests), strict=True):
            if answer is None:
                found.append(None)
                continue
            found.append((answer, _drawn(answer, len(prompt))))
            op = self._legal(group)[answer.choice or 0]
            if op != "KEEP":
                request = self._request(pair, prompt + answer.tokens, step, "propose text")
                edits.append((len(found) - 1, replace(request, choices=self._texts(group.task, op))))
        for (place, request), text in zip(edits, self._sample([request for _, request in edits]), strict=True):
            first = found[place]
            if first is None or text is None:
                found[place] = None
                continue
            whole = replace(text, tokens=first[0].tokens + text.tokens, logprobs=first[0].logprobs + text.logprobs)
            found[place] = (whole, (*first[1], *_drawn(text, len(request.prompt))))
        return found

    def _legal(self, group: Group) -> list[Op]:
        return ["ADD", *(["UPDATE"] if group.skill and self.rules.updates else []), "KEEP"]

    def _label(self, op: Op) -> tuple[int, ...]:
        tokenizer = self.engine.tokenizer
        ids = tuple(tokenizer.encode(LABELS[self.rules.format][op]))
        return (*ids, tokenizer.stop_ids[0]) if op == "KEEP" else ids

    def _texts(self, task: Task, op: Op) -> tuple[tuple[int, ...], ...]:
        """What may follow the label of an edit."""
        assert self.lessons is not None
        tokenizer, label = self.engine.tokenizer, self._label(op)
        found = []
        for text in self.lessons(task):
            ids = tuple(tokenizer.encode(write_proposal(self.rules.format, op, text)))
            if ids[: len(label)] != label:
                raise EngineError(
                    f"with this tokenizer {write_proposal(self.rules.format, op, text)!r} does not begin with the tokens of "
                    'its operation, so a text cannot be chosen after it: set method.proposer.mode = "generate"'
                )
            found.append((*ids[len(label) :], tokenizer.stop_ids[0]))
        return tuple(dict.fromkeys(found))

    def _sample(self, requests: Sequence[SampleRequest]) -> list[Sample | None]:
        answers = wait(self.engine.sample(requests)) if requests else []
        return [None if isinstance(answer, EngineError) else answer[0] for answer in answers]

    def _request(self, pair: Pair, prompt: tuple[int, ...], step: int, purpose: str = "propose") -> SampleRequest:
        return SampleRequest(
            prompt=prompt,
            adapter=self.adapter,
            seed=seed_for(self.seed, purpose=purpose, step=step, task=pair.source.id),
            max_tokens=self.max_response,
            temperature=self.temperature,
        )

    def _read(self, group: Group, pair: Pair, prompt: tuple[int, ...], sample: Sample, choices: tuple[Choice, ...]) -> Proposal:
        tokenizer = self.engine.tokenizer
        ends = sample.stop != "length" and sample.tokens[-1] in tokenizer.stop_ids
        text = tokenizer.decode(sample.tokens[:-1] if ends else sample.tokens)
        call = Call(
            role=ROLE,
            adapter=self.adapter,
            policy_version=sample.version,
            prompt=prompt,
            response=sample.tokens,
            logprobs=sample.logprobs,
            text=text,
            stop=sample.stop,
            temperature=self.temperature,
        )
        parsed = parse_proposal(self.rules.format, self.rules.opening + text, finished=ends)
        name = f"{pair.source.id}/proposal"
        return Proposal(name, group.task, pair, group.skill, group.skill_text, call, parsed, self.rules.updates, choices)


def _drawn(sample: Sample, start: int) -> tuple[Choice, ...]:
    return () if sample.drawn_from is None else (replace(sample.drawn_from, start=start),)

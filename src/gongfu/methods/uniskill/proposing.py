"""From groups of rollouts to proposals: pairs, prompts, the policy's answers, read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gongfu.core.errors import EngineError
from gongfu.core.records import Call
from gongfu.core.seeds import rng_for, seed_for
from gongfu.engine.protocol import Engine, Sample, SampleRequest
from gongfu.methods.uniskill.answers import parse_proposal
from gongfu.methods.uniskill.pairing import make_pairs
from gongfu.methods.uniskill.prompt import ProposerRules, proposer_prompt
from gongfu.methods.uniskill.records import Group, Pair, Proposal
from gongfu.rollout.collector import wait

ROLE = "proposer"


@dataclass
class Proposer:
    """The policy in its second role."""

    engine: Engine
    adapter: str | None
    """None = the weights that training started from."""
    rules: ProposerRules
    seed: int
    references: int = 0
    sources: int = 0
    """Most proposals of a group, 0 = one for every rollout."""
    temperature: float = 1.0
    max_prompt: int = 1024
    max_response: int = 96

    def propose(self, groups: Sequence[Group], step: int) -> tuple[list[Proposal], dict[str, float]]:
        """The proposals of a step and counts of what was not asked for. Depends on seed, step and the groups only."""
        wanted: list[tuple[Group, Pair, tuple[int, ...]]] = []
        eligible = too_long = 0
        for group in groups:
            name = group.trajectories[0].group
            rng = rng_for(self.seed, purpose="pairs", step=step, task=name)
            pairs = make_pairs(group, references=self.references, rng=rng)
            eligible += bool(pairs)
            if self.sources and len(pairs) > self.sources:
                pairs = rng.sample(pairs, self.sources)
            for pair in pairs:
                prompt = proposer_prompt(self.rules, self.engine.tokenizer, pair.source, pair.opposite, group.skill_text)
                if len(prompt) > self.max_prompt:
                    too_long += 1
                else:
                    wanted.append((group, pair, prompt))
        answers = wait(self.engine.sample([self._request(p, prompt, step) for _, p, prompt in wanted])) if wanted else []
        proposals = []
        failed = 0
        for (group, pair, prompt), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, EngineError):
                failed += 1
            else:
                proposals.append(self._read(group, pair, prompt, answer[0]))
        counts = {"eligible_groups": eligible, "prompts_too_long": too_long, "unanswered": failed}
        return proposals, {f"proposals/{name}": float(value) for name, value in counts.items()}

    def _request(self, pair: Pair, prompt: tuple[int, ...], step: int) -> SampleRequest:
        return SampleRequest(
            prompt=prompt,
            adapter=self.adapter,
            seed=seed_for(self.seed, purpose="propose", step=step, task=pair.source.id),
            max_tokens=self.max_response,
            temperature=self.temperature,
        )

    def _read(self, group: Group, pair: Pair, prompt: tuple[int, ...], sample: Sample) -> Proposal:
        tokenizer = self.engine.tokenizer
        ends = sample.stop == "stop" and sample.tokens[-1] in tokenizer.stop_ids
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
        return Proposal(name, group.task, pair, group.skill, group.skill_text, call, parsed, self.rules.updates)

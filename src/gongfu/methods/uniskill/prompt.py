"""What the proposer reads: one episode as it went, one with the other outcome, and the skill both had."""

from __future__ import annotations

from dataclasses import dataclass

from gongfu.core.records import Trajectory
from gongfu.engine.protocol import Tokenizer
from gongfu.methods.uniskill.answers import LABELS, OPENING, ProposalFormat

_JOB = (
    "You are not acting now. You improve the skill that the agent is shown with tasks like the one below. A skill is one short "
    "paragraph that helps in other episodes too: when it applies and what to do. Compare the two episodes and keep only "
    "differences in behaviour that both support and that carry over. Do not name things of this one episode, do not "
    "copy a path of actions, do not guess at causes that were not seen."
)
_RULES = {
    "ADD": "{add}: no skill fits yet, or the shown one is about something else; write a new one.",
    "UPDATE": "{update}: the shown skill is right in part; write it anew, whole.",
    "KEEP": "{keep}: nothing can be learned here, or the shown skill says it already.",
}
_CONTRACT = {
    "plain": "Answer with the operation and, unless you keep, the text of the skill.",
    "tagged": "Answer with <op>operation</op><skill>text</skill> and nothing else; with KEEP the text is none.",
}


@dataclass(frozen=True, slots=True)
class ProposerRules:
    """How the proposer is asked."""

    format: ProposalFormat = "plain"
    instructions: bool = True
    """Explain the job in a system message."""
    observations: bool = False
    """Show what the agent saw in the source episode, step by step, and not its actions alone."""
    updates: bool = True
    """False: a skill of the bank is never changed, so UPDATE is not offered."""
    prefill: bool = False
    """End the prompt with the opening of the answer (tagged only), so that the operation is the first sampled token."""

    @property
    def opening(self) -> str:
        return OPENING[self.format] if self.prefill else ""


def proposer_prompt(
    rules: ProposerRules, tokenizer: Tokenizer, source: Trajectory, opposite: Trajectory, skill_text: str
) -> tuple[int, ...]:
    """Token ids of the prompt, the opening included."""
    messages = [{"role": "user", "content": body(rules, source, opposite, skill_text)}]
    if rules.instructions:
        messages.insert(0, {"role": "system", "content": system(rules, may_update=rules.updates and bool(skill_text))})
    return tuple(tokenizer.encode(tokenizer.render(messages, generation=True) + rules.opening))


def system(rules: ProposerRules, *, may_update: bool) -> str:
    labels = {op.lower(): label for op, label in LABELS[rules.format].items()}
    legal = [text.format(**labels) for op, text in _RULES.items() if may_update or op != "UPDATE"]
    return "\n".join([_JOB, *legal, _CONTRACT[rules.format]])


def body(rules: ProposerRules, source: Trajectory, opposite: Trajectory, skill_text: str) -> str:
    """The user message."""
    labels = LABELS[rules.format]
    legal = [labels["ADD"], *([labels["UPDATE"]] if rules.updates and skill_text else []), labels["KEEP"]]
    return "\n".join(
        [
            f"Skill: {skill_text or 'none'}",
            source.turns[0].observation,
            f"Outcome: {source.outcome}.",
            _steps(source) if rules.observations else f"Actions: {_actions(source)}.",
            f"Other outcome: {opposite.outcome}.",
            f"Other actions: {_actions(opposite)}.",
            f"Propose: {', '.join(legal[:-1])} or {legal[-1]}.",
        ]
    )


def _actions(trajectory: Trajectory) -> str:
    return "; ".join(turn.action for turn in trajectory.turns)


def _steps(trajectory: Trajectory) -> str:
    seen = [turn.observation for turn in trajectory.turns[1:]] + [trajectory.final_observation]
    lines = []
    for number, (turn, observation) in enumerate(zip(trajectory.turns, seen, strict=True), 1):
        lines.append(f"{number}. Action: {turn.action} Observation: {observation}")
    return "\n".join(lines)

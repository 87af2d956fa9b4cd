"""A recorded episode under other skills: the same observations and the same sampled responses, other prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gongfu.core.errors import TokenError
from gongfu.core.records import Trajectory
from gongfu.core.tokens import token_span
from gongfu.engine.protocol import Tokenizer
from gongfu.envs.protocol import Observation
from gongfu.rollout.actions import ActionFormat, parse_action
from gongfu.rollout.context import Context, TextRules


def under_skills(
    trajectory: Trajectory, skills: Sequence[str], *, rules: TextRules, tokenizer: Tokenizer, system: str | None
) -> Trajectory:
    """The episode with the prompts that it would have had, had these skill texts been shown.

    With the skills that were really shown it is the same trajectory. Responses are the sampled tokens as they are.
    """
    context = Context(rules, tokenizer, trajectory.task, system, tuple(skills))
    turns = []
    for number, turn in enumerate(trajectory.turns):
        if turn.call is None:
            raise TokenError(f"turn {number} of {trajectory.id} has no call of a model, so it cannot be replayed")
        context.see(Observation(turn.observation, turn.actions))
        turns.append(replace(turn, call=replace(turn.call, prompt=context.prompt())))
        context.say(turn.call.response, turn.action)
    return replace(trajectory, turns=tuple(turns))


def payload_span(trajectory: Trajectory, turn: int, *, format: ActionFormat, tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Half-open range of response tokens that hold the action itself; None where no well-formed action was given.

    "plain": the response without its end token; "tagged": the tokens that overlap the text inside the action block.
    """
    call = trajectory.turns[turn].call
    if call is None or not call.response or not trajectory.turns[turn].validity.format:
        return None
    ends = call.stop != "length" and call.response[-1] in tokenizer.stop_ids
    ids = call.response[:-1] if ends else call.response
    parsed = parse_action(format, tokenizer.decode(ids), finished=True, admissible=None)
    if not parsed.validity.format:
        return None
    return token_span(tokenizer.decode, ids, *parsed.span)

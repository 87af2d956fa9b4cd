"""Training rows of a trajectory: the sampled tokens themselves, masked in; everything else masked out."""

from __future__ import annotations

from dataclasses import replace

from gongfu.core.errors import TokenError
from gongfu.core.records import Choice, Row, Trajectory

NOISE = "noise"
"""Role of a call that nobody should learn from (a random step in a demonstration)."""


def rows_of(trajectory: Trajectory) -> list[Row]:
    """One row for as long as each prompt extends the tokens before it, a new row where it does not.

    So an appended conversation is one row and a window of history one row per turn. Calls of role "noise" stay in as
    context and are masked out; a row without any other call is left out. `meta["spans"]` lists (turn index, first token,
    one past the last) of every trained response, `meta["trajectory"]` the trajectory's id.
    """
    rows: list[Row] = []
    tokens: list[int] = []
    mask: list[bool] = []
    spans: list[tuple[int, int, int]] = []
    choices: list[Choice] = []
    temperature = 1.0

    def close() -> None:
        if any(mask):
            meta = {"trajectory": trajectory.id, "spans": tuple(spans)}
            rows.append(Row(f"{trajectory.id}#{len(rows)}", tuple(tokens), tuple(mask), temperature, meta, tuple(choices)))

    for index, turn in enumerate(trajectory.turns):
        call = turn.call
        if call is None:
            raise TokenError(f"turn {index} of {trajectory.id} has no call of a model, so there are no tokens to train on")
        if not call.response:
            continue
        if tokens and call.temperature == temperature and call.prompt[: len(tokens)] == tuple(tokens):
            gap = call.prompt[len(tokens) :]
        else:
            close()
            tokens, mask, spans, choices, gap, temperature = [], [], [], [], call.prompt, call.temperature
        tokens.extend(gap)
        mask.extend([False] * len(gap))
        trained = call.role != NOISE
        if trained:
            spans.append((index, len(tokens), len(tokens) + len(call.response)))
            if call.choice is not None:
                choices.append(replace(call.choice, start=len(tokens)))
        tokens.extend(call.response)
        mask.extend([trained] * len(call.response))
    close()
    return rows

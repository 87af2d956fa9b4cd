"""Lists of responses as prefix trees: for sampling among them, and for training those that were drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gongfu.core.records import Choice, Row
from gongfu.engine.local.cache import common_prefix

_NOTHING = -1e30
"""Log-prob of no option at all; finite, so that its gradient is 0 and not NaN."""


class Tree:
    """The proper prefixes of some responses as a tree: a last token is predicted but need not be computed.

    `nodes` are the tokens, `parents` their predecessors (-1 = the prompt), `depths` their distance from the prompt.
    `paths[c]` are the nodes before each token of response c, the prompt (-1) first. The first response's nodes are the first.
    """

    def __init__(self, responses: Sequence[Sequence[int]]) -> None:
        self.nodes: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.paths: list[list[int]] = []
        known: dict[tuple[int, int], int] = {}
        for response in responses:
            path = [-1]
            for token in response[:-1]:
                key = (path[-1], token)
                if key not in known:
                    known[key] = len(self.nodes)
                    self.nodes.append(token)
                    self.parents.append(path[-1])
                    self.depths.append(len(path) - 1)
                path.append(known[key])
            self.paths.append(path)

    def ancestry(self) -> Tensor:
        """Bool [nodes, nodes]: whether the second is the first or before it on its path."""
        return ancestry(self.parents)


class Branches:
    """What the options of a row's choices add to its tokens, and where all that is scored is predicted.

    Where an option leaves the response that was taken, its tokens become nodes beside the row: node i stands at position
    `positions[i]`, sees the row's tokens before `sees[i]`, and its ancestors. `places` and `tokens` list what is scored, first
    the row's tokens outside the choices, then every option; a place counts the `needed` tokens of the row, then the nodes.
    """

    def __init__(self, row: Row, needed: int) -> None:
        self.nodes: list[int] = []
        self.positions: list[int] = []
        self.sees: list[int] = []
        self.parents: list[int] = []
        self.responses = [row.response(choice) for choice in row.choices]
        free = list(row.mask)
        for choice, response in zip(row.choices, self.responses, strict=True):
            free[choice.start : choice.start + len(response)] = [False] * len(response)
        self.places = [i - 1 for i, scored in enumerate(free) if scored]
        self.tokens = [token for token, scored in zip(row.tokens, free, strict=True) if scored]
        self.owners: list[int] = []
        """For every scored token of an option, the number of that option in the row."""
        for choice, response in zip(row.choices, self.responses, strict=True):
            self._branch(choice, response, needed)
        chosen = [choice.start + i for choice, r in zip(row.choices, self.responses, strict=True) for i in range(len(r))]
        rank = {place: k for k, place in enumerate(i for i, scored in enumerate(row.mask) if scored)}
        self.order = [rank[place] for place in [*(i for i, scored in enumerate(free) if scored), *chosen]]
        """Which of the row's targets each is: the tokens outside the choices, then the responses' tokens."""

    def _branch(self, choice: Choice, response: tuple[int, ...], needed: int) -> None:
        tree = Tree([response, *choice.options])
        inside, start = len(response) - 1, choice.start  # nodes of the response itself: tokens of the row
        offset = len(self.nodes) - inside
        for token, parent, depth in list(zip(tree.nodes, tree.parents, tree.depths, strict=True))[inside:]:
            own = parent >= inside
            self.nodes.append(token)
            self.positions.append(start + depth)
            self.sees.append(self.sees[offset + parent] if own else start + parent + 1)
            self.parents.append(offset + parent if own else -1)
        first = self.owners[-1] + 1 if self.owners else 0
        for number, (option, path) in enumerate(zip(choice.options, tree.paths[1:], strict=True), first):
            self.places += [start + node if node < inside else needed + offset + node for node in path]
            self.tokens += option
            self.owners += [number] * len(option)


def ancestry(parents: Sequence[int]) -> Tensor:
    """Bool [n, n] from the parents of n nodes (-1 = none; parents come first): is column j row i or one of its ancestors?"""
    reach = torch.eye(len(parents), dtype=torch.bool).numpy()
    for i, parent in enumerate(parents):
        if parent >= 0:
            reach[i] |= reach[parent]
    return torch.from_numpy(reach)


def chain(choices: Sequence[Choice], responses: Sequence[tuple[int, ...]], scores: Tensor) -> Tensor:
    """Log-prob of every token of every response given its list: log p(token | the tokens before it, the list).

    `scores` [options of all choices] are total log-probs / temperature. The options that go on like the response after t
    tokens hold the mass M_t (M_0: all of them, and what was left out); token t has log M_(t+1) - log M_t.
    """
    shapes = [(len(response) + 1, len(choice.options) + 1) for choice, response in zip(choices, responses, strict=True)]
    rows, columns = (max(sizes) for sizes in zip(*shapes, strict=True))
    alive = torch.zeros(len(choices), rows, columns, dtype=torch.bool)
    index = torch.full((len(choices), columns), len(scores), dtype=torch.long)
    others = torch.full((len(choices),), _NOTHING, dtype=scores.dtype)
    first = 0
    for n, (choice, response) in enumerate(zip(choices, responses, strict=True)):
        for c, option in enumerate(choice.options):
            alive[n, : common_prefix(option, response) + 1, c] = True
        index[n, : len(choice.options)] = torch.arange(first, first + len(choice.options))
        first += len(choice.options)
        if choice.others is not None:
            others[n] = choice.others
            alive[n, 0, -1] = True
    held = torch.cat([scores, scores.new_full((1,), _NOTHING)])[index.to(scores.device)]
    held = torch.cat([held[:, :-1], others.to(scores.device)[:, None]], 1)
    mass = torch.where(alive.to(scores.device), held[:, None, :], _NOTHING).logsumexp(-1)
    steps = mass.diff(dim=1)
    return torch.cat([steps[n, : len(response)] for n, response in enumerate(responses)])


def combine(row: Row, branches: Branches, logprobs_N: Tensor) -> Tensor:
    """Log-probs [targets] of the row from those of all that `branches` lists [free tokens + tokens of the options]."""
    if not row.choices:
        return logprobs_N
    plain = len(logprobs_N) - len(branches.owners)
    owners = torch.tensor(branches.owners, device=logprobs_N.device)
    totals = logprobs_N.new_zeros(branches.owners[-1] + 1).index_add(0, owners, logprobs_N[plain:])
    given = torch.cat([logprobs_N[:plain], chain(row.choices, branches.responses, totals / row.temperature)])
    return given[torch.tensor(branches.order, device=given.device).argsort()]

"""The verdict on a chain of drafts.

One rule serves all modes: take the target's token of each row in turn and go on while it equals the
draft. With temperature 0 that is greedy verification. In ``match`` the token is drawn: the draft is
accepted with the target's own probability of it, and because the draw is keyed on the position,
the tokens are those of plain decoding with the same seed. In ``rejection`` the draft was drawn too,
and the row's token is the draft where its test passes, else one of the residual law, which is never
the draft (``RowSampler.draw_against``); after a rejection nothing follows, after the last draft one
more token does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from selfdraft.runtime.uniform import PositionUniform

Rates = Sequence[float] | Callable[[int], Sequence[float]]
"""Acceptance of each draft given those before it; may depend on the step's absolute position."""


class Chain(NamedTuple):
    """Tokens that a step delivers, and how many of them were drafts."""

    tokens: list[int]
    num_accepted: int


class Agrees(Protocol):
    """Whether ``draft`` would have been accepted where ``token`` was drawn at ``position``."""

    def __call__(self, draft: int, token: int, position: int) -> bool: ...


class Verdict(Protocol):
    """Decides on one slot's drafts.

    ``draw(i)`` gives the target's token of row i, which follows the first i drafts; it is called
    in order, once for each token of the chain. So is ``ends``, which takes the token and says
    whether the reply ends with it. ``position`` is the absolute position of row 0's token.
    """

    def __call__(
        self,
        draw: Callable[[int], int],
        drafts: Sequence[int],
        *,
        position: int,
        ends: Callable[[int], bool],
    ) -> Chain: ...


def accept_while_equal(
    draw: Callable[[int], int],
    drafts: Sequence[int],
    *,
    position: int,
    ends: Callable[[int], bool],
) -> Chain:
    """The longest prefix of drafts that the target draws too, and its next token.

    Nothing follows a token that ends the reply, drafted or not.
    """
    tokens: list[int] = []
    for row, draft in enumerate(drafts):
        token = draw(row)
        tokens.append(token)
        if ends(token):
            return Chain(tokens, row + (token == draft))
        if token != draft:
            return Chain(tokens, row)
    tokens.append(draw(len(drafts)))
    ends(tokens[-1])
    return Chain(tokens, len(drafts))


class ForcedAcceptance:
    """Benchmark verdict: a seeded coin accepts draft i with ``rates[i]``, given those before it.

    ``rates`` may depend on the absolute position of a step's first token (texts that change). Both graphs
    and the draws run in full; the tokens mean nothing.
    """

    def __init__(self, rates: Rates, *, seed: int = 0) -> None:
        self._rates = rates if callable(rates) else lambda _position: rates
        self._coin = PositionUniform(seed)

    def __call__(
        self,
        draw: Callable[[int], int],
        drafts: Sequence[int],
        *,
        position: int,
        ends: Callable[[int], bool],
    ) -> Chain:
        num_accepted = 0
        for row, rate in enumerate(self._rates(position)[: len(drafts)]):
            if self._coin.at(position + row) >= rate:
                break
            num_accepted += 1
        drawn = [draw(row) for row in range(num_accepted + 1)]
        tokens = [*drafts[:num_accepted], drawn[-1]]
        for count, token in enumerate(tokens, start=1):
            if ends(token):
                return Chain(tokens[:count], min(num_accepted, count))
        return Chain(tokens, num_accepted)

    def agrees(self, draft: int, token: int, position: int) -> bool:
        """Whether the coin accepts a first draft at ``position``."""
        return self._coin.at(position) < self._rates(position)[0]


def same_token(draft: int, token: int, position: int) -> bool:
    """Whether a draft that was only compared would have been accepted: what ``accept_while_equal`` asks."""
    return draft == token


def verdict_for(forced: Rates | None) -> tuple[Verdict, Agrees]:
    """The verdict on drafts, and on drafts that are only compared; ``forced`` replaces both by a coin."""
    if forced is None:
        return accept_while_equal, same_token
    coin = ForcedAcceptance(forced)
    return coin, coin.agrees

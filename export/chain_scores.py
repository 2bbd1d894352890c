"""Acceptance of the drafts behind the first one, with each hidden state that may feed them.

A chain feeds the head its own hidden state, before or after its final norm; published heads differ and few
configs say which. Every place of the text starts a chain at once (``align.chain``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfdraft.export.align.chain import chain_step
from selfdraft.export.layerwise import (
    bare_head,
    embedding_of,
    empty_cache,
    fill_module,
    whole_step,
)
from selfdraft.export.modules import MtpHead
from selfdraft.export.text_scores import Passed, Text, drafted_tokens
from selfdraft.export.weight_reader import EmbeddingReader, WeightReader
from selfdraft.manifest import ModelSpec, Tap

CHAIN_DRAFTS = 3
"""Drafts of a chain; the first does not depend on what is recycled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCounts:
    """Drafts behind the first whose chain was right so far, and how many of them were accepted."""

    tried: int
    accepted: int

    @property
    def share(self) -> float:
        """Accepted by tried; 0 where none was tried."""
        return self.accepted / self.tried if self.tried else 0.0


def chain_acceptance(
    spec: ModelSpec,
    reader: WeightReader,
    embedding: EmbeddingReader,
    text: Text,
    passed: Passed,
    *,
    recycle: Tap,
) -> ChainCounts:
    """Second and third drafts of every place of ``text``, the head fed its ``recycle`` state.

    Draft d of row p is for position p + 1 + d, and counts where the drafts before it were the text's own
    tokens: there the chain is the one that decoding would have drafted, and the backbone's choice behind
    them is known.
    """
    mtp = spec.mtp
    assert mtp is not None
    spec = replace(spec, mtp=replace(mtp, recycle=recycle))
    tokens = torch.from_numpy(text.ids)
    right: Tensor | None = None
    tried = accepted = 0
    for depth, out in enumerate(_outputs(spec, reader, embedding, text, passed)):
        drafts = drafted_tokens(spec, reader, out)
        rows = drafts.shape[1]
        if right is not None:
            agreed = drafts == passed.choices[:, 1 + depth : 1 + depth + rows]
            kept = right[:, :rows]
            tried += int(kept.sum())
            accepted += int((kept & agreed).sum())
        # The last row has no token of the text to be compared with; later passes leave it out.
        same = drafts[:, :-1] == tokens[:, 2 + depth : 1 + depth + rows]
        right = same if right is None else right[:, : rows - 1] & same
    return ChainCounts(tried=tried, accepted=accepted)


@torch.no_grad()
def _outputs(
    spec: ModelSpec, reader: WeightReader, embedding: EmbeddingReader, text: Text, passed: Passed
) -> list[Tensor]:
    """Normed outputs ``[B, T - 1 - d, H]`` of draft d + 1 of every row."""
    assert spec.mtp is not None
    table, local = embedding_of(embedding, text.ids)
    head: MtpHead = bare_head(spec)
    fill_module(head, reader, "mtp.")
    batch, length = local.shape
    step, capacity = whole_step(batch, length - 1)
    hidden = passed.hidden.tap(spec.mtp.tap)[:, :-1]
    cache = empty_cache(spec, batch, capacity)
    z, states, _ = head.block(local[:, 1:], table, step, hidden, cache)
    outs = [head.normed(z)]
    for depth in range(1, min(CHAIN_DRAFTS, length - 2)):
        rows = length - 1 - depth
        fed = (outs[-1] if spec.mtp.recycle == "post_norm" else z)[:, :rows]
        step = chain_step(batch, rows, depth)
        z, states, _ = head.block(local[:, 1 + depth :], table, step, fed, states)
        outs.append(head.normed(z))
    return outs

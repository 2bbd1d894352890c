"""The sparse path of a bundle on its engine: does it read what the selection asks for?"""

from __future__ import annotations

import numpy as np

from selfdraft.cli.audit_rows import blocks_of_row, first_left_out, sparse_ops
from selfdraft.cli.text_passes import TextPasses
from selfdraft.manifest import BLOCK_TOKENS, Manifest
from selfdraft.runtime.attention_record import sparse_layers
from selfdraft.runtime.backend import Backend

ROWS = 3
"""Rows looked at, a block apart."""


def sparse_path(backend: Backend, manifest: Manifest) -> tuple[bool, str]:
    """Whether sparse rows behind the shortest context that leaves blocks out read as they must.

    Also the figures in words. The tokens are random: what is read does not depend on them.
    """
    if not sparse_layers(manifest):
        return True, "every layer is dense: there is no sparse path"
    ops = sparse_ops(manifest)
    limit = manifest.limits.context_length
    first = first_left_out(ops.values(), length=limit)
    if first is None:
        return True, f"the budget covers the context of {limit} tokens: nothing is left out"
    positions = [p for p in range(first, limit, BLOCK_TOKENS)][:ROWS]
    ids = np.random.default_rng(0).integers(0, manifest.model.vocab_size, positions[-1] + 1)
    passes = TextPasses(
        backend, length=len(ids), chunk_rows=min(manifest.limits.prefill_rows, len(ids))
    )
    read = wanted = in_use = 0
    same = True
    for position in positions:
        passes.fill(ids[passes.cached : position].tolist(), dense=True)
        found = passes.row(int(ids[position]), dense=False).blocks_read
        expected = tuple(blocks_of_row(op, position) for op in ops.values())
        same &= found == expected
        read, wanted = read + sum(found), wanted + sum(expected)
        in_use += len(ops) * (position // BLOCK_TOKENS + 1)
    where = f"{len(positions)} rows from position {first}"
    return same, f"{where}: {read} blocks read, {wanted} selected, {in_use} in use"

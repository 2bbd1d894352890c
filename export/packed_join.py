"""Packed linears of one rule as one packed matrix: query, key and value, or gate and up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfdraft.export.families.base import WeightRule
from selfdraft.export.int4 import BLOCKS
from selfdraft.export.packed import Codes, PackedLinear


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinForm:
    """How a rule's packed sources are stored together."""

    block: int
    has_zero: bool
    has_order: bool


def join_form(
    rule: WeightRule, packed: Mapping[str, PackedLinear], notes: list[str]
) -> JoinForm | None:
    """The form, or None where the rule is not packed or its sources do not share groups.

    A note tells of the latter: the matrix is then stored like any other, its values exact.
    """
    linears = [packed[name] for name in rule.sources if name in packed]
    if not linears:
        return None
    block = _block(linears[0].group)
    alike = len(linears) == len(rule.sources) and len({(x.group, x.order) for x in linears}) == 1
    if not alike or block is None or rule.layout != "matrix" or rule.shape[1] % 2:
        notes.append(
            f"{rule.target}: its packed parts differ in groups or act-order; they are unpacked"
        )
        return None
    return JoinForm(
        block=block,
        has_zero=any(linear.has_zero for linear in linears),
        has_order=linears[0].order is not None,
    )


def _block(group: int) -> int | None:
    """Inputs to a stored scale: the group, or a part of it that engines know."""
    return next((block for block in BLOCKS if group % block == 0), None)


def join_codes(
    rule: WeightRule, sources: Sequence[Codes], *, block: int, rows: NDArray[np.int64] | None
) -> Codes:
    """The sources side by side, outputs in the rule's order, scales repeated to ``block``."""
    parts = []
    for index, source in enumerate(sources):
        columns = _columns(rule, index, source.codes.shape[1], rows)
        repeat = len(source.codes) // len(source.scales) // block
        zeros = np.zeros(source.scales.shape, np.int8) if source.zeros is None else source.zeros
        parts.append(
            (
                source.codes[:, columns],
                np.repeat(source.scales[:, columns], repeat, axis=0),
                np.repeat(zeros[:, columns], repeat, axis=0),
            )
        )
    codes, scales, zeros = (np.concatenate(kind, axis=1) for kind in zip(*parts, strict=True))
    return Codes(
        codes=codes, scales=scales * np.float32(rule.factor), zeros=zeros, order=sources[0].order
    )


def _columns(
    rule: WeightRule, index: int, outputs: int, rows: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Outputs of a source in stored order."""
    if rows is not None:
        return rows
    order = rule.head_orders[index] if rule.head_orders else None
    columns = np.arange(outputs, dtype=np.int64)
    return columns if order is None else columns.reshape(-1, len(order))[:, list(order)].reshape(-1)

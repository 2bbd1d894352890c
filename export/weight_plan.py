"""The layout of a weight file, known from shapes alone before a byte is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from selfdraft.export.config import not_supported
from selfdraft.export.families.base import ModelPlan, WeightRule
from selfdraft.export.int4 import BLOCKS
from selfdraft.export.packed import PackedLinear
from selfdraft.export.packed_join import JoinForm, join_form
from selfdraft.export.safetensors_file import StoredTensor, lay_out
from selfdraft.manifest import MatrixType, ModelSpec, TableType
from selfdraft.trt_plugins.int4_matmul.contract import GROUP_SIZES, Int4MatMul

EMBEDDING = "embedding"
LM_HEAD = "lm_head.weight"
DRAFT_HEAD = "mtp.draft_head.weight"
DRAFT_IDS = "mtp.draft_ids"
GATES = ".gates.weight"
"""Write strength and decay of a gated delta net: a few columns, which errors add up in."""
HALF_TYPES = ("fp16", "bf16")
"""16-bit storage; on the CPU what is stored so is multiplied in fp32."""
INT8_BLOCK = 128
"""Inputs that share a scale in an int8 matrix, where they divide."""

Form = Literal["fp32", "fp16", "bf16", "int4", "int8", "packed"]
DTYPE_OF: dict[Form, str] = {"fp32": "F32", "fp16": "F16"}
Names = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightItem:
    """One rule and how it is stored."""

    rule: WeightRule
    form: Form = "fp32"
    """``packed``: 4-bit codes and scales of the checkpoint, as they came."""
    block: int | None = None
    """Inputs that share a scale; null where nothing is quantised."""
    strips: bool = False
    """4-bit codes lie as ``Int4MatMul`` reads them (docs/kernels.md)."""
    rows: NDArray[np.int64] | None = None
    """Rows of the source that are kept; null: all."""
    has_zero: bool = False
    has_order: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the plain target ``[in, out]`` or ``[n]``."""
        if self.rows is None:
            return self.rule.shape
        return (*self.rule.shape[:-1], len(self.rows))

    @property
    def matmul(self) -> Int4MatMul:
        """The operator that multiplies with the strips."""
        assert self.strips and self.block is not None
        inputs, outputs = self.shape
        return Int4MatMul(in_features=inputs, out_features=outputs, group_size=self.block)

    def stored(self) -> list[Names]:
        """Name, dtype and shape of the tensors it becomes."""
        name, shape = self.rule.target, self.shape
        if self.form in DTYPE_OF:
            return [(name, DTYPE_OF[self.form], shape)]
        if self.form == "bf16":
            return [(f"{name}.bf16", "U16", shape)]
        if self.rule.layout != "matrix":
            assert self.form == "int8", "only matrices have blocks"
            return [(f"{name}.int8", "I8", shape), (f"{name}.scale", "F32", shape[:1])]
        assert self.block is not None
        order: list[Names] = [(f"{name}.order", "I64", shape[:1])] if self.has_order else []
        if self.strips:
            op = self.matmul
            codes: Names = (f"{name}.strips", "I8", op.weight_shape)
            return [codes, (f"{name}.strip_scale", "F16", op.scale_shape), *order]
        groups = (shape[0] // self.block, shape[1])
        scale = (f"{name}.scale", "F32", groups)
        if self.form == "int8":
            return [(f"{name}.int8", "I8", shape), scale]
        names = [(f"{name}.int4", "U8", (shape[0] * shape[1] // 2,)), scale]
        if self.has_zero:
            names.append((f"{name}.zero", "U8", (groups[0] * groups[1] // 2,)))
        return names + order


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTypes:
    """Storage of each part; ``int4_block`` is asked for, and shrinks where it does not divide."""

    weights: MatrixType = "fp32"
    lm_head: MatrixType | None = None
    """Of LM head and draft head; None: as ``weights``."""
    mtp: MatrixType | None = None
    """Of the MTP head's projection and layer; None: as ``weights``."""
    draft_head: MatrixType | None = None
    """None: as ``lm_head``."""
    embedding: TableType | None = None
    """Of the embedding table; None: as ``plain``, or as 16-bit ``weights`` where the head is its own."""
    int4_block: int = 32
    plain: Literal["fp32", "fp16"] = "fp32"
    """Of activations, and of matrices that the checkpoint's 4-bit form does not cover."""
    strips: bool = False
    """int4 as ``Int4MatMul`` reads it, without zero points, in groups of at least 32."""

    def of(self, target: str) -> MatrixType:
        """Storage of one matrix."""
        if target == DRAFT_HEAD and self.draft_head is not None:
            return self.draft_head
        if target in (LM_HEAD, DRAFT_HEAD):
            return self.lm_head or self.weights
        if target.endswith(GATES) and self.weights not in HALF_TYPES:
            return self.plain
        return (self.mtp or self.weights) if target.startswith("mtp.") else self.weights

    def table(self, *, tied: bool) -> TableType:
        """Storage of the embedding. A tied head multiplies with it, which takes the plain type."""
        if self.embedding is not None:
            return self.embedding
        halves: tuple[TableType, ...] = ("fp16", "bf16")
        asked = next((form for form in halves if form == self.weights), None)
        return self.plain if asked is None or tied else asked

    def shares_table(self) -> bool:
        """Whether a tied LM head is the table itself, not a copy."""
        halved = self.lm_head is None and self.weights in HALF_TYPES
        head = self.plain if halved else self.of(LM_HEAD)
        return head == self.table(tied=True) == self.plain


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPlan:
    """A weight file before it is written: every offset is known."""

    spec: ModelSpec
    """The model as stored: draft vocabulary set, and a quantised head of its own where tied."""
    items: tuple[WeightItem, ...]
    draft_ids: NDArray[np.int64] | None
    int4_block: int | None
    header: bytes
    tensors: Mapping[str, StoredTensor]
    """Every tensor of the file, padding left out."""
    num_bytes: int
    notes: tuple[str, ...]
    plain: Literal["fp32", "fp16"] = "fp32"

    @property
    def quantised(self) -> bool:
        """Whether the export rounds any matrix; codes of the checkpoint itself stay exact."""
        return any(item.form in ("int4", "int8") for item in self.items)

    @property
    def table_type(self) -> TableType:
        """Storage of the embedding, whose plan this is."""
        known: tuple[TableType, ...] = ("fp32", "fp16", "bf16", "int8")
        return next(form for form in known if form == self.items[0].form)

    @property
    def backbone_type(self) -> Literal["fp32", "fp16", "bf16", "int4"]:
        """The narrowest storage among the backbone's matrices."""
        found = self.type_of("backbone.")
        assert found != "int8", "a backbone of 8 bits is no form of a bundle"
        return found

    def type_of(self, *prefixes: str) -> MatrixType:
        """The narrowest storage among the matrices whose target begins so; plain without any."""
        forms = {
            i.form
            for i in self.items
            if i.rule.layout == "matrix" and i.rule.target.startswith(prefixes)
        }
        if forms & {"int4", "packed"}:
            return "int4"
        narrow: tuple[MatrixType, ...] = ("int8", "bf16", "fp16")
        return next((form for form in narrow if form in forms), self.plain)


def plan_weights(
    plan: ModelPlan,
    *,
    types: WeightTypes,
    draft_ids: NDArray[np.int64] | None,
    packed: Mapping[str, PackedLinear] | None = None,
) -> WeightsPlan:
    """Layout of ``weights.safetensors``.

    ``packed``: linears of the checkpoint that stay 4-bit as they are, whatever ``types`` say. Raises
    ``ConfigError`` where int4 does not fit.
    """
    rules = [rule for rule in plan.rules if rule.target != EMBEDDING]
    spec, notes = plan.spec, []
    head = head_rule(plan)
    if spec.tied_head and not types.shares_table():
        rules.append(head)
        spec = dataclasses.replace(spec, tied_head=False)
        notes.append(
            f"the LM head is a copy of the embedding table, stored as {types.of(LM_HEAD)}; the table is "
            f"{types.table(tied=True)}"
        )
    if draft_ids is not None:
        assert spec.mtp is not None, "a draft vocabulary without an MTP head"
        mtp = dataclasses.replace(spec.mtp, draft_vocab_size=len(draft_ids))
        spec = dataclasses.replace(spec, mtp=mtp)
        rules.append(dataclasses.replace(head, target=DRAFT_HEAD))
    items, block = _items(rules, types, packed or {}, draft_ids, notes)
    names = [stored for item in items for stored in item.stored()]
    if draft_ids is not None:
        names.append((DRAFT_IDS, "I64", (len(draft_ids),)))
    laid_out = _laid_out(spec, items, names, draft_ids=draft_ids, block=block, notes=notes)
    return dataclasses.replace(laid_out, plain=types.plain)


def plan_embedding(plan: ModelPlan, *, form: TableType = "fp32") -> WeightsPlan:
    """Layout of ``embedding.safetensors``: the table alone, int8 with a scale for each token."""
    items = [WeightItem(rule=rule, form=form) for rule in plan.rules if rule.target == EMBEDDING]
    return _laid_out(plan.spec, items, items[0].stored(), draft_ids=None, block=None, notes=[])


def bytes_by_part(plans: Sequence[WeightsPlan]) -> dict[str, int]:
    """Bytes of embedding, backbone, lm_head, mtp and draft_head, padding left out."""
    parts: dict[str, int] = {}
    for plan in plans:
        for tensor in plan.tensors.values():
            part = "draft_head" if tensor.name.startswith("mtp.draft_") else tensor.name
            part = part.split(".")[0]
            parts[part] = parts.get(part, 0) + tensor.length
    return parts


def fit_int4_block(
    rules: Sequence[WeightRule], wanted: int, *, least: int = BLOCKS[-1]
) -> tuple[int, list[str]]:
    """The largest block up to ``wanted`` that divides the inputs of every matrix, and notes."""
    for block in (wanted, *(size for size in BLOCKS if least <= size < wanted)):
        misfit = [rule for rule in rules if rule.shape[0] % block]
        if not misfit:
            note = f"int4 block is {block}: {wanted} does not divide every matrix"
            return block, [note] if block != wanted else []
    raise not_supported(
        f"int4 of {misfit[0].sources[0]!r}, whose {misfit[0].shape[0]} inputs are no multiple of "
        f"{least},",
        hint="choose other weights: --weights fp32, or fp16 for a board",
    )


def _items(
    rules: Sequence[WeightRule],
    types: WeightTypes,
    packed: Mapping[str, PackedLinear],
    draft_ids: NDArray[np.int64] | None,
    notes: list[str],
) -> tuple[list[WeightItem], int | None]:
    """Every rule with its form, and the block of those that are quantised here."""
    joined = {rule.target: join_form(rule, packed, notes) for rule in rules}
    quantised = [r for r in rules if r.layout == "matrix" and joined[r.target] is None]
    int4 = [rule for rule in quantised if types.of(rule.target) == "int4"]
    block = None
    if int4:
        least = min(GROUP_SIZES) if types.strips else BLOCKS[-1]
        block, added = fit_int4_block(int4, types.int4_block, least=least)
        notes += added
    items = []
    for rule in rules:
        rows = draft_ids if rule.target == DRAFT_HEAD else None
        found = joined[rule.target]
        if found is not None:
            if types.strips:
                _check_strips(rule, found)
            items.append(
                WeightItem(
                    rule=rule,
                    form="packed",
                    block=found.block,
                    rows=rows,
                    has_zero=found.has_zero,
                    has_order=found.has_order,
                    strips=types.strips,
                )
            )
            continue
        form: Form = types.of(rule.target) if rule.layout == "matrix" else "fp32"
        width = {"int4": block, "int8": _int8_block(rule)}.get(form)
        strips = types.strips and form == "int4"
        items.append(WeightItem(rule=rule, form=form, block=width, rows=rows, strips=strips))
    blocks = [item.block for item in items if item.form == "packed" and item.block]
    return items, block or (max(blocks) if blocks else None)


def _check_strips(rule: WeightRule, found: JoinForm) -> None:
    """Refuse 4-bit codes of the checkpoint that ``Int4MatMul`` cannot multiply with."""
    what = f"{rule.sources[0]!r} with"
    if found.has_zero:
        raise not_supported(
            f"{what} zero points on Orin", hint="export the checkpoint that it was quantised from"
        )
    if found.block not in GROUP_SIZES:
        raise not_supported(
            f"{what} groups of {found.block} on Orin",
            hint="export the checkpoint that it was quantised from",
        )


def _int8_block(rule: WeightRule) -> int:
    inputs = rule.shape[0]
    return next((block for block in (INT8_BLOCK, *BLOCKS) if inputs % block == 0), inputs)


def _laid_out(
    spec: ModelSpec,
    items: list[WeightItem],
    names: list[Names],
    *,
    draft_ids: NDArray[np.int64] | None,
    block: int | None,
    notes: list[str],
) -> WeightsPlan:
    header, tensors = lay_out(names)
    wanted = {name for name, _, _ in names}
    return WeightsPlan(
        spec=spec,
        items=tuple(items),
        draft_ids=draft_ids,
        int4_block=block,
        header=header,
        tensors={tensor.name: tensor for tensor in tensors if tensor.name in wanted},
        num_bytes=tensors[-1].offset + tensors[-1].length,
        notes=tuple(notes),
    )


def head_rule(plan: ModelPlan) -> WeightRule:
    """The rule of the LM head; for a tied one, made from the embedding table."""
    for rule in plan.rules:
        if rule.target == LM_HEAD:
            return rule
    table = next(rule for rule in plan.rules if rule.target == EMBEDDING)
    return dataclasses.replace(table, target=LM_HEAD, layout="matrix")

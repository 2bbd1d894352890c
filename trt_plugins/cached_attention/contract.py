"""Contract of ``selfdraft::CachedAttention`` as data: attributes, names and their order.

The op appends k and v at ``past_len`` and attends. Every body (oracle, ONNX function, kernels)
takes its names, order and attributes from here. What the attributes mean: docs/attention.md.
Letters: docs/shapes.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from selfdraft.errors import ConfigError
from selfdraft.manifest import BLOCK_TOKENS, MAX_STEP_ROWS

OP_NAME = "CachedAttention"
OP_DOMAIN = "selfdraft"
OP_VERSION = 1

Selector = Literal["all", "window", "mean_std", "min_max", "infllm_v2"]
KvDtype = Literal["fp32", "fp16", "int8"]

BUDGET_PARTS = 65_536
"""A budget share is held in this many parts, so that every body computes it in integers."""

SUMMARY_VECTORS: dict[Selector, int] = {
    "all": 0,
    "window": 0,
    "mean_std": 2,  # mean, standard deviation
    "min_max": 2,  # centre, half width
    "infllm_v2": 5,  # four window means C1, one C2
}
"""Vectors of ``head_dim`` that a selector keeps for each block and kv head."""

DEFAULT_SPREAD: dict[Selector, float] = {"mean_std": 5.0, "min_max": 1.0}
"""Spread of the selectors that have one, unless an export says otherwise (docs/attention.md)."""

INPUTS = (
    "q",  # [B, n, Hq d]
    "k",  # [B, n, Hkv d]
    "v",  # [B, n, Hkv d]
    "k_cache",  # [B, Hkv, S, d]
    "v_cache",  # [B, Hkv, S, d]
    "k_scale",  # [B, Hkv, S] fp16; int8 caches only
    "v_scale",  # [B, Hkv, S] fp16; int8 caches only
    "summary",  # [B, Hkv, S / block, summary_vectors, d]; selectors that score only
    "past_len",  # [B] int64
    "row_count",  # [B] int64
    "attend_all",  # [B] int64
)
"""Every input in order; the ones an attribute set does not use are absent (empty names)."""

BLOCKS_READ = "blocks_read"
"""Output ``[1]`` int64 of selectors other than ``all``: blocks that the step read for each slot
and kv head, the largest of all. The blocks in use mean that nothing was left out."""

OUTPUTS = (
    "y",
    "k_cache_out",
    "v_cache_out",
    "k_scale_out",
    "v_scale_out",
    "summary_out",
    BLOCKS_READ,
)
"""``y [B, n, Hq d]``, the updated states in the order of their inputs, then the counter."""

STATES = ("k_cache", "v_cache", "k_scale", "v_scale", "summary")
_SCALES = frozenset({"k_scale", "v_scale"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAttention:
    """Attributes of one node. Raises ``ConfigError`` for values that no body implements."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Factor on q·k, usually ``1 / sqrt(head_dim)``."""
    block: int = BLOCK_TOKENS
    """Tokens of one block."""
    sinks: int = 1
    """Blocks at the start that every row sees."""
    local_blocks: int = 2
    """Blocks of the local window, the row's own included."""
    budget_tokens: int = 4096
    """Tokens a row may see, sinks and local window included; these are seen in any case."""
    budget_share: float = 0.0
    """The budget is at least this share of the row's context, in [0, 1)."""
    spread: float = 1.0
    """Weight of the spread against the centre; ``mean_std`` and ``min_max`` only."""
    selector: Selector = "all"
    sliding_window: int = 0
    """Tokens a row sees, itself included, besides those of the sink blocks; 0: all of them."""
    kv_dtype: KvDtype = "fp32"

    def __post_init__(self) -> None:
        _check_heads(self)
        _check_selection(self)

    @property
    def group(self) -> int:
        """Query heads of one key/value head (G)."""
        return self.num_heads // self.num_kv_heads

    @property
    def summary_vectors(self) -> int:
        """Vectors of ``head_dim`` kept for each block and kv head: 0, 2 or 5."""
        return SUMMARY_VECTORS[self.selector]

    @property
    def budget_parts(self) -> int:
        """``budget_share`` in parts of ``BUDGET_PARTS``."""
        return round(self.budget_share * BUDGET_PARTS)

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states this node keeps, in order."""
        unused = _unused_states(self)
        return tuple(name for name in STATES if name not in unused)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs this node uses, in order."""
        unused = _unused_states(self)
        return tuple(name for name in INPUTS if name not in unused)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs this node has, in order."""
        unused = {f"{name}_out" for name in _unused_states(self)}
        if self.selector == "all":
            unused.add(BLOCKS_READ)
        return tuple(name for name in OUTPUTS if name not in unused)

    def onnx_attributes(self) -> dict[str, int | float | str]:
        """The attributes by the names that ONNX nodes and plugin fields carry."""
        return {
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "scale": self.scale,
            "block": self.block,
            "sinks": self.sinks,
            "local_blocks": self.local_blocks,
            "budget_tokens": self.budget_tokens,
            "budget_share": self.budget_share,
            "spread": self.spread,
            "selector": self.selector,
            "sliding_window": self.sliding_window,
            "kv_dtype": self.kv_dtype,
        }


def _unused_states(op: CachedAttention) -> frozenset[str]:
    unused = frozenset() if op.kv_dtype == "int8" else _SCALES
    return unused if op.summary_vectors else unused | {"summary"}


def _check_heads(op: CachedAttention) -> None:
    for name in ("num_heads", "num_kv_heads", "head_dim"):
        _require(getattr(op, name) >= 1, name, getattr(op, name), "at least 1")
    _require(
        op.num_heads % op.num_kv_heads == 0,
        "num_heads",
        op.num_heads,
        f"a multiple of num_kv_heads {op.num_kv_heads}",
    )
    _require(math.isfinite(op.scale) and op.scale > 0, "scale", op.scale, "finite and above 0")
    _require(op.block == BLOCK_TOKENS, "block", op.block, f"{BLOCK_TOKENS}")
    _require(op.kv_dtype in get_args(KvDtype), "kv_dtype", op.kv_dtype, f"{get_args(KvDtype)}")


def _check_selection(op: CachedAttention) -> None:
    known = get_args(Selector)
    _require(op.selector in known, "selector", op.selector, f"one of {', '.join(known)}")
    for name in ("sinks", "budget_tokens", "sliding_window"):
        _require(getattr(op, name) >= 0, name, getattr(op, name), "at least 0")
    _require(0 <= op.budget_share < 1, "budget_share", op.budget_share, "in [0, 1)")
    _require(
        math.isfinite(op.spread) and op.spread >= 0, "spread", op.spread, "finite and at least 0"
    )
    local = _least_local_blocks(op)
    _require(
        op.local_blocks >= local,
        "local_blocks",
        op.local_blocks,
        f"at least {local} with selector {op.selector}",
    )
    if op.selector == "infllm_v2" and op.sliding_window:
        raise ConfigError(
            f"CachedAttention.sliding_window {op.sliding_window} contradicts selector infllm_v2, "
            "whose windows of keys reach over the whole context",
            hint="set sliding_window to 0, or choose selector mean_std",
        )


def _least_local_blocks(op: CachedAttention) -> int:
    """A block's keys must be final, and its windows complete, before it can be selected."""
    rows_in_blocks = -(-MAX_STEP_ROWS // op.block)
    windows_reach = 1 if op.selector == "infllm_v2" else 0
    return rows_in_blocks + windows_reach


def _require(holds: bool, name: str, found: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(
            f"CachedAttention.{name} is {found!r}, must be {wanted}",
            hint="correct the attribute, or export the bundle again",
        )

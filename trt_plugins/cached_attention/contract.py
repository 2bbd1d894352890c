"""Contract of ``selfdraft::CachedAttention`` as data: attributes, names and their order.

The op appends k and v at ``past_len`` and attends. Every body (oracle, ONNX function, kernels)
takes its names, order and attributes from here. Letters: docs/shapes.md.
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

Selector = Literal["all", "mean_std", "min_max", "infllm_v2"]
KvDtype = Literal["fp32", "fp16", "int8"]

INPUTS = (
    "q",  # [B, n, Hq d]
    "k",  # [B, n, Hkv d]
    "v",  # [B, n, Hkv d]
    "k_cache",  # [B, Hkv, S, d]
    "v_cache",  # [B, Hkv, S, d]
    "k_scale",  # int8 caches only
    "v_scale",  # int8 caches only
    "summary",  # selectors other than `all` only
    "past_len",  # [B] int64
    "row_count",  # [B] int64
    "attend_all",  # [B] int64
)
"""Every input in order; the ones an attribute set does not use are absent (empty names)."""

OUTPUTS = ("y", "k_cache_out", "v_cache_out", "k_scale_out", "v_scale_out", "summary_out")
"""``y [B, n, Hq d]``, then the updated states in the order of their inputs."""

STATES = ("k_cache", "v_cache", "k_scale", "v_scale", "summary")
_SCALES = frozenset({"k_scale", "v_scale"})
_IMPLEMENTED_SELECTORS = ("all",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAttention:
    """Attributes of one node. Raises ``ConfigError`` for values no body implements."""

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
    """Tokens that the selector may choose."""
    selector: Selector = "all"
    sliding_window: int = 0
    """Tokens a row sees, itself included; 0: all of them."""
    kv_dtype: KvDtype = "fp32"

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_kv_heads", "head_dim"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        _require(
            self.num_heads % self.num_kv_heads == 0,
            "num_heads",
            self.num_heads,
            f"a multiple of num_kv_heads {self.num_kv_heads}",
        )
        _require(
            math.isfinite(self.scale) and self.scale > 0, "scale", self.scale, "finite and above 0"
        )
        _require(self.block == BLOCK_TOKENS, "block", self.block, f"{BLOCK_TOKENS}")
        _require(self.sinks >= 0, "sinks", self.sinks, "at least 0")
        # A spoiled summary must be recomputed before its block can be selected.
        rows_in_blocks = -(-MAX_STEP_ROWS // self.block)
        _require(
            self.local_blocks >= rows_in_blocks,
            "local_blocks",
            self.local_blocks,
            f"at least {rows_in_blocks}",
        )
        _require(self.budget_tokens >= 0, "budget_tokens", self.budget_tokens, "at least 0")
        _require(self.sliding_window >= 0, "sliding_window", self.sliding_window, "at least 0")
        _require(
            self.kv_dtype in get_args(KvDtype), "kv_dtype", self.kv_dtype, f"{get_args(KvDtype)}"
        )
        _check_selector(self.selector)

    @property
    def group(self) -> int:
        """Query heads of one key/value head (G)."""
        return self.num_heads // self.num_kv_heads

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs this node uses, in order."""
        unused = _unused_states(self)
        return tuple(name for name in INPUTS if name not in unused)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs this node has, in order."""
        unused = {f"{name}_out" for name in _unused_states(self)}
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
            "selector": self.selector,
            "sliding_window": self.sliding_window,
            "kv_dtype": self.kv_dtype,
        }


def _unused_states(op: CachedAttention) -> frozenset[str]:
    unused = frozenset() if op.kv_dtype == "int8" else _SCALES
    return unused | {"summary"} if op.selector == "all" else unused


def _check_selector(selector: str) -> None:
    if selector in _IMPLEMENTED_SELECTORS:
        return
    known = selector in get_args(Selector)
    raise ConfigError(
        f"selector {selector!r} is not implemented in this version"
        if known
        else f"selector {selector!r} is unknown; the contract has {', '.join(get_args(Selector))}",
        hint=f"use one of: {', '.join(_IMPLEMENTED_SELECTORS)}",
    )


def _require(holds: bool, name: str, found: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(
            f"CachedAttention.{name} is {found!r}, must be {wanted}",
            hint="correct the attribute, or export the bundle again",
        )

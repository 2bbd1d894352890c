"""Contract of ``selfdraft::GatedDeltaRule`` as data: attributes, names and their order.

The op runs a causal convolution and the gated delta rule over the rows of a step. Its state can be
taken back by the rows of that step: docs/gated_delta.md. Every body takes names, order and
attributes from here. Letters: docs/shapes.md; C: channels of q, k and v together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError
from selfdraft.recurrent import LOG_ROWS

OP_NAME = "GatedDeltaRule"
OP_DOMAIN = "selfdraft"
OP_VERSION = 1

RowDtype = Literal["fp32", "fp16"]
"""Storage of ``x`` and of the log of it, ``conv_rows``. Everything else is fp32 with either."""
ROW_TYPES: dict[RowDtype, str] = {"fp32": "float32", "fp16": "float16"}
"""NumPy's names of them."""

L2_EPS = 1e-6
"""Added to the squared norm of queries and keys."""

INPUTS = (
    "x",  # [B, n, C] q, k, v before the convolution, row_dtype
    "beta",  # [B, n, Hv] write strength, in (0, 1)
    "log_decay",  # [B, n, Hv] at most 0
    "conv_weight",  # [C, taps]
    "recurrent",  # [B, Hv, dk, dv] fp32
    "conv_rows",  # [B, taps - 1 + LOG_ROWS, C] row_dtype
    "gate_rows",  # [B, LOG_ROWS, 2 Hv] beta, log_decay
    "past_len",  # [B] int64
    "row_count",  # [B] int64
    "replay_rows",  # [B] int64: rows of the log before past_len
)
STATES = ("recurrent", "conv_rows", "gate_rows")
OUTPUTS = ("y", *(f"{name}_out" for name in STATES))
"""``y [B, n, Hv dv]`` fp32, then the updated states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaRule:
    """Attributes of one node. Raises ``ConfigError`` for values that no body implements."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    """Inputs that the convolution of a channel sees."""
    row_dtype: RowDtype = "fp32"
    """The kernels of a board know fp16 alone."""

    def __post_init__(self) -> None:
        if self.row_dtype not in get_args(RowDtype):
            raise ConfigError(
                f"GatedDeltaRule.row_dtype is {self.row_dtype!r}, must be one of "
                f"{list(get_args(RowDtype))}",
                hint="correct the attribute, or export the bundle again",
            )
        for name, value in self._sizes().items():
            least = 2 if name == "taps" else 1
            if value < least:
                raise ConfigError(
                    f"GatedDeltaRule.{name} is {value}, must be at least {least}",
                    hint="correct the attribute, or export the bundle again",
                )
        if self.num_value_heads % self.num_key_heads:
            raise ConfigError(
                f"GatedDeltaRule.num_value_heads is {self.num_value_heads}, must be a multiple of "
                f"num_key_heads {self.num_key_heads}",
                hint="correct the attribute, or export the bundle again",
            )

    @property
    def group(self) -> int:
        """Value heads of one key head (G)."""
        return self.num_value_heads // self.num_key_heads

    @property
    def key_size(self) -> int:
        """Channels of q, and of k."""
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Channels of v, and of y."""
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution (C)."""
        return 2 * self.key_size + self.value_size

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each state of one slot, in order."""
        return {
            "recurrent": (self.num_value_heads, self.key_dim, self.value_dim),
            "conv_rows": (self.taps - 1 + LOG_ROWS, self.channels),
            "gate_rows": (LOG_ROWS, 2 * self.num_value_heads),
        }

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states, in order."""
        return STATES

    @property
    def state_types(self) -> dict[str, str]:
        """NumPy's name of each state's storage, in order."""
        return {
            "recurrent": "float32",
            "conv_rows": ROW_TYPES[self.row_dtype],
            "gate_rows": "float32",
        }

    def onnx_attributes(self) -> dict[str, int | str]:
        """The attributes by the names that ONNX nodes carry."""
        return {**self._sizes(), "row_dtype": self.row_dtype}

    def _sizes(self) -> dict[str, int]:
        return {
            "num_key_heads": self.num_key_heads,
            "num_value_heads": self.num_value_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "taps": self.taps,
        }


def empty_states(
    op: GatedDeltaRule, *, batch: int, fp32_as: type[np.floating[Any]] = np.float32
) -> dict[str, NDArray[Any]]:
    """Zeroed states of one layer; ``fp32_as``: what stands for fp32 in them."""
    types = {name: fp32_as if t == "float32" else t for name, t in op.state_types.items()}
    return {
        name: np.zeros((batch, *shape), dtype=types[name])
        for name, shape in op.state_shapes.items()
    }

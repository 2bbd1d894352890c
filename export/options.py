"""What an export is asked for, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from selfdraft.errors import ConfigError
from selfdraft.export.attention_options import AttentionOptions
from selfdraft.export.config import not_supported
from selfdraft.export.int4 import BLOCKS
from selfdraft.export.weight_plan import WeightTypes
from selfdraft.manifest import Manifest, MatrixType
from selfdraft.strict import closest_hint

TARGETS = ("cpu",)
LATER_TARGETS = ("orin-jp6", "orin-jp7")
MATRIX_TYPES = ("fp32", "int4", "int8")
TYPES = {"weights": ("fp32", "int4"), "lm_head": MATRIX_TYPES, "mtp_weights": MATRIX_TYPES}
DEFAULT_INT4_BLOCK = 32
MIN_CONTEXT = 2
MAX_CANDIDATES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of one export. Raises ``ConfigError`` naming a value that cannot be."""

    target: Literal["cpu"] = "cpu"
    weights: Literal["fp32", "int4"] | None = None
    """Matrices of the backbone; None: fp32, and 4-bit ones of the checkpoint stay as they are."""
    lm_head: MatrixType | None = None
    """LM head and draft head; None: as ``weights``."""
    mtp_weights: MatrixType | None = None
    """Projection and layer of the MTP head; None: as ``weights``."""
    int4_block: int | None = None
    """Inputs that share a scale: 16, 32, 64 or 128; None: 32, or less where a matrix asks."""
    context: int | None = None
    """Tokens of prompt and reply; None: what the config allows, at most 32,768."""
    draft_vocab: int | None = None
    """Tokens that the MTP head drafts from; None: all, with the LM head."""
    draft_vocab_text: Path | None = None
    """Text whose most frequent tokens are chosen; None: the lowest ids."""
    candidates: int = 64
    """Sorted candidates of each logit row, at most the vocabulary."""
    prefill_rows: int = 256
    """Default rows of one prefill chunk."""
    exact_rows: bool | None = None
    """Only kernels that round one row like several; None: yes, but for int4 without an MTP head,
    where nothing is speculated."""
    attention: AttentionOptions = field(default_factory=AttentionOptions)
    """Dense or sparse attention, and the storage of the KV cache."""
    calibrate: Path | None = None
    """Text on which the tap is chosen and the cost of quantising is measured."""
    activation_aware: bool = False
    """Scale and search int4 weights by the activations of that text."""
    overwrite: bool = False
    """Replace a bundle that is already there."""
    name: str | None = None
    """Name of the model; None: the checkpoint's folder or repository name."""

    def __post_init__(self) -> None:
        if self.target in LATER_TARGETS:
            raise not_supported(f"target {self.target!r}", hint="export with --target cpu")
        _one_of("target", self.target, TARGETS)
        for key, known in TYPES.items():
            if getattr(self, key) is not None:
                _one_of(key, getattr(self, key), known)
        if self.int4_block is not None:
            if "int4" not in self._all_types:
                raise ConfigError(
                    f"int4_block {self.int4_block} has no meaning without int4 weights",
                    hint="add --weights int4, or leave the block out",
                )
            if self.int4_block not in BLOCKS:
                raise ConfigError(
                    f"int4_block {self.int4_block} is none of {sorted(BLOCKS)}", hint="choose 32"
                )
        _within("context", self.context, MIN_CONTEXT, None)
        _within("draft_vocab", self.draft_vocab, 1, None)
        _within("candidates", self.candidates, 1, MAX_CANDIDATES)
        _within("prefill_rows", self.prefill_rows, 1, None)
        if self.activation_aware and (self.calibrate is None or "int4" not in self._all_types):
            raise ConfigError(
                "activation_aware needs int4 weights and a calibration text",
                hint="add --weights int4 --calibrate TEXT",
            )
        if self.draft_vocab_text is not None and self.draft_vocab is None:
            raise ConfigError(
                f"draft_vocab_text {self.draft_vocab_text} is given without draft_vocab",
                hint="say how many tokens to keep: --draft-vocab 8192",
            )

    @property
    def _all_types(self) -> tuple[MatrixType | None, ...]:
        return self.weights, self.lm_head, self.mtp_weights

    @property
    def types(self) -> WeightTypes:
        """Storage by part."""
        return WeightTypes(
            weights=self.weights or "fp32",
            lm_head=self.lm_head,
            mtp=self.mtp_weights,
            int4_block=self.int4_block or DEFAULT_INT4_BLOCK,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export made and what it took."""

    output: Path
    manifest: Manifest
    seconds: float
    peak_rss_bytes: int
    """Largest resident size of this process so far."""
    bytes_by_part: dict[str, int]
    """Stored bytes of embedding, backbone, lm_head, mtp, draft_head (those that exist)."""

    read_bytes: int
    """Tensors of the checkpoint."""
    weight_seconds: float
    """Time that reading, converting and writing them took."""

    @property
    def read_gb_per_s(self) -> float:
        """10^9 bytes of the checkpoint converted in a second."""
        return self.read_bytes / 1e9 / self.weight_seconds

    @property
    def mtp_bytes(self) -> int:
        """Bytes that the MTP head adds, draft head included."""
        return self.bytes_by_part.get("mtp", 0) + self.bytes_by_part.get("draft_head", 0)

    @property
    def mtp_share(self) -> float:
        """``mtp_bytes`` as a part of all stored weights, 0 to 1."""
        return self.mtp_bytes / sum(self.bytes_by_part.values())


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(
            f"{key} {value!r} is unknown{closest_hint(value, known)}",
            hint=f"known: {', '.join(known)}",
        )


def _within(key: str, value: int | None, lowest: int, highest: int | None) -> None:
    if value is None:
        return
    if value < lowest or (highest is not None and value > highest):
        upper = f" to {highest}" if highest is not None else " or more"
        raise ConfigError(f"{key} is {value}", hint=f"choose {lowest}{upper}")

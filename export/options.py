"""What an export is asked for, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from selfdraft.errors import ConfigError
from selfdraft.export.attention_options import AttentionOptions
from selfdraft.export.targets import TARGETS, Target
from selfdraft.export.weight_plan import WeightTypes
from selfdraft.manifest import Manifest, MatrixType, TableType, TargetName
from selfdraft.strict import closest_hint
from selfdraft.trt_plugins.cached_attention.contract import KvDtype

MATRICES = ("weights", "lm_head", "mtp_weights")
MIN_CONTEXT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of one export. Raises ``ConfigError`` naming a value that cannot be."""

    target: TargetName = "cpu"
    weights: Literal["fp32", "fp16", "bf16", "int4"] | None = None
    """Matrices of the backbone; None: fp32 (Orin: fp16), 4-bit ones of the checkpoint as they are."""
    lm_head: MatrixType | None = None
    """LM head and draft head; None: as ``weights``."""
    mtp_weights: MatrixType | None = None
    """Projection and layer of the MTP head; None: as ``weights``."""
    embedding: TableType | None = None
    """The embedding table; None: 16 bits with 16-bit weights and a head of its own, else plain."""
    int4_block: int | None = None
    """Inputs that share a scale: 16 (not on Orin), 32, 64 or 128; None: 32, on Orin 128, or less
    where a matrix asks."""
    context: int | None = None
    """Tokens of prompt and reply; None: what the config allows, at most 32,768."""
    draft_vocab: int | None = None
    """Tokens that the MTP head drafts from; None: all, with the LM head (Orin: 8,192 or all, with a
    head of its own)."""
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
        _one_of("target", self.target, tuple(TARGETS))
        self._check_types()
        if self.int4_block is not None:
            if "int4" not in self._all_types:
                raise ConfigError(
                    f"int4_block {self.int4_block} has no meaning without int4 weights",
                    hint="add --weights int4, or leave the block out",
                )
            blocks = self.engine.int4_blocks
            if self.int4_block not in blocks:
                raise ConfigError(
                    f"int4_block {self.int4_block} is none of {sorted(blocks)}",
                    hint=f"choose {blocks[0]}",
                )
        _within("context", self.context, MIN_CONTEXT, None)
        _within("draft_vocab", self.draft_vocab, 1, None)
        _within("candidates", self.candidates, 1, self.engine.max_candidates)
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

    def _check_types(self) -> None:
        engine = self.engine
        for key in MATRICES:
            value = getattr(self, key)
            # A backbone of 8 bits is no form of a bundle.
            known = [t for t in engine.matrix_types if key != "weights" or t != "int8"]
            if value is not None:
                _one_of(key, value, tuple(known), of=f" with target {self.target!r}")
        if self.embedding is not None:
            _one_of(
                "embedding", self.embedding, engine.table_types, of=f" with target {self.target!r}"
            )
        if self.attention.kv is not None:
            _one_of("kv", self.attention.kv, engine.kv_types, of=f" with target {self.target!r}")

    @property
    def engine(self) -> Target:
        """What the target's graphs may hold."""
        return TARGETS[self.target]

    @property
    def kv(self) -> KvDtype:
        """Storage of the KV cache."""
        return self.attention.kv or self.engine.kv_types[0]

    @property
    def _all_types(self) -> tuple[MatrixType | None, ...]:
        return self.weights, self.lm_head, self.mtp_weights

    @property
    def types(self) -> WeightTypes:
        """Storage by part."""
        return types_of(
            self.engine,
            weights=self.weights,
            lm_head=self.lm_head,
            mtp=self.mtp_weights,
            embedding=self.embedding,
            int4_block=self.int4_block,
        )


def types_of(
    engine: Target,
    *,
    weights: MatrixType | None,
    lm_head: MatrixType | None,
    mtp: MatrixType | None,
    embedding: TableType | None,
    int4_block: int | None,
) -> WeightTypes:
    """Storage by part on one target; None: its default."""
    return WeightTypes(
        weights=weights or engine.plain,
        lm_head=lm_head,
        mtp=mtp,
        draft_head="int4" if engine.draft_vocab else None,
        embedding=embedding,
        int4_block=int4_block or engine.int4_default,
        plain=engine.plain,
        strips=engine.has_plugins,
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


def _one_of(key: str, value: str, known: tuple[str, ...], *, of: str = "") -> None:
    if value not in known:
        raise ConfigError(
            f"{key} {value!r} is unknown{of}{closest_hint(value, known)}",
            hint=f"known: {', '.join(known)}",
        )


def _within(key: str, value: int | None, lowest: int, highest: int | None) -> None:
    if value is None:
        return
    if value < lowest or (highest is not None and value > highest):
        upper = f" to {highest}" if highest is not None else " or more"
        raise ConfigError(f"{key} is {value}", hint=f"choose {lowest}{upper}")

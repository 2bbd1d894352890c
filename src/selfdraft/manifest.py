"""The manifest: what a bundle holds, for every part that reads or writes one.

A bundle is described in docs/bundle.md. The records here are the schema: unknown keys and
wrong types are refused, and ``SCHEMA_VERSION`` changes whenever their meaning does.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from selfdraft.baseline import Baseline
from selfdraft.errors import BundleError
from selfdraft.measured import Measured
from selfdraft.recurrent import DeltaSpec
from selfdraft.strict import StrictError, record_from_json

SCHEMA_VERSION = 4
MANIFEST_NAME = "manifest.json"
BLOCK_TOKENS = 64
MAX_STEP_ROWS = 65
"""Rows that one decode step may append (up to 64 drafts and the token before them)."""
DEFAULT_CONTEXT = 32_768
"""Tokens of prompt and reply that an export plans for at most, unless asked."""
RESERVE_SLOTS = MAX_STEP_ROWS + 1
"""Cache slots kept behind the context: drafts that may be rejected, and one scratch slot."""

GraphName = Literal["backbone", "mtp"]
StateKind = Literal["kv", "summary", "recurrent", "conv"]
Tap = Literal["pre_norm", "post_norm"]
Concat = Literal["hidden_first", "embedding_first"]
Selector = Literal["all", "window", "mean_std", "min_max", "infllm_v2"]
MatrixType = Literal["fp32", "fp16", "bf16", "int4", "int8"]
TableType = Literal["fp32", "fp16", "bf16", "int8"]
TargetName = Literal["cpu", "orin-jp6", "orin-jp7"]
Dim = int | str
"""A size, or a symbol: ``batch``, ``rows``, ``logit_rows``, ``capacity``, ``blocks`` (capacity / 64)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding, rotate-half form: angle of pair i at position p is ``p * inv_freq[i]``."""

    inv_freq: tuple[float, ...]
    """``head_dim / 2`` frequencies in radians a token, any context scaling already applied; 0: the
    pair is not rotated."""
    scale: float = 1.0
    """Factor on cos and sin (attention factor of YaRN-like scalings)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpSpec:
    """Wiring of the MTP head (docs/architecture.md, MTP wiring)."""

    concat: Concat
    tap: Tap
    """Which backbone hidden state the head reads: before or after the final norm."""
    recycle: Tap = "post_norm"
    """Which of the head's own hidden states feeds its next draft."""
    norm: Literal["plain", "offset"] = "plain"
    """How the checkpoint stores its norms: as w, or as w - 1; the bundle always holds w."""
    position: Literal["same", "next"] = "same"
    """Position of the row that pairs h_p with token p+1: p, or p + 1."""
    mask_first_embedding: bool = False
    """Zero the embedding of the row at position 0, as some engines do."""
    draft_vocab_size: int | None = None
    """Rows of the trimmed draft head; null: the head drafts over the whole vocabulary."""


_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Geometry of a dense decoder with grouped-query attention, and of its MTP head."""

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    qkv_bias: bool
    qk_norm: bool
    """RMSNorm over head_dim on queries and keys, before the rotary embedding (Qwen3)."""
    tied_head: bool
    """The LM head is the embedding table, transposed."""
    rope: RopeSpec
    mtp: MtpSpec | None
    sandwich_norm: bool = False
    """RMSNorm on what attention and MLP give too, before it is added (GLM-4)."""
    attention_gate: bool = False
    """The query projection makes a gate beside each head; attention's output is multiplied with its
    sigmoid (Qwen3.5)."""
    delta: DeltaSpec | None = None
    """Null: every layer attends."""

    def __post_init__(self) -> None:
        for name in _SIZES:
            if not 1 <= getattr(self, name) < 2**31:
                raise ValueError(f"{name} is {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if len(self.rope.inv_freq) * 2 != self.head_dim:
            raise ValueError(
                f"rope has {len(self.rope.inv_freq)} frequencies, head_dim {self.head_dim}"
            )
        if self.delta is not None:
            layers = self.delta.layers
            if list(layers) != sorted(set(layers)) or not set(layers) < set(range(self.num_layers)):
                raise ValueError(f"delta.layers is {list(layers)} of {self.num_layers} layers")

    def is_delta(self, layer: int) -> bool:
        """Whether a backbone layer keeps a recurrent state instead of a KV cache."""
        return self.delta is not None and layer in self.delta.layers

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Backbone layers that keep a KV cache."""
        return tuple(layer for layer in range(self.num_layers) if not self.is_delta(layer))

    @property
    def query_size(self) -> int:
        """Columns that the query projection makes, its gates included."""
        return self.num_heads * self.head_dim * (2 if self.attention_gate else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """What one layer attends to (docs/attention.md). The defaults are dense attention."""

    selector: Selector = "all"
    sinks: int = 1
    local_blocks: int = 2
    budget_tokens: int = 4096
    budget_share: float = 0.0
    spread: float = 1.0
    sliding_window: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Attention of every layer."""

    layers: tuple[AttentionSpec, ...]
    mtp: AttentionSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """An input or output of a graph."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """A tensor that lives between steps: what a pass gives as ``output``, the next takes as ``input``."""

    name: str
    kind: StateKind
    dtype: str
    shape: tuple[Dim, ...]
    input: str
    output: str
    aliased: bool
    """The graph updates it in place: bind one buffer to both names. Else the output needs one of its
    own, copied into the state behind the pass."""

    def sizes(self, *, batch: int, capacity: int) -> tuple[int, ...]:
        """The shape for ``batch`` slots of ``capacity`` cache slots."""
        symbols = {"batch": batch, "capacity": capacity, "blocks": capacity // BLOCK_TOKENS}
        return tuple(symbols[dim] if isinstance(dim, str) else dim for dim in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginNode:
    """A node that only a plugin library runs: an engine must list a layer of this name for it."""

    name: str
    """Of the node, and of the engine's layer."""
    op: str
    """Plugin name: ``CachedAttention``, ``GatedDeltaRule`` or ``Int4MatMul``."""
    version: str
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSpec:
    """One ONNX graph. ``taps`` names its hidden outputs, ``states`` what it keeps."""

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    taps: tuple[str, ...]
    states: tuple[StateSpec, ...]
    plugin_nodes: tuple[PluginNode, ...] = ()
    """On Orin targets every custom operator, in graph order; none on the ``cpu`` target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the bundle can do at most."""

    context_length: int
    """Tokens of prompt and reply together."""
    candidates: int
    """Sorted candidates that each logit row returns (C)."""
    prefill_rows: int
    """Default rows of one prefill chunk."""

    def __post_init__(self) -> None:
        for name, least in (("context_length", 2), ("candidates", 1), ("prefill_rows", 1)):
            if not least <= getattr(self, name) < 2**31:
                raise ValueError(f"{name} is {getattr(self, name)}, expected {least} or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Storage of each part; an int8 embedding has a scale for each token."""

    weights: Literal["fp32", "fp16", "bf16", "int4"]
    """Matrices of the backbone."""
    int4_block: int | None
    activations: Literal["fp32", "fp16"]
    kv: Literal["fp32", "fp16", "int8"]
    exact_rows: bool = True
    """No kernel rounds one row otherwise than several (docs/architecture.md, Exact)."""
    lm_head: MatrixType = "fp32"
    """LM head and draft head; a tied fp32 head is the embedding."""
    mtp: MatrixType = "fp32"
    """Projection and layer of the MTP head."""
    embedding: TableType = "fp32"

    @property
    def quantised(self) -> bool:
        """Whether any matrix is stored in few bits (on the CPU: multiplied with int8 arithmetic)."""
        return not {self.weights, self.lm_head, self.mtp} <= {"fp32", "fp16", "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec:
    """Files and ids that turn text into tokens and back."""

    tokenizer: str
    chat_template: str | None
    eos_ids: tuple[int, ...]
    bos_id: int | None
    think_start_id: int | None = None
    think_end_id: int | None = None
    banner: str | None = None
    """What the model can talk about, shown by chat."""
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Generation defaults that the checkpoint asks for; null where it says nothing."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """Where the weights came from."""

    name: str
    architecture: str
    license: str | None
    model_card: str | None
    config_sha256: str
    ignored_tensors: dict[str, str]
    """Tensors of the checkpoint that the bundle leaves out, with the reason."""
    revision: str | None = None
    """Commit of the snapshot in a hub cache; null for any other folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpec:
    """Size in bytes and SHA-256 of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything a runtime must know before it opens another file of the bundle."""

    schema_version: int
    selfdraft_version: str
    target: TargetName
    model: ModelSpec
    graphs: dict[str, GraphSpec]
    """Keys: ``backbone``, and ``mtp`` where the checkpoint has a head."""
    precision: Precision
    limits: Limits
    text: TextSpec
    sampling: SamplingDefaults
    source: SourceSpec
    files: dict[str, FileSpec]
    attention: AttentionPlan | None = None
    """Null: every layer is dense."""
    weights_file: str = "weights.safetensors"
    embedding_file: str = "embedding.safetensors"
    notes: tuple[str, ...] = field(default=())
    measured: Measured | None = None
    baseline: Baseline | None = None
    """Acceptance of the bundle itself, which alerts compare with; null where none was measured."""

    def __post_init__(self) -> None:
        planned = len(self.attention.layers) if self.attention else self.model.num_layers
        if planned != self.model.num_layers:
            raise ValueError(
                f"attention plans {planned} layers, the model has {self.model.num_layers}"
            )
        for token_id in self.text.eos_ids:
            if not 0 <= token_id < self.model.vocab_size:
                raise ValueError(
                    f"text.eos_ids has {token_id}, the model {self.model.vocab_size} tokens"
                )

    @property
    def has_mtp(self) -> bool:
        """Whether the bundle can draft for itself."""
        return self.model.mtp is not None


def capacity_for(context_length: int) -> int:
    """Cache slots a sequence of ``context_length`` tokens needs, in whole blocks."""
    slots = context_length + RESERVE_SLOTS
    return -(-slots // BLOCK_TOKENS) * BLOCK_TOKENS


def manifest_to_json(manifest: Manifest) -> str:
    """The manifest as indented JSON text."""
    return json.dumps(dataclasses.asdict(manifest), indent=1, ensure_ascii=False) + "\n"


def _no_bundle(path: Path) -> BundleError:
    if (path / "config.json").is_file():
        return BundleError(
            f"{path} is not a bundle but a checkpoint",
            hint=f"export it first: selfdraft export {path} -o BUNDLE",
        )
    if path.is_file():
        return BundleError(
            f"{path} is a file, not the folder of a bundle", hint=f"give a folder, as {path.parent}"
        )
    what = f"{MANIFEST_NAME} is missing" if path.exists() else "there is no such folder"
    return BundleError(
        f"{path} is not a bundle: {what}",
        hint="make one with: selfdraft export CHECKPOINT -o BUNDLE",
    )


def require_bundle(path: Path) -> None:
    """Raise ``BundleError`` where ``path`` is no bundle at all, before anything else is asked for."""
    if not (path / MANIFEST_NAME).is_file():
        raise _no_bundle(path)


def load_manifest(bundle: Path) -> Manifest:
    """Read and check ``bundle/manifest.json``.

    Raises ``BundleError`` when the folder is no bundle, the schema is another one, a key is
    unknown or missing, or a value has the wrong type. Hashes are checked by
    ``selfdraft.runtime.bundle``.
    """
    path = bundle / MANIFEST_NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise _no_bundle(bundle) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(
            f"{path} cannot be read: {error}", hint="export the bundle again"
        ) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        raise BundleError(
            f"{path} has schema version {version!r}, this selfdraft reads {SCHEMA_VERSION}",
            hint="update selfdraft" if newer else "export the bundle again with this selfdraft",
        )
    try:
        return record_from_json(Manifest, data, where="manifest")
    except StrictError as error:
        raise BundleError(f"{path}: {error}", hint="export the bundle again") from None

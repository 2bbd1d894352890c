"""``reference`` backend: both graphs in NumPy fp64, the oracle of every other backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import BundleError, ConfigError
from selfdraft.manifest import Manifest, ModelSpec
from selfdraft.recurrent import STATE_LEN, state_length
from selfdraft.runtime.backend import (
    BackboneOutput,
    DeviceTensor,
    FloatArray,
    IntArray,
    MtpOutput,
    Step,
)
from selfdraft.runtime.bundle import open_bundle
from selfdraft.runtime.candidates import top_candidates
from selfdraft.runtime.embedding import table_values
from selfdraft.runtime.numpy_layers import (
    Array,
    DecoderLayer,
    DeltaLayer,
    LayerStep,
    rms_norm,
    rotation,
)
from selfdraft.runtime.slot_cache import used_part, write_parts
from selfdraft.runtime.weights import DRAFT_IDS, checked_weights, load_tensors
from selfdraft.trt_plugins.cached_attention.from_manifest import mtp_op
from selfdraft.trt_plugins.cached_attention.states import STATE_DIMS, LayerStates
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.gated_delta_rule.from_manifest import LayerOp, backbone_ops


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceStates:
    """States of every backbone layer, and of the MTP layer where there is one."""

    batch: int
    capacity: int
    backbone: tuple[LayerStates, ...]
    mtp: LayerStates | None
    state_len: IntArray | None
    """``[B, 1]`` tokens inside the recurrent states of a hybrid model."""

    @property
    def num_bytes(self) -> int:
        layers = [*self.backbone, *([self.mtp] if self.mtp else [])]
        size = sum(array.nbytes for states in layers for array in states.values())
        return size + (0 if self.state_len is None else self.state_len.nbytes)


class ReferenceBackend:
    """Runs a bundle's graphs from its weights alone, in fp64.

    ``weights`` by the names of docs/architecture.md (int4 pairs are unpacked), ``embedding
    [V, H]``. Raises ``BundleError`` for missing, misshaped or unknown tensors.
    """

    def __init__(
        self,
        manifest: Manifest,
        weights: Mapping[str, NDArray[Any]],
        embedding: NDArray[Any],
    ) -> None:
        model = manifest.model
        if embedding.shape != (model.vocab_size, model.hidden_size):
            raise BundleError(
                f"embedding has shape {list(embedding.shape)}, the manifest asks for "
                f"{[model.vocab_size, model.hidden_size]}",
                hint="export the bundle again with: selfdraft export CHECKPOINT -o BUNDLE",
            )
        self._manifest = manifest
        self._embedding = embedding.astype(np.float64)
        self._weights = checked_weights(model, weights)
        self._head = self._embedding.T if model.tied_head else self._weights["lm_head.weight"]
        kv_dtype = manifest.precision.kv
        ops = backbone_ops(model, manifest.attention, kv_dtype=kv_dtype)
        self._layers = [
            _layer(model, op, self._weights, prefix=f"backbone.layers.{index}")
            for index, op in enumerate(ops)
        ]
        self._mtp_layer = None
        if model.mtp:
            op = mtp_op(model, manifest.attention, kv_dtype=kv_dtype)
            self._mtp_layer = DecoderLayer(model, op, self._weights, prefix="mtp.layer")

    @classmethod
    def from_bundle(cls, path: Path, *, check_hashes: bool = True) -> ReferenceBackend:
        """The backend of the bundle at ``path``. Raises ``BundleError`` when it is damaged."""
        bundle = open_bundle(path, check_hashes=check_hashes)
        embedding = table_values(bundle.path, bundle.manifest)
        weights = load_tensors(bundle.file(bundle.manifest.weights_file))
        return cls(bundle.manifest, weights, embedding)

    @property
    def name(self) -> str:
        return "reference"

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    def allocate(self, *, batch: int, capacity: int) -> ReferenceStates:
        """Zeroed states; fp32 caches are held as fp64."""
        sizes = {"batch": batch, "capacity": capacity}
        hybrid = self._manifest.model.delta is not None
        return ReferenceStates(
            batch=batch,
            capacity=capacity,
            backbone=tuple(layer.empty_states(**sizes) for layer in self._layers),
            mtp=self._mtp_layer.empty_states(**sizes) if self._mtp_layer else None,
            state_len=np.zeros((batch, 1), dtype=np.int64) if hybrid else None,
        )

    def narrow(self, states: ReferenceStates, *, first: int, count: int) -> ReferenceStates:
        """Views of the states of slots ``first`` to ``first + count``."""

        def part(layer: LayerStates) -> LayerStates:
            return {name: array[first : first + count] for name, array in layer.items()}

        return ReferenceStates(
            batch=count,
            capacity=states.capacity,
            backbone=tuple(part(layer) for layer in states.backbone),
            mtp=part(states.mtp) if states.mtp else None,
            state_len=None if states.state_len is None else states.state_len[first : first + count],
        )

    def run_backbone(
        self, states: ReferenceStates, step: Step, input_ids: IntArray
    ) -> BackboneOutput:
        """One pass over ``input_ids [B, n]``."""
        model = self._manifest.model
        rotary = rotation(model, step.past_len, input_ids.shape[1])
        replay = None if states.state_len is None else _advance(states.state_len, step)
        layer_step = LayerStep(step=step, rotary=rotary, replay_rows=replay)
        x: Array = self._embedding[input_ids]  # [B, n, H]
        for layer, own in zip(self._layers, states.backbone, strict=True):
            x = layer(x, own, layer_step)
        normed = rms_norm(x, self._weights["backbone.norm"], model.rms_norm_eps)
        logits = _rows(normed, step.row_index) @ self._head  # [B, m, V]
        top_values, top_ids = top_candidates(logits, self._manifest.limits.candidates)
        tap = model.mtp.tap if model.mtp else "post_norm"
        return BackboneOutput(
            hidden=x if tap == "pre_norm" else normed,
            logits=logits,
            top_values=top_values,
            top_ids=top_ids,
            blocks_read=self._blocks_read(),
        )

    def run_mtp(
        self,
        states: ReferenceStates,
        step: Step,
        input_ids: IntArray | DeviceTensor,
        hidden: DeviceTensor,
    ) -> MtpOutput:
        """One pass over rows ``(hidden[b, i], input_ids[b, i])``."""
        mtp = self._manifest.model.mtp
        if mtp is None or self._mtp_layer is None or states.mtp is None:
            raise ConfigError("this bundle has no MTP head", hint="decode with drafts=0")
        offset = int(mtp.position == "next")
        rotary = rotation(self._manifest.model, step.past_len + offset, input_ids.shape[1])
        joined = self._mtp_input(step.past_len, input_ids, hidden)
        z = self._mtp_layer(joined, states.mtp, LayerStep(step=step, rotary=rotary))
        z = _rows(z, step.row_index)  # [B, m, H]
        normed = self._norm(z, "mtp.final_norm")
        top_values, top_ids = self._draft_candidates(normed)
        return MtpOutput(
            hidden=z if mtp.recycle == "pre_norm" else normed,
            draft_ids=top_ids[..., 0],
            top_values=top_values,
            top_ids=top_ids,
        )

    def read_rows(self, logits: DeviceTensor, rows: list[tuple[int, int]]) -> FloatArray:
        """Logit rows ``(slot, index in row_index)`` as ``[len(rows), V]``."""
        slots, indices = zip(*rows, strict=True)
        return np.asarray(logits[list(slots), list(indices)])

    def read_entries(self, logits: DeviceTensor, row: tuple[int, int], ids: IntArray) -> FloatArray:
        """Logits ``[len(ids)]`` of single tokens of row ``(slot, index in row_index)``."""
        return np.asarray(logits[row][ids])

    def to_host(self, tensor: DeviceTensor) -> NDArray[Any]:
        """The array itself: it is on the host already."""
        return np.asarray(tensor)

    def export_states(
        self, states: ReferenceStates, *, slot: int, lengths: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        """Views of one slot's states by name, cut to ``lengths`` (tokens, by graph)."""
        layers = [("backbone", index, own) for index, own in enumerate(states.backbone)]
        layers += [("mtp", 0, states.mtp)] if states.mtp else []
        parts = {
            f"{graph}.{name}_{index}": used_part(
                array, STATE_DIMS.get(name, ("batch",)), slot=slot, length=lengths[graph]
            )
            for graph, index, own in layers
            for name, array in own.items()
        }
        if states.state_len is not None:
            parts[STATE_LEN] = states.state_len[slot]
        return parts

    def import_states(
        self,
        states: ReferenceStates,
        *,
        slot: int,
        lengths: Mapping[str, int],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        """Put back what ``export_states`` gave for the same lengths."""
        parts = self.export_states(states, slot=slot, lengths=lengths)
        write_parts(parts, arrays)

    def _blocks_read(self) -> IntArray | None:
        read = [layer.blocks_read for layer in self._layers if layer.blocks_read is not None]
        return np.array(read) if read else None

    def _mtp_input(self, past_len: IntArray, input_ids: IntArray, hidden: Array) -> Array:
        mtp = self._manifest.model.mtp
        assert mtp is not None
        embedding = self._embedding[input_ids]  # [B, n, H]
        if mtp.mask_first_embedding:
            embedding[past_len == 0, 0] = 0.0
        parts = [self._norm(hidden, "mtp.hidden_norm"), self._norm(embedding, "mtp.embedding_norm")]
        if mtp.concat == "embedding_first":
            parts.reverse()
        return np.asarray(np.concatenate(parts, axis=-1) @ self._weights["mtp.proj.weight"])

    def _draft_candidates(self, normed: Array) -> tuple[FloatArray, IntArray]:
        ids: IntArray | None = self._weights.get(DRAFT_IDS)
        head = self._head if ids is None else self._weights["mtp.draft_head.weight"]
        values, ranks = top_candidates(normed @ head, self._manifest.limits.candidates)
        # Draft ids ascend, so ties stay in ascending id order.
        return values, ranks if ids is None else ids[ranks]

    def _norm(self, x: Array, name: str) -> Array:
        return rms_norm(x, self._weights[name], self._manifest.model.rms_norm_eps)


def _layer(
    model: ModelSpec, op: LayerOp, weights: Mapping[str, NDArray[Any]], *, prefix: str
) -> DecoderLayer | DeltaLayer:
    if isinstance(op, GatedDeltaRule):
        return DeltaLayer(model, op, weights, prefix=prefix)
    return DecoderLayer(model, op, weights, prefix=prefix)


def _advance(state_len: IntArray, step: Step) -> IntArray:
    """Rows to replay ``[B]``; ``state_len [B, 1]`` moves on to what it is after the step."""
    replay = np.where(step.past_len > 0, step.past_len - state_len[:, 0], 0)
    for slot in np.flatnonzero(step.row_count).tolist():
        state_len[slot] = state_length(int(step.past_len[slot]), int(step.row_count[slot]))
    return np.asarray(replay)


def _rows(x: Array, row_index: IntArray) -> Array:
    """Rows ``row_index [B, m]`` of ``x [B, n, H]``: ``[B, m, H]``."""
    return x[np.arange(len(x))[:, None], row_index]

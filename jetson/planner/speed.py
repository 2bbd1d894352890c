"""Time of a step from bytes and arithmetic, for given clocks and efficiencies.

A decode step reads every weight and the visible KV cache once, so its time is bytes by bandwidth,
plus what each layer costs however small it is. Sources and errors: docs/planner.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfdraft.jetson.planner.geometry import Geometry
from selfdraft.jetson.planner.reading import Attention, read_bytes
from selfdraft.jetson.planner.storage import FLOAT_BYTES, Storage
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention

if TYPE_CHECKING:
    from selfdraft.jetson.modules import Module, PowerMode

REFERENCE_GPU_MHZ = 1300.5
"""Clock at which ``layer_us`` is stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """What a power mode leaves of a module."""

    bandwidth_gb_s: float
    gpu_mhz: float
    num_sms: int
    fp16_tflops: float
    """Dense, with fp32 or fp16 accumulation alike."""


def clocks_of(module: Module, mode: PowerMode) -> Clocks:
    """The clocks of a mode as the module table has them."""
    return Clocks(
        bandwidth_gb_s=module.bandwidth_gb_s(emc_mhz=mode.emc_mhz),
        gpu_mhz=mode.gpu_mhz,
        num_sms=2 * mode.num_tpcs,
        fp16_tflops=module.fp16_tflops(gpu_mhz=mode.gpu_mhz, num_tpcs=mode.num_tpcs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """The model's few parameters; ``calibration.fitted`` gives the ones in use."""

    bandwidth: float
    """Share of the peak memory bandwidth that long reads reach."""
    layer_us: float
    """Microseconds that a layer takes beside its reads, at ``REFERENCE_GPU_MHZ``."""
    sm_bytes_per_clock: float
    """Bytes that one SM takes in a clock at most: the bound at low GPU clocks."""
    tensor: float
    """Share of the peak fp16 rate in prefill."""
    framework: float = 1.0
    """Factor on the whole step; 1 is TensorRT Edge-LLM."""

    def gb_per_s(self, clocks: Clocks) -> float:
        """Bandwidth that a step reaches, in 1e9 bytes a second."""
        by_memory = self.bandwidth * clocks.bandwidth_gb_s
        return min(by_memory, self.sm_bytes_per_clock * clocks.num_sms * clocks.gpu_mhz / 1e3)

    def layers_ms(self, num_layers: int, clocks: Clocks) -> float:
        """Time of ``num_layers`` layers beside their reads."""
        return num_layers * self.layer_us * REFERENCE_GPU_MHZ / clocks.gpu_mhz / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as it runs: sizes, storage, and what its layers attend to."""

    geometry: Geometry
    storage: Storage
    attention: Attention


def backbone_bytes(model: Model, *, length: int, rows: int = 1, batch: int = 1) -> int:
    """Bytes that one pass of the backbone reads: weights and LM head once, and the states of
    ``batch`` sequences of ``length`` cached tokens, each with ``rows`` rows."""
    geometry, storage = model.geometry, model.storage
    # Whether the engines of the published figures quantise the gates is not known: as other matrices.
    weights = storage.layer_bytes((*geometry.backbone(), *geometry.gates()))
    weights += geometry.backbone_vectors() * FLOAT_BYTES[storage.vectors]
    head = storage.matrix_bytes(geometry.head, storage.head)
    # A recurrent state is read and written back.
    state = 2 * geometry.linear.state_bytes if geometry.linear else 0
    cache = _cache_bytes(model, model.attention.layers, length, rows)
    return weights + head + batch * (state + cache)


def draft_bytes(model: Model, *, length: int) -> int:
    """Bytes that one pass of the MTP head reads, with the head that it drafts from."""
    geometry, storage = model.geometry, model.storage
    head = storage.draft_bytes(geometry)
    cache = _cache_bytes(model, model.attention.mtp, length, 1)
    return storage.mtp_bytes(geometry.mtp_matrices()) + head + cache


def _cache_bytes(model: Model, ops: Sequence[CachedAttention], length: int, rows: int) -> int:
    return read_bytes(ops, length=length, rows=rows)


def step_ms(
    model: Model,
    clocks: Clocks,
    efficiencies: Efficiencies,
    *,
    length: int,
    rows: int = 1,
    batch: int = 1,
) -> float:
    """Time of one pass of the backbone over ``rows`` tokens of each of ``batch`` sequences."""
    reads = backbone_bytes(model, length=length, rows=rows, batch=batch)
    reading = reads / 1e6 / efficiencies.gb_per_s(clocks)
    weights = model.geometry.backbone_parameters() + model.geometry.head.size
    computing = 2 * weights * rows * batch / 1e9 / (efficiencies.tensor * clocks.fp16_tflops)
    overhead = efficiencies.layers_ms(model.geometry.num_layers, clocks)
    return (max(reading, computing) + overhead) * efficiencies.framework


def draft_ms(model: Model, clocks: Clocks, efficiencies: Efficiencies, *, length: int) -> float:
    """Time of one draft."""
    reading = draft_bytes(model, length=length) / 1e6 / efficiencies.gb_per_s(clocks)
    return (reading + efficiencies.layers_ms(1, clocks)) * efficiencies.framework


def speculative_ms(
    model: Model, clocks: Clocks, efficiencies: Efficiencies, *, length: int, drafts: int
) -> float:
    """Time of a step with ``drafts`` drafts: verifying them with the token before, and drafting."""
    verify = step_ms(model, clocks, efficiencies, length=length, rows=drafts + 1)
    return verify + drafts * draft_ms(model, clocks, efficiencies, length=length)


def prefill_ms(
    model: Model, clocks: Clocks, efficiencies: Efficiencies, *, length: int, chunk: int
) -> float:
    """Time to compute a prompt of ``length`` tokens, ``chunk`` at a time.

    Products and causal attention run at the tensor cores' share; a chunk takes at least as long
    as reading the weights.
    """
    geometry = model.geometry
    rate = efficiencies.tensor * clocks.fp16_tflops
    total, done = 0.0, 0
    weights_ms = backbone_bytes(model, length=0) / 1e6 / efficiencies.gb_per_s(clocks)
    while done < length:
        rows = min(chunk, length - done)
        seen = done + (rows + 1) / 2
        attention = 4 * geometry.num_attention_layers * geometry.num_heads * geometry.head_dim
        products = 2 * geometry.backbone_parameters() * rows + attention * seen * rows
        computing = products / 1e9 / rate
        total += max(computing, weights_ms)
        total += efficiencies.layers_ms(geometry.num_layers, clocks)
        done += rows
    return total * efficiencies.framework


def tokens_per_step(acceptance: tuple[float, ...], drafts: int) -> float:
    """Tokens that a step delivers: one, and each draft whose predecessors were accepted too.

    ``acceptance`` holds the rate of each position given the ones before; the last is repeated.
    """
    expected, kept = 1.0, 1.0
    for position in range(drafts):
        kept *= acceptance[min(position, len(acceptance) - 1)]
        expected += kept
    return expected

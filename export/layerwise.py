"""A model run over a text layer by layer: memory holds one layer, whatever the model's size.

The layers are the torch modules of ``export.modules``; weights come from a ``WeightReader``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selfdraft.export.attention_op import StepTensors
from selfdraft.export.layer_parts import Matrix, rms_norm
from selfdraft.export.modules import MtpHead, Rotary, layer_module
from selfdraft.export.weight_reader import EmbeddingReader, WeightReader
from selfdraft.manifest import ModelSpec, Tap
from selfdraft.trt_plugins.cached_attention.from_manifest import mtp_op
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.gated_delta_rule.from_manifest import LayerOp, backbone_ops

OnInput = Callable[[str, Tensor], None]
"""Called with the name of a matrix and what it multiplies ``[..., in]``."""
OnLayer = Callable[[int, int], None]
Ids = NDArray[np.int64]
MAX_LOGITS = 2**26
"""Logits that are held at a time (256 MiB)."""
ROWS_AT_ONCE = 4096
"""Rows that go through a layer together, in whole sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Hidden states of every row ``[B, T, H]``, by tap."""

    pre_norm: Tensor
    post_norm: Tensor

    def tap(self, name: Tap) -> Tensor:
        """The hidden state that a head with this tap reads."""
        return self.pre_norm if name == "pre_norm" else self.post_norm


def run_backbone(
    spec: ModelSpec,
    reader: WeightReader,
    embedding: EmbeddingReader,
    ids: Ids,
    *,
    on_input: OnInput | None = None,
    on_layer: OnLayer | None = None,
) -> Hidden:
    """Every layer over sequences ``ids [B, T]``, attending densely."""
    x = run_layers(spec, reader, embedding, ids, on_input=on_input, on_layer=on_layer)
    norm = torch.from_numpy(reader.tensor("backbone.norm"))
    return Hidden(pre_norm=x, post_norm=rms_norm(x, norm, spec.rms_norm_eps))


def run_layers(
    spec: ModelSpec,
    reader: WeightReader,
    embedding: EmbeddingReader,
    ids: Ids,
    *,
    device: str = "cpu",
    on_input: OnInput | None = None,
    on_layer: OnLayer | None = None,
) -> Tensor:
    """Hidden states before the final norm ``[B, T, H]``, on the CPU.

    Memory: this tensor, one layer, and what ``ROWS_AT_ONCE`` rows need inside it; layer and rows in
    work are on ``device``.
    """
    table, local = embedding_of(embedding, ids)
    x = nn.functional.embedding(local, table)
    at_once = max(1, ROWS_AT_ONCE // ids.shape[1])
    for index, op in enumerate(backbone_ops(spec, None)):
        layer = layer_module(spec, op)
        fill_module(layer, reader, f"backbone.layers.{index}.", on_input)
        layer = layer.to(device)
        for first in range(0, len(ids), at_once):
            part = slice(first, first + at_once)
            with torch.no_grad(), torch.device(device):
                step, capacity = whole_step(*ids[part].shape)
                angles = Rotary(spec).to(device)(step.past_len, ids.shape[1])
                state = empty_state(op, len(ids[part]), capacity)
                x[part] = layer(x[part].to(device), angles, step, state)[0].cpu()
        if on_layer:
            on_layer(index + 1, spec.num_layers)
    return x


def run_mtp(
    spec: ModelSpec,
    reader: WeightReader,
    embedding: EmbeddingReader,
    ids: Ids,
    hidden: Tensor,
    *,
    on_input: OnInput | None = None,
) -> Tensor:
    """Normed output ``[B, T - 1, H]`` of the head: row p pairs ``hidden[p]`` with token p + 1."""
    assert spec.mtp is not None
    following = ids[:, 1:]
    table, local = embedding_of(embedding, following)
    head = bare_head(spec)
    fill_module(head, reader, "mtp.", on_input)
    step, capacity = whole_step(*following.shape)
    cache = empty_cache(spec, len(ids), capacity)
    with torch.no_grad():
        return head.normed(head.block(local, table, step, hidden[:, :-1], cache)[0])


def bare_head(spec: ModelSpec) -> MtpHead:
    """The head without a draft head: for ``block`` and ``normed`` alone."""
    assert spec.mtp is not None
    wiring = replace(spec.mtp, draft_vocab_size=None)
    return MtpHead(replace(spec, mtp=wiring, tied_head=True), mtp_op(spec, None), candidates=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Greedy token and log-probability of a given one, of each row ``[N]``."""

    choices: Tensor
    log_probabilities: Tensor


def best_tokens(
    reader: WeightReader, name: str, rows: Tensor, targets: Tensor | None = None
) -> Best:
    """What head ``name`` says of ``rows [N, H]``; without ``targets [N]`` of its choices.

    Logits are held for a part of the rows at a time; the head is read anew for each part.
    """
    choices, chances = [], []
    count, first = _rows_at_once(reader, name, len(rows)), 0
    while first < len(rows):
        part = slice(first, first + count)
        logits: Tensor | None = None
        for inputs, piece in reader.rows(name):
            product = rows[part, inputs] @ torch.from_numpy(piece)
            logits = product if logits is None else logits.add_(product)
        assert logits is not None
        best = logits.max(-1)
        asked = best.indices if targets is None else targets[part]
        value = logits.gather(1, asked.unsqueeze(1)).squeeze(1)
        choices.append(best.indices)
        chances.append(value - torch.logsumexp(logits, dim=-1))
        first += count
    return Best(choices=torch.cat(choices), log_probabilities=torch.cat(chances))


def _rows_at_once(reader: WeightReader, name: str, rows: int) -> int:
    columns: int = next(iter(reader.rows(name)))[1].shape[1]
    return max(1, min(rows, MAX_LOGITS // columns))


def fill_module(
    module: nn.Module, reader: WeightReader, prefix: str, on_input: OnInput | None = None
) -> None:
    """Copy weights by the module's parameter names behind ``prefix``."""
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(reader.tensor(prefix + key)))
    if on_input is not None:
        for key, matrix in _matrices(module):
            matrix.register_forward_pre_hook(_Told(on_input, f"{prefix}{key}.weight"))


def _matrices(module: nn.Module) -> Iterator[tuple[str, Matrix]]:
    for key, part in module.named_modules():
        if isinstance(part, Matrix):
            yield key, part


class _Told:
    """A hook that hands a matrix's input on under its stored name."""

    def __init__(self, on_input: OnInput, name: str) -> None:
        self._on_input, self._name = on_input, name

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._on_input(self._name, inputs[0])


def embedding_of(embedding: EmbeddingReader, ids: Ids) -> tuple[Tensor, Tensor]:
    """Embedding rows of the tokens that occur, and the ids renumbered to them."""
    used, local = np.unique(ids, return_inverse=True)
    return torch.from_numpy(embedding.embedding_rows(used)), torch.from_numpy(
        local.reshape(ids.shape)
    )


def whole_step(batch: int, rows: int) -> tuple[StepTensors, int]:
    """A step over whole sequences, and the cache slots that it needs."""
    ones = torch.ones(batch, dtype=torch.int64)
    step = StepTensors(ones * 0, ones * rows, ones)
    step.replay_rows = ones * 0
    return step, rows


def empty_state(op: LayerOp, batch: int, capacity: int) -> list[Tensor]:
    """Zeroed states of one layer."""
    if isinstance(op, GatedDeltaRule):
        return [torch.zeros(batch, *shape) for shape in op.state_shapes.values()]
    shape = (batch, op.num_kv_heads, capacity, op.head_dim)
    return [torch.zeros(shape), torch.zeros(shape)]


def empty_cache(spec: ModelSpec, batch: int, capacity: int) -> list[Tensor]:
    """Keys and values of one layer that attends."""
    return empty_state(mtp_op(spec, None), batch, capacity)

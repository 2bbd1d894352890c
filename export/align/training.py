"""The training loop: the head alone learns; hidden states of the backbone are given."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfdraft.export.align.chain import chain_step
from selfdraft.export.align.loss import IGNORED, backward, loss_by_parts
from selfdraft.export.layer_parts import rms_norm
from selfdraft.export.layerwise import Ids, bare_head, empty_cache, fill_module, whole_step
from selfdraft.export.modules import MtpHead
from selfdraft.export.weight_plan import LM_HEAD
from selfdraft.export.weight_reader import CheckpointReader
from selfdraft.manifest import ModelSpec

WARM_UP_STEPS = 20
CONSTANT_SHARE = 0.4
"""Of the steps, before the rate falls along a cosine to ``LAST_RATE`` of its peak."""
LAST_RATE = 0.05
LARGEST_GRADIENT = 1.0
LATER_WEIGHT = 1 / 3
"""Loss of each later draft of a chain against that of the first."""
LATER_PART = 2
"""Every how manieth sequence of a batch trains later drafts too."""
Weights = dict[str, Tensor]
"""By bundle name, on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How the head is trained."""

    steps: int
    batch_tokens: int
    learning_rate: float
    distillation: float
    drafts: int
    """Drafts of a chain that are trained."""
    seed: int
    device: str


class HeadTrainer:
    """Trains one head on ``hidden [N, T, H]`` (before the final norm) of sequences ``ids [N, T]``.

    Memory on the device: the head three times (weights, gradients, momentum), the LM head, and the
    rows of one batch.
    """

    def __init__(
        self,
        spec: ModelSpec,
        reader: CheckpointReader,
        ids: Ids,
        hidden: Tensor,
        options: TrainingOptions,
    ) -> None:
        self._spec, self._ids, self._hidden, self._options = spec, ids, hidden, options
        device = options.device
        self._norm = torch.from_numpy(reader.tensor("backbone.norm")).to(device)
        self._lm_head = torch.from_numpy(reader.tensor(LM_HEAD)).to(device)
        used, local = np.unique(ids, return_inverse=True)
        self._local = torch.from_numpy(local.reshape(ids.shape))
        self._table = torch.from_numpy(reader.embedding_rows(used)).to(device)
        self._head = bare_head(spec)
        fill_module(self._head, reader, "mtp.")
        self._head = self._head.to(device).requires_grad_()
        self._optimizers = _optimizers(self._head, options.learning_rate)
        self._random = np.random.default_rng(options.seed)
        self._order: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def weights(self) -> Weights:
        """A copy of what the head has learnt so far."""
        named = self._head.named_parameters()
        return {f"mtp.{key}": value.detach().cpu().clone() for key, value in named}

    def step(self, index: int) -> float:
        """One optimiser step; returns its loss."""
        factor = rate_factor(index, self._options.steps)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
        loss = self._backward(self._next_batch())
        torch.nn.utils.clip_grad_norm_(self._head.parameters(), LARGEST_GRADIENT)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss

    def _next_batch(self) -> NDArray[np.int64]:
        """Sequences in an order drawn anew for each pass over the text."""
        count = max(1, min(self._options.batch_tokens // self._ids.shape[1], len(self._ids)))
        while len(self._order) < count:
            self._order = np.concatenate([self._order, self._random.permutation(len(self._ids))])
        batch, self._order = self._order[:count], self._order[count:]
        return batch

    def _backward(self, batch: NDArray[np.int64]) -> float:
        """Gradients of a batch; returns the loss of its first drafts."""
        device, chosen = self._options.device, torch.from_numpy(batch)
        hidden, local = self._hidden[chosen].to(device), self._local[chosen].to(device)
        normed = rms_norm(hidden, self._norm, self._spec.rms_norm_eps)
        with torch.device(device):
            outs = self._drafts(local, hidden, normed)
        losses, gradients = [], []
        for depth, out in enumerate(outs):
            ids = self._ids[batch[: len(out)]]
            targets = np.full((len(ids), out.shape[1]), IGNORED, dtype=np.int64)
            targets[:, :-1] = ids[:, 2 + depth :]
            loss, gradient = loss_by_parts(
                out.flatten(0, 1),
                normed[: len(out), 1 + depth :].flatten(0, 1),
                torch.from_numpy(targets).flatten().to(device),
                self._lm_head,
                distillation=self._options.distillation,
            )
            losses.append(loss)
            gradients.append((gradient if depth == 0 else gradient * LATER_WEIGHT).view_as(out))
        backward(outs, gradients)
        return losses[0]

    def _drafts(self, local: Tensor, hidden: Tensor, normed: Tensor) -> list[Tensor]:
        """Normed rows ``[B, T - 1, H]`` of the first drafts, and of later ones of a part of the batch.

        ``local [B, T]``: tokens as rows of the table. Later drafts take the text's own tokens.
        """
        assert self._spec.mtp is not None
        batch, length = local.shape
        step, capacity = whole_step(batch, length - 1)
        cache = empty_cache(self._spec, batch, capacity)
        tap = hidden if self._spec.mtp.tap == "pre_norm" else normed
        z, states, _ = self._head.block(local[:, 1:], self._table, step, tap[:, :-1], cache)
        outs = [self._head.normed(z)]
        part = max(1, batch // LATER_PART)
        states = [state[:part] for state in states]
        for depth in range(1, self._options.drafts):
            recycled = outs[-1] if self._spec.mtp.recycle == "post_norm" else z
            rows = length - 1 - depth
            following, fed = local[:part, 1 + depth :], recycled[:part, :rows]
            z, states, _ = self._head.block(
                following, self._table, chain_step(part, rows, depth), fed, states
            )
            outs.append(self._head.normed(z))
        return outs


def rate_factor(step: int, steps: int) -> float:
    """Learning rate by its peak: a short rise, constant, then a cosine."""
    warm = min(WARM_UP_STEPS, max(1, steps // 5))
    if step < warm:
        return (step + 1) / warm
    progress = max(0.0, (step / steps - CONSTANT_SHARE) / (1 - CONSTANT_SHARE))
    return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


def _optimizers(head: MtpHead, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for norms and biases."""
    matrices = [p for p in head.parameters() if p.ndim == 2]
    vectors = [p for p in head.parameters() if p.ndim != 2]
    muon = torch.optim.Muon(
        matrices, lr=rate, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(vectors, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    optimizers: list[torch.optim.Optimizer] = [muon, adamw]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers

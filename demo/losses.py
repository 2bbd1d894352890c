"""Training losses: next token, first draft, and recycled drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from demo.model import DemoModel

MTP_WEIGHT = 0.3
RECYCLE_WEIGHT = 0.1
NUM_DRAFTS = 3


@dataclass
class LossParts:
    """Total to minimise, and its parts for the log."""

    total: Tensor
    next_token: float
    drafts: list[float]


def _weighted_loss(
    model: DemoModel, states: Tensor, ids: Tensor, weights: Tensor, shift: int
) -> Tensor:
    """Mean cross-entropy of token p+shift from `states[:, p]`, over positions with weight.

    `states` [B, T', E]; `ids` and `weights` [B, T] with T >= T'.
    """
    rows, length = states.shape[0], ids.shape[1] - shift
    target, weight = ids[:rows, shift:], weights[:rows, shift:]
    chosen = weight > 0
    logits = model.lm_head(states[:, :length][chosen]).float()  # [N, V]
    weight = weight[chosen]
    losses = F.cross_entropy(logits, target[chosen], reduction="none")
    return (losses * weight).sum() / weight.sum().clamp(min=1.0)


def compute_loss(model: DemoModel, ids: Tensor, weights: Tensor, *, recycle_rows: int) -> LossParts:
    """L_NTP + 0.3 L_MTP, plus 0.1 for each recycled draft step on the first `recycle_rows` rows."""
    num_drafts = NUM_DRAFTS if recycle_rows else 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(ids, num_drafts=num_drafts, recycle_rows=recycle_rows)
        main = _weighted_loss(model, outputs.main, ids, weights, 1)
        drafts = [_weighted_loss(model, state, ids, weights, 2 + depth)
                  for depth, state in enumerate(outputs.drafts)]  # fmt: skip
    total = main + MTP_WEIGHT * drafts[0]
    for loss in drafts[1:]:
        total = total + RECYCLE_WEIGHT * loss
    return LossParts(total, float(main.detach()), [float(d.detach()) for d in drafts])

"""What the head is trained on: the text's tokens, and what the backbone would have said there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from selfdraft.export.layerwise import MAX_LOGITS

IGNORED = -100
"""Target of rows whose token is not known."""


def loss_by_parts(
    out: Tensor, teacher: Tensor, targets: Tensor, head: Tensor, *, distillation: float
) -> tuple[float, Tensor]:
    """Mean loss of the rows, and its gradient ``[N, H]`` by ``out``.

    ``out [N, H]``: the MTP head's normed rows; ``teacher [N, H]``: the backbone's, at the position that
    is drafted for; ``targets [N]``: the tokens that follow, or ``IGNORED``; ``head [H, V]``: the LM head,
    frozen. Both logits exist for ``MAX_LOGITS / V`` rows at a time.

    ``distillation`` weighs KL(backbone ‖ head) (Hinton et al., arXiv 1503.02531, at temperature 1)
    against cross-entropy.
    """
    leaf = out.detach().requires_grad_()
    at_once, rows = max(1, MAX_LOGITS // head.shape[1]), len(out)
    known = max(int((targets != IGNORED).sum()), 1)
    total = 0.0
    for first in range(0, rows, at_once):
        part = slice(first, first + at_once)
        logits = leaf[part] @ head
        with torch.no_grad():
            wanted = (teacher[part] @ head).log_softmax(-1)
        said = logits.log_softmax(-1)
        kl = F.kl_div(said, wanted, reduction="sum", log_target=True) / rows
        hard = F.nll_loss(said, targets[part], reduction="sum", ignore_index=IGNORED) / known
        loss = distillation * kl + (1.0 - distillation) * hard
        backward([loss])
        total += float(loss.detach())
    assert leaf.grad is not None
    return total, leaf.grad


def backward(tensors: Sequence[Tensor], gradients: Sequence[Tensor] | None = None) -> None:
    """Accumulate gradients in the leaves."""
    run: Any = torch.autograd.backward  # untyped
    run(tensors, gradients)

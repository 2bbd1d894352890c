"""Optimisers: Muon for the matrices inside the layers, AdamW for everything else."""

from __future__ import annotations

import math

import torch

from demo.model import DemoModel

MUON_LR, ADAMW_LR, EMBEDDING_LR = 3e-3, 3e-3, 9e-3


def build_optimizers(model: DemoModel) -> list[torch.optim.Optimizer]:
    """The two optimisers; each group keeps its peak rate under `peak_lr`."""
    matrices, embeddings, rest = [], [], []
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name:
            embeddings.append(parameter)
        elif parameter.ndim == 2 and "lm_head" not in name:
            matrices.append(parameter)
        else:
            rest.append(parameter)
    muon = torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=0.1, momentum=0.95,
                            adjust_lr_fn="match_rms_adamw")  # fmt: skip
    adamw = torch.optim.AdamW(
        [{"params": embeddings, "lr": EMBEDDING_LR}, {"params": rest, "lr": ADAMW_LR}],
        betas=(0.9, 0.95), weight_decay=0.01,
    )  # fmt: skip
    optimizers: list[torch.optim.Optimizer] = [muon, adamw]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def rate_factor(
    step: int, steps: int, *, warmup: int = 20, hold: float = 0.4, floor: float = 0.05
) -> float:
    """Learning-rate factor: short warm-up, constant to `hold` of the run, cosine down to `floor`."""
    warmup = min(warmup, max(1, steps // 5))
    if step < warmup:
        return (step + 1) / warmup
    progress = max(0.0, (step / steps - hold) / (1 - hold))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def set_rates(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Sets every group's rate to `factor` of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor

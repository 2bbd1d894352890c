"""Trains a demo checkpoint: `python -m demo.train --preset demo --steps 1500 --out demo/checkpoint`."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from demo.checkpoint import save_checkpoint
from demo.config import PRESETS
from demo.data import copy_row, pack_row, texts
from demo.init import random_start, structured_start
from demo.losses import compute_loss
from demo.model import DemoModel
from demo.optim import build_optimizers, rate_factor, set_rates
from demo.render import Renderer
from demo.runtime_setup import keep_freed_memory
from demo.tokenizer import train_tokenizer

TOKENIZER_TEXTS = 20000


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Batch shape used until `until` (a share of the run)."""

    until: float
    rows: int
    length: int


PHASES = [Phase(until=0.6, rows=8, length=256), Phase(until=0.78, rows=4, length=512),
          Phase(until=1.0, rows=1, length=2048)]  # fmt: skip


def phase_at(step: int, steps: int) -> Phase:
    """The phase of a step."""
    return next(phase for phase in PHASES if step < phase.until * steps)


def batches(renderer: Renderer, *, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and weights `[B, T]` for every step."""
    rng = random.Random(seed)
    for step in range(steps):
        phase = phase_at(step, steps)
        copy_share = 0.12 if step < 0.3 * steps else 0.03
        rows = [copy_row(rng, renderer, phase.length) if rng.random() < copy_share
                else pack_row(rng, renderer, phase.length) for _ in range(phase.rows)]  # fmt: skip
        yield torch.tensor([ids for ids, _ in rows]), torch.tensor([weights for _, weights in rows])


def recycle_rows_at(step: int, phase: Phase) -> int:
    """How many rows also train the recycled draft steps: a quarter, or each sixth single row."""
    return phase.rows // 4 if phase.rows >= 4 else int(step % 6 == 0)


def train(
    model: DemoModel, renderer: Renderer, *, steps: int, seed: int, until: int | None = None
) -> list[float]:
    """Trains for `steps` steps (or stops at `until`); returns the main loss of every step."""
    optimizers = build_optimizers(model)
    history: list[float] = []
    start = time.monotonic()
    for step, (ids, weights) in enumerate(batches(renderer, seed=seed, steps=steps)):
        if until is not None and step >= until:
            break
        set_rates(optimizers, rate_factor(step, steps))
        parts = compute_loss(
            model, ids, weights, recycle_rows=recycle_rows_at(step, phase_at(step, steps))
        )
        parts.total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        history.append(parts.next_token)
        if step % 20 == 0 or step == steps - 1:
            drafts = " ".join(f"{loss:.3f}" for loss in parts.drafts)
            print(f"step {step} loss {parts.next_token:.3f} drafts {drafts} "
                  f"time {time.monotonic() - start:.0f} s", flush=True)  # fmt: skip
    return history


def new_model(preset: str, *, seed: int) -> DemoModel:
    """A freshly started model of a preset; the `demo` preset gets the structured start."""
    torch.manual_seed(seed)
    model = DemoModel(PRESETS[preset])
    random_start(model)
    if preset == "demo":
        structured_start(model)
    return model


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=list(PRESETS), default="demo")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--until", type=int, help="stop early at this step (rates follow --steps)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    tokenizer = train_tokenizer(texts(args.seed, TOKENIZER_TEXTS))
    model = new_model(args.preset, seed=args.seed)
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    train(model, Renderer(tokenizer), steps=args.steps, seed=args.seed, until=args.until)
    print(f"sha256 {save_checkpoint(args.out, model, tokenizer)}")


if __name__ == "__main__":
    main()

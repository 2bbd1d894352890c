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

from demo.checkpoint import load_checkpoint, save_checkpoint
from demo.config import PRESETS
from demo.data import BASE_MIX, POLISH_MIX, Mix, copy_row, pack_row, texts
from demo.init import random_start, structured_start
from demo.losses import LossParts, compute_loss
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A run of steps with its own text mix and learning-rate curve (a new optimiser each)."""

    phases: list[Phase]
    mix: Mix
    copy_shares: tuple[float, float]  # rows of repeated words: in the first 30 %, and later
    peak: float = 1.0
    hold: float = 0.4


BASE = Stage(
    phases=[Phase(until=0.6, rows=8, length=256), Phase(until=0.78, rows=4, length=512),
            Phase(until=1.0, rows=1, length=2048)],
    mix=BASE_MIX, copy_shares=(0.12, 0.03),
)  # fmt: skip
POLISH = Stage(
    phases=[Phase(until=0.5, rows=4, length=512), Phase(until=1.0, rows=1, length=2048)],
    mix=POLISH_MIX, copy_shares=(0.02, 0.02), peak=0.6, hold=0.3,
)  # fmt: skip


def phase_at(stage: Stage, step: int, steps: int) -> Phase:
    """The phase of a step."""
    return next(phase for phase in stage.phases if step < phase.until * steps)


def batches(
    renderer: Renderer, stage: Stage, *, seed: int, steps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and weights `[B, T]` for every step."""
    rng = random.Random(seed)
    for step in range(steps):
        phase = phase_at(stage, step, steps)
        copy_share = stage.copy_shares[step >= 0.3 * steps]
        rows = [copy_row(rng, renderer, phase.length) if rng.random() < copy_share
                else pack_row(rng, renderer, phase.length, mix=stage.mix) for _ in range(phase.rows)]  # fmt: skip
        yield torch.tensor([ids for ids, _ in rows]), torch.tensor([weights for _, weights in rows])


def recycle_rows_at(step: int, phase: Phase) -> int:
    """How many rows also train the recycled draft steps: a quarter, or each sixth single row."""
    return phase.rows // 4 if phase.rows >= 4 else int(step % 6 == 0)


def log_step(step: int, parts: LossParts, start: float) -> None:
    """One line of progress."""
    drafts = " ".join(f"{loss:.3f}" for loss in parts.drafts)
    seconds = time.monotonic() - start
    print(
        f"step {step} loss {parts.next_token:.3f} drafts {drafts} time {seconds:.0f} s", flush=True
    )


def train(
    model: DemoModel, renderer: Renderer, stage: Stage, *, steps: int, seed: int
) -> list[float]:
    """Trains for `steps` steps; returns the main loss of every step."""
    optimizers = build_optimizers(model)
    history: list[float] = []
    start = time.monotonic()
    for step, (ids, weights) in enumerate(batches(renderer, stage, seed=seed, steps=steps)):
        set_rates(optimizers, stage.peak * rate_factor(step, steps, hold=stage.hold))
        recycle_rows = recycle_rows_at(step, phase_at(stage, step, steps))
        parts = compute_loss(model, ids, weights, recycle_rows=recycle_rows)
        parts.total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        history.append(parts.next_token)
        if step % 20 == 0 or step == steps - 1:
            log_step(step, parts, start)
    return history


def new_model(preset: str, *, seed: int) -> DemoModel:
    """A freshly started model of a preset; the `demo` preset gets the structured start."""
    torch.manual_seed(seed)
    model = DemoModel(PRESETS[preset])
    random_start(model)
    if preset == "demo":
        structured_start(model)
    return model


def round_weights(model: DemoModel) -> None:
    """Rounds the weights to bfloat16, as saving does, so that a saved stage can be continued."""
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.to(torch.bfloat16))


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=list(PRESETS), default="demo")
    parser.add_argument("--steps", type=int, default=1500, help="steps of the base stage")
    parser.add_argument("--polish-steps", type=int, default=0, help="steps of a second stage")
    parser.add_argument("--resume", type=Path, help="folder with the saved base stage; skips it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    """Trains and saves."""
    args = parse_arguments()
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    if args.resume:
        model, tokenizer = load_checkpoint(args.resume)
        renderer = Renderer(tokenizer)
    else:
        tokenizer = train_tokenizer(texts(args.seed, TOKENIZER_TEXTS))
        model, renderer = new_model(args.preset, seed=args.seed), Renderer(tokenizer)
        train(model, renderer, BASE, steps=args.steps, seed=args.seed)
        round_weights(model)
    if args.polish_steps:
        train(model, renderer, POLISH, steps=args.polish_steps, seed=args.seed + 1000)
    print(f"sha256 {save_checkpoint(args.out, model, tokenizer)}")


if __name__ == "__main__":
    main()

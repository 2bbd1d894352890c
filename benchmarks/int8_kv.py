"""How far int8 keys and values move the output and the choice of blocks, by selector.

    python -m benchmarks.int8_kv --seeds 20 --json out/int8_kv.json

No model: keys of ``benchmarks.needles`` (correlated, with channels and tokens that stick out, a
planted needle), random values. Each scene is one decode step on the op's oracle, once over fp32
caches and once over int8 ones with their fp16 scales.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.needles import Haystack, Scene, draw_scene, make_op
from selfdraft.trt_plugins.cached_attention import summaries
from selfdraft.trt_plugins.cached_attention.contract import DEFAULT_SPREAD, CachedAttention
from selfdraft.trt_plugins.cached_attention.int8_kv import dequantise, quantise
from selfdraft.trt_plugins.cached_attention.oracle import Attended, cached_attention
from selfdraft.trt_plugins.cached_attention.selection import selected_blocks
from selfdraft.trt_plugins.cached_attention.states import LayerStates, empty_states

Array = NDArray[np.float64]
SCENE = Haystack(length=8192)
BUDGET_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """int8 against fp32 caches over all seeds."""

    relative: float
    """Relative L2 error of the output, mean over the seeds."""
    relative_worst: float
    same_blocks: float
    """Part of the blocks seen with fp32 caches that int8 ones see too, mean; 1 where none is chosen."""
    relative_same_blocks: float
    """Relative L2 error, mean over the seeds whose blocks were all the same; NaN without any."""


def variants(op: CachedAttention) -> dict[str, CachedAttention]:
    """``op`` with every selector."""
    return {
        "all": replace(op, selector="all"),
        "window": replace(op, selector="window"),
        "mean_std": replace(op, selector="mean_std", spread=DEFAULT_SPREAD["mean_std"]),
        "min_max": replace(op, selector="min_max", spread=DEFAULT_SPREAD["min_max"]),
        "infllm_v2": replace(op, selector="infllm_v2"),
    }


def study(spec: Haystack, *, budget_tokens: int, seeds: int) -> dict[str, Error]:
    """The error of each selector over ``seeds`` scenes."""
    op = make_op(spec, budget_tokens=budget_tokens)
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        scene = draw_scene(spec, op, seed)
        values = np.random.default_rng([seed, 1]).normal(size=scene.keys.shape)
        for name, variant in variants(op).items():
            exact, exact_blocks = decode(variant, scene, values)
            int8, int8_blocks = decode(replace(variant, kv_dtype="int8"), scene, values)
            relative = float(np.linalg.norm(int8 - exact) / np.linalg.norm(exact))
            same = float((int8_blocks & exact_blocks).sum() / exact_blocks.sum())
            found.setdefault(name, []).append((relative, same))
    return {name: _error(np.array(pairs)) for name, pairs in found.items()}


def _error(pairs: Array) -> Error:
    relative, same = pairs.T
    alike = relative[same == 1]
    return Error(
        relative=float(relative.mean()),
        relative_worst=float(relative.max()),
        same_blocks=float(same.mean()),
        relative_same_blocks=float(alike.mean()) if alike.size else float("nan"),
    )


def decode(op: CachedAttention, scene: Scene, values: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Output ``[Hq d]`` of the scene's last row, and the blocks it saw ``[blocks]``."""
    states = filled_states(op, scene.keys[:-1], values[:-1])
    lengths = {
        "past_len": np.array([len(scene.keys) - 1]),
        "row_count": np.array([1]),
        "attend_all": np.array([0]),
    }
    q = scene.q.reshape(1, 1, -1)
    k, v = (x[-1].reshape(1, 1, -1) for x in (scene.keys, values))
    result: Attended = cached_attention(op, q, k, v, **states, **lengths)
    blocks = selected_blocks(op, q, result.states.get("summary"), **lengths)
    return result.y[0, 0], np.asarray(blocks[0, 0, 0])


def filled_states(op: CachedAttention, keys: Array, values: Array) -> LayerStates:
    """States of one slot and kv head that hold ``keys, values [T, d]``."""
    capacity = -(-(len(keys) + 2) // op.block) * op.block
    states = empty_states(op, batch=1, capacity=capacity, fp32_as=np.float64)
    stored = keys
    for name, x in (("k", keys), ("v", values)):
        if op.kv_dtype == "int8":
            codes, scale = quantise(x)
            states[f"{name}_cache"][0, 0, : len(x)] = codes
            states[f"{name}_scale"][0, 0, : len(x)] = scale
            stored = dequantise(codes, scale) if name == "k" else stored
        else:
            states[f"{name}_cache"][0, 0, : len(x)] = x
    if op.summary_vectors:
        blocks = range(-(-len(keys) // op.block))
        summaries.refresh(op, states["summary"][0], stored[None], blocks=blocks, length=len(keys))
    return states


def report(errors: Mapping[str, Error]) -> str:
    """A table, one selector a line."""
    head = f"{'selector':<12}{'error':>9}{'worst':>9}{'blocks':>9}{'same':>9}"
    lines = [
        f"{name:<12}{e.relative:9.4f}{e.relative_worst:9.4f}{e.same_blocks:9.3f}"
        f"{e.relative_same_blocks:9.4f}"
        for name, e in errors.items()
    ]
    return "\n".join([head, *lines])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--length", type=int, default=SCENE.length)
    parser.add_argument("--budget-tokens", type=int, default=BUDGET_TOKENS)
    parser.add_argument("--json", type=Path, help="file for the figures and the settings")
    args = parser.parse_args()
    if args.length % 64:
        parser.error(f"--length {args.length} must be a multiple of 64")
    spec = replace(SCENE, length=args.length)
    errors = study(spec, budget_tokens=args.budget_tokens, seeds=args.seeds)
    print(report(errors))
    if args.json:
        record = {
            "schema": "selfdraft.int8_kv/1",
            "haystack": asdict(spec),
            "op": make_op(spec, budget_tokens=args.budget_tokens).onnx_attributes(),
            "seeds": args.seeds,
            "selectors": {name: asdict(error) for name, error in errors.items()},
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

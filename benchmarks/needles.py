"""How often each selector reads the block of a planted needle, and how much attention it covers.

    python -m benchmarks.needles --seeds 200 --json out/needles.json

No model: keys are drawn with the traits that make selection hard in real ones. Channels follow an
AR(1) process along the tokens, around a topic that changes every few hundred tokens; a few channels
carry a large bias, and one token in a hundred is two to four times as large as the others; then
keys are rotated (RoPE). The needle is a span of tokens that leans towards the content the queries
look for, by as much as gives it a stated share of the exact attention. So whether a selector finds
it is a question of its summaries alone. Summaries and selection are those of the op's oracle.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfdraft.baseline import wilson_interval
from selfdraft.export.attention_options import AttentionOptions
from selfdraft.trt_plugins.cached_attention import summaries
from selfdraft.trt_plugins.cached_attention.contract import DEFAULT_SPREAD, CachedAttention
from selfdraft.trt_plugins.cached_attention.selection import (
    chosen_blocks,
    selectable_blocks,
    selected_blocks,
)

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

DEFAULT = AttentionOptions(kind="sparse")
"""What an export chooses where the user says nothing."""
SPREADS = tuple(sorted({0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, DEFAULT_SPREAD["mean_std"]}))
"""0 leaves the mean alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Haystack:
    """Sizes and statistics of the keys and queries."""

    length: int = 32_768
    head_dim: int = 128
    group: int = 4
    rope_base: float = 1e6
    correlation: float = 0.8
    """Between neighbouring tokens of a channel."""
    topic_tokens: int = 512
    """Mean length of a topic."""
    topic_size: float = 0.5
    """Standard deviation of a topic's mean, in those of a channel."""
    bias_channels: int = 4
    bias_size: float = 8.0
    large_tokens: float = 0.01
    """Share of the tokens that are two to four times as large."""
    logit_size: float = 1.0
    """Standard deviation of the logits of ordinary tokens, biases apart."""
    agreement: float = 0.7
    """Cosine of each head's query and the content that the group looks for."""
    needle_tokens: int = 16
    needle_share: float = 0.2
    """Share of the exact attention on the needle, mean over the heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One haystack: ``q [G, d]`` of its last token, ``keys [T, d]``, both rotated."""

    q: Array
    keys: Array
    attention: Array
    """Exact attention ``[G, T]``."""
    needle: range
    """Its tokens, within one block."""


def draw_scene(spec: Haystack, op: CachedAttention, seed: int) -> Scene:
    """A random haystack, and a needle among the selectable blocks of its last row."""
    rng = np.random.default_rng(seed)
    last = spec.length - 1
    keys = _content(spec, rng)
    content = _slow_direction(spec, rng)
    own = rng.normal(size=(spec.group, spec.head_dim))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    q = spec.agreement * content + math.sqrt(1 - spec.agreement**2) * own
    q *= spec.logit_size / op.scale
    q = rotate(q, np.full(spec.group, last), base=spec.rope_base)
    selectable = selectable_blocks(op, last)
    block = int(rng.integers(selectable.start, selectable.stop))
    offset = int(rng.integers(0, op.block - spec.needle_tokens + 1))
    begin = block * op.block + offset
    needle = range(begin, begin + spec.needle_tokens)
    lean = np.clip(rng.normal(1.0, 0.25, size=spec.needle_tokens), 0.25, None)  # not all alike
    added = rotate(lean[:, None] * content, np.array(needle), base=spec.rope_base)
    keys = rotate(keys, np.arange(spec.length), base=spec.rope_base)
    keys[needle] += _strength(spec, op, q, keys, needle, added) * added
    return Scene(q=q, keys=keys, attention=_softmax(op.scale * (q @ keys.T)), needle=needle)


def rotate(x: Array, positions: NDArray[np.int64], *, base: float) -> Array:
    """``x [N, d]`` at ``positions [N]``, rotate-half form."""
    half = x.shape[1] // 2
    angle = positions[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = x[:, :half], x[:, half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)


def _content(spec: Haystack, rng: np.random.Generator) -> Array:
    """Keys before rotation: ``[T, d]``."""
    shape = (spec.length, spec.head_dim)
    keys = rng.normal(size=shape)
    fresh = math.sqrt(1 - spec.correlation**2)
    for token in range(1, spec.length):
        keys[token] = spec.correlation * keys[token - 1] + fresh * keys[token]
    topic = np.cumsum(rng.random(spec.length) < 1 / spec.topic_tokens)
    keys += spec.topic_size * rng.normal(size=(topic[-1] + 1, spec.head_dim))[topic]
    biased = rng.choice(spec.head_dim, size=spec.bias_channels, replace=False)
    keys[:, biased] += spec.bias_size * rng.choice([-1.0, 1.0], size=spec.bias_channels)
    large = rng.random(spec.length) < spec.large_tokens
    keys[large] *= rng.uniform(2, 4, size=(int(large.sum()), 1))
    return keys


def _slow_direction(spec: Haystack, rng: np.random.Generator) -> Array:
    """A unit vector in the channels that turn by less than a radian over the context.

    Only there can keys be found by content from far away.
    """
    half = spec.head_dim // 2
    slow = spec.length * spec.rope_base ** (-np.arange(half) / half) < 1
    direction = rng.normal(size=spec.head_dim) * np.tile(slow, 2)
    return np.asarray(direction / np.linalg.norm(direction))


def _strength(
    spec: Haystack, op: CachedAttention, q: Array, keys: Array, needle: range, added: Array
) -> float:
    """Factor on ``added`` that gives the needle its share of attention, by bisection."""
    logits = op.scale * (q @ keys.T)  # [G, T]
    gain = op.scale * (q @ added.T)  # [G, needle]
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        trial = logits.copy()
        trial[:, needle] += middle * gain
        share = _softmax(trial)[:, needle].sum(axis=1).mean()
        low, high = (middle, high) if share < spec.needle_share else (low, middle)
    return high


def _softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def selections(op: CachedAttention, scene: Scene) -> dict[str, BoolArray]:
    """Blocks ``[blocks]`` that each way of selecting reads for the last row."""
    variants = {
        "window": replace(op, selector="window"),
        "min_max": replace(op, selector="min_max", spread=1.0),
        **{f"mean_std {spread:g}": replace(op, spread=spread) for spread in SPREADS},
        "infllm_v2": replace(op, selector="infllm_v2", local_blocks=max(op.local_blocks, 3)),
    }
    seen = {name: select(variant, scene) for name, variant in variants.items()}
    seen["sub-page means"] = _by_score(op, _sub_page_scores(op, scene))
    seen["exact"] = _by_score(op, _per_block(op, scene.attention.sum(axis=0)).sum(axis=1))
    return seen


def select(op: CachedAttention, scene: Scene) -> BoolArray:
    """The op's own selection for the last row: ``[blocks]``."""
    length = len(scene.keys)
    blocks = -(-length // op.block)
    summary = np.zeros((1, 1, blocks, op.summary_vectors, op.head_dim), dtype=np.float16)
    summaries.refresh(op, summary[0], scene.keys[None], blocks=range(blocks), length=length)
    seen = selected_blocks(
        op,
        scene.q.reshape(1, 1, -1),
        summary if op.summary_vectors else None,
        past_len=np.array([length - 1]),
        row_count=np.array([1]),
        attend_all=np.array([0]),
    )
    return np.asarray(seen[0, 0, 0])


def _sub_page_scores(op: CachedAttention, scene: Scene) -> Array:
    """Largest logit of four means of 16 tokens, then Σ over heads of the softmax over blocks."""
    means = _per_block(op, scene.keys).reshape(-1, 4, 16, op.head_dim).mean(axis=2)  # [J, 4, d]
    logits = (op.scale * (means @ scene.q.T)).max(axis=1).T  # [G, J]
    selectable = selectable_blocks(op, len(scene.keys) - 1)
    inside = slice(selectable.start, selectable.stop)
    scores = np.full(logits.shape[1], -np.inf)
    scores[inside] = _softmax(logits[:, inside]).sum(axis=0)
    return scores


def _per_block(op: CachedAttention, x: Array) -> Array:
    """``[T, …]`` as ``[blocks, 64, …]``; the length is a multiple of the block."""
    return x.reshape(-1, op.block, *x.shape[1:])


def _by_score(op: CachedAttention, scores: Array) -> BoolArray:
    """Sinks, window and the best selectable blocks, for rules that the op does not have."""
    position = scores.size * op.block - 1
    selectable = selectable_blocks(op, position)
    seen = np.ones(scores.size, dtype=np.bool_)
    seen[selectable.start : selectable.stop] = False
    ranked = np.argsort(-scores[selectable.start : selectable.stop], kind="stable")
    seen[selectable.start + ranked[: chosen_blocks(op, position)]] = True
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one selector over all seeds."""

    seeds: int
    hits: int
    hit_rate: float
    hit_rate_low: float
    """Lower end of the Wilson 95 % interval."""
    recall: float
    """Share of the exact attention that the selected blocks hold, mean over heads and seeds."""
    recall_p05: float
    """The share that 95 % of the seeds reach."""


def study(spec: Haystack, op: CachedAttention, *, seeds: int) -> dict[str, Finding]:
    """Hit rate and recall by selector over ``seeds`` scenes."""
    hits: dict[str, list[bool]] = {}
    recalls: dict[str, list[float]] = {}
    for seed in range(seeds):
        scene = draw_scene(spec, op, seed)
        per_block = _per_block(op, scene.attention.mean(axis=0)).sum(axis=1)
        for name, seen in selections(op, scene).items():
            hits.setdefault(name, []).append(bool(seen[scene.needle.start // op.block]))
            recalls.setdefault(name, []).append(float(per_block[seen].sum()))
    return {name: _finding(hits[name], recalls[name]) for name in hits}


def _finding(hits: list[bool], recalls: list[float]) -> Finding:
    return Finding(
        seeds=len(hits),
        hits=sum(hits),
        hit_rate=sum(hits) / len(hits),
        hit_rate_low=wilson_interval(sum(hits), len(hits))[0],
        recall=float(np.mean(recalls)),
        recall_p05=float(np.quantile(recalls, 0.05)),
    )


def make_op(spec: Haystack, *, budget_tokens: int) -> CachedAttention:
    """The op as an export plans it by default, with one kv head."""
    return CachedAttention(
        num_heads=spec.group,
        num_kv_heads=1,
        head_dim=spec.head_dim,
        scale=spec.head_dim**-0.5,
        sinks=DEFAULT.sinks,
        local_blocks=min(DEFAULT.local_blocks, budget_tokens // 128),
        selector=DEFAULT.selector,
        spread=DEFAULT_SPREAD[DEFAULT.selector],
        budget_tokens=budget_tokens,
    )


def report(findings: Mapping[str, Finding]) -> str:
    """A table, one selector a line."""
    lines = [f"{'selector':<16}{'hit':>7}{'low 95 %':>10}{'recall':>9}{'p05':>7}"]
    lines += [
        f"{name:<16}{f.hit_rate:7.3f}{f.hit_rate_low:10.3f}{f.recall:9.3f}{f.recall_p05:7.3f}"
        for name, f in findings.items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Command line: every field of the haystack is an option."""
    default = Haystack()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--budget-tokens", type=int, default=4096)
    parser.add_argument("--json", type=Path, help="file for the figures and the settings")
    for name, value in asdict(default).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    args = parser.parse_args()
    spec = Haystack(**{name: getattr(args, name) for name in asdict(default)})
    if spec.length % 64:
        parser.error(f"--length {spec.length} must be a multiple of 64")
    op = make_op(spec, budget_tokens=args.budget_tokens)
    findings = study(spec, op, seeds=args.seeds)
    print(report(findings))
    if args.json:
        record = {
            "schema": "selfdraft.needles/1",
            "haystack": asdict(spec),
            "op": op.onnx_attributes(),
            "selectors": {name: asdict(finding) for name, finding in findings.items()},
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

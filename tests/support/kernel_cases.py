"""Cases of the attention kernels: factors, their levels, and an array that covers all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
from support.kernel_step import KernelStep, random_step

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention

FACTORS: dict[str, tuple[Any, ...]] = {
    "selector": ("all", "window", "mean_std", "min_max", "infllm_v2"),
    "kv_dtype": ("fp16", "int8"),
    "head_dim": (64, 128, 256),
    "group": (1, 2, 3, 4, 5, 6, 7, 8, 16),
    "batch": (1, 3, 4),
    "rows": (1, 2, 3, 4, 8, 17),
    "length": (1, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 511, 640, 705, 833),
    "sinks": (0, 1, 2),
    "budget_blocks": (4, 7, 40),
    "sliding_window": (0, 100),
    "splits": (1, 4),
    "dense_slot": (False, True),
}
Case = tuple[int, ...]
"""The level of each factor."""


def covering_array(*, size: int, seed: int, tries: int = 12) -> list[Case]:
    """``size`` cases that contain every pair of levels of any two factors.

    Greedy: of ``tries`` random cases, each built around a pair that is still missing, the one
    with the most missing pairs. Raises ``ValueError`` where ``size`` does not suffice.
    """
    rng = np.random.default_rng(seed)
    levels = [len(values) for values in FACTORS.values()]
    missing = {
        (a, i, b, j)
        for a, b in combinations(range(len(levels)), 2)
        for i, j in product(range(levels[a]), range(levels[b]))
    }
    cases = []
    for _ in range(size):
        best = max(
            (_random_case(rng, levels, missing) for _ in range(tries)),
            key=lambda case: len(missing & _pairs(case)),
        )
        missing -= _pairs(best)
        cases.append(best)
    if missing:
        raise ValueError(f"{len(missing)} pairs are missing from {size} cases")
    return cases


def _pairs(case: Case) -> set[tuple[int, int, int, int]]:
    return {(a, case[a], b, case[b]) for a, b in combinations(range(len(case)), 2)}


def _random_case(
    rng: np.random.Generator, levels: list[int], missing: set[tuple[int, int, int, int]]
) -> Case:
    case = [int(rng.integers(count)) for count in levels]
    if missing:
        a, i, b, j = sorted(missing)[int(rng.integers(len(missing)))]
        case[a], case[b] = i, j
    return tuple(case)


def levels_of(case: Case) -> dict[str, Any]:
    return {name: values[i] for (name, values), i in zip(FACTORS.items(), case, strict=True)}


def case_name(case: Case) -> str:
    return "-".join(str(value) for value in levels_of(case).values())


def step_of(case: Case, *, seed: int) -> KernelStep:
    return step_from(**levels_of(case), seed=seed)


def make_kernel_op(**changes: Any) -> CachedAttention:
    """Two kv heads of group 2, d 64, fp16; ``infllm_v2`` with three local blocks."""
    values = {
        "group": 2,
        "num_kv_heads": 2,
        "head_dim": 64,
        "kv_dtype": "fp16",
        "local_blocks": 3 if changes.get("selector") == "infllm_v2" else 2,
        **changes,
    }
    heads = values.pop("group") * values["num_kv_heads"]
    return CachedAttention(num_heads=heads, scale=values["head_dim"] ** -0.5, **values)


def step_from(
    *,
    selector: str,
    group: int,
    batch: int,
    rows: int,
    length: int,
    budget_blocks: int,
    sliding_window: int,
    splits: int,
    dense_slot: bool,
    seed: int,
    **others: Any,
) -> KernelStep:
    """Unequal lengths and row counts; padding in all slots but the first. ``dense_slot``: the last."""
    op = make_kernel_op(
        selector=selector,
        group=group,
        num_kv_heads=1 if group * rows > 32 else 2,
        budget_tokens=64 * budget_blocks,
        sliding_window=0 if selector == "infllm_v2" else sliding_window,
        **others,
    )
    lengths = [length, max(length // 2, 1), max(length - 64, 1), 1][:batch]
    counts = [min(rows, lengths[0]), *(min(max(rows - i, 0), n) for i, n in slots(lengths))]
    return random_step(
        op,
        lengths,
        rows=rows,
        seed=seed,
        row_count=counts,
        attend_all=[0] * (batch - 1) + [int(dense_slot)],
        splits=splits,
    )


def slots(lengths: list[int]) -> Iterator[tuple[int, int]]:
    """(slot, length) behind the first."""
    yield from list(enumerate(lengths))[1:]

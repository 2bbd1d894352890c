"""Reference backends that attend sparsely.

On random weights every row reaches into every later cache; on the crafted model that copies
(copy_model.py) the head is mostly right.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

from selfdraft.manifest import AttentionPlan, AttentionSpec
from selfdraft.runtime.reference import ReferenceBackend

CONTEXT = 1024


def backend(
    tiny: ModuleType,
    copy_model: ModuleType | None = None,
    *,
    selector: Any = "mean_std",
    kv: Any = "fp32",
    sparse: bool = True,
    budget: int = 256,
    noise: float = 0.3,
    prefill_rows: int = 128,
    seed: int = 0,
    context: int = CONTEXT,
) -> ReferenceBackend:
    """One sink, a window of two or three blocks, and of the rest what ``budget`` leaves."""
    if copy_model is None:
        model = tiny.model_spec()
        weights, embedding = tiny.random_weights(model, seed)
    else:
        model = copy_model.spec()
        weights, embedding = copy_model.weights_and_embedding(model, noise=noise, seed=seed)
    local = 3 if selector == "infllm_v2" else 2
    layer = AttentionSpec(selector=selector, sinks=1, local_blocks=local, budget_tokens=budget)
    window = AttentionSpec(
        selector="window", sinks=1, local_blocks=3, budget_tokens=0, sliding_window=128
    )
    plan = AttentionPlan(layers=(layer,) * model.num_layers, mtp=window)
    manifest = tiny.manifest(model, context_length=context, prefill_rows=prefill_rows)
    manifest = dataclasses.replace(
        manifest,
        attention=plan if sparse else None,
        precision=dataclasses.replace(manifest.precision, kv=kv),
    )
    made: ReferenceBackend = tiny.make(manifest, weights, embedding)
    return made

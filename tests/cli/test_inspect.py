"""``selfdraft inspect``: sizes add up, wiring and states are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.reciting_bundle import HIDDEN, VOCAB, write_reciting_bundle

from selfdraft.cli.attention_facts import bytes_by_kind
from selfdraft.cli.weight_sizes import tensor_bytes
from selfdraft.manifest import GraphSpec, StateSpec, capacity_for


def test_weight_bytes_add_up_to_the_tensors(run: Any, shared_bundle: Path) -> None:
    facts = json.loads(run("inspect", shared_bundle, "--json").stdout)
    parts = facts["weight_bytes"]
    assert parts["embedding"] == parts["lm_head"] == VOCAB * HIDDEN * 4
    stored = sum(tensor_bytes(shared_bundle / "weights.safetensors").values())
    assert sum(parts.values()) == stored + parts["embedding"]
    assert facts["mtp_bytes"]["draft_head"] == parts["draft_head"] == (VOCAB - 2) * (HIDDEN * 4 + 8)


def test_text_tells_wiring_and_what_the_head_adds(run: Any, shared_bundle: Path) -> None:
    text = run("inspect", shared_bundle).stdout
    assert "tap post_norm, hidden_first, recycles post_norm, drafts from 286 tokens" in text
    assert "MTP adds" in text and "licence apache-2.0" in text and "context 256 tokens" in text


def test_bundle_without_head_says_speculation_is_off(run: Any, tmp_path: Path) -> None:
    bundle = write_reciting_bundle(tmp_path / "b", mtp=False)
    text = run("inspect", bundle).stdout
    assert "speculation is off" in text and "MTP adds" not in text


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2), ("int8", 1)])
def test_states_are_counted_at_the_context_given(dtype: str, size: int) -> None:
    states = (
        StateSpec(
            name="k",
            kind="kv",
            dtype=dtype,
            shape=("batch", 2, "capacity", 16),
            input="k",
            output="k_out",
            aliased=True,
        ),
        StateSpec(
            name="conv",
            kind="conv",
            dtype=dtype,
            shape=("batch", 3, 5),
            input="c",
            output="c_out",
            aliased=False,
        ),
    )
    graph = GraphSpec(file="g.onnx", inputs=(), outputs=(), taps=(), states=states)
    expected = {"kv": np.prod((1, 2, capacity_for(1000), 16)) * size, "conv": 15 * size}
    assert bytes_by_kind(graph, context=1000) == expected


def test_context_beyond_the_bundle_is_refused(run: Any, shared_bundle: Path) -> None:
    result = run("inspect", shared_bundle, "--context", 10**9)
    assert result.exit_code == 2 and "context is 1000000000" in result.stderr
    assert result.stdout == ""

"""Qwen3.5 against onnxruntime-genai: its ``mtp.onnx`` for our MTP head, its ``model.onnx`` for our tap.

``write_genai_golden.py`` keeps what its graphs answer, so that every run has this witness (written anew
when ``write_hybrid`` changes); the slow tests ask the builder itself (extra ``bench``).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from support.genai_export import PASSES, TARGET_ROWS, Arrays, build, record
from support.hybrid import CONFIG, write_hybrid

from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import load_manifest
from selfdraft.runtime.backend import Backend, States, Step
from selfdraft.runtime.ort import OrtBackend
from selfdraft.runtime.reference import ReferenceBackend

GOLDEN = Path(__file__).parent / "golden" / "qwen3_5_genai.npz"
PREFIX = "model.language_model."
MOST = 1e-4
"""Largest difference of a logit or a hidden value: fp32 there, fp64 or fp32 here."""
ALL = ExportOptions(candidates=CONFIG["vocab_size"])
"""Every logit is a candidate."""


def step_of(past: int, rows: int) -> Step:
    one = np.ones(1, dtype=np.int64)
    return Step(
        past_len=one * past, row_count=one * rows, attend_all=one, row_index=np.arange(rows)[None]
    )


def assert_head_agrees(backend: Backend, states: States, recorded: Arrays) -> None:
    """Our head on what its head was fed with, pass by pass."""
    first = 0
    for past, count in PASSES:
        rows = slice(first, first + count)
        ids, hidden = recorded["fed_ids"][rows][None], recorded["fed"][rows][None]
        output = backend.run_mtp(states, step_of(past, count), ids, hidden)
        backend.to_host(output.draft_ids)
        logits = np.empty_like(recorded["mtp_logits"][rows], dtype=np.float64)
        np.put_along_axis(logits, output.top_ids[0], output.top_values[0], axis=-1)
        recycled = np.array(backend.to_host(output.hidden))[0]
        assert np.abs(logits - recorded["mtp_logits"][rows]).max() <= MOST, (past, count)
        assert np.abs(recycled - recorded["mtp_hidden"][rows]).max() <= MOST, (past, count)
        first += count
    assert first == len(recorded["fed"])


def assert_backbone_agrees(backend: Backend, states: States, recorded: Arrays) -> None:
    """Our logits, and the hidden states that our head is fed with: theirs come behind the norm."""
    output = backend.run_backbone(states, step_of(0, TARGET_ROWS), recorded["ids"][None])
    hidden = np.array(backend.to_host(output.hidden))[0]
    logits = backend.read_rows(output.logits, [(0, row) for row in range(TARGET_ROWS)])
    assert np.abs(recorded["logits"]).max() > 0.5
    assert np.abs(hidden - recorded["hidden"]).max() <= MOST
    assert np.abs(logits - recorded["logits"]).max() <= MOST


def test_head_and_tap_are_those_of_onnxruntime_genai_as_recorded(tmp_path, fake_graphs) -> None:
    write_hybrid(tmp_path / "c", prefix=PREFIX)
    with np.load(GOLDEN) as file:
        recorded = dict(file)
    export_bundle(tmp_path / "c", tmp_path / "b", ALL)
    backend = ReferenceBackend.from_bundle(tmp_path / "b")
    states = backend.allocate(batch=1, capacity=64)
    assert_head_agrees(backend, states, recorded)
    assert_backbone_agrees(backend, states, recorded)


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("onnxruntime_genai") is None, reason="onnxruntime-genai is not installed (bench)"
)
@pytest.mark.parametrize("tied", [False, True])
def test_head_and_tap_are_those_of_onnxruntime_genai(tmp_path, tied) -> None:
    write_hybrid(tmp_path / "c", prefix=PREFIX, changes={"tie_word_embeddings": tied})
    build(tmp_path / "c", tmp_path / "theirs")
    recorded = record(tmp_path / "theirs", head_dim=CONFIG["head_dim"])
    export_bundle(tmp_path / "c", tmp_path / "b", ALL)
    for backend in (
        ReferenceBackend.from_bundle(tmp_path / "b"),
        OrtBackend(tmp_path / "b", load_manifest(tmp_path / "b"), threads=1),
    ):
        states = backend.allocate(batch=1, capacity=64)
        assert_head_agrees(backend, states, recorded)
        assert_backbone_agrees(backend, states, recorded)

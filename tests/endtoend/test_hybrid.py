"""A Qwen3.5 checkpoint from file to tokens on ONNX Runtime: the ladder, and drafts that change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.hybrid import right_now_and_then, write_hybrid
from support.numerics import FP64_AGAINST_FP32, assert_close

from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import load_manifest
from selfdraft.recurrent import state_length
from selfdraft.runtime.backend import Step
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.ort import OrtBackend
from selfdraft.runtime.reference import ReferenceBackend
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

pytest.importorskip("torch")

WHOLE_VECTORS = {"hidden_size": 64, "linear_key_head_dim": 16, "linear_num_value_heads": 16}
"""Rows of whole 16-float vectors, as in published models: the end of a shorter row is computed by other
instructions, with another last bit, and where it lies depends on the rows before it."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    write_hybrid(folder / "c", changes=WHOLE_VECTORS)
    export_bundle(folder / "c", folder / "b", ExportOptions())
    return folder / "b"


@pytest.fixture(scope="module")
def ort(bundle: Path) -> OrtBackend:
    return OrtBackend(bundle, load_manifest(bundle), threads=1)


def random_step(rng: np.random.Generator, past: Any, counts: Any, rows: int) -> tuple[Step, Any]:
    batch = len(past)
    step = Step(
        past_len=past.copy(),
        row_count=counts,
        attend_all=np.ones(batch, dtype=np.int64),
        row_index=np.tile(np.arange(rows), (batch, 1)),
    )
    return step, rng.integers(0, 256, (batch, rows))


@pytest.mark.parametrize("batch", [1, 3])
def test_rungs_agree_over_steps_that_are_taken_back(bundle, ort, batch) -> None:
    from selfdraft.export.torch_rung import TorchGraphs

    manifest = load_manifest(bundle)
    reference, torch_graphs = ReferenceBackend.from_bundle(bundle), TorchGraphs(bundle, manifest)
    graph, rng = manifest.graphs["backbone"], np.random.default_rng(batch)
    ours, theirs = (b.allocate(batch=batch, capacity=192) for b in (reference, ort))
    kept = {s.input: np.zeros(s.sizes(batch=batch, capacity=192), s.dtype) for s in graph.states}
    table = reference._embedding.astype(np.float32)
    past = np.zeros(batch, dtype=np.int64)
    for _ in range(12):
        rows = int(rng.choice([1, 2, 5, 9, 20]))
        step, ids = random_step(rng, past, rng.integers(0, rows + 1, batch), rows)
        expected = reference.run_backbone(ours, step, ids).logits
        found = {"ort": np.array(ort.run_backbone(theirs, step, ids).logits.array)}
        fields = ("past_len", "row_count", "attend_all", "row_index")
        feed = {"input_ids": ids, "embedding": table, **{n: getattr(step, n) for n in fields}}
        outputs = torch_graphs.run("backbone", feed | kept)
        kept = {s.input: outputs[s.output] for s in graph.states}
        found["torch"] = outputs["logits"]
        for slot, count in enumerate(step.row_count):
            for rung, logits in found.items():
                if count:
                    assert_close(
                        logits[slot, :count],
                        expected[slot, :count],
                        relative=FP64_AGAINST_FP32,
                        name=rung,
                    )
        floors = [state_length(int(p), int(c)) for p, c in zip(past, step.row_count, strict=True)]
        back = np.where(step.row_count > 0, np.maximum(past, floors), past)
        past = np.array(
            [rng.integers(b, p + c + 1) for b, p, c in zip(back, past, step.row_count, strict=True)]
        )


def test_rows_have_the_same_bits_however_a_prompt_and_its_drafts_are_cut(ort) -> None:
    ids = np.random.default_rng(2).integers(0, 256, 70)
    runs = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        states = ort.allocate(batch=1, capacity=192)
        logits, past = [], 0
        while past < len(ids):
            rows = min(int(rng.choice([1, 2, 3, 9, 40])), len(ids) - past)
            kept = rows if rows > 9 else int(rng.integers(1, rows + 1))
            given = ids[None, past : past + rows].copy()
            given[0, kept:] = rng.integers(0, 256, rows - kept)
            step, _ = random_step(rng, np.array([past]), np.array([rows]), rows)
            logits.append(np.array(ort.run_backbone(states, step, given).logits.array[0, :kept]))
            past += kept
        runs.append(np.concatenate(logits))
    for other in runs[1:]:
        np.testing.assert_array_equal(other, runs[0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("batch", [1, 3])
def test_speculative_equals_plain_on_onnx_runtime(ort, batch, temperature) -> None:
    rng = np.random.default_rng(1)
    prompts = [tuple(rng.integers(0, 256, size).tolist()) for size in (70, 1, 33)][:batch]
    params = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=11)

    def replies(expected: list[list[int]], **options: Any) -> tuple[list[list[int]], float]:
        loop = DecodeLoop(ort, batch=batch, context_length=160, **options)
        told: list[list[int]] = [[] for _ in prompts]
        if options["drafts"]:
            right_now_and_then(loop, lambda slot: expected[slot][len(told[slot]) :])
        requests = {
            slot: Request(prompt_ids=prompt, sampling=params, max_tokens=24, ignore_eos=True)
            for slot, prompt in enumerate(prompts)
        }
        events = loop.begin(requests)
        while events:
            for event in events:
                told[event.slot].append(event.token)
            events = loop.step() if loop.active else []
        results = [loop.result(slot) for slot in requests]
        drafted = sum(sum(result.drafted) for result in results)
        return told, sum(sum(result.accepted) for result in results) / max(drafted, 1)

    plain, _ = replies([], drafts=0)
    for drafts, chunk in ((1, 1), (2, 5), (3, 64), (4, 160), (8, 5)):
        told, accepted = replies(plain, drafts=drafts, prefill_rows=chunk)
        assert told == plain, f"K = {drafts}, chunks of {chunk}"
        assert 0.2 < accepted < 0.95


def test_states_are_updated_in_place(ort) -> None:
    states = ort.allocate(batch=2, capacity=128)
    before = states.addresses()
    rng = np.random.default_rng(3)
    for past in (0, 30, 39):
        step, ids = random_step(rng, np.full(2, past), np.array([9, 5]), 9)
        ort.run_backbone(states, step, ids)
    assert states.addresses() == before
    assert all(np.abs(t.array).max() > 0 for n, t in states.tensors.items() if "recurrent" in n)


@pytest.mark.parametrize("weights", ["int4", pytest.param("bf16", marks=pytest.mark.slow)])
def test_quantised_hybrids_decode_with_and_without_drafts_alike(tmp_path, weights) -> None:
    write_hybrid(tmp_path / "c", changes=WHOLE_VECTORS)
    export_bundle(tmp_path / "c", tmp_path / "b", ExportOptions(weights=weights))
    backend = OrtBackend(tmp_path / "b", load_manifest(tmp_path / "b"), threads=1)
    told = []
    for drafts in (0, 2):
        loop = DecodeLoop(backend, drafts=drafts, context_length=96, step_rows=3)
        events = loop.begin({0: Request(prompt_ids=tuple(range(40)), max_tokens=20)})
        while loop.active:
            events += loop.step()
        told.append([event.token for event in events])
    assert told[0] == told[1] and len(set(told[0])) > 3

"""A Qwen3.5 checkpoint from file to tokens on ONNX Runtime: the ladder, and drafts that change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support.hybrid import right_now_and_then, write_hybrid
from support.numerics import FP64_AGAINST_FP32, assert_close

from selfdraft.cli.inspect import bundle_facts
from selfdraft.cli.plan_record import exported_record
from selfdraft.cli.planned_model import planned_model
from selfdraft.export.bundle import export_bundle
from selfdraft.export.describe import describe_checkpoint
from selfdraft.export.options import ExportOptions
from selfdraft.jetson.planner.storage import stored_as, weight_bytes
from selfdraft.manifest import capacity_for, load_manifest
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


def allocated(ort: OrtBackend, capacity: int) -> dict[str, int]:
    """Bytes of the arrays of one slot, by graph and kind of state."""
    states = ort.allocate(batch=1, capacity=capacity)
    kinds = {s.name: s.kind for g in ort.manifest.graphs.values() for s in g.states}
    sizes: dict[str, int] = {}
    for name, tensor in states.tensors.items():
        key = f"{name.split('.')[0]} {kinds[name]}"
        sizes[key] = sizes.get(key, 0) + tensor.array.nbytes
    assert sum(sizes.values()) == states.num_bytes
    return sizes


def test_inspect_and_plan_tell_the_bytes_of_the_bundle_as_written(bundle, ort) -> None:
    manifest = load_manifest(bundle)
    facts = bundle_facts(bundle, manifest, context=500)
    stored: dict[str, int] = {}
    for file in (manifest.weights_file, manifest.embedding_file):
        for name, tensor in safetensors.numpy.load_file(bundle / file).items():
            part = "other" if name.startswith("__pad") else name.split(".")[0]
            stored[part] = stored.get(part, 0) + tensor.nbytes
    assert facts["weight_bytes"] == stored
    assert set(stored) - {"other"} == {"embedding", "backbone", "lm_head", "mtp"}
    sizes = allocated(ort, capacity=capacity_for(500))
    told = facts["state_bytes_by_kind"]
    assert sizes == {f"{g} {kind}": n for g, kinds in told.items() for kind, n in kinds.items()}
    assert set(told["backbone"]) == {"kv", "recurrent", "conv"} and set(told["mtp"]) == {"kv"}
    backbone = stored["backbone"] + stored["lm_head"] + sum(told["backbone"].values())
    own = stored["mtp"] + told["mtp"]["kv"]
    assert facts["mtp_bytes"]["share_of_backbone"] == pytest.approx(own / backbone)
    exported = exported_record(planned_model(bundle), context=500)
    assert exported["weight_bytes"] == stored and exported["state_bytes"] == told


def test_inspect_and_plan_of_the_checkpoint_foretell_the_bundle(bundle) -> None:
    checkpoint, manifest = bundle.parent / "c", load_manifest(bundle)
    facts = describe_checkpoint(checkpoint)
    tensors = safetensors.numpy.load_file(checkpoint / "model.safetensors")
    read = facts["bytes_by_part"]
    assert sum(read.values()) == facts["bytes"] == sum(t.nbytes for t in tensors.values())
    assert read["mtp"] == sum(t.nbytes for n, t in tensors.items() if n.startswith("mtp."))
    files = (manifest.weights_file, manifest.embedding_file)
    written = sum(manifest.files[file].bytes for file in files)
    assert written <= facts["export"]["default"]["disk_bytes_at_most"]
    planned = exported_record(planned_model(checkpoint), context=500)
    found = bundle_facts(bundle, manifest, context=500)
    padding = {"other": found["weight_bytes"].get("other", 0)}
    assert planned["weight_bytes"] | padding == found["weight_bytes"] | padding
    assert planned["state_bytes"] == found["state_bytes_by_kind"]


@pytest.mark.parametrize("weights", ["int4", pytest.param("bf16", marks=pytest.mark.slow)])
def test_quantised_hybrids_decode_with_and_without_drafts_alike(tmp_path, weights) -> None:
    write_hybrid(tmp_path / "c", changes=WHOLE_VECTORS)
    export_bundle(tmp_path / "c", tmp_path / "b", ExportOptions(weights=weights))
    foretold = describe_checkpoint(tmp_path / "c")["export"].get(weights)
    manifest = load_manifest(tmp_path / "b")
    planned = planned_model(tmp_path / "b")
    storage = stored_as(manifest.precision)
    parts = {part: size for part, size in planned.weight_bytes.items() if part != "other"}
    assert weight_bytes(planned.geometry, storage) == parts
    if foretold:
        written = manifest.files[manifest.weights_file].bytes
        assert written <= foretold["disk_bytes_at_most"]
    backend = OrtBackend(tmp_path / "b", manifest, threads=1)
    told = []
    for drafts in (0, 2):
        loop = DecodeLoop(backend, drafts=drafts, context_length=96, step_rows=3)
        events = loop.begin({0: Request(prompt_ids=tuple(range(40)), max_tokens=20)})
        while loop.active:
            events += loop.step()
        told.append([event.token for event in events])
    assert told[0] == told[1] and len(set(told[0])) > 3

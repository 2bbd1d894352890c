"""What the head is fed behind its first draft: counted for all chains at once, and the better one written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support.checkpoints import write_checkpoint
from support.hub_model import HubModel

torch = pytest.importorskip("torch")

from selfdraft.export import calibrate as calibrate_module
from selfdraft.export.bundle import export_bundle, plan_export
from selfdraft.export.chain_scores import CHAIN_DRAFTS, ChainCounts, chain_acceptance
from selfdraft.export.options import ExportOptions
from selfdraft.export.text_scores import Text, pass_backbone
from selfdraft.export.weight_reader import CheckpointReader
from selfdraft.manifest import Tap
from selfdraft.runtime.backend import Step
from selfdraft.runtime.reference import ReferenceBackend

LENGTH = 30


def own_text(folder: Path, seed: int) -> list[int]:
    """A text that the head itself drafts but for some tokens, so that most of its chains are right."""
    model, ids = HubModel(folder), [seed, seed + 7]
    random = np.random.default_rng(seed)
    while len(ids) < LENGTH:
        drafted = int(model.mtp(ids)[1][-1].argmax())
        ids.append(drafted if random.random() < 0.7 else int(random.integers(288)))
    return ids


def step(past: int, rows: int) -> Step:
    one = np.ones(1, dtype=np.int64)
    return Step(
        past_len=one * past, row_count=one * rows, attend_all=one, row_index=np.array([[rows - 1]])
    )


def drafts_of(backend: Any, ids: list[int], start: int) -> list[int]:
    """The chain that decoding drafts behind token ``start + 1``, for as long as it is the text."""
    states = backend.allocate(batch=1, capacity=64)
    tokens = np.array([ids])
    hidden = backend.run_backbone(states, step(0, len(ids)), tokens).hidden
    first = tokens[:, 1 : start + 2]
    out = backend.run_mtp(states, step(0, start + 1), first, hidden[:, : start + 1])
    chain = [int(out.draft_ids[0, 0])]
    for depth in range(1, CHAIN_DRAFTS):
        place = start + 1 + depth
        if place >= len(ids) or chain[-1] != ids[place]:
            break
        out = backend.run_mtp(
            states, step(start + depth, 1), np.array([[chain[-1]]]), np.asarray(out.hidden)
        )
        chain.append(int(out.draft_ids[0, 0]))
    return chain


@pytest.mark.parametrize(
    ("family", "mtp", "recycle"), [("mimo", "mimo", "pre_norm"), ("qwen3", "qwen", "post_norm")]
)
def test_counts_are_those_of_chains_that_decoding_drafts(
    tmp_path, fake_graphs, family, mtp, recycle
) -> None:
    """Against the NumPy backend, one chain after another; the backbone's choices are drawn."""
    folder = write_checkpoint(tmp_path / "c", family, mtp=mtp, seed=6, layers=1)
    manifest = export_bundle(folder, tmp_path / "b", ExportOptions()).manifest
    assert manifest.model.mtp is not None
    wired = replace(manifest.model, mtp=replace(manifest.model.mtp, recycle=recycle))
    backend = ReferenceBackend.from_bundle(tmp_path / "b")
    other = ReferenceBackend(
        replace(manifest, model=wired),
        safetensors_of(tmp_path / "b" / manifest.weights_file),
        np.asarray(backend._embedding),
    )
    texts = [own_text(folder, seed) for seed in (3, 40)]
    random = np.random.default_rng(0)
    choices = np.full((2, LENGTH), -1)
    tried = accepted = 0
    for index, ids in enumerate(texts):
        for start in range(LENGTH - 1):
            for depth, draft in enumerate(drafts_of(other, ids, start)):
                place = start + 1 + depth
                if depth == 0 or place >= LENGTH:
                    continue
                if choices[index, place] < 0:  # the first to come here decides, half the time
                    choices[index, place] = draft if random.random() < 0.5 else 300
                tried += 1
                accepted += int(choices[index, place] == draft)
    plan = plan_export(folder, ExportOptions())
    reader = CheckpointReader(plan.checkpoint, plan.model, plan.weights)
    text = Text(name="t", sha256="0" * 64, ids=np.array(texts))
    passed = pass_backbone(plan.weights.spec, reader, reader, text)
    passed = replace(passed, choices=torch.from_numpy(choices))
    found = chain_acceptance(plan.weights.spec, reader, reader, text, passed, recycle=recycle)
    assert (found.tried, found.accepted) == (tried, accepted)
    assert tried > LENGTH and 5 < accepted < tried - 5


def safetensors_of(path: Path) -> dict[str, np.ndarray]:
    tensors = safetensors.numpy.load_file(path)
    return {name: array for name, array in tensors.items() if not name.startswith("__pad")}


@pytest.mark.parametrize(
    ("shares", "recycle", "says"),
    [
        ({"pre_norm": (100, 70), "post_norm": (100, 40)}, "pre_norm", True),
        ({"pre_norm": (100, 40), "post_norm": (100, 70)}, "post_norm", False),
        ({"pre_norm": (100, 50), "post_norm": (100, 50)}, "post_norm", False),
        ({"pre_norm": (63, 63), "post_norm": (63, 0)}, "post_norm", False),
    ],
)
def test_better_recycled_state_is_written_with_its_evidence(
    tmp_path, monkeypatch, fake_graphs, shares, recycle, says
) -> None:
    def counted(*args: Any, recycle: Tap) -> ChainCounts:
        tried, accepted = shares[recycle]
        return ChainCounts(tried=tried, accepted=accepted)

    monkeypatch.setattr(calibrate_module, "chain_acceptance", counted)
    folder = write_checkpoint(tmp_path / "c", "mimo")
    letters = np.random.default_rng(4).integers(97, 123, 600).astype(np.uint8)
    (tmp_path / "t.txt").write_bytes(letters.tobytes())
    options = ExportOptions(calibrate=tmp_path / "t.txt")
    manifest = export_bundle(folder, tmp_path / "b", options).manifest
    assert manifest.model.mtp is not None and manifest.measured is not None
    assert manifest.model.mtp.recycle == recycle
    enough = shares["pre_norm"][0] >= 64
    wanted = {name: accepted / tried for name, (tried, accepted) in shares.items()}
    assert manifest.measured.recycle_acceptance == (wanted if enough else {})
    told = [note for note in manifest.notes if "behind the first" in note and "70.0%" in note]
    assert bool(told) == says


@pytest.mark.slow
def test_demo_keeps_what_it_was_trained_with(tmp_path, fake_graphs) -> None:
    """Its later drafts were trained on the normed state."""
    demo = Path(__file__).parents[2] / "demo"
    options = ExportOptions(calibrate=demo / "calibration.txt")
    manifest = export_bundle(demo / "checkpoint", tmp_path / "b", options).manifest
    assert manifest.model.mtp is not None and manifest.measured is not None
    shares = manifest.measured.recycle_acceptance
    assert manifest.model.mtp.recycle == "post_norm"
    assert shares["post_norm"] >= shares["pre_norm"] > 0.5

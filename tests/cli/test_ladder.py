"""``verify``'s ladder: it passes on a sound bundle, and each kind of damage fails its check."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file
from support import tiny_model
from support.checkpoints import write_checkpoint
from support.hybrid import tiny_hybrid
from support.refusals import refused
from support.sparse_bundle import write_sparse_reciter

from selfdraft.cli.audit_rows import audited_ops
from selfdraft.cli.ladder import VerifyReport, verify_bundle
from selfdraft.cli.ladder_sparse import sparse_path
from selfdraft.errors import ConfigError
from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import (
    AttentionPlan,
    AttentionSpec,
    FileSpec,
    load_manifest,
    manifest_to_json,
)
from selfdraft.runtime.reference import ReferenceBackend


@pytest.fixture(scope="module")
def exported(tmp_path_factory: Any) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("ladder")
    checkpoint = write_checkpoint(folder / "checkpoint", "mimo", context=96)
    export_bundle(checkpoint, folder / "bundle", ExportOptions())
    return folder / "bundle", checkpoint


def _failed(report: VerifyReport) -> list[str]:
    return [check.name for check in report.checks if not check.passed]


def _rehash(bundle: Path, name: str) -> None:
    """Make the manifest agree with a changed file, so that only the ladder can notice."""
    manifest = load_manifest(bundle)
    data = (bundle / name).read_bytes()
    entry = FileSpec(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    changed = dataclasses.replace(manifest, files={**manifest.files, name: entry})
    (bundle / "manifest.json").write_text(manifest_to_json(changed))


def test_sound_bundle_passes_every_rung(exported: tuple[Path, Path]) -> None:
    bundle, checkpoint = exported
    report = verify_bundle(bundle, checkpoint=checkpoint)
    assert report.ok, _failed(report)
    names = " ".join(check.name for check in report.checks)
    for part in ("files", "weights", "torch", "ONNX Runtime", "chunks", "match, K = 4"):
        assert part in names


def test_graph_that_computes_something_else_fails_its_rung(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(exported[0], tmp_path / "bundle"))
    path = bundle / "backbone.onnx"
    model = onnx.load(path, load_external_data=False)
    gate = next(node for node in model.graph.node if node.op_type == "Sigmoid")
    gate.op_type = "Tanh"
    onnx.save(model, path)
    _rehash(bundle, path.name)
    assert "ONNX Runtime against the rung below" in _failed(verify_bundle(bundle))


def test_changed_weight_fails_the_comparison_with_its_source(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(exported[0], tmp_path / "bundle"))
    tensors = load_file(bundle / "embedding.safetensors")
    tensors["embedding"][3, 5] += 1e-3
    save_file(tensors, bundle / "embedding.safetensors")
    _rehash(bundle, "embedding.safetensors")
    report = verify_bundle(bundle, checkpoint=exported[1])
    assert _failed(report) == ["weights against the checkpoint"]
    (check,) = (c for c in report.checks if not c.passed)
    assert "embedding" in check.detail


def test_another_models_checkpoint_is_refused(exported: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", "mimo", hidden=32, head_dim=8, context=96)
    with pytest.raises(ConfigError, match="is not the model of"):
        verify_bundle(exported[0], checkpoint=other)


class ReadsEverything:
    """An engine that runs dense in silence."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run_backbone(self, states: Any, step: Any, ids: Any) -> Any:
        dense = dataclasses.replace(step, attend_all=np.ones_like(step.attend_all))
        return self._inner.run_backbone(states, dense, ids)


def test_sparse_path_that_runs_dense_is_found(tmp_path: Path) -> None:
    reciter = write_sparse_reciter(tmp_path / "reciter")
    backend: Any = ReferenceBackend.from_bundle(reciter)
    assert sparse_path(backend, backend.manifest) == (
        True,
        "3 rows from position 320: 15 blocks read, 15 selected, 21 in use",
    )
    passed, detail = sparse_path(ReadsEverything(backend), backend.manifest)
    assert not passed and "21 blocks read, 15 selected" in detail


def test_sparse_path_says_when_there_is_nothing_to_check(tmp_path: Path) -> None:
    short = write_sparse_reciter(tmp_path / "short", context=300)
    backend: Any = ReferenceBackend.from_bundle(short)
    told = sparse_path(backend, backend.manifest)
    assert told == (True, "the budget covers the context of 300 tokens: nothing is left out")
    dense = dataclasses.replace(backend.manifest, attention=None)
    assert sparse_path(backend, dense)[1].startswith("every layer is dense")


def test_sparse_path_of_a_hybrid_is_that_of_the_layers_that_attend() -> None:
    """Positions 256 and 320 begin the fifth and sixth block, and the budget is four."""
    model = tiny_hybrid(tiny_model).manifest.model
    sparse = AttentionSpec(selector="mean_std", sinks=1, local_blocks=2, budget_tokens=256)
    plan = AttentionPlan(layers=(AttentionSpec(), sparse, AttentionSpec()), mtp=None)
    manifest = tiny_model.manifest(model, context_length=330)
    manifest = dataclasses.replace(manifest, attention=plan)
    backend: Any = tiny_model.make(manifest, *tiny_model.random_weights(model))
    told = sparse_path(backend, manifest)
    assert told == (True, "2 rows from position 256: 8 blocks read, 8 selected, 11 in use")
    assert not sparse_path(ReadsEverything(backend), manifest)[0]
    with refused("tiny has layers with a recurrent state"):
        audited_ops(manifest)


@pytest.mark.slow
def test_bundle_for_a_board_is_verified_by_its_check_variant(tmp_path: Path) -> None:
    """The whole ladder on the demo, and a graph that scales otherwise is noticed."""
    checkpoint = Path(__file__).parents[2] / "demo" / "checkpoint"
    options = ExportOptions(target="orin-jp7", weights="int4")
    bundle = export_bundle(checkpoint, tmp_path / "bundle", options).output
    report = verify_bundle(bundle, checkpoint=checkpoint, prompts=["Question: what is in the box?"])
    assert report.ok, _failed(report)
    names = [check.name for check in report.checks]
    assert "check variant on ONNX Runtime against NumPy" in names
    assert "speculative equals plain, match, K = 4" in names
    graph = onnx.load(str(bundle / "backbone.onnx"), load_external_data=False)
    node = next(n for n in graph.graph.node if n.op_type == "CachedAttention")
    scale = next(a for a in node.attribute if a.name == "scale")
    scale.f *= 1.5
    onnx.save(graph, str(bundle / "backbone.onnx"))
    _rehash(bundle, "backbone.onnx")
    assert _failed(verify_bundle(bundle, prompts=["Question: what is in the box?"])) == [
        "check variant on ONNX Runtime against NumPy"
    ]

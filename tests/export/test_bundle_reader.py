"""Weights read from a bundle are those that its exporter stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_checkpoint
from support.refusals import refused

from selfdraft.export.bundle import export_bundle
from selfdraft.export.bundle_reader import BundleReader, HeadFrom, ShiftedNorms, checkpoint_reader
from selfdraft.export.options import ExportOptions

NAMES = (
    "backbone.layers.1.qkv.weight",
    "backbone.norm",
    "mtp.proj.weight",
    "mtp.layer.down.weight",
    "lm_head.weight",
)


def exported(folder: Path, checkpoint: Path, **options: Any) -> tuple[BundleReader, Any, Any]:
    manifest = export_bundle(checkpoint, folder / "b", ExportOptions(**options)).manifest
    reader = BundleReader(folder / "b", manifest)
    return reader, manifest, checkpoint_reader(checkpoint, manifest, reader)


@pytest.mark.parametrize("tied", [False, True])
def test_fp32_weights_are_those_of_the_checkpoint(tmp_path, fake_graphs, tied) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", "qwen3", mtp="qwen", tied=tied)
    reader, _, source = exported(tmp_path, checkpoint)
    for name in NAMES:
        np.testing.assert_array_equal(reader.tensor(name), source.tensor(name))
    ids = np.array([5, 0, 200])
    np.testing.assert_array_equal(reader.embedding_rows(ids), source.embedding_rows(ids))


def test_quantised_and_trimmed_weights_are_unpacked(tmp_path, fake_graphs) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", "mimo")
    reader, _, source = exported(
        tmp_path, checkpoint, weights="int4", lm_head="int8", draft_vocab=270
    )
    for name, error in (("backbone.layers.1.qkv.weight", 0.2), ("lm_head.weight", 0.01)):
        got, wanted = reader.tensor(name), source.tensor(name)
        assert 0 < np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < error
    np.testing.assert_array_equal(reader.draft_ids(), source.draft_ids())
    (rows, head), *rest = reader.rows("mtp.draft_head.weight")
    assert rest == [] and head.shape == (64, 270) and rows == slice(0, 64)


@pytest.mark.parametrize(("weights", "error"), [("fp16", 1e-3), ("int4", 0.2)])
def test_weights_of_a_board_are_read_as_float32(tmp_path, fake_graphs, weights, error) -> None:
    options = {"target": "orin-jp6", "weights": weights, "draft_vocab": 270}
    checkpoint = write_checkpoint(tmp_path / "c", "mimo", head_dim=64)
    reader, _, source = exported(tmp_path, checkpoint, **options)
    for name in (*NAMES, "backbone.layers.1.down.weight", "mtp.draft_head.weight"):
        got, wanted = reader.tensor(name), source.tensor(name)
        assert got.dtype == np.float32 and got.shape == wanted.shape
        assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < max(
            error, 0.2 * name.startswith("mtp.draft_head")
        )
    ids = np.array([5, 0, 200])
    rows = reader.embedding_rows(ids)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, source.embedding_rows(ids), rtol=1e-3, atol=1e-6)


def test_head_of_one_on_the_rest_of_another(tmp_path, fake_graphs) -> None:
    first = exported(tmp_path / "1", write_checkpoint(tmp_path / "c1", seed=1))[0]
    second = exported(tmp_path / "2", write_checkpoint(tmp_path / "c2", seed=2))[0]
    mixed = HeadFrom(first, second)
    for name in NAMES:
        of_head = name.startswith(("mtp.", "lm_head."))
        np.testing.assert_array_equal(
            mixed.tensor(name), (first if of_head else second).tensor(name)
        )
    shifted = ShiftedNorms(second)
    np.testing.assert_array_equal(
        shifted.tensor("mtp.final_norm"), second.tensor("mtp.final_norm") + 1
    )
    for name in ("backbone.norm", "mtp.proj.weight"):
        np.testing.assert_array_equal(shifted.tensor(name), second.tensor(name))


def test_another_model_is_refused(tmp_path, fake_graphs) -> None:
    reader, manifest, _ = exported(tmp_path, write_checkpoint(tmp_path / "c"))
    other = write_checkpoint(tmp_path / "d", layers=3)
    with refused("num_layers 3"):
        checkpoint_reader(other, manifest, reader)
    headless = write_checkpoint(tmp_path / "e", mtp=None)
    with refused("no MTP head"):
        checkpoint_reader(headless, manifest, reader)

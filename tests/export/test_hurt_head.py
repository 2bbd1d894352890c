"""A head that quantising hurts is noticed; one that is kept wide is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file

from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import Manifest

DEMO = Path(__file__).parents[2] / "demo"
HEAD = "model.mtp_layers.0."


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The early demo, whose head computes the same from weights that groups of 4 bits cannot hold.

    Norms before the projection are divided by what its columns are multiplied with.
    """
    folder = Path(shutil.copytree(DEMO / "checkpoint-early", tmp_path_factory.mktemp("c") / "c"))
    tensors = {name: t.float() for name, t in load_file(folder / "model.safetensors").items()}
    norms = [f"{HEAD}{name}_layernorm.weight" for name in ("hidden", "token")]
    width = tensors[norms[0]].numel()
    powers = np.random.default_rng(0).integers(0, 9, 2 * width)
    factors = torch.from_numpy(2.0**powers).float()
    tensors[f"{HEAD}input_proj.weight"] *= factors
    for name, part in zip(norms, factors.split(width), strict=True):
        tensors[name] /= part
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def exported(checkpoint: Path, folder: Path, **options: object) -> Manifest:
    chosen = ExportOptions(weights="int4", calibrate=DEMO / "calibration.txt", **options)
    return export_bundle(checkpoint, folder, chosen).manifest


def test_export_speaks_up_and_names_what_helps(tmp_path, fake_graphs, uneven) -> None:
    hurt = exported(uneven, tmp_path / "a")
    told = [note for note in hurt.notes if "lowered the acceptance" in note]
    assert len(told) == 1 and "--mtp-weights int8" in told[0]
    measured = hurt.measured
    assert measured is not None and measured.after is not None
    assert measured.before.acceptance is not None and measured.after.acceptance is not None
    assert measured.before.acceptance > 0.5
    assert measured.after.acceptance < measured.before.acceptance - 0.02
    wide = exported(uneven, tmp_path / "b", mtp_weights="fp32")
    assert not [note for note in wide.notes if "lowered the acceptance" in note]
    assert wide.measured is not None and wide.measured.before == measured.before

"""Alignment of the demo checkpoint: a damaged head comes back, a missing one is made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training: pip install 'selfdraft[export]'")

from safetensors.torch import load_file, save_file

from demo.data import texts
from selfdraft.cli.eval_acceptance import acceptance_by_position
from selfdraft.cli.session import EngineOptions, open_session
from selfdraft.export.align.run import AlignOptions, align_checkpoint
from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions

pytestmark = pytest.mark.slow
CHECKPOINT = Path(__file__).parents[2] / "demo" / "checkpoint"
TRAINED_SEED, OTHER_SEED = 11, 99


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of the demo's generators to train on."""
    path = tmp_path_factory.mktemp("text") / "train.txt"
    path.write_text("\n".join(texts(TRAINED_SEED, 8000)), encoding="utf-8")
    return path


def changed(folder: Path, *, noise: float | None) -> Path:
    """The demo with noise on its head's matrices, or (None) without a head."""
    copy = Path(shutil.copytree(CHECKPOINT, folder))
    tensors = load_file(copy / "model.safetensors")
    drawn = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if ".mtp_layers." in name]:
        if noise is None:
            del tensors[name]
        elif tensors[name].ndim == 2:
            values = tensors[name].float()
            added = noise * values.std() * torch.randn(values.shape, generator=drawn)
            tensors[name] = (values + added).to(torch.bfloat16)
    if noise is None:
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def decoded(checkpoint: Path, folder: Path) -> tuple[float, float]:
    """Share of first drafts that greedy decoding accepts on text it was not trained on, and tokens
    a step with three drafts."""
    export_bundle(checkpoint, folder, ExportOptions())
    session = open_session(folder, EngineOptions(drafts=3))
    other = "\n".join(texts(OTHER_SEED, 120))
    ids = session.tokenizer.encode(other, add_special_tokens=False)[:4000]
    (bucket,) = acceptance_by_position(
        session, ids, bucket=4096, trials=64, tokens=32, on_progress=lambda *_: None
    )
    assert bucket.acceptance[0] is not None and bucket.tokens_per_step is not None
    return bucket.acceptance[0], bucket.tokens_per_step


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, float]:
    """The shipped head."""
    return decoded(CHECKPOINT, tmp_path_factory.mktemp("demo") / "b")


def test_damaged_head_comes_back(tmp_path: Path, text: Path, baseline: tuple[float, float]) -> None:
    damaged = changed(tmp_path / "c", noise=1.0)
    before = decoded(damaged, tmp_path / "b0")
    report = align_checkpoint(damaged, tmp_path / "d", [text], AlignOptions(steps=400))
    after = decoded(tmp_path / "d", tmp_path / "b1")
    print(f"baseline {baseline}, damaged {before}, aligned {after}, {report}")
    assert before[0] < baseline[0] - 0.1
    assert after[0] > baseline[0] - 0.02
    assert after[1] > baseline[1] - 0.15


def test_missing_head_is_made(tmp_path: Path, text: Path, baseline: tuple[float, float]) -> None:
    headless = changed(tmp_path / "c", noise=None)
    report = align_checkpoint(headless, tmp_path / "d", [text], AlignOptions())
    after = decoded(tmp_path / "d", tmp_path / "b")
    print(f"baseline {baseline}, made {after}, {report}")
    assert report.new_head and report.after >= 0.75
    assert after[0] >= 0.75

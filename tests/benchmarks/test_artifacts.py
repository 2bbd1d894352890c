"""Models are made once, and again when what makes them changes or a run was cut short."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import make_checkpoint
from benchmarks.artifacts import Artifacts
from benchmarks.make_checkpoint import Qwen3Geometry
from selfdraft.runtime.bundle import open_bundle

TINY = Qwen3Geometry(
    hidden=64, layers=1, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=600, context=131_072
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Artifacts:
    monkeypatch.setattr(make_checkpoint, "Qwen3Geometry", lambda: TINY)
    return Artifacts(folder=tmp_path)


def test_a_checkpoint_is_kept_until_its_stamp_differs(tiny: Artifacts) -> None:
    path = tiny.checkpoint(mtp=True)
    (path / "marker").write_text("kept")
    assert tiny.checkpoint(mtp=True) == path
    assert (path / "marker").exists()
    (path / "stamp.json").write_text("made by an older maker")
    tiny.checkpoint(mtp=True)
    assert not (path / "marker").exists()


def test_a_run_that_was_cut_short_is_made_again(
    tiny: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(make_checkpoint, "write_tokenizer", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tiny.checkpoint(mtp=False)
    assert (tiny.checkpoint(mtp=False) / "tokenizer.json").is_file()


def test_bundles_load_and_hold_what_was_asked_for(tiny: Artifacts) -> None:
    plain = open_bundle(tiny.bundle(mtp=False, weights="int4")).manifest
    drafting = open_bundle(tiny.bundle(mtp=True, weights="fp32", draft_vocab=300)).manifest
    assert (plain.model.mtp, plain.precision.int4_block) == (None, 32)
    assert drafting.model.mtp is not None
    assert drafting.model.mtp.draft_vocab_size == 300
    assert plain.limits.context_length == drafting.limits.context_length == 131_072

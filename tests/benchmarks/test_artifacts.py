"""Models are made once, and again when what makes them changes or a run was cut short."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import artifacts
from benchmarks.artifacts import Artifacts
from benchmarks.make_checkpoint import Qwen3Geometry
from selfdraft.runtime.bundle import open_bundle


@pytest.fixture
def empty(tmp_path: Path, tiny_geometry: Qwen3Geometry) -> Artifacts:
    return Artifacts(folder=tmp_path, geometry=tiny_geometry)


def test_a_checkpoint_is_kept_until_its_stamp_differs(empty: Artifacts) -> None:
    path = empty.checkpoint(mtp=True)
    (path / "marker").write_text("kept")
    assert empty.checkpoint(mtp=True) == path
    assert (path / "marker").exists()
    (path / "stamp.json").write_text("made by an older maker")
    empty.checkpoint(mtp=True)
    assert not (path / "marker").exists()


def test_a_run_that_was_cut_short_is_made_again(
    empty: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "write_checkpoint", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            empty.checkpoint(mtp=False)
    assert (empty.checkpoint(mtp=False) / "tokenizer.json").is_file()


def test_bundles_load_and_hold_what_was_asked_for(tiny: Artifacts) -> None:
    full = open_bundle(tiny.bundle(mtp=True, weights="fp32")).manifest
    trimmed = open_bundle(tiny.bundle(mtp=True, weights="int4", draft_vocab=300)).manifest
    assert full.model.mtp is not None
    assert trimmed.model.mtp is not None
    assert (full.model.mtp.draft_vocab_size, full.precision.int4_block) == (None, None)
    assert (trimmed.model.mtp.draft_vocab_size, trimmed.precision.int4_block) == (300, 32)
    assert full.limits.context_length == trimmed.limits.context_length == 131_072

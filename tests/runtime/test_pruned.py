"""The record of pruned files: written whole before anything is deleted."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from selfdraft.runtime.pruned import prune, pruned_files


@pytest.fixture
def bundle(tmp_path: Path) -> Any:
    (tmp_path / "engines").mkdir()
    (tmp_path / "weights.safetensors").write_bytes(b"weights")
    manifest = SimpleNamespace(weights_file="weights.safetensors")
    return SimpleNamespace(path=tmp_path, manifest=manifest, file=lambda name: tmp_path / name)


def test_what_is_deleted_was_written_down(bundle: Any) -> None:
    assert prune(bundle) == ["weights.safetensors"]
    assert pruned_files(bundle.path) == {"weights.safetensors"}
    assert not (bundle.path / "weights.safetensors").exists()


def test_record_that_is_not_written_deletes_nothing_and_leaves_nothing(
    bundle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        prune(bundle)
    assert (bundle.path / "weights.safetensors").exists()
    assert list((bundle.path / "engines").iterdir()) == []

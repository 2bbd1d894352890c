from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from support.checkpoints import write_checkpoint

from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import read_model
from selfdraft.export.source import Source, read_source, source_name


def source_of(folder: Path, card: str | None = None, **options) -> Source:
    write_checkpoint(folder, "qwen2", **options)
    if card is not None:
        (folder / "README.md").write_text(card)
    checkpoint = Checkpoint.open(folder)
    return read_source(checkpoint, read_model(checkpoint), name=None)


def test_card_licence_text_and_hash_are_carried_over(tmp_path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "LICENSE").write_text("terms")
    source = source_of(tmp_path / "c")
    assert source.contents["LICENSE"] == b"terms"
    assert source.contents["MODEL_CARD.md"].startswith(b"---\nlicense: apache-2.0")
    spec = source.spec
    assert (spec.name, spec.architecture, spec.license) == ("c", "Qwen2ForCausalLM", "apache-2.0")
    assert spec.model_card == "MODEL_CARD.md" and source.notes == ()
    content = (tmp_path / "c" / "config.json").read_bytes()
    assert spec.config_sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ("---\nlicense: 'mit'  # short\n---\n", "mit"),
        ('---\nlicense: other\nlicense_name: "qwen-research"\n---\n', "qwen-research"),
        ("---\nlicense: other\n---\n", "other"),
        ("---\ntags: [x]\n---\nlicense: mit\n", None),
        ("no front matter\nlicense: mit\n", None),
        ("", None),
    ],
)
def test_licence_comes_from_the_front_matter_of_the_card(tmp_path, card, licence) -> None:
    source = source_of(tmp_path, card)
    assert source.spec.license == licence
    assert bool(source.notes) == (licence is None)


def test_licence_in_the_config_goes_first(tmp_path) -> None:
    assert source_of(tmp_path, config={"license": "llama3"}).spec.license == "llama3"


def test_checkpoint_without_card_has_none(tmp_path) -> None:
    write_checkpoint(tmp_path, "qwen2")
    (tmp_path / "README.md").unlink()
    checkpoint = Checkpoint.open(tmp_path)
    source = read_source(checkpoint, read_model(checkpoint), name="mine")
    assert source.spec.model_card is None and source.spec.name == "mine"
    assert list(source.contents) == []


def test_name_of_a_cached_snapshot_is_that_of_its_repository(tmp_path) -> None:
    snapshot = tmp_path / "models--XiaomiMiMo--MiMo-7B--Base" / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    assert source_name(snapshot) == "XiaomiMiMo/MiMo-7B--Base"
    assert source_name(tmp_path) == tmp_path.name

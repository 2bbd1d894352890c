"""Checkpoints that are broken on purpose: one line that names the fault, and no hang."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import write_checkpoint
from support.refusals import refused

from selfdraft.export.bundle import check_place, plan_export
from selfdraft.export.options import ExportOptions

WEIGHTS = "model.safetensors"
Break = Callable[[Path], object]


def _raw_header(text: bytes) -> Break:
    return lambda folder: (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text)


def _write(name: str, text: str) -> Break:
    return lambda folder: (folder / name).write_text(text)


def _config(**changes: Any) -> Break:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _tokenizer(change: Callable[[dict[str, Any]], object]) -> Break:
    def rewrite(folder: Path) -> None:
        path = folder / "tokenizer.json"
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return rewrite


def _double_key(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace("{", '{"hidden_size": 7,', 1))


ADDED = {
    "id": 999,
    "content": "<x>",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}
HUGE = b"9" * 4000
BREAKS: dict[str, tuple[Break, str]] = {
    "key twice in the config": (_double_key, "'hidden_size' occurs twice"),
    "layer_types is a number": (_config(layer_types=5), "layer_types entry 5"),
    "context of one token": (
        _config(max_position_embeddings=1),
        "max_position_embeddings = 1",
    ),
    "thousands of huge sizes": (
        _raw_header(
            b'{"a":{"dtype":"F32","shape":[' + b",".join([HUGE] * 500) + b'],"data_offsets":[0,4]}}'
        ),
        "header that cannot be read",
    ),
    "more dimensions than any tensor has": (
        _raw_header(b'{"a":{"dtype":"F32","shape":[1' + b",1" * 99 + b'],"data_offsets":[0,4]}}'),
        "header that cannot be read",
    ),
    "shard name too long": (
        _write(WEIGHTS + ".index.json", json.dumps({"weight_map": {"a": "x" * 5000}})),
        "is missing",
    ),
    "tokenizer without tokens": (
        _tokenizer(lambda t: (t["model"].update(vocab={}), t.update(added_tokens=[]))),
        "has no tokens",
    ),
    "added token with an id the library does not give it": (
        _tokenizer(lambda t: t["added_tokens"].append(ADDED)),
        "'<x>' the id 999, it can only be 261",
    ),
    "decoder whose bytes are unknown": (
        _tokenizer(
            lambda t: t.update(decoder={"type": "WordPiece", "prefix": "#", "cleanup": True})
        ),
        "decoder WordPiece",
    ),
    "no decoder": (_tokenizer(lambda t: t.update(decoder=None)), "decoder none"),
    "template that is half a character": (
        _write("tokenizer_config.json", '{"chat_template": "\\ud800"}'),
        "chat_template is not valid Unicode",
    ),
    "temperature below 0": (
        _write("generation_config.json", '{"temperature": -1}'),
        "temperature is -1",
    ),
    "top_p of 0": (_write("generation_config.json", '{"top_p": 0}'), "top_p is 0"),
    "top_k of -1": (_write("generation_config.json", '{"top_k": -1}'), "top_k is -1"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_checkpoint_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "c")
    change, named = BREAKS[name]
    change(folder)
    with refused(named):
        plan_export(folder, ExportOptions())


def test_named_templates_with_odd_names_give_the_default_one(tmp_path: Path) -> None:
    templates = [5, {"name": [1]}, {"name": "default", "template": "x"}, {"name": "rag"}]
    folder = write_checkpoint(tmp_path / "c")
    _write("tokenizer_config.json", json.dumps({"chat_template": templates}))(folder)
    plan = plan_export(folder, ExportOptions())
    assert plan.contents["chat_template.jinja"] == b"x"


def test_empty_tensor_may_stand_behind_the_one_that_shares_its_offset(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    raw = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    start = header["model.norm.weight"]["data_offsets"][0]
    header["zz"] = {"dtype": "F32", "shape": [0], "data_offsets": [start, start]}
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    with refused("should not have ('zz')"):  # the header itself is in order
        plan_export(folder, ExportOptions())


@pytest.mark.parametrize("place", ["checkpoint", "output"])
def test_link_that_leads_back_to_itself_is_refused(tmp_path: Path, place: str) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    paths = {"checkpoint": write_checkpoint(tmp_path / "c"), "output": tmp_path / "out"}
    paths[place] = loop
    with refused("leads back to itself"):
        check_place(paths["checkpoint"], paths["output"], ExportOptions())

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import CHAT_TEMPLATE, write_checkpoint
from support.refusals import refused

from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.text_files import TextFiles, read_text_files
from selfdraft.manifest import SamplingDefaults


def text_of(
    folder: Path, files: dict[str, Any] | None = None, *, vocab_size: int = 288, **options: Any
) -> TextFiles:
    """Text files of a checkpoint in which ``files`` (JSON values or texts) are replaced."""
    write_checkpoint(folder, "mimo", **options)
    for name, value in (files or {}).items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / name).write_text(text)
    return read_text_files(Checkpoint.open(folder), vocab_size=vocab_size)


def test_tokenizer_template_and_ids_are_carried_over(tmp_path) -> None:
    text = text_of(tmp_path)
    assert text.contents["tokenizer.json"] == (tmp_path / "tokenizer.json").read_bytes()
    assert text.contents["chat_template.jinja"].decode() == CHAT_TEMPLATE
    assert (text.spec.tokenizer, text.spec.chat_template) == (
        "tokenizer.json",
        "chat_template.jinja",
    )
    assert (text.spec.think_start_id, text.spec.think_end_id) == (259, 260)
    assert (text.spec.eos_ids, text.spec.bos_id) == ((256,), None)
    assert text.special_ids == (256, 257, 258, 259, 260)
    assert (text.spec.banner, text.spec.examples, text.notes) == (None, (), ())


def test_missing_or_broken_tokenizer_is_refused(tmp_path) -> None:
    with refused("tokenizer.json"):
        text_of(tmp_path / "a", tokenizer=False)
    with refused("tokenizer.json"):
        text_of(tmp_path / "b", {"tokenizer.json": {"model": 3}})


def test_tokenizer_larger_than_the_embedding_is_refused_and_a_smaller_one_is_fine(tmp_path) -> None:
    with refused("'</think>'", "260", "260 rows"):
        text_of(tmp_path / "a", vocab_size=260)
    assert text_of(tmp_path / "b", vocab_size=261)


@pytest.mark.parametrize(
    ("files", "config", "expected"),
    [
        ({"generation_config.json": {"eos_token_id": [258, 256]}}, {}, (258, 256)),
        ({"generation_config.json": {"eos_token_id": 257}}, {}, (257,)),
        ({"generation_config.json": {"eos_token_id": [257, 257]}}, {}, (257,)),
        ({"generation_config.json": {}}, {"eos_token_id": [256, 258]}, (256, 258)),
        ({}, {"eos_token_id": ...}, (258,)),
        (
            {"tokenizer_config.json": {"eos_token": {"content": "<|im_end|>"}}},
            {"eos_token_id": None},
            (258,),
        ),
        ({"generation_config.json": {"eos_token_id": 0}}, {}, (0,)),
    ],
)
def test_end_of_text_ids_come_from_the_first_file_that_names_any(
    tmp_path, files, config, expected
) -> None:
    assert text_of(tmp_path, files, config=config).spec.eos_ids == expected


def test_model_without_end_of_text_token_gets_a_note(tmp_path) -> None:
    text = text_of(tmp_path, {"tokenizer_config.json": {}}, config={"eos_token_id": ...})
    assert text.spec.eos_ids == () and "end-of-text" in text.notes[0]


@pytest.mark.parametrize("value", [288, -1, "<|absent|>", True, 1.5, {"content": "<|absent|>"}])
def test_end_of_text_id_outside_the_vocabulary_is_refused(tmp_path, value) -> None:
    with refused("generation_config.json", "eos_token_id"):
        text_of(tmp_path, {"generation_config.json": {"eos_token_id": [256, value]}})


def test_tokenizer_decides_whether_there_is_a_start_token(tmp_path) -> None:
    said = {"bos_token_id": 257}
    assert text_of(tmp_path / "a", config=said).spec.bos_id is None  # bos_token is null
    files = {"tokenizer_config.json": {"bos_token": "<|im_start|>"}}
    assert text_of(tmp_path / "b", files).spec.bos_id == 257
    assert text_of(tmp_path / "c", {"tokenizer_config.json": {}}, config=said).spec.bos_id == 257


def test_template_file_goes_before_the_tokenizer_config(tmp_path) -> None:
    text = text_of(tmp_path, {"chat_template.jinja": "from the file"})
    assert text.contents["chat_template.jinja"] == b"from the file"


def test_default_of_several_templates_is_taken(tmp_path) -> None:
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    text = text_of(tmp_path, {"tokenizer_config.json": {"chat_template": several}})
    assert text.contents["chat_template.jinja"] == b"D"


def test_checkpoint_without_template_has_none(tmp_path) -> None:
    text = text_of(tmp_path, {"tokenizer_config.json": {}})
    assert text.spec.chat_template is None and list(text.contents) == ["tokenizer.json"]


def test_template_of_another_type_and_broken_json_are_refused(tmp_path) -> None:
    with refused("chat_template"):
        text_of(tmp_path / "a", {"tokenizer_config.json": {"chat_template": 3}})
    with refused("generation_config.json"):
        text_of(tmp_path / "b", {"generation_config.json": "{"})


def test_model_without_think_tags_has_no_think_ids(tmp_path) -> None:
    write_checkpoint(tmp_path, "mimo")
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] != "</think>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    spec = read_text_files(Checkpoint.open(tmp_path), vocab_size=288).spec
    assert (spec.think_start_id, spec.think_end_id) == (None, None)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, SamplingDefaults()),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0},
            SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95, min_p=0.0),
        ),
        ({"do_sample": False, "temperature": 0.6}, SamplingDefaults(temperature=0.0)),
    ],
)
def test_generation_defaults_are_those_of_the_checkpoint(tmp_path, generation, expected) -> None:
    assert text_of(tmp_path, {"generation_config.json": generation}).sampling == expected


def test_generation_default_of_another_type_is_named(tmp_path) -> None:
    with refused("generation_config.json", "top_k"):
        text_of(tmp_path, {"generation_config.json": {"top_k": "many"}})


def test_demo_card_gives_banner_and_examples(tmp_path) -> None:
    card = {"banner": "Ask about boards.", "examples": ["What is Orin?"], "command": "train"}
    spec = text_of(tmp_path / "a", {"demo_card.json": card}).spec
    assert (spec.banner, spec.examples) == ("Ask about boards.", ("What is Orin?",))


@pytest.mark.parametrize("card", [{"banner": 3}, {"examples": "one"}, {"examples": [1]}])
def test_demo_card_of_another_type_is_refused(tmp_path, card) -> None:
    with refused("demo_card.json", next(iter(card))):
        text_of(tmp_path, {"demo_card.json": card})

"""Bundles that are broken, tampered with or hostile: what is said, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.reciting_bundle import edit_manifest, write_reciting_bundle

Damage = Callable[[Path], None]


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


DAMAGES: dict[str, tuple[Damage, str]] = {
    "weights tampered with": (
        lambda b: flip_last_byte(b / "weights.safetensors"),
        "weights.safetensors",
    ),
    "template tampered with": (
        lambda b: flip_last_byte(b / "chat_template.jinja"),
        "chat_template.jinja",
    ),
    "file truncated": (
        lambda b: (b / "embedding.safetensors").write_bytes(b"\0" * 9),
        "embedding.safetensors",
    ),
    "file missing": (lambda b: (b / "tokenizer.json").unlink(), "tokenizer.json"),
    "file added": (lambda b: (b / "extra.bin").write_bytes(b"x"), "extra.bin"),
    "newer schema": (lambda b: edit_manifest(b, schema_version=99), "schema version 99"),
    "unknown key": (lambda b: edit_manifest(b, limitz={}), "'limitz' (did you mean 'limits'?)"),
    "wrong type": (lambda b: edit_manifest(b, notes=3), "notes"),
    "no JSON": (lambda b: (b / "manifest.json").write_text("{"), "manifest.json"),
    "JSON nested without end": (
        lambda b: (b / "manifest.json").write_text("[" * 200_000),
        "manifest.json",
    ),
    "JSON of another kind": (lambda b: (b / "manifest.json").write_text("[1]"), "schema version"),
    "no manifest": (lambda b: (b / "manifest.json").unlink(), "is not a bundle"),
    "file name that leaves the folder": (
        lambda b: edit_manifest(b, files={"../x": {"bytes": 1, "sha256": "0"}}),
        "../x",
    ),
}


@pytest.mark.parametrize("command", ["generate", "chat", "bench"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_bundle_is_refused(run: Any, own_bundle: Path, command: str, damage: str) -> None:
    do_damage, part = DAMAGES[damage]
    do_damage(own_bundle)
    result = run(command, own_bundle, *(["hi"] if command == "generate" else []), input="hi\n")
    assert result.exit_code == 3, result.stderr
    problem, hint = result.stderr.splitlines()
    assert problem.startswith("error: ") and part in problem
    assert hint.startswith("hint: ") and result.stdout == ""


def test_newer_schema_says_to_update(run: Any, own_bundle: Path) -> None:
    edit_manifest(own_bundle, schema_version=99)
    assert "hint: update selfdraft" in run("inspect", own_bundle).stderr


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("{{ ''.__class__.__mro__ }}", "reaches for what it may not have"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ 'a' * 10**10 }}", "makes too much text"),
        ("{% if %}", "line 1"),
        ("{{ raise_exception('roles \x1b[31mmust alternate') }}", "roles ␛[31mmust alternate"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_hostile_template_is_stopped(
    run: Any, tmp_path: Path, command: str, template: str, part: str
) -> None:
    bundle = write_reciting_bundle(tmp_path / "b", template=template)
    result = run(command, bundle, *(["hi"] if command == "generate" else []), input="hi\n")
    assert result.exit_code == 2
    assert part in result.stderr and "--raw" in result.stderr
    assert "\x1b" not in result.stderr and len(result.stderr.splitlines()) == 2


def test_missing_engine_library_names_the_extra(
    run: Any, shared_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = run("generate", shared_bundle, "hi", "--backend", "ort")
    assert result.exit_code == 5 and "onnxruntime" in result.stderr


@pytest.mark.parametrize(
    ("name", "found"), [("nowhere", "nothing is there"), ("manifest.json", "it is a file")]
)
def test_path_that_is_no_folder_is_no_bundle(
    run: Any, own_bundle: Path, name: str, found: str
) -> None:
    result = run("inspect", own_bundle / name)
    assert result.exit_code == 3
    assert f"is neither bundle nor checkpoint: {found}" in result.stderr


def test_inspect_reads_only_headers_of_a_huge_claim(run: Any, own_bundle: Path) -> None:
    (own_bundle / "weights.safetensors").write_bytes((2**62).to_bytes(8, "little"))
    result = run("inspect", own_bundle)
    assert result.exit_code == 3 and "longer than the file" in result.stderr


def test_manifest_text_cannot_control_the_terminal(run: Any, own_bundle: Path) -> None:
    manifest = json.loads((own_bundle / "manifest.json").read_text())
    edit_manifest(own_bundle, source=manifest["source"] | {"name": "a\x1b[2Jb"}, notes=["\x1b[1m"])
    result = run("inspect", own_bundle)
    assert result.exit_code == 0 and "a␛[2Jb" in result.stdout and "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "problem", "hint"),
    [
        (("chat", "BUNDLE/manifest.json"), "is a file, not the folder", "give a folder, as"),
        (("generate", "What is a mountain?"), "is not a bundle", "selfdraft export"),
        (("export", "BUNDLE", "-o", "new"), "is not a checkpoint but a bundle", "exported from"),
        (("inspect", "nowhere"), "neither bundle nor checkpoint: nothing is there", "ORG/NAME"),
        (("inspect", "EMPTY"), "no manifest.json, no config.json", "ORG/NAME"),
        (("eval", "BUNDLE"), "unknown evaluation", "needle, ruler, acceptance"),
        (("eval", "neddle", "BUNDLE"), "(did you mean 'needle'?)", "choose one of"),
    ],
)
def test_a_wrong_kind_of_path_or_word_is_told_for_what_it_is(
    run: Any,
    shared_bundle: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    problem: str,
    hint: str,
) -> None:
    given = [
        one.replace("BUNDLE", str(shared_bundle)).replace("EMPTY", str(tmp_path))
        for one in arguments
    ]
    result = run(*given, input="")
    told, next_step = result.stderr.splitlines()
    assert result.exit_code in (2, 3)
    assert problem in told and hint in next_step

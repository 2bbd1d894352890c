"""``selfdraft push`` and ``selfdraft verify --hashes``: what arrives, what is refused, what goes on."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.fake_board_copy import BoardCopy, fake_board_copy


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BoardCopy:
    return fake_board_copy(tmp_path, monkeypatch)


def place(board: BoardCopy) -> str:
    return f"user@board:{board.folder}"


def same(first: Path, second: Path) -> bool:
    names = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    return names == sorted(p.relative_to(second) for p in second.rglob("*") if p.is_file()) and all(
        (first / name).read_bytes() == (second / name).read_bytes() for name in names
    )


def test_bundle_arrives_whole_and_its_manifest_last(
    run: Any, shared_bundle: Path, board: BoardCopy
) -> None:
    result = run("push", shared_bundle, place(board))
    assert result.exit_code == 0, result.stderr
    assert same(shared_bundle, board.folder)
    assert f"at {place(board)}, every hash checked there" in result.stdout
    steps = [line.split()[0] for line in board.log]
    assert steps[-4:] == ["rsync", "ssh", "scp", "ssh"], "copy, hashes, manifest, in place"
    assert "manifest.json" in board.log[-2] and "--partial" in board.log[-4]
    assert run("verify", board.folder, "--hashes").exit_code == 0


def test_copy_that_is_cut_short_is_no_bundle_and_goes_on(
    run: Any, shared_bundle: Path, board: BoardCopy
) -> None:
    board.switch("stops-after", "1")
    result = run("push", shared_bundle, place(board))
    assert result.exit_code == 5 and "exit code 20" in result.stderr
    assert "same command again" in result.stderr
    assert not (board.folder / "manifest.json").exists()
    assert run("inspect", board.folder).exit_code == 3
    board.switch_off("stops-after")
    assert run("push", shared_bundle, place(board)).exit_code == 0
    assert same(shared_bundle, board.folder)


@pytest.fixture
def older(board: BoardCopy, run: Any, own_bundle: Path) -> Path:
    """Another bundle, with a file more and an engine, that is on the board already."""
    manifest = json.loads((own_bundle / "manifest.json").read_text())
    for name, text in (("notes.txt", "old"), ("tokenizer.json", None)):
        path = own_bundle / name
        path.write_text(text if text else path.read_text() + " ")
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        manifest["files"][name] = {"bytes": len(content), "sha256": digest}
    (own_bundle / "manifest.json").write_text(json.dumps(manifest))
    result = run("push", own_bundle, place(board))
    assert result.exit_code == 0, result.stderr
    engine = board.folder / "engines" / "sm87"
    engine.mkdir(parents=True)
    (engine / "timing.cache").write_text("timings")
    return own_bundle


def test_new_bundle_takes_the_place_of_an_older_one(
    run: Any, shared_bundle: Path, older: Path, board: BoardCopy
) -> None:
    result = run("push", shared_bundle, place(board), "--json")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["copied"] == ["tokenizer.json"] and record["removed"] == ["notes.txt"]
    assert (board.folder / "engines" / "sm87" / "timing.cache").read_text() == "timings"
    shutil.rmtree(board.folder / "engines")
    assert same(shared_bundle, board.folder)
    again = json.loads(run("push", shared_bundle, place(board), "--json").stdout)
    assert (again["program"], again["copied"], again["removed"]) == ("nothing", [], [])


@pytest.mark.parametrize("fault", ["rsync-status", "spoils", "scp-fails"])
def test_push_that_fails_leaves_the_bundle_that_was_there_usable(
    run: Any, shared_bundle: Path, older: Path, board: BoardCopy, fault: str
) -> None:
    board.switch(fault, "20")
    assert run("push", shared_bundle, place(board)).exit_code == (6 if fault == "spoils" else 5)
    checked = run("verify", board.folder, "--hashes")
    assert checked.exit_code == 0, checked.stdout + checked.stderr
    assert (board.folder / "notes.txt").exists()
    board.switch_off(fault)
    assert run("push", shared_bundle, place(board)).exit_code == 0
    assert run("verify", board.folder, "--hashes").exit_code == 0


@pytest.mark.parametrize("moves", ["1", "2"])
def test_cut_short_while_files_are_put_in_place_says_so_and_goes_on(
    run: Any, shared_bundle: Path, older: Path, board: BoardCopy, moves: str
) -> None:
    """After the old manifest, and after the first file: no bundle then, and nothing to copy anew."""
    board.switch("moves", moves)
    result = run("push", shared_bundle, place(board))
    assert result.exit_code == 5
    assert "no power" in result.stderr and "may be no bundle now" in result.stderr
    assert not (board.folder / "manifest.json").exists()
    board.switch_off("moves")
    result = run("push", shared_bundle, place(board))
    assert result.exit_code == 0, result.stderr
    assert not (board.folder / "notes.txt").exists()
    assert run("verify", board.folder, "--hashes").exit_code == 0
    assert not (board.folder / "engines" / ".incoming").exists()


def test_folder_with_files_of_something_else_is_refused_as_it_is(
    run: Any, shared_bundle: Path, board: BoardCopy
) -> None:
    board.folder.mkdir()
    for name in ("thesis.odt", "letter.txt", "a", "b"):
        (board.folder / name).write_text("mine")
    result = run("push", shared_bundle, place(board))
    assert result.exit_code == 2, result.stderr
    assert "files that are of no bundle: a, b, letter.txt and 1 more" in result.stderr
    assert sorted(p.name for p in board.folder.iterdir()) == ["a", "b", "letter.txt", "thesis.odt"]


def test_names_of_files_are_never_read_by_a_shell(
    run: Any, own_bundle: Path, board: BoardCopy
) -> None:
    name = "sub $(touch gotcha)/a;touch gotcha \"'b"
    path = own_bundle / name
    path.parent.mkdir()
    path.write_text("x")
    manifest = json.loads((own_bundle / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    (own_bundle / "manifest.json").write_text(json.dumps(manifest))
    result = run("push", own_bundle, place(board))
    assert result.exit_code == 0, result.stderr
    assert same(own_bundle, board.folder)
    assert not [*board.folder.rglob("gotcha"), *Path.cwd().glob("gotcha")]


def test_file_that_arrives_otherwise_is_named(
    run: Any, shared_bundle: Path, board: BoardCopy
) -> None:
    board.switch("spoils")
    result = run("push", shared_bundle, place(board))
    assert result.exit_code == 6 and "differ" in result.stderr
    assert not (board.folder / "manifest.json").exists()


@pytest.mark.parametrize("missing", ["here", "there"])
def test_scp_takes_over_and_copies_only_what_differs(
    run: Any, shared_bundle: Path, board: BoardCopy, missing: str
) -> None:
    if missing == "here":
        board.without("rsync")
    else:
        board.switch("rsync-status", "127")
    result = run("push", shared_bundle, place(board), "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["program"] == "scp"
    assert same(shared_bundle, board.folder)
    copied = sum(line.startswith("scp") for line in board.log)
    (board.folder / "tokenizer.json").write_text("changed")
    assert run("push", shared_bundle, place(board)).exit_code == 0
    again = sum(line.startswith("scp") for line in board.log) - copied
    assert again == 2, "the changed file and the manifest"
    assert same(shared_bundle, board.folder)


def test_unreachable_board_missing_tools_and_failing_copies_are_told(
    run: Any, shared_bundle: Path, board: BoardCopy
) -> None:
    board.switch("unreachable")
    result = run("push", shared_bundle, place(board))
    assert result.exit_code == 5 and "no route" in result.stderr
    board.switch_off("unreachable")
    board.switch("scp-fails")
    assert "scp ended with exit code 1" in run("push", shared_bundle, place(board)).stderr
    board.without("scp")
    assert "scp is not installed" in run("push", shared_bundle, place(board)).stderr
    board.without("ssh")
    assert "ssh is not installed" in run("push", shared_bundle, place(board)).stderr


@pytest.mark.parametrize(
    "target", ["board", "-oProxyCommand=x:/a", "board:/a b", "board:/a;rm", "board:$HOME", "b:"]
)
def test_places_that_a_shell_might_read_otherwise_are_refused(
    run: Any, shared_bundle: Path, board: BoardCopy, target: str
) -> None:
    result = run("push", shared_bundle, "--", target)
    assert result.exit_code == 2, result.stderr
    assert not (board.state / "log").exists()


def test_damaged_bundle_is_not_sent(run: Any, own_bundle: Path, board: BoardCopy) -> None:
    (own_bundle / "tokenizer.json").write_text("{}")
    assert run("push", own_bundle, place(board)).exit_code == 3
    assert not (board.state / "log").exists()


def test_hashes_tell_of_changed_files(run: Any, own_bundle: Path) -> None:
    assert "ok" in run("verify", own_bundle, "--hashes").stdout
    weights = own_bundle / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    result = run("verify", own_bundle, "--hashes")
    assert result.exit_code == 6 and "FAILED" in result.stdout
    assert "weights.safetensors" in result.stdout
    assert run("verify", own_bundle, "--hashes", "--prompt", "x").exit_code == 2
    assert run("verify", own_bundle / "nowhere", "--hashes").exit_code == 3


def test_a_folder_that_cannot_be_made_there_is_told_as_that(
    run: Any, shared_bundle: Path, board: BoardCopy
) -> None:
    board.folder.parent.mkdir(parents=True, exist_ok=True)
    board.folder.write_text("a file")
    result = run("push", shared_bundle, f"{place(board)}/bundle")
    problem, hint = result.stderr.splitlines()[-2:]
    assert result.exit_code == 5
    assert "user@board refuses: mkdir:" in problem and "that you may write there" in hint


@pytest.mark.parametrize("rsync", [True, False])
def test_a_colon_in_the_name_of_a_bundle_names_no_machine(
    run: Any,
    own_bundle: Path,
    board: BoardCopy,
    monkeypatch: pytest.MonkeyPatch,
    rsync: bool,
) -> None:
    named = own_bundle.rename(own_bundle.parent / "user@other:model")
    monkeypatch.chdir(named.parent)
    if not rsync:
        board.switch("rsync-status", "127")
    assert run("push", named.name, place(board)).exit_code == 0
    copies = [line.split()[-2] for line in board.log if line.startswith(("rsync", "scp"))]
    assert copies and all(source.startswith("/") for source in copies)

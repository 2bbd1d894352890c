from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.refusals import refused

from selfdraft.errors import ResourceError
from selfdraft.export.publish import (
    check_disk_space,
    check_output,
    hash_files,
    is_bundle,
    new_folder,
)

MANIFEST = json.dumps({"schema_version": 1, "selfdraft_version": "0", "graphs": {}})


def make_bundle(path: Path, content: str = "old") -> Path:
    path.mkdir()
    (path / "manifest.json").write_text(MANIFEST)
    (path / "data").write_text(content)
    return path


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_folder_appears_only_when_the_block_has_ended(tmp_path) -> None:
    output = tmp_path / "deep" / "bundle"
    with new_folder(output) as folder:
        (folder / "data").write_text("new")
        assert not output.exists()
    assert (output / "data").read_text() == "new"
    assert os.listdir(output.parent) == ["bundle"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_exception_leaves_nothing_behind(tmp_path, error) -> None:
    with pytest.raises(error), new_folder(tmp_path / "bundle") as folder:
        (folder / "data").write_text("new")
        raise error
    assert os.listdir(tmp_path) == []


def test_termination_leaves_nothing_behind_and_its_handler_is_put_back(tmp_path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, new_folder(tmp_path / "bundle") as folder:
        (folder / "data").write_text("new")
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(10)
    assert caught.value.code == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_can_publish_too(tmp_path) -> None:
    def work() -> None:
        with new_folder(tmp_path / "bundle") as folder:
            (folder / "data").write_text("new")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (tmp_path / "bundle" / "data").read_text() == "new"


def test_old_bundle_is_replaced_at_the_end_and_kept_on_failure(tmp_path) -> None:
    output = make_bundle(tmp_path / "bundle")
    with pytest.raises(RuntimeError), new_folder(output) as folder:
        (folder / "data").write_text("half")
        raise RuntimeError
    assert (output / "data").read_text() == "old"
    with new_folder(output) as folder:
        (folder / "data").write_text("new")
        assert (output / "data").read_text() == "old"
    assert (output / "data").read_text() == "new"
    assert os.listdir(tmp_path) == ["bundle"]


def test_old_bundle_comes_back_when_the_rename_fails(tmp_path, monkeypatch) -> None:
    output = make_bundle(tmp_path / "bundle")
    rename = os.replace

    def failing(source, target):
        if ".partial-" in str(source):
            raise OSError(errno.EIO, "broken disk")
        rename(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with refused(str(output), "broken disk", error=ResourceError), new_folder(output):
        pass
    assert (output / "data").read_text() == "old"
    assert os.listdir(tmp_path) == ["bundle"]


def test_leftovers_of_dead_exports_are_removed_and_those_of_live_ones_kept(tmp_path) -> None:
    dead, live = dead_pid(), os.getppid()
    names = [f".bundle.partial-{dead}", f".bundle.partial-{live}", f".other.partial-{dead}"]
    names += [".bundle.partial-x", f".bundle.old-{dead}"]
    for name in names:
        make_bundle(tmp_path / name)
    make_bundle(tmp_path / "bundle")
    with new_folder(tmp_path / "bundle"):
        pass
    kept = {"bundle", f".bundle.partial-{live}", f".other.partial-{dead}", ".bundle.partial-x"}
    assert set(os.listdir(tmp_path)) == kept


def test_own_leftover_of_a_reused_process_id_is_removed(tmp_path) -> None:
    make_bundle(tmp_path / f".bundle.partial-{os.getpid()}")
    with new_folder(tmp_path / "bundle") as folder:
        assert os.listdir(folder) == []


def test_bundle_that_a_kill_left_aside_comes_back(tmp_path) -> None:
    make_bundle(tmp_path / f".bundle.old-{dead_pid()}")
    with pytest.raises(RuntimeError), new_folder(tmp_path / "bundle"):
        raise RuntimeError
    assert (tmp_path / "bundle" / "data").read_text() == "old"


def test_output_that_is_in_the_way_is_refused(tmp_path) -> None:
    other, file = tmp_path / "other", tmp_path / "file"
    other.mkdir()
    (other / "manifest.json").write_text("{}")  # of another program
    file.write_text("text")
    for path in (other, file):
        for overwrite in (False, True):
            with refused(str(path), "did not write it"):
                check_output(path, overwrite=overwrite)
    bundle = make_bundle(tmp_path / "bundle")
    with refused(str(bundle), "exists"):
        check_output(bundle, overwrite=False)
    check_output(bundle, overwrite=True)


def test_absent_and_empty_outputs_are_free(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    check_output(tmp_path / "absent", overwrite=False)
    check_output(tmp_path / "empty", overwrite=False)
    with new_folder(tmp_path / "empty") as folder:
        (folder / "data").write_text("new")
    assert (tmp_path / "empty" / "data").exists()


def test_bundle_of_another_schema_version_is_one_and_broken_json_is_none(tmp_path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    (bundle / "manifest.json").write_text(MANIFEST.replace("1", "99", 1))
    assert is_bundle(bundle)
    for text in ("{", "[]", "{}"):
        (bundle / "manifest.json").write_text(text)
        assert not is_bundle(bundle)


def test_short_disk_is_refused_with_both_figures(tmp_path, monkeypatch) -> None:
    usage = shutil._ntuple_diskusage(100 << 30, 98 << 30, 2 << 30)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with refused("7.50 GiB", "2.00 GiB", error=ResourceError):
        check_disk_space(tmp_path / "a" / "b", 15 << 29)
    check_disk_space(tmp_path / "a" / "b", 2 << 30)


def test_place_below_a_file_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("text")
    output = tmp_path / "file" / "bundle"
    with refused(str(output), error=ResourceError), new_folder(output):
        pass


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_place_without_write_permission_is_refused(tmp_path, monkeypatch, number) -> None:
    def denied(path, *args):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "mkdir", denied)
    with (
        refused(str(tmp_path), os.strerror(number), error=ResourceError),
        new_folder(tmp_path / "bundle"),
    ):
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_refused_and_the_rest_removed(tmp_path, number) -> None:
    with (
        refused("disk is full", error=ResourceError),
        new_folder(tmp_path / "bundle") as folder,
    ):
        (folder / "data").write_text("half")
        raise OSError(number, os.strerror(number))
    assert os.listdir(tmp_path) == []


def test_hashes_cover_every_file_and_count_its_bytes(tmp_path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "sub" / "b").write_bytes(b"")
    seen: list[tuple[int, int]] = []
    files = hash_files(tmp_path, lambda done, total: seen.append((done, total)))
    assert {name: spec.bytes for name, spec in files.items()} == {"a": 3, "sub/b": 0}
    assert files["a"].sha256.startswith("ba7816bf8f01cfea414140de5dae2223")
    assert seen == [(3, 3)]


def test_bundle_that_appeared_meanwhile_is_not_replaced(tmp_path) -> None:
    output = tmp_path / "bundle"
    with refused("exists"), new_folder(output, overwrite=False) as folder:
        (folder / "data").write_text("late")
        make_bundle(output, "early")
    assert (output / "data").read_text() == "early"
    assert os.listdir(tmp_path) == ["bundle"]

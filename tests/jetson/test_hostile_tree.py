"""Files with anything in them: the probe, the checks and the samples stand it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_boards import BOARDS

from selfdraft.jetson.checks import CHECKS
from selfdraft.jetson.doctor import diagnose
from selfdraft.jetson.numbers import count_from_text
from selfdraft.jetson.probe import probe
from selfdraft.jetson.sysfs_sample import SysfsSource

GARBAGE = {
    "empty": b"",
    "binary": bytes(range(256)),
    "many digits": b"9" * 5000,
    "columns of many digits": b"a b " + (b"9" * 5000 + b" ") * 12,
    "negative": b"-5",
    "brackets": b"[" * 100_000,
    "other digits": "٣ ٣٣ ²".encode(),
    "lines": b"\n\n \n",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("name", ["agx-64-jetpack-7.2", "nano-8"])
def test_tree_of_garbage_is_probed_checked_and_sampled(
    name: str, garbage: bytes, tmp_path: Path
) -> None:
    system = BOARDS[name](tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(garbage)
    compatible = tmp_path / "proc/device-tree/compatible"
    compatible.write_bytes(b"nvidia,tegra234\0")
    diagnose(probe(system), CHECKS)
    SysfsSource(system).read()


@pytest.mark.parametrize("kind", ["folder", "nothing"])
def test_files_that_are_folders_or_cannot_be_opened_are_absent(kind: str, tmp_path: Path) -> None:
    system = BOARDS["nx-16"](tmp_path)
    for path in list(tmp_path.rglob("*")):
        if path.is_file():
            path.unlink()
            if kind == "folder":
                path.mkdir()
    device = probe(system)
    assert device.identity.soc is None and device.memory.total_bytes == 0
    diagnose(device, CHECKS)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("123", 123),
        ("-1", None),
        ("", None),
        ("1.5", None),
        ("٣", None),
        ("9" * 19, None),
    ],
)
def test_counts_are_plain_digits(text: str, count: int | None) -> None:
    assert count_from_text(text) == count


def test_board_code_imports_nothing_of_the_runtime_and_nothing_heavy() -> None:
    code = (
        "import sys, selfdraft.jetson.probe, selfdraft.jetson.checks, selfdraft.jetson.sampler\n"
        "import selfdraft.jetson.explanations, selfdraft.jetson.tegrastats\n"
        "heavy = ('numpy', 'torch', 'onnxruntime', 'rich', 'typer', 'selfdraft.runtime')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    source = Path(sys.modules["selfdraft"].__file__ or "").parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"

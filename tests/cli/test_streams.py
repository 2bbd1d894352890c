"""Standard streams that are closed or hold another encoding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pty", reason="closes streams as a POSIX shell does")


def shell(environment: dict[str, str], tail: str, *arguments: object) -> tuple[int, str]:
    """Exit code and stderr of ``selfdraft`` with the redirections ``tail``."""
    done = subprocess.run(
        [
            "sh",
            "-c",
            f'"$0" -m selfdraft.cli.main "$@" {tail}',
            sys.executable,
            *map(str, arguments),
        ],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return done.returncode, done.stderr


def test_closed_stdout_is_said_in_two_lines(process_environment: dict[str, str]) -> None:
    code, stderr = shell(process_environment, ">&-", "--version")
    assert code == 4
    assert stderr.splitlines()[0] == "error: stdout is closed"
    assert stderr.splitlines()[1].startswith("hint: ")


def test_closed_stderr_changes_no_result(process_environment: dict[str, str]) -> None:
    assert shell(process_environment, "2>&-", "--version")[0] == 0


def test_closed_stdin_reads_as_empty(
    process_environment: dict[str, str], shared_bundle: Path
) -> None:
    code, stderr = shell(process_environment, "<&-", "generate", shared_bundle)
    assert code == 2 and "the prompt is empty" in stderr

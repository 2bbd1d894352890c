"""A board's tools for a shell script: each stub does as little as the script can tell, and logs."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_UNAME = 'echo "${STUB_MACHINE:-aarch64}"'
_DPKG_QUERY = 'grep -qx "${!#}" "$STUB_STATE/packages" && printf installed'
_SUDO = 'exec "$@"'
_ID = "echo 1000"
_APT_GET = """
echo "apt-get $*" >>"$STUB_STATE/log"
[ "$1" = install ] || exit 0
for name in "$@"; do case $name in -*|install) ;; *) echo "$name" >>"$STUB_STATE/packages" ;; esac; done
"""
_PYTHON = """
echo "python $*" >>"$STUB_STATE/log"
[ "$1 $2" = "-m venv" ] || exit 1
folder=${!#}
mkdir -p "$folder/bin"
echo "include-system-site-packages = true" >"$folder/pyvenv.cfg"
cp "$STUB_STATE/venv-python" "$folder/bin/python"
"""
_VENV_PYTHON = """
has() { grep -qx "$1" "$STUB_STATE/modules"; }
if [ "$1" = -c ]; then
  case $2 in
    *version_info*) echo "$STUB_PYTHON" ;;
    *CUDAExecutionProvider*) has onnxruntime-gpu ;;
    *"import onnxruntime"*) has onnxruntime || has onnxruntime-gpu ;;
    *selfdraft.cli.main*) has selfdraft ;;
    *starlette*) has starlette ;;
    *"import tensorrt"*) grep -qx python3-libnvinfer "$STUB_STATE/packages" ;;
    *pycuda*) has pycuda ;;
    *) exit 1 ;;
  esac
  exit
fi
echo "$STUB_PYTHON $*" >>"$STUB_STATE/log"
case "$*" in
  *"pip uninstall"*) ;;
  *onnxruntime-gpu*) [ -z "${STUB_NO_GPU_WHEEL:-}" ] && echo onnxruntime-gpu >>"$STUB_STATE/modules" ;;
  *onnxruntime*) echo onnxruntime >>"$STUB_STATE/modules" ;;
  *pycuda*) [ -n "${STUB_USELESS_PYCUDA:-}" ] && exit 0
    [ "$(command -v nvcc)" = "$SELFDRAFT_SETUP_ROOT/usr/local/cuda/bin/nvcc" ] && echo pycuda >>"$STUB_STATE/modules" ;;
  *" -e "*)
    echo selfdraft >>"$STUB_STATE/modules"
    case "$*" in *"[serve]"*) echo starlette >>"$STUB_STATE/modules" ;; esac
    cp "$STUB_STATE/venv-selfdraft" "${0%/*}/selfdraft"
    ;;
esac
"""

_VENV_SELFDRAFT = """
echo "selfdraft $*" >>"$STUB_STATE/log"
[ "$(command -v nvcc)" = "$SELFDRAFT_SETUP_ROOT/usr/local/cuda/bin/nvcc" ] || exit 5
mkdir -p "${!#}" && touch "${!#}/sm_87.cubin"
plugins="${!#%/*}/plugins"
case "$*" in *--install*) mkdir -p "$plugins" && touch "$plugins/libselfdraft_plugins.so" ;; esac
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StubBoard:
    """A board for ``jetson/setup.sh``: ``root`` holds its files, ``state`` what was done."""

    root: Path
    state: Path
    tools: Path
    python: str

    @property
    def venv(self) -> Path:
        """Where the script is told to put its virtual environment."""
        return self.root / "home" / "selfdraft-venv"

    def run(
        self, script: Path, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the script on this board."""
        environment = {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "HOME": str(self.root / "home"),
            "STUB_STATE": str(self.state),
            "STUB_PYTHON": self.python,
            "SELFDRAFT_SETUP_ROOT": str(self.root),
        }
        return subprocess.run(
            ["bash", str(script), *arguments],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def log(self) -> list[str]:
        """What the tools were asked to do so far."""
        path = self.state / "log"
        return path.read_text().splitlines() if path.exists() else []


def stub_board(folder: Path, *, release: str | None, python: str) -> StubBoard:
    """A board with JetPack's CUDA and power modes, and no package that the script needs."""
    root, state, tools = folder / "root", folder / "state", folder / "tools"
    for path in (root / "etc", root / "home", root / "usr/bin", root / "usr/local/cuda/bin"):
        path.mkdir(parents=True)
    state.mkdir()
    tools.mkdir()
    if release is not None:
        (root / "etc/nv_tegra_release").write_text(f"# {release}, GCID: 1, BOARD: generic\n")
    (root / "etc/nvpmodel.conf").write_text("< POWER_MODEL ID=3 NAME=MAXN_SUPER >\n")
    (state / "packages").write_text("")
    (state / "modules").write_text("")
    for path, text in (
        (tools / "uname", _UNAME),
        (tools / "dpkg-query", _DPKG_QUERY),
        (tools / "sudo", _SUDO),
        (tools / "id", _ID),
        (tools / "apt-get", _APT_GET),
        (root / "usr/bin" / python, _PYTHON),
        (root / "usr/local/cuda/bin/nvcc", "true"),
        (state / "venv-python", _VENV_PYTHON),
        (state / "venv-selfdraft", _VENV_SELFDRAFT),
    ):
        path.write_text(f"#!/usr/bin/env bash\n{text}")
        path.chmod(0o755)
    return StubBoard(root=root, state=state, tools=tools, python=python)

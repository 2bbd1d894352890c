"""ssh, rsync and scp of a "board" that is a folder of this machine; each writes to a log."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

TOOLS = ("bash", "mkdir", "rm", "cp", "cat", "sha256sum", "xargs", "head", "dirname", "find", "sh")
_SSH = """
echo "ssh $*" >>"$STUB_STATE/log"
[ -e "$STUB_STATE/unreachable" ] && { echo "ssh: connect to host: no route" >&2; exit 255; }
shift
bash -c "$*"
"""
_RSYNC = """
echo "rsync $*" >>"$STUB_STATE/log"
[ -e "$STUB_STATE/rsync-status" ] && exit "$(cat "$STUB_STATE/rsync-status")"
source=${@: -2:1}
target=${*: -1}
target=${target#*:}
copied=0
while read -r name; do
  [ "$copied" = "$(cat "$STUB_STATE/stops-after" 2>/dev/null)" ] && exit 20
  mkdir -p "$(dirname "$target$name")"
  cp "$source$name" "$target$name"
  last=$target$name
  copied=$((copied + 1))
done
[ -e "$STUB_STATE/spoils" ] && echo spoilt >>"$last"
exit 0
"""
_SCP = """
echo "scp $*" >>"$STUB_STATE/log"
[ -e "$STUB_STATE/scp-fails" ] && exit 1
source=${@: -2:1}
target=${*: -1}
cp "$source" "${target#*:}"
"""
_MV = f"""
left=$(cat "$STUB_STATE/moves" 2>/dev/null || echo 99)
[ "$left" = 0 ] && {{ echo "mv: no power" >&2; exit 1; }}
[ -e "$STUB_STATE/moves" ] && echo $((left - 1)) >"$STUB_STATE/moves"
exec {shutil.which("mv")} "$@"
"""


@dataclass(frozen=True, kw_only=True)
class BoardCopy:
    """The folder that plays the board, and switches for what goes wrong."""

    folder: Path
    state: Path
    tools: Path

    def switch(self, name: str, value: str = "") -> None:
        (self.state / name).write_text(value)

    def switch_off(self, name: str) -> None:
        (self.state / name).unlink()

    def without(self, tool: str) -> None:
        (self.tools / tool).unlink()

    @property
    def log(self) -> list[str]:
        return (self.state / "log").read_text().splitlines()


def fake_board_copy(root: Path, monkeypatch: pytest.MonkeyPatch) -> BoardCopy:
    """Put the stubs on PATH, and nothing else of that kind."""
    board = BoardCopy(folder=root / "board", state=root / "state", tools=root / "tools")
    board.state.mkdir()
    board.tools.mkdir()
    for tool in TOOLS:
        os.symlink(str(shutil.which(tool)), board.tools / tool)
    for name, body in (("ssh", _SSH), ("rsync", _RSYNC), ("scp", _SCP), ("mv", _MV)):
        path = board.tools / name
        path.write_text(f"#!{shutil.which('bash')}\n{body}")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(board.tools))
    monkeypatch.setenv("STUB_STATE", str(board.state))
    return board

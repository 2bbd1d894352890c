"""Exports a checkpoint again and again, killed one step later each time (run as a script).

Arguments: checkpoint, output, and ``--overwrite`` to start with a bundle that is replaced. Each
round forks a child that counts what it does to the file system and to progress, and sends itself
SIGKILL at step k. One JSON line a round: k, whether the child was killed, the folders beside the
output that load as a bundle, and those of them whose every file has the manifest's hash. Ends
with the first round that no kill reached.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import types
from pathlib import Path
from typing import Any

from selfdraft.errors import BundleError
from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.export.publish import hash_files
from selfdraft.manifest import MANIFEST_NAME, GraphSpec, load_manifest

EVENTS = ("open", "os.mkdir", "os.rename", "os.truncate", "os.remove", "os.rmdir", "os.scandir")


def fake_build_graphs(spec: Any, stored: Any, *, directory: Path, **rest: Any) -> dict[str, Any]:
    (directory / "backbone.onnx").write_bytes(b"graph" * 1000)
    return {"backbone": GraphSpec(file="backbone.onnx", inputs=(), outputs=(), taps=(), states=())}


class Countdown:
    """Kills the process at the ``steps``-th call."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event in EVENTS:
            self.step()


def export_killed_at(step: int, checkpoint: Path, output: Path, *, overwrite: bool) -> bool:
    """Fork an export; whether it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            countdown = Countdown(step)
            sys.addaudithook(countdown.audit)
            options = ExportOptions(overwrite=overwrite)
            export_bundle(checkpoint, output, options, lambda *progress: countdown.step())
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the export failed by itself"
    return False


def is_complete(folder: Path) -> bool:
    """Whether the files are exactly those of the manifest, hashes included."""
    found = hash_files(folder, lambda done, total: None)
    del found[MANIFEST_NAME]
    return found == load_manifest(folder).files


def loadable(folder: Path) -> list[Path]:
    paths = []
    for path in sorted(folder.iterdir()):
        try:
            load_manifest(path)
        except BundleError:
            continue
        paths.append(path)
    return paths


def main(checkpoint: Path, output: Path, *, overwrite: bool) -> None:
    graph = types.ModuleType("selfdraft.export.graph")
    graph.build_graphs = fake_build_graphs  # type: ignore[attr-defined]
    sys.modules["selfdraft.export.graph"] = graph
    if overwrite:
        export_bundle(checkpoint, output, ExportOptions())
    step, killed = 1, True
    while killed:
        killed = export_killed_at(step, checkpoint, output, overwrite=overwrite)
        found = loadable(output.parent)
        line = {
            "step": step,
            "killed": killed,
            "loadable": [path.name for path in found],
            "complete": [path.name for path in found if is_complete(path)],
        }
        print(json.dumps(line), flush=True)
        if killed and not overwrite and output.exists():
            shutil.rmtree(output)
        step += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), overwrite="--overwrite" in sys.argv)

"""What opening a bundle on ONNX Runtime takes: 16-bit storage ends as fp32, and peaks no higher than told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.export_memory import write_synthetic
from benchmarks.synthetic_models import MODELS
from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions

MIB = 2**20
SCRIPT = """
import sys
from pathlib import Path
from selfdraft.manifest import load_manifest
from selfdraft.runtime.ort import OrtBackend
import onnxruntime
def kib(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])
before = kib("VmRSS")
backend = OrtBackend(Path(sys.argv[1]), load_manifest(Path(sys.argv[1])), threads=2)
print((kib("RssAnon") - before) * 1024, (kib("VmHWM") - before) * 1024)
"""


def opened(bundle: Path) -> tuple[int, int]:
    """Bytes that an open bundle holds beside its mapped files, and the peak while it opened."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(bundle)], capture_output=True, text=True, check=True
    )
    held, peak = done.stdout.split()
    return int(held), int(peak)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_halves_cost_what_fp32_does_and_their_file_while_they_are_opened(tmp_path) -> None:
    pytest.importorskip("onnxruntime")
    model = replace(MODELS["tiny"], hidden=1024, layers=6, heads=16, kv_heads=4, ffn=4096)
    write_synthetic(tmp_path / "c", model)
    sizes, costs = {}, {}
    for kind in ("fp32", "bf16", "fp16"):
        report = export_bundle(tmp_path / "c", tmp_path / kind, ExportOptions(weights=kind))
        sizes[kind] = sum(report.bytes_by_part.values())
        costs[kind] = opened(tmp_path / kind)
    assert sizes["fp32"] > 400 * MIB and sizes["bf16"] < 0.51 * sizes["fp32"]
    slack = 64 * MIB
    for kind in ("bf16", "fp16"):
        held, peak = costs[kind]
        assert held < costs["fp32"][0] + sizes[kind] * 0.2 + slack, costs
        assert peak < costs["fp32"][1] + sizes[kind] + slack, costs

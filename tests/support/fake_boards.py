"""Trees that imitate the files of a board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from selfdraft.jetson.modules import PowerMode
from selfdraft.jetson.system import PythonFacts, System

Outputs = Mapping[tuple[str, ...], str]
PYTHON = PythonFacts(
    version="3.10.12",
    executable="/home/user/.venv/bin/python",
    prefix="/home/user/.venv",
    base_prefix="/usr",
    search_path=("/usr/lib/python3.10", "/home/user/.venv/lib/python3.10/site-packages"),
)


def write_tree(
    root: Path,
    files: Mapping[str, str | bytes],
    *,
    outputs: Outputs | None = None,
    architecture: str = "aarch64",
    environment: Mapping[str, str] | None = None,
    python: PythonFacts = PYTHON,
) -> System:
    """``files`` by their absolute paths below ``root``, as a system that runs no commands."""
    for absolute, content in files.items():
        path = root / absolute.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            content = (content + "\n").encode()
        path.write_bytes(content)
    return System(
        root=root,
        architecture=architecture,
        environment=environment or {},
        python=python,
        outputs=outputs or {},
    )


def nvpmodel_conf(modes: Sequence[PowerMode]) -> str:
    """A configuration in nvpmodel's format with these modes; MAXN modes are uncapped."""
    lines = ["< PARAM TYPE=CLOCK NAME=GPU >", "MAX_FREQ /sys/gpu/max_freq", ""]
    most_cpus = max(mode.num_cpus for mode in modes)
    for mode in modes:
        free = "MAXN" in mode.name
        lines.append(f"< POWER_MODEL ID={mode.id} NAME={mode.name} >")
        lines += [f"CPU_ONLINE CORE_{i} {int(i < mode.num_cpus)}" for i in range(most_cpus)]
        lines += [
            f"TPC_POWER_GATING TPC_PG_MASK {0xFF << mode.num_tpcs & 0xFF}",
            "GPU_POWER_CONTROL_ENABLE GPU_PWR_CNTL_EN on",
            "GPU MIN_FREQ 0",
            f"GPU MAX_FREQ {-1 if free else round(mode.gpu_mhz * 1e6)}",
            f"EMC MAX_FREQ {-1 if free else round(mode.emc_mhz * 1e6)}",
            "",
        ]
    default = next(mode.id for mode in modes if mode.default)
    return "\n".join([*lines, f"< PM_CONFIG DEFAULT={default} >"])

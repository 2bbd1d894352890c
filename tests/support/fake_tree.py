"""Files of a board, to imitate one below a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfdraft.jetson.modules import Module, PowerMode
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


def _kib(mib: float) -> int:
    return round(mib * 1024)


def memory_files(
    total_mib: int, available_mib: int, *, free_mib: int, blocks: int, order: int
) -> Any:
    """/proc files; ``blocks`` free blocks of ``4 KiB << order`` are the largest."""
    counts = [4, 3, 2, 1, *[1] * (order - 4), blocks, *[0] * (10 - order)]
    zram = total_mib // 2
    return {
        "/proc/meminfo": (
            f"MemTotal:       {_kib(total_mib)} kB\nMemFree:        {_kib(free_mib)} kB\n"
            f"MemAvailable:   {_kib(available_mib)} kB\nBuffers:  1024 kB\n"
            f"Cached:         {_kib(available_mib - free_mib)} kB"
        ),
        "/proc/swaps": (
            "Filename\t\tType\t\tSize\t\tUsed\t\tPriority\n"
            f"/dev/zram0  partition\t{_kib(zram)}\t0\t5"
        ),
        "/proc/buddyinfo": (
            "Node 0, zone      DMA      0      0      0      0      0      0      0      0      0"
            "      0      0\nNode 0, zone   Normal " + " ".join(f"{c:6}" for c in counts)
        ),
    }


def clocks_files(
    module: Module, mode: PowerMode, *, gpu: str, locked: bool, hardware_mhz: float
) -> Any:
    low = mode.gpu_mhz if locked else 306.0
    steps = sorted({306.0, 408.0, 612.0, hardware_mhz})
    files = {
        f"/sys/class/devfreq/{gpu}/min_freq": str(round(low * 1e6)),
        f"/sys/class/devfreq/{gpu}/max_freq": str(round(mode.gpu_mhz * 1e6)),
        f"/sys/class/devfreq/{gpu}/cur_freq": str(round(low * 1e6)),
        f"/sys/class/devfreq/{gpu}/governor": "nvhost_podgov",
        f"/sys/class/devfreq/{gpu}/available_frequencies": " ".join(
            str(round(step * 1e6)) for step in steps
        ),
        "/sys/devices/system/cpu/possible": f"0-{module.num_cpus - 1}",
    }
    for number in range(module.num_cpus):
        folder = f"/sys/devices/system/cpu/cpu{number}"
        files[f"{folder}/online"] = str(int(number < mode.num_cpus))
        lowest = mode.cpu_mhz if locked else 729.6
        for name, mhz in (("min", lowest), ("max", mode.cpu_mhz), ("cur", lowest)):
            files[f"{folder}/cpufreq/scaling_{name}_freq"] = str(round(mhz * 1e3))
        files[f"{folder}/cpufreq/scaling_governor"] = "schedutil"
    return files


def rails_files(address: str, rails: Sequence[tuple[str, int, int]]) -> Any:
    folder = f"/sys/bus/i2c/drivers/ina3221/{address}/hwmon/hwmon3"
    files = {f"{folder}/in7_label": "sum of shunt voltages", f"{folder}/in7_input": "9"}
    files |= {f"{folder}/curr7_input": "9"}
    for channel, (label, millivolt, milliampere) in enumerate(rails, start=1):
        files |= {
            f"{folder}/in{channel}_label": label,
            f"{folder}/in{channel}_input": str(millivolt),
            f"{folder}/curr{channel}_input": str(milliampere),
            f"{folder}/curr{channel}_max": "32760",
            f"{folder}/curr{channel}_crit": "32760",
            f"{folder}/curr{channel}_max_alarm": "0",
            f"{folder}/curr{channel}_crit_alarm": "0",
        }
    return files


def zones_files(*zones: tuple[str, int]) -> Any:
    files = {}
    for number, (name, milli_c) in enumerate(zones):
        folder = f"/sys/class/thermal/thermal_zone{number}"
        files |= {
            f"{folder}/type": f"{name}-thermal",
            f"{folder}/temp": str(milli_c),
            f"{folder}/trip_point_0_type": "critical",
            f"{folder}/trip_point_0_temp": "104500",
            f"{folder}/trip_point_1_type": "passive",
            f"{folder}/trip_point_1_temp": "99000",
            f"{folder}/trip_point_2_type": "active",
            f"{folder}/trip_point_2_temp": "46000",
        }
    return files


def dpkg_files(**packages: str) -> Any:
    entries = [
        f"Package: {name.replace('_', '-')}\nStatus: install ok installed\nVersion: {version}\n"
        for name, version in packages.items()
    ]
    return {"/var/lib/dpkg/status": "\n".join(entries)}


def release_files(l4t: str, date: str) -> Any:
    major, _, revision = l4t.partition(".")
    return {
        "/etc/nv_tegra_release": (
            f"# R{major} (release), REVISION: {revision}, GCID: 1, BOARD: generic, "
            f"EABI: aarch64, DATE: {date}\n# KERNEL_VARIANT: oot"
        )
    }


def jetpack_6_files(*, package: str | None, nvinfer: str = "10.3.0.30-1+cuda12.5") -> Any:
    named = {"nvidia_jetpack": package} if package else {}
    return {
        **dpkg_files(**named, libnvinfer10=nvinfer, python3_libnvinfer=nvinfer),
        "/usr/local/cuda/version.json": json.dumps({"cuda": {"version": "12.6.68"}}),
        "/usr/local/cuda/bin/nvcc": "",
        "/usr/local/cuda/targets/aarch64-linux/include/cuda.h": "",
        "/usr/lib/aarch64-linux-gnu/libnvinfer.so.10": "",
        "/usr/lib/aarch64-linux-gnu/libnvinfer.so.10.3.0": "",
        "/usr/lib/python3.10/dist-packages/tensorrt/__init__.py": "",
        "/usr/lib/python3.10/dist-packages/tensorrt-10.3.0.dist-info/METADATA": "",
    }


def venv_files(minor: str, *, system_site: bool, packages: Mapping[str, str]) -> Any:
    site = f"/home/user/.venv/lib/python{minor}/site-packages"
    files = {
        f"{site}/{name}-{version}.dist-info/METADATA": "" for name, version in packages.items()
    }
    shares = str(system_site).lower()
    files["/home/user/.venv/pyvenv.cfg"] = (
        f"home = /usr/bin\ninclude-system-site-packages = {shares}"
    )
    path = [f"/usr/lib/python{minor}", site]
    path += [f"/usr/lib/python{minor}/dist-packages"] if system_site else []
    return files, PythonFacts(
        version={"3.10": "3.10.12", "3.12": "3.12.3"}[minor],
        executable="/home/user/.venv/bin/python",
        prefix="/home/user/.venv",
        base_prefix="/usr",
        search_path=tuple(path),
    )


def board_files(
    module: Module, mode: PowerMode, *, spec: str | None, model: str, maker: str
) -> Any:
    """Identity and power mode."""
    modes = module.modes(super_config=mode.super_config)
    files = {
        "/proc/device-tree/compatible": f"{maker}\0nvidia,tegra234\0",
        "/proc/device-tree/model": f"{model}\0",
        "/etc/nvpmodel.conf": nvpmodel_conf(modes),
        "/var/lib/nvpmodel/status": f"pmode:{mode.id:04} fmode:quiet",
    }
    if spec:
        files["/etc/nv_boot_control.conf"] = f"TNSPEC {spec}\nTEGRA_CHIPID 0x23"
    return files


def plugin_library(*cubins: tuple[int, int], machine: int = 0xB7) -> bytes:
    """A shared library's header, with the headers of (compute capability, format) GPU code."""
    parts = [_elf_header(machine, flags=0, abi=0)]
    for capability, form in cubins:
        parts.append(b"padding" + cubin(capability, form))
    return b"".join(parts)


def cubin(capability: int, form: int) -> bytes:
    """The header of GPU code for a compute capability, in a format."""
    flags = capability << 8 if form >= 8 else capability << 16 | capability
    return _elf_header(190, flags=flags, abi=form)


def _elf_header(machine: int, *, flags: int, abi: int) -> bytes:
    header = bytearray(64)
    header[:7] = b"\x7fELF\x02\x01\x01"
    header[8] = abi
    header[18:20] = machine.to_bytes(2, "little")
    header[48:52] = flags.to_bytes(4, "little")
    return bytes(header)


def link(root: Path, absolute: str, target: str) -> None:
    path = root / absolute.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)

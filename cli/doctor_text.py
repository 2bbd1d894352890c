"""A device and a diagnosis for people: what was found first, then what follows from it."""

from __future__ import annotations

from selfdraft.cli.console import bytes_text
from selfdraft.jetson.device import Clock, Device
from selfdraft.jetson.doctor import SEVERITIES, Diagnosis, Finding, Status

_INDENT = " " * 9


def device_rows(device: Device) -> list[tuple[str, str]]:
    """What the probe found, one row a subject."""
    rows = [("board", _board(device)), ("software", _software(device)), ("python", _python(device))]
    if device.identity.is_jetson:
        rows += [("power", _power(device)), ("clocks", _clocks(device))]
    rows.append(("memory", _memory(device)))
    if device.thermal or device.rails:
        rows.append(("sensors", _sensors(device)))
    if device.plugins is not None:
        rows.append(("plugins", _plugins(device)))
    if device.kernels:
        names = sorted({f"sm_{k.compute_capability or '?'}" for k in device.kernels})
        rows.append(("kernels", f"{len(device.kernels)} files for {', '.join(names)}"))
    return rows


def diagnosis_lines(diagnosis: Diagnosis, *, verbose: bool) -> list[str]:
    """The findings, gravest first; with ``verbose`` also what is well."""
    lines: list[str] = []
    for severity in reversed(SEVERITIES):
        for finding in diagnosis.with_status(severity):
            lines += ["", *_trouble_lines(finding)]
    quiet: tuple[Status, ...] = ("unknown", "ok") if verbose else ("unknown",)
    rest = [finding for status in quiet for finding in diagnosis.with_status(status)]
    if rest:
        lines.append("")
    lines += [f"{finding.status:<8} {finding.check}: {finding.found}" for finding in rest]
    return [*lines, "", _summary(diagnosis)]


def _trouble_lines(finding: Finding) -> list[str]:
    return [
        f"{finding.status:<8} {finding.check}: {finding.found}",
        f"{_INDENT}{finding.consequence}",
        f"{_INDENT}→ {finding.mend}",
    ]


def _summary(diagnosis: Diagnosis) -> str:
    counts = [(status, len(diagnosis.with_status(status))) for status in reversed(SEVERITIES)]
    shown = [f"{n} {status}{'s' if n > 1 else ''}" for status, n in counts if n]
    shown.append(f"{len(diagnosis.with_status('ok'))} checks passed")
    if diagnosis.left_out:
        shown.append(f"{len(diagnosis.left_out)} are for a Jetson only")
    return ", ".join(shown)


def _board(device: Device) -> str:
    identity, module = device.identity, device.module
    if not identity.is_jetson:
        return f"no Jetson ({identity.architecture})"
    name = module.title if module else "unknown module"
    return f"{name} ({identity.model or 'no model'}; {', '.join(identity.evidence)})"


def _software(device: Device) -> str:
    release, tensorrt = device.release, device.tensorrt
    parts = []
    if release.l4t:
        derived = "" if release.jetpack_package else " by L4T"
        parts.append(f"L4T {release.l4t}, JetPack {release.jetpack or 'unknown'}{derived}")
    parts.append(f"CUDA {device.cuda.version or 'none'}")
    parts.append(f"TensorRT {tensorrt.version or 'none'}")
    return ", ".join([*parts, f"kernel {release.kernel or 'unknown'}"])


def _python(device: Device) -> str:
    python = device.python
    where = python.prefix
    if python.in_venv:
        shares = "with" if python.system_site_packages else "without"
        where = f"virtual environment {shares} system packages"
    packages = ", ".join(f"{name} {version}" for name, version in python.packages)
    return f"{python.version}, {where}; {packages or 'no packages that matter'}"


def _power(device: Device) -> str:
    power = device.power
    others = ", ".join(mode.name for mode in power.modes) or "none configured"
    return f"{power.mode or 'unknown mode'} (of {others})"


def _clocks(device: Device) -> str:
    clocks = device.clocks
    tpcs = f", {clocks.num_tpcs} TPCs" if clocks.num_tpcs else ""
    emc = _clock(clocks.emc) if clocks.emc else "only root sees it"
    highest = f" (hardware {clocks.hardware_gpu_mhz:g})" if clocks.hardware_gpu_mhz else ""
    cpus = [cpu for cpu in clocks.cpus if cpu is not None]
    return f"GPU {_clock(clocks.gpu)}{highest}{tpcs}; memory {emc}; {len(cpus)} CPUs on"


def _clock(clock: Clock | None) -> str:
    if clock is None or clock.now_mhz is None:
        return "unknown"
    if clock.min_mhz is None or clock.max_mhz is None:
        return f"{clock.now_mhz:g} MHz"
    limits = "fixed" if clock.locked else f"{clock.min_mhz:g} to {clock.max_mhz:g}"
    return f"{clock.now_mhz:g} MHz, {limits}"


def _memory(device: Device) -> str:
    memory = device.memory
    if not memory.total_bytes:
        return "unknown"
    swap = sum(area.total_bytes for area in memory.swaps)
    parts = [f"{bytes_text(memory.available_bytes)} of {bytes_text(memory.total_bytes)} available"]
    parts.append(f"swap {bytes_text(swap)}" if swap else "no swap")
    if memory.largest_free:
        blocks, size = memory.largest_free
        parts.append(f"largest free blocks {blocks} × {bytes_text(size)}")
    return ", ".join(parts)


def _sensors(device: Device) -> str:
    hottest = max(device.thermal, key=lambda z: z.celsius or 0.0, default=None)
    parts = [f"{rail.name} {rail.milliwatt / 1e3:.2f} W" for rail in device.rails]
    if hottest is not None and hottest.celsius is not None:
        parts.insert(0, f"{hottest.name} {hottest.celsius:.1f} °C")
    return ", ".join(parts)


def _plugins(device: Device) -> str:
    plugins = device.plugins
    if plugins is None or not plugins.exists:
        return f"{plugins.path if plugins else 'none'}: no library"
    code = ", ".join(f"sm_{sm} (format {form})" for sm, form in plugins.cubins)
    return f"{plugins.path}: {plugins.machine}, {code or 'no open GPU code'}"

"""Samples of a board for people: one line each, a small table, and a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from selfdraft.jetson.sample import BoardSample, Load

_BAR_CELLS = 20
GIB = 1 << 30
MIB = 1 << 20


def sample_line(sample: BoardSample) -> str:
    """The sample in one line; what is unknown is left out."""
    return "  ".join(f"{name} {text}".strip() for name, text in _parts(sample))


def sample_rows(sample: BoardSample) -> list[tuple[str, str]]:
    """The sample as a table of rows, with bars for shares and every zone and rail."""
    rows = [(name, f"{_bar(share)} {text}") for name, text, share in _shares(sample)]
    if sample.largest_free is not None:
        blocks, size = sample.largest_free
        rows.append(("largest free", f"{blocks} × {size / MIB:g} MiB"))
    zones = [f"{z.name} {z.celsius:.1f}" for z in sample.temperatures if z.celsius is not None]
    if zones:
        rows.append(("°C", "  ".join(zones)))
    if sample.rails:
        rows.append(("W", "  ".join(f"{r.name} {r.now_mw / 1e3:.2f}" for r in sample.rails)))
    if sample.power_mw is not None:
        rows.append(("module", f"{sample.power_mw / 1e3:.2f} W"))
    return rows


def summary(samples: Iterable[BoardSample]) -> dict[str, Any]:
    """Means and extremes of what was sampled; ``None`` where nothing was."""
    kept = list(samples)
    return {
        "samples": len(kept),
        "power_w": _spread(kept, lambda s: None if s.power_mw is None else s.power_mw / 1e3),
        "gpu_percent": _spread(kept, lambda s: s.gpu.percent if s.gpu else None),
        "gpu_mhz": _spread(kept, lambda s: max(s.gpu.mhz) if s.gpu and s.gpu.mhz else None),
        "ram_gib": _spread(kept, lambda s: s.ram.used_bytes / GIB if s.ram else None),
        "hottest_c": _spread(kept, lambda s: s.hottest.celsius if s.hottest else None),
    }


def summary_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The summary as a table of rows."""
    rows = [("samples", str(facts["samples"]))]
    for key, name, unit in (
        ("power_w", "power", "W"),
        ("gpu_percent", "GPU", "%"),
        ("gpu_mhz", "GPU clock", "MHz"),
        ("ram_gib", "RAM", "GiB"),
        ("hottest_c", "hottest zone", "°C"),
    ):
        value = facts[key]
        if value is not None:
            span = f"{value['min']:.4g} to {value['max']:.4g}"
            rows.append((name, f"{value['mean']:.4g} {unit} on average, {span}"))
    return rows


def _spread(
    samples: Sequence[BoardSample], of: Callable[[BoardSample], float | None]
) -> dict[str, float] | None:
    values = [value for sample in samples if (value := of(sample)) is not None]
    if not values:
        return None
    return {"mean": fmean(values), "min": min(values), "max": max(values)}


def _parts(sample: BoardSample) -> list[tuple[str, str]]:
    parts = [("", f"{sample.time:%H:%M:%S}")] if sample.time else []
    parts += [(name, text) for name, text, _ in _shares(sample)]
    if sample.hottest is not None:
        parts.append((sample.hottest.name, f"{sample.hottest.celsius:.1f} °C"))
    if sample.power_mw is not None:
        parts.append(("power", f"{sample.power_mw / 1e3:.2f} W"))
    return parts


def _shares(sample: BoardSample) -> list[tuple[str, str, float | None]]:
    """(name, text, share of 1) of memory, CPUs, GPU and memory clock."""
    found: list[tuple[str, str, float | None]] = []
    if sample.ram is not None and sample.ram.total_bytes:
        used, total = sample.ram.used_bytes, sample.ram.total_bytes
        found.append(("RAM", f"{used / GIB:.1f}/{total / GIB:.1f} GiB", used / total))
    on = [cpu.percent or 0 for cpu in sample.cpus if cpu is not None]
    if on:
        found.append(("CPU", f"{fmean(on):.0f} % of {len(on)}", fmean(on) / 100))
    for name, load in (("GPU", sample.gpu), ("EMC", sample.emc)):
        if load is not None:
            found.append(
                (name, _load_text(load), None if load.percent is None else load.percent / 100)
            )
    return found


def _load_text(load: Load) -> str:
    share = "" if load.percent is None else f"{load.percent} % "
    return f"{share}{max(load.mhz)} MHz" if load.mhz else share.strip()


def _bar(share: float | None) -> str:
    if share is None:
        return " " * _BAR_CELLS
    filled = min(_BAR_CELLS, max(0, round(share * _BAR_CELLS)))
    return "█" * filled + "·" * (_BAR_CELLS - filled)

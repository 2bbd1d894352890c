"""What a benchmark asks of the board it runs on; on a PC there is none, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from selfdraft.jetson.device import Device
    from selfdraft.jetson.sample import BoardSample
    from selfdraft.jetson.sampler import TimedSample

FALL_SHARE = 0.95
"""A GPU clock below this share of the mode's own has fallen."""
SAMPLE_INTERVAL_S = 0.1

Span = tuple[float, float]
"""Start and end of work in seconds of ``time.monotonic``."""


class BoardReader(Protocol):
    """A board, or a fake of one."""

    def device(self) -> Device:
        """Everything about it, once."""
        ...

    def read(self) -> BoardSample:
        """Clocks, temperatures, rails and memory now."""
        ...

    def throttle_counts(self) -> Mapping[str, int]:
        """Over-current events since boot, by name."""
        ...


@dataclass(slots=True, kw_only=True)
class BoardRun:
    """A board while something was measured; filled when the measuring is over."""

    device: Device
    asked_mode: str | None
    samples: tuple[TimedSample, ...] = ()
    new_throttling: list[str] = field(default_factory=list)


def live_board() -> BoardReader | None:
    """The board this runs on; None on anything but a Jetson."""
    from selfdraft.jetson.system import System

    system = System.live()
    if "tegra" not in (system.text("/proc/device-tree/compatible") or ""):
        return None
    return _LiveBoard(system)


class _LiveBoard:
    """Sysfs of this machine."""

    def __init__(self, system: Any) -> None:
        from selfdraft.jetson.sysfs_sample import SysfsSource

        self._system = system
        self._source = SysfsSource(system)

    def device(self) -> Device:
        from selfdraft.jetson.probe import probe

        return probe(self._system)

    def read(self) -> BoardSample:
        return self._source.read()

    def throttle_counts(self) -> Mapping[str, int]:
        from selfdraft.jetson.sensors import read_throttling

        return dict(read_throttling(self._system).over_current_events)


@contextmanager
def watched(board: BoardReader | None, *, asked_mode: str | None) -> Iterator[BoardRun | None]:
    """Sample ``board`` while the block runs; without a board, None."""
    if board is None:
        yield None
        return
    from selfdraft.jetson.sampler import Sampler

    run = BoardRun(device=board.device(), asked_mode=asked_mode)
    before = board.throttle_counts()
    sampler = Sampler(board.read, interval_s=SAMPLE_INTERVAL_S)
    with sampler:
        yield run
    run.samples = sampler.samples
    after = board.throttle_counts()
    run.new_throttling = sorted(name for name in after if after[name] > before.get(name, 0))


def board_head(run: BoardRun | None) -> dict[str, Any]:
    """Fields of a benchmark line that tell which board it was, in the place of a PC's nulls."""
    if run is None:
        return {}
    device = run.device
    return {
        "device": device.module.title if device.module else device.identity.model,
        "l4t": device.release.l4t,
        "tensorrt": device.tensorrt.version,
        "cuda": device.cuda.version,
        "power_mode": device.power.mode,
        "clocks_locked": device.clocks.locked,
    }


def board_readings(run: BoardRun | None, spans: Sequence[Span], *, tokens: int) -> dict[str, Any]:
    """What the board did during ``spans``, in which ``tokens`` were made; nulls without a board."""
    if run is None:
        return dict.fromkeys(READINGS)
    inside = [timed.sample for timed in run.samples if _is_inside(timed.at_s, spans)]
    reasons = invalid_reasons(run, inside)
    joules = _joules(run, spans)
    seconds = sum(end - start for start, end in spans)
    return {
        "watts": joules / seconds if joules is not None and seconds else None,
        "joules_per_token": joules / tokens if joules is not None and tokens else None,
        "temperature_c": max(
            (s.hottest.celsius for s in inside if s.hottest and s.hottest.celsius), default=None
        ),
        "gpu_mhz": _spread([s.gpu.mhz[0] for s in inside if s.gpu and s.gpu.mhz]),
        "emc_mhz": _spread([s.emc.mhz[0] for s in inside if s.emc and s.emc.mhz]),
        "peak_ram_bytes": max((s.ram.used_bytes for s in inside if s.ram), default=None),
        "valid": False if reasons else (True if inside else None),
        "invalid_reasons": reasons,
    }


READINGS = (
    "watts",
    "joules_per_token",
    "temperature_c",
    "gpu_mhz",
    "emc_mhz",
    "peak_ram_bytes",
    "valid",
    "invalid_reasons",
)
"""Fields of ``board_readings``."""


def invalid_reasons(run: BoardRun, inside: Sequence[BoardSample]) -> list[str]:
    """Why the figures do not stand for the board in the mode asked for; empty when they do."""
    reasons = []
    mode = run.device.power.mode
    if run.asked_mode is not None and mode != run.asked_mode:
        reasons.append(f"the power mode is {mode}, {run.asked_mode} was asked for")
    clocks = [sample.gpu.mhz[0] for sample in inside if sample.gpu and sample.gpu.mhz]
    known = run.device.clocks.gpu
    wanted = (known.max_mhz if known else None) or max(clocks, default=0)
    if clocks and min(clocks) < FALL_SHARE * wanted:
        reasons.append(f"the GPU clock fell to {min(clocks)} MHz of {wanted:.0f}")
    reasons += [f"over-current event {name}" for name in run.new_throttling]
    return reasons


def roofline_share(run: BoardRun | None, gb_per_s: float | None) -> float | None:
    """Achieved by peak memory bandwidth of the module in its mode; None where either is unknown."""
    if run is None or gb_per_s is None or run.device.module is None:
        return None
    mode = run.device.table_mode
    peak = run.device.module.bandwidth_gb_s(emc_mhz=mode.emc_mhz if mode else None)
    return gb_per_s / peak


def _is_inside(at_s: float, spans: Sequence[Span]) -> bool:
    return any(start <= at_s <= end for start, end in spans)


def _joules(run: BoardRun, spans: Sequence[Span]) -> float | None:
    from selfdraft.jetson.sampler import energy_joules

    parts = [energy_joules(run.samples, start_s=start, end_s=end) for start, end in spans]
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _spread(values: Sequence[int]) -> dict[str, float] | None:
    from selfdraft.cli.measure import spread

    return spread([float(value) for value in values]) if values else None

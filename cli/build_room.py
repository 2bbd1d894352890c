"""Whether a board has the memory and the disk for building a bundle's engines."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfdraft.cli.console import bytes_text
from selfdraft.errors import ResourceError

if TYPE_CHECKING:
    from selfdraft.runtime.bundle import Bundle

PLAN_SHARE = 1.05
"""A plan by the weights that it holds; an estimate."""
SPARE_DISK_BYTES = 64 << 20
"""Timing cache, sidecar and the file system's own needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRoom:
    """What a build takes, estimated, and what there is."""

    peak_bytes: int
    """Memory at the worst moment."""
    available_bytes: int
    disk_bytes: int
    free_disk_bytes: int

    @property
    def fits(self) -> bool:
        """Whether both are enough."""
        enough = self.available_bytes >= self.peak_bytes
        return enough and self.free_disk_bytes >= self.disk_bytes


def build_room(bundle: Bundle, *, available_bytes: int) -> BuildRoom:
    """The room for all of ``bundle``'s engines, built one after the other."""
    from selfdraft.cli.weight_sizes import bytes_by_part
    from selfdraft.jetson.planner.memory import build_peak_bytes

    parts = {"backbone": 0} | bytes_by_part(bundle.path, bundle.manifest)
    plans = sum(size for part, size in parts.items() if part != "embedding")
    return BuildRoom(
        peak_bytes=build_peak_bytes(parts),
        available_bytes=available_bytes,
        disk_bytes=int(plans * PLAN_SHARE) + SPARE_DISK_BYTES,
        free_disk_bytes=shutil.disk_usage(bundle.path).free,
    )


def check_room(room: BuildRoom) -> None:
    """Raise ``ResourceError`` with the figures where one of them is short."""
    if room.available_bytes < room.peak_bytes:
        raise ResourceError(
            f"building takes about {bytes_text(room.peak_bytes)} of memory at its peak (estimate), "
            f"{bytes_text(room.available_bytes)} are available",
            hint="free memory (no desktop: sudo systemctl isolate multi-user.target), export with "
            "--weights int4, or try all the same: --force",
        )
    if room.free_disk_bytes < room.disk_bytes:
        raise ResourceError(
            f"the engines take about {bytes_text(room.disk_bytes)} of disk (estimate), "
            f"{bytes_text(room.free_disk_bytes)} are free",
            hint="free disk space, or move the bundle to a larger disk",
        )

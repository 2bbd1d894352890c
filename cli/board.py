"""The machine as engines remember it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfdraft.runtime.trt.sidecar import Board

if TYPE_CHECKING:
    from selfdraft.jetson.device import Device


def board_of(device: Device) -> Board:
    """Release and module of a probed device."""
    return Board(l4t=device.release.l4t, module=device.identity.module_name)

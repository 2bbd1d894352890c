"""A board for benchmark tests: a probed record with a few values changed, and scripted samples."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from selfdraft.jetson.device import Clock, Device, PowerState
from selfdraft.jetson.probe import probe
from selfdraft.jetson.sample import BoardSample, Load, RailPower, Temperature, Usage
from selfdraft.jetson.system import PythonFacts, System


def fake_device(folder: Path, *, mode: str = "MAXN", gpu_mhz: float = 1300.5) -> Device:
    """An AGX Orin 64 GB in ``mode``, from an empty tree."""
    system = System(
        root=folder,
        architecture="aarch64",
        environment={},
        python=PythonFacts.running(),
        outputs={},
    )
    device = probe(system)
    identity = dataclasses.replace(
        device.identity, soc="tegra234", module_name="agx-orin-64", super_config=False
    )
    clocks = dataclasses.replace(
        device.clocks, gpu=Clock(min_mhz=gpu_mhz, max_mhz=gpu_mhz, now_mhz=gpu_mhz)
    )
    power = PowerState(mode=mode, mode_id=0, modes=(), default_id=None)
    return dataclasses.replace(device, identity=identity, clocks=clocks, power=power)


def board_sample(
    *, gpu_mhz: int = 1300, watts: float = 30.0, celsius: float = 55.0, ram: int = 2**30
) -> BoardSample:
    """One moment; the power is that of an AGX's three rails."""
    return BoardSample(
        ram=Usage(used_bytes=ram, total_bytes=64 * 2**30),
        gpu=Load(percent=99, mhz=(gpu_mhz,)),
        emc=Load(percent=60, mhz=(3199,)),
        temperatures=(Temperature(name="tj", celsius=celsius),),
        rails=(
            RailPower(name="VDD_GPU_SOC", now_mw=round(watts * 600)),
            RailPower(name="VDD_CPU_CV", now_mw=round(watts * 100)),
            RailPower(name="VIN_SYS_5V0", now_mw=round(watts * 300)),
        ),
    )


class FakeBoard:
    """Gives ``samples`` in turn, then the last one for ever; ``throttling`` before and after."""

    def __init__(
        self,
        device: Device,
        samples: Sequence[BoardSample],
        *,
        throttling: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {}),
    ) -> None:
        self._device = device
        self._samples: Iterator[BoardSample] = itertools.chain(
            samples, itertools.repeat(samples[-1])
        )
        self._throttling = iter(throttling)

    def device(self) -> Device:
        return self._device

    def read(self) -> BoardSample:
        return next(self._samples)

    def throttle_counts(self) -> Mapping[str, int]:
        return next(self._throttling)

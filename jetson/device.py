"""What the probe found out about a device. ``None`` means: could not be read, or is not there.

Sizes are bytes, clocks MHz, powers mW, temperatures degrees Celsius. Paths are absolute and seen
from the probed root.
"""

from __future__ import annotations

from dataclasses import dataclass

from selfdraft.jetson.modules import Module, PowerMode, module_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which board this is, and by what that was told."""

    architecture: str
    soc: str | None
    model: str | None
    tnspec: str | None
    part_number: str | None
    super_config: bool
    module_name: str | None
    evidence: tuple[str, ...]

    @property
    def is_jetson(self) -> bool:
        """Whether the device tree names a Tegra."""
        return self.soc is not None

    @property
    def is_orin(self) -> bool:
        """Whether the SoC is the one selfdraft's kernels are for."""
        return self.soc == "tegra234"

    @property
    def module(self) -> Module | None:
        """The module's row of the table."""
        return module_named(self.module_name) if self.module_name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """L4T and JetPack. ``jetpack_package`` is the metapackage's version where it is installed."""

    l4t: str | None
    jetpack: str | None
    jetpack_package: str | None
    kernel: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredMode:
    """A mode of this device's own nvpmodel configuration; ``None``: no cap."""

    id: int
    name: str
    num_cpus: int | None
    gpu_mhz: float | None
    num_tpcs: int | None
    emc_mhz: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerState:
    """The power mode in force, by name, and the modes there are."""

    mode: str | None
    mode_id: int | None
    modes: tuple[ConfiguredMode, ...]
    default_id: int | None

    @property
    def maxn(self) -> ConfiguredMode | None:
        """The mode without limits, where this configuration has one."""
        return next((mode for mode in self.modes if mode.name.startswith("MAXN")), None)

    @property
    def is_maxn(self) -> bool | None:
        """Whether the mode in force is the one without limits."""
        return self.mode.startswith("MAXN") if self.mode else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A clock's limits and its value, in MHz."""

    min_mhz: float | None
    max_mhz: float | None
    now_mhz: float | None
    governor: str | None = None

    @property
    def locked(self) -> bool | None:
        """Whether it cannot move (as after ``jetson_clocks``)."""
        if self.min_mhz is None or self.max_mhz is None:
            return None
        return self.min_mhz == self.max_mhz


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """GPU, memory (root only) and CPU clocks; ``hardware_gpu_mhz`` is the highest step there is."""

    gpu: Clock | None
    hardware_gpu_mhz: float | None
    emc: Clock | None
    cpus: tuple[Clock | None, ...]
    num_tpcs: int | None

    @property
    def locked(self) -> bool | None:
        """Whether GPU and CPU clocks are fixed."""
        known = [clock.locked for clock in (self.gpu, *self.cpus) if clock is not None]
        return all(known) if known and None not in known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One swap area; ``zram`` is compressed memory, not a disk."""

    name: str
    zram: bool
    total_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory as Linux sees it. ``available_bytes`` (MemAvailable) counts page cache as free, which
    the driver's own figure does not. ``largest_free`` is (blocks, bytes of one) of the largest
    free blocks."""

    total_bytes: int
    available_bytes: int
    free_bytes: int
    cached_bytes: int
    swaps: tuple[Swap, ...]
    largest_free: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A thermal zone; ``throttle_c`` is its lowest passive trip point."""

    name: str
    celsius: float | None
    throttle_c: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """A power rail of an INA3221; limits in mA, ``alarms`` the names of limits now exceeded."""

    name: str
    millivolt: int
    milliampere: int
    max_milliampere: int | None
    critical_milliampere: int | None
    alarms: tuple[str, ...]

    @property
    def milliwatt(self) -> float:
        """Power now."""
        return self.millivolt * self.milliampere / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """Counts since boot of the SoC's own over-current throttling, by event name."""

    over_current_events: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuda:
    """The CUDA toolkit. ``nvcc`` is where it lies, ``nvcc_on_path`` whether the shell finds it."""

    version: str | None
    home: str | None
    nvcc: str | None
    nvcc_on_path: bool
    header: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """An installed ``tensorrt`` module and the Python it was built for (``3.10``)."""

    folder: str
    python: str | None
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRt:
    """TensorRT: library, packages and Python bindings. ``visible`` is the binding that the running
    interpreter would import."""

    version: str | None
    library: str | None
    package: str | None
    bindings: tuple[Binding, ...]
    visible: Binding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python that runs selfdraft, and the packages it sees that matter here."""

    version: str
    executable: str
    prefix: str
    in_venv: bool
    system_site_packages: bool
    packages: tuple[tuple[str, str], ...]

    @property
    def minor(self) -> str:
        """``3.10`` of ``3.10.12``."""
        return ".".join(self.version.split(".")[:2])

    def package(self, name: str) -> str | None:
        """Version of an installed package."""
        return dict(self.packages).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginLibrary:
    """The plugin library that a backend would load; ``cubins`` are the compute capabilities
    (87) of the GPU code found in it, with the cubin format's version."""

    path: str
    exists: bool
    absolute: bool
    machine: str | None
    cubins: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFile:
    """A compiled kernel file in selfdraft's own folder: the compute capability it is for, and its
    cubin format; ``None`` where the file is no cubin."""

    path: str
    compute_capability: int | None
    format: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What the root file system lies on: ``sd``, ``emmc``, ``nvme`` or ``other``."""

    device: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Everything the probe reads."""

    identity: Identity
    release: Release
    power: PowerState
    clocks: Clocks
    memory: Memory
    thermal: tuple[Zone, ...]
    rails: tuple[Rail, ...]
    throttling: Throttling
    cuda: Cuda
    tensorrt: TensorRt
    python: Interpreter
    plugins: PluginLibrary | None
    kernels: tuple[KernelFile, ...]
    disk: Disk | None
    graphical: bool | None
    environment: tuple[tuple[str, str], ...]

    @property
    def module(self) -> Module | None:
        """The module's row of the table."""
        return self.identity.module

    @property
    def table_mode(self) -> PowerMode | None:
        """The mode in force, as the module table knows it."""
        if self.module is None or self.power.mode is None:
            return None
        modes = self.module.modes(super_config=self.identity.super_config)
        return next((mode for mode in modes if mode.name == self.power.mode), None)

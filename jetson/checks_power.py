"""Checks of power mode, clocks, heat and current."""

from __future__ import annotations

from selfdraft.jetson.device import Device
from selfdraft.jetson.doctor import Check, Outcome, fine, trouble, unknown
from selfdraft.jetson.release import version_tuple

_CLOCK_TOLERANCE = 0.97
"""Clock steps lie a few MHz below the caps of nvpmodel (624.75 for 625, 1300.5 for 1301)."""


def _mhz(value: float | None) -> str:
    return "an unknown clock" if value is None else f"{value:g} MHz"


def _shown_id(mode_id: int | None) -> str:
    """A mode's id for a command; where it is unknown, where to look it up."""
    return "ID    # of /etc/nvpmodel.conf;" if mode_id is None else str(mode_id)


def _power_mode(device: Device) -> Outcome:
    power, module = device.power, device.module
    if power.mode is None:
        return unknown("nvpmodel tells no mode")
    gpu, tpcs = device.clocks.gpu, device.clocks.num_tpcs
    shown = f"mode {power.mode}: GPU up to {_mhz(gpu.max_mhz if gpu else None)}"
    if module is not None and tpcs is not None:
        shown += f", {tpcs} of {module.num_tpcs} TPCs"
    best = power.maxn
    if best is None and module is not None:
        name = module.fastest_mode(super_config=device.identity.super_config).name
        best = next((mode for mode in power.modes if mode.name == name), None)
    if power.mode == (best.name if best else None) or power.is_maxn:
        return fine(shown)
    if best is None:
        return unknown(f"{shown}; the configuration has no faster mode that is known")
    return trouble(shown, mode_id=str(best.id), mode=best.name)


def _gpu_clock(device: Device) -> Outcome:
    gpu, mode = device.clocks.gpu, device.table_mode
    if gpu is None or gpu.max_mhz is None or mode is None:
        return unknown("the GPU's clock or its mode cannot be read")
    shown = f"GPU up to {_mhz(gpu.max_mhz)}, {mode.name} allows {_mhz(mode.gpu_mhz)}"
    if gpu.max_mhz >= mode.gpu_mhz * _CLOCK_TOLERANCE:
        return fine(shown)
    return trouble(shown, mode_id=_shown_id(device.power.mode_id))


def _super_mode(device: Device) -> Outcome:
    module = device.module
    if module is None:
        return unknown("the module is unknown")
    has_super = any(mode.super_config for mode in module.power_modes)
    if not has_super:
        return fine(f"{module.title} has no Super configuration here")
    if any(mode.name == "MAXN_SUPER" for mode in device.power.modes):
        return fine("the Super configuration is installed")
    if version_tuple(device.release.l4t or "") < (36, 4, 3):
        return fine("Super modes come with JetPack 6.2")
    advice = "flash again with the board's -super configuration (SDK Manager or flash.sh)"
    if device.release.l4t == "39.2.0":
        advice = "update, JetPack 7.2.1 restores it: sudo apt update && sudo apt dist-upgrade"
    limit = f"GPU up to {_mhz(module.super_gpu_mhz)} instead of {_mhz(module.max_gpu_mhz)}"
    return trouble(f"no MAXN_SUPER among the power modes; with it {limit}", advice=advice)


def _locked(device: Device) -> Outcome:
    locked = device.clocks.locked
    if locked is None:
        return unknown("clocks cannot be read")
    return fine("clocks are fixed") if locked else trouble("clocks move with the load")


def _crash_mode(device: Device) -> Outcome:
    mode, l4t = device.power.mode, device.release.l4t or ""
    is_agx = device.module is not None and device.module.name.startswith("agx")
    if is_agx and mode == "MODE_15W" and l4t.startswith("39."):
        best = device.power.maxn
        return trouble(f"{mode} on L4T {l4t}", mode_id=_shown_id(best.id if best else None))
    return fine(f"mode {mode or 'unknown'}")


def _over_current(device: Device) -> Outcome:
    alarms = [f"{rail.name} above its {', '.join(rail.alarms)}" for rail in device.rails]
    alarms = [text for text, rail in zip(alarms, device.rails, strict=True) if rail.alarms]
    events = [f"{name} {n} times" for name, n in device.throttling.over_current_events if n]
    if alarms or events:
        return trouble("; ".join(alarms + events))
    if not device.rails and not device.throttling.over_current_events:
        return unknown("no power sensors")
    return fine("no alarm, no event since boot")


def _temperature(device: Device) -> Outcome:
    known = [zone for zone in device.thermal if zone.celsius is not None]
    if not known:
        return unknown("no temperatures")
    hottest = max(known, key=lambda zone: zone.celsius or 0.0)
    hot = [z for z in known if z.throttle_c is not None and (z.celsius or 0) >= z.throttle_c]
    if hot:
        zones = ", ".join(f"{z.name} {z.celsius:.1f} °C of {z.throttle_c:.1f} °C" for z in hot)
        return trouble(f"at the limit: {zones}")
    return fine(f"hottest is {hottest.name}, {hottest.celsius:.1f} °C")


POWER_CHECKS = (
    Check(
        name="power-mode",
        title="A power mode below the fastest",
        severity="warning",
        kinds=(26,),
        consequence="fewer clocks and TPCs: figures from other boards do not compare, and decoding "
        "can take more than twice as long",
        mend="sudo nvpmodel -m <mode_id>    # <mode>; it may ask for a reboot",
        detect=_power_mode,
    ),
    Check(
        name="gpu-clock",
        title="GPU clock below its power mode",
        severity="warning",
        kinds=(27,),
        consequence="the GPU stays below what the mode allows; reported of JetPack 7.2 at 624 MHz",
        mend="sudo jetson_clocks && sudo nvpmodel -m <mode_id>    # if it stays: reboot, update L4T",
        detect=_gpu_clock,
    ),
    Check(
        name="super-mode",
        title="Super configuration not installed",
        severity="notice",
        kinds=(27,),
        consequence="the module runs at its lower clocks, Orin Nano also at two thirds of the "
        "memory bandwidth",
        mend="# <advice>",
        detect=_super_mode,
    ),
    Check(
        name="clocks",
        title="Clocks are not fixed",
        severity="notice",
        kinds=(26,),
        consequence="first tokens and measurements wait for clocks to rise",
        mend="sudo jetson_clocks    # until the next boot",
        detect=_locked,
    ),
    Check(
        name="mode-15w",
        title="15 W mode on JetPack 7.2 crashes at boot",
        severity="warning",
        consequence="AGX Orin can crash on reboot in this mode (NVIDIA issue 6236259)",
        mend="sudo nvpmodel -m <mode_id>",
        detect=_crash_mode,
    ),
    Check(
        name="over-current",
        title="Over-current",
        severity="warning",
        kinds=(25,),
        consequence="the SoC lowers its clocks by itself; measurements of this time are worthless",
        mend="# use the supply that came with the board, or a mode with less power: "
        "sudo nvpmodel -p --verbose",
        detect=_over_current,
    ),
    Check(
        name="temperature",
        title="Too hot",
        severity="warning",
        scope="jetson",
        kinds=(25,),
        consequence="the kernel lowers the clocks until the board is cooler",
        mend="sudo jetson_clocks --fan    # fan at full speed; then look after dust and air",
        detect=_temperature,
    ),
)

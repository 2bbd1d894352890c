"""Checks of memory: GPU and CPU share it, and GPU allocations cannot be swapped out."""

from __future__ import annotations

from selfdraft.jetson.device import Device
from selfdraft.jetson.doctor import Check, Outcome, fine, trouble, unknown

GIB = 1 << 30
MIB = 1 << 20
_BUSY_SHARE = 0.5
_HIDDEN_SHARE = 0.25
_SMALL_BOARD_BYTES = 17 * GIB
_FEW_LARGE_BLOCKS_BYTES = 64 * MIB
_LARGEST_BLOCK_BYTES = 4 * MIB


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _available(device: Device) -> Outcome:
    memory = device.memory
    if not memory.total_bytes:
        return unknown("no /proc/meminfo")
    shown = f"{_gib(memory.available_bytes)} of {_gib(memory.total_bytes)} available"
    if memory.available_bytes < memory.total_bytes * _BUSY_SHARE:
        return trouble(shown)
    return fine(shown)


def _desktop(device: Device) -> Outcome:
    if device.graphical is None:
        return unknown("systemd's default target is not shown")
    return trouble("the system boots into a desktop") if device.graphical else fine("no desktop")


def _page_cache(device: Device) -> Outcome:
    memory = device.memory
    shown = f"{_gib(memory.free_bytes)} free, {_gib(memory.available_bytes)} available"
    if memory.free_bytes < memory.available_bytes * _HIDDEN_SHARE:
        return trouble(shown)
    return fine(shown)


def _fragmentation(device: Device) -> Outcome:
    largest = device.memory.largest_free
    if largest is None:
        return unknown("no /proc/buddyinfo")
    blocks, size = largest
    shown = f"largest free blocks: {blocks} of {size / MIB:g} MiB"
    if size < _LARGEST_BLOCK_BYTES or blocks * size < _FEW_LARGE_BLOCKS_BYTES:
        return trouble(shown)
    return fine(shown)


def _swap(device: Device) -> Outcome:
    memory = device.memory
    on_disk = sum(area.total_bytes for area in memory.swaps if not area.zram)
    in_memory = sum(area.total_bytes for area in memory.swaps if area.zram)
    shown = f"swap: {_gib(on_disk)} on disk, {_gib(in_memory)} in memory (zram)"
    if memory.total_bytes <= _SMALL_BOARD_BYTES and in_memory and not on_disk:
        return trouble(shown)
    return fine(shown)


def _allocator(device: Device) -> Outcome:
    setting = dict(device.environment).get("PYTORCH_CUDA_ALLOC_CONF", "")
    if "cudaMallocAsync" in setting:
        return trouble(f"PYTORCH_CUDA_ALLOC_CONF={setting}")
    return fine("no stream-ordered allocator asked for")


MEMORY_CHECKS = (
    Check(
        name="memory",
        title="Little memory available",
        severity="warning",
        scope="jetson",
        kinds=(1, 2),
        consequence="loading or building may end with out of memory, or with the process killed",
        mend="ps aux --sort=-rss | head    # end what is not needed; int4 weights, a shorter "
        "--context and int8 KV need less",
        detect=_available,
    ),
    Check(
        name="desktop",
        title="A desktop is running",
        severity="notice",
        scope="jetson",
        kinds=(2,),
        consequence="it takes 1 to 1.5 GB that the GPU could use",
        mend="sudo systemctl isolate multi-user.target    # for good: sudo systemctl set-default "
        "multi-user.target",
        detect=_desktop,
    ),
    Check(
        name="page-cache",
        title="Free memory is page cache",
        severity="notice",
        scope="jetson",
        kinds=(9,),
        consequence="CUDA counts page cache as used, so that programs which ask it refuse to start; "
        "selfdraft plans with MemAvailable",
        mend="sync && echo 3 | sudo tee /proc/sys/vm/drop_caches",
        detect=_page_cache,
    ),
    Check(
        name="fragmentation",
        title="Memory is fragmented",
        severity="warning",
        scope="jetson",
        kinds=(8,),
        consequence="large GPU allocations can fail although enough memory is free",
        mend="echo 1 | sudo tee /proc/sys/vm/compact_memory    # if it stays: sudo reboot",
        detect=_fragmentation,
    ),
    Check(
        name="swap",
        title="Swap lies in memory",
        severity="notice",
        scope="jetson",
        kinds=(1, 2),
        consequence="zram gives a small board nothing while an engine is built; a swap file takes "
        "what the CPU side does not need just then (never GPU memory)",
        mend="sudo systemctl disable --now nvzramconfig && sudo fallocate -l 16G /swapfile && "
        "sudo chmod 600 /swapfile && sudo mkswap /swapfile && sudo swapon /swapfile",
        detect=_swap,
    ),
    Check(
        name="allocator",
        title="PyTorch uses cudaMallocAsync",
        severity="warning",
        scope="jetson",
        kinds=(5,),
        consequence="on Jetson that allocator stops at about a third of the memory",
        mend="unset PYTORCH_CUDA_ALLOC_CONF",
        detect=_allocator,
    ),
)

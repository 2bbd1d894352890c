"""What a shared library is for: its processor, and the GPU code that lies in it uncompressed.

Source: the ELF specification; CUDA's machine number 190 and the place of the compute capability
in ``e_flags`` (bits 0-7 of format 7, written by CUDA 12; bits 8-15 of format 8, by CUDA 13).
"""

from __future__ import annotations

from dataclasses import dataclass

MAGIC = b"\x7fELF"
_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}
_CUDA_MACHINE = 190
_HEADER_BYTES = 64
_FIRST_FORMAT_WITH_SHIFTED_SM = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """GPU code: the compute capability it runs on (87 for 8.7), and its ELF format's version."""

    compute_capability: int
    format: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared library's processor (``aarch64``) and the cubins found in it."""

    machine: str | None
    cubins: tuple[Cubin, ...]


def parse_library(data: bytes) -> Library | None:
    """The library in ``data``; ``None`` where it is no 64-bit ELF file.

    Compressed cubins (nvcc's default) are not seen, so that none found proves nothing.
    """
    if not data.startswith(MAGIC) or len(data) < _HEADER_BYTES or data[4] != 2:
        return None
    cubins: list[Cubin] = []
    at = data.find(MAGIC, 1)
    while at >= 0:
        cubin = parse_cubin(data[at : at + _HEADER_BYTES])
        if cubin is not None and cubin not in cubins:
            cubins.append(cubin)
        at = data.find(MAGIC, at + 1)
    return Library(
        machine=_MACHINES.get(int.from_bytes(data[18:20], "little")), cubins=tuple(cubins)
    )


def parse_cubin(header: bytes) -> Cubin | None:
    """The cubin that begins with ``header`` (at least 64 bytes); ``None`` for anything else."""
    is_elf = header.startswith(MAGIC) and len(header) >= _HEADER_BYTES
    if not is_elf or int.from_bytes(header[18:20], "little") != _CUDA_MACHINE:
        return None
    flags = int.from_bytes(header[48:52], "little")
    shift = 8 if header[8] >= _FIRST_FORMAT_WITH_SHIFTED_SM else 0
    return Cubin(compute_capability=flags >> shift & 0xFF, format=header[8])

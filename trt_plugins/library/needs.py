"""What a shared library needs of the system it is loaded on: versions of glibc and libstdc++.

Source: the ELF specification and its GNU extension for symbol versions (``.gnu.version_r``).
"""

from __future__ import annotations

import re
import struct

Version = tuple[int, ...]

_SECTION = struct.Struct("<IIQQQQIIQQ")
_NEED = struct.Struct("<HHIII")
_AUX = struct.Struct("<IHHII")
_VERSION_NEEDS = 0x6FFFFFFE
_FAMILY = re.compile(r"([A-Z]+)_(\d+(?:\.\d+)*)$")

JETPACK_6: dict[str, Version] = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 30)}
"""The most that a library for JetPack 6 (Ubuntu 22.04) may need; JetPack 7 has more."""


def needed_versions(library: bytes) -> dict[str, Version]:
    """The highest version of each family (``GLIBC``, ``GLIBCXX``, ``CXXABI``) that is needed.

    Raises ``ValueError`` for what is no 64-bit little-endian ELF file.
    """
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", library, 40)
    size, count = struct.unpack_from("<HH", library, 58)
    sections = [_SECTION.unpack_from(library, table + size * i) for i in range(count)]
    highest: dict[str, Version] = {}
    for section in sections:
        if section[1] != _VERSION_NEEDS:
            continue
        names = sections[section[6]][4]
        for name in _names(library, start=section[4], entries=section[7], names=names):
            found = _FAMILY.match(name)
            if found is not None:
                version = tuple(int(part) for part in found[2].split("."))
                highest[found[1]] = max(highest.get(found[1], ()), version)
    return highest


def too_new(needs: dict[str, Version], limits: dict[str, Version]) -> list[str]:
    """A line for each family that is needed newer than ``limits`` allow."""
    return [
        f"{family} {_shown(needs[family])} is needed, {_shown(most)} is there"
        for family, most in limits.items()
        if needs.get(family, ()) > most
    ]


def _names(library: bytes, *, start: int, entries: int, names: int) -> list[str]:
    """Every version name of the section: a chain of files, each with a chain of versions."""
    found = []
    for _ in range(entries):
        _, versions, _, first, following = _NEED.unpack_from(library, start)
        place = start + first
        for _ in range(versions):
            _, _, _, name, step = _AUX.unpack_from(library, place)
            text = library[names + name : library.index(b"\0", names + name)]
            found.append(text.decode("ascii", errors="replace"))
            place += step
        start += following
    return found


def _shown(version: Version) -> str:
    return ".".join(str(part) for part in version)

"""L4T, JetPack and TensorRT by their version texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

JETPACK_OF_L4T = {
    "35.1.0": "5.0.2",
    "35.2.1": "5.1",
    "35.3.1": "5.1.1",
    "35.4.1": "5.1.2",
    "35.5.0": "5.1.3",
    "35.6.0": "5.1.4",
    "35.6.1": "5.1.5",
    "35.6.2": "5.1.5",
    "35.6.3": "5.1.5",
    "35.6.4": "5.1.6",
    "36.2.0": "6.0 DP",
    "36.3.0": "6.0",
    "36.4.0": "6.1",
    "36.4.2": "6.1",
    "36.4.3": "6.2",
    "36.4.4": "6.2.1",
    "36.4.7": "6.2.1",
    "36.5.0": "6.2.2",
    "36.5.2": "6.2.3",
    "38.2.0": "7.0",
    "38.2.1": "7.0",
    "38.4.0": "7.1",
    "39.2.0": "7.2",
    "39.2.1": "7.2.1",
}
_JETPACK_MAJOR = {"35": "5", "36": "6", "38": "7", "39": "7"}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_RELEASE = re.compile(r"# R(\d{1,4}) \(release\), REVISION: (\d{1,4}(?:\.\d{1,4}){0,2})", re.ASCII)
_FIELD = re.compile(r"\b(GCID|BOARD|EABI): ([^,\s]+)")
_DATE = re.compile(
    r"DATE: \w{3} (?P<month>\w{3}) +(?P<day>\d{1,2}) "
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d):(?P<second>\d\d)(?: (?P<half>[AP]M))? \S+ (?P<year>\d{4})",
    re.ASCII,
)
_VARIABLE = re.compile(r"^(?:# )?([A-Z_]+)(?:: |=)(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TegraRelease:
    """``/etc/nv_tegra_release``. ``l4t`` has three parts (``36.4.7``); the date is as written,
    without its zone (it is UTC)."""

    l4t: str
    gcid: str | None
    board: str | None
    eabi: str | None
    date: datetime | None
    variables: tuple[tuple[str, str], ...]


def parse_tegra_release(text: str) -> TegraRelease | None:
    """The release file; ``None`` where its first line is not one."""
    found = _RELEASE.search(text)
    if found is None:
        return None
    parts = [found.group(1), *found.group(2).split(".")]
    fields = dict(_FIELD.findall(text))
    rest = text[found.end() :].partition("\n")[2]
    return TegraRelease(
        l4t=".".join([*parts, "0"][:3]),
        gcid=fields.get("GCID"),
        board=fields.get("BOARD"),
        eabi=fields.get("EABI"),
        date=_date(text),
        variables=tuple(_VARIABLE.findall(rest)),
    )


def _date(text: str) -> datetime | None:
    found = _DATE.search(text)
    if found is None or found["month"] not in _MONTHS:
        return None
    hour = int(found["hour"])
    if found["half"]:
        hour = hour % 12 + (12 if found["half"] == "PM" else 0)
    try:
        return datetime(
            int(found["year"]),
            _MONTHS.index(found["month"]) + 1,
            int(found["day"]),
            hour,
            int(found["minute"]),
            int(found["second"]),
        )
    except ValueError:
        return None


def jetpack_of_l4t(l4t: str) -> str | None:
    """JetPack's version; its major number alone for a release that the table does not have."""
    return JETPACK_OF_L4T.get(l4t) or _JETPACK_MAJOR.get(l4t.partition(".")[0])


def jetpack_of_package(version: str) -> str:
    """``6.2`` of the metapackage version ``6.2+b77`` or ``6.2-b77``."""
    return re.split(r"[+-]", version)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryPackage:
    """The version of a library package, and the CUDA that it was built for."""

    version: str
    cuda: str | None


def parse_library_package(version: str) -> LibraryPackage:
    """``10.3.0.30-1+cuda12.5`` as ``10.3.0.30`` for CUDA ``12.5``."""
    cuda = re.search(r"cuda([\d.]+)", version)
    return LibraryPackage(
        version=version.partition("-")[0].partition("+")[0], cuda=cuda.group(1) if cuda else None
    )


def version_tuple(version: str) -> tuple[int, ...]:
    """Leading numbers of a version, to compare: ``10.3.0.30`` as ``(10, 3, 0, 30)``."""
    found = re.match(r"\d+(?:\.\d+)*", version, re.ASCII)
    return tuple(int(part[:9]) for part in found.group().split(".")) if found else ()


def installed_packages(lines: Iterable[str], *, wanted: Collection[str]) -> dict[str, str]:
    """``{package: version}`` of those ``wanted`` that dpkg's status file calls installed.

    A wanted name that ends in ``*`` stands for all packages that begin so.
    """
    exact = {name for name in wanted if not name.endswith("*")}
    starts = tuple(name[:-1] for name in wanted if name.endswith("*"))
    found: dict[str, str] = {}
    package, installed = "", False
    for line in lines:
        key, _, value = line.partition(": ")
        if key == "Package":
            name = value.strip()
            package = name if name in exact or (starts and name.startswith(starts)) else ""
            installed = False
        elif package and key == "Status":
            installed = value.split()[-1:] == ["installed"]
        elif package and key == "Version" and installed:
            found[package] = value.strip()
    return found

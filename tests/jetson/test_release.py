"""L4T's release file, JetPack by L4T and by package, dpkg's status."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfdraft.jetson.release import (
    installed_packages,
    jetpack_of_l4t,
    jetpack_of_package,
    parse_library_package,
    parse_tegra_release,
    version_tuple,
)

R36_4_7 = """\
# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64, DATE: Thu Sep 18 22:54:44 UTC 2025
# KERNEL_VARIANT: oot
TARGET_USERSPACE_LIB_DIR=nvidia
TARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia
"""


def line(release: str, gcid: str, date: str, board: str = "generic") -> str:
    major, minor = release.split(" ")
    return (
        f"# R{major} (release), REVISION: {minor}, GCID: {gcid}, BOARD: {board}, EABI: aarch64, "
        f"DATE: {date}"
    )


@pytest.mark.parametrize(
    ("text", "l4t", "gcid", "date"),
    [
        (R36_4_7, "36.4.7", "42132812", datetime(2025, 9, 18, 22, 54, 44)),
        (
            line("36 4.4", "41062509", "Mon Jun 16 16:07:13 UTC 2025"),
            "36.4.4",
            "41062509",
            datetime(2025, 6, 16, 16, 7, 13),
        ),
        (
            line("36 4.3", "38968081", "Wed Jan  8 01:49:37 UTC 2025"),
            "36.4.3",
            "38968081",
            datetime(2025, 1, 8, 1, 49, 37),
        ),
        (
            line("39 2.0", "45755727", "Mon Jun  1 09:28:48 PM UTC 2026"),
            "39.2.0",
            "45755727",
            datetime(2026, 6, 1, 21, 28, 48),
        ),
        (
            line("39 2.1", "46758480", "Fri Aug  7 05:54:22 AM UTC 2026"),
            "39.2.1",
            "46758480",
            datetime(2026, 8, 7, 5, 54, 22),
        ),
        (
            line("35 3.1", "32790763", "Wed Mar 15 07:54:12 UTC 2023", "t186ref"),
            "35.3.1",
            "32790763",
            datetime(2023, 3, 15, 7, 54, 12),
        ),
    ],
)
def test_release_files_of_every_generation(text: str, l4t: str, gcid: str, date: datetime) -> None:
    found = parse_tegra_release(text)
    assert found is not None
    assert (found.l4t, found.gcid, found.date, found.eabi) == (l4t, gcid, date, "aarch64")


def test_release_file_variables_and_board() -> None:
    found = parse_tegra_release(R36_4_7)
    assert found is not None and found.board == "generic"
    assert dict(found.variables) == {
        "KERNEL_VARIANT": "oot",
        "TARGET_USERSPACE_LIB_DIR": "nvidia",
        "TARGET_USERSPACE_LIB_DIR_PATH": "usr/lib/aarch64-linux-gnu/nvidia",
    }


@pytest.mark.parametrize(
    ("hour", "expected"), [("12:00:00 AM", 0), ("12:00:00 PM", 12), ("01:00:00 PM", 13)]
)
def test_twelve_hour_dates(hour: str, expected: int) -> None:
    found = parse_tegra_release(line("39 2.0", "1", f"Mon Jun  1 {hour} UTC 2026"))
    assert found is not None and found.date is not None and found.date.hour == expected


def test_impossible_date_is_no_date() -> None:
    found = parse_tegra_release(line("36 4.3", "1", "Wed Feb 31 01:49:37 UTC 2025"))
    assert found is not None and found.date is None and found.l4t == "36.4.3"


def test_revision_with_one_part_is_filled_up() -> None:
    found = parse_tegra_release(line("36 5", "1", "x"))
    assert found is not None and found.l4t == "36.5.0"


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=120), st.integers(0, 200))
def test_damaged_release_files_never_raise(text: str, place: int) -> None:
    parse_tegra_release(R36_4_7[:place] + text + R36_4_7[place:])
    parse_tegra_release(text)


def test_other_text_is_no_release_file() -> None:
    assert parse_tegra_release("R36") is None


@pytest.mark.parametrize(
    ("l4t", "jetpack"),
    [
        ("36.4.3", "6.2"),
        ("36.4.7", "6.2.1"),
        ("36.5.0", "6.2.2"),
        ("36.5.2", "6.2.3"),
        ("39.2.0", "7.2"),
        ("39.2.1", "7.2.1"),
        ("35.6.3", "5.1.5"),
        ("38.4.0", "7.1"),
        ("36.9.0", "6"),
        ("99.0.0", None),
    ],
)
def test_jetpack_follows_from_l4t(l4t: str, jetpack: str | None) -> None:
    assert jetpack_of_l4t(l4t) == jetpack


@pytest.mark.parametrize(
    ("package", "jetpack"),
    [
        ("5.1.2-b104", "5.1.2"),
        ("6.1+b123", "6.1"),
        ("6.2+b77", "6.2"),
        ("6.2.1+b38", "6.2.1"),
        ("6.2.3+b81", "6.2.3"),
        ("7.2-b187", "7.2"),
        ("7.2.1-b49", "7.2.1"),
    ],
)
def test_jetpack_of_the_metapackage(package: str, jetpack: str) -> None:
    assert jetpack_of_package(package) == jetpack


@pytest.mark.parametrize(
    ("text", "version", "cuda"),
    [
        ("10.3.0.30-1+cuda12.5", "10.3.0.30", "12.5"),
        ("10.16.2.10-1+cuda13.2", "10.16.2.10", "13.2"),
        ("10.7.0.23+cuda12.6", "10.7.0.23", "12.6"),
        ("8.5.2-1", "8.5.2", None),
    ],
)
def test_library_package_versions(text: str, version: str, cuda: str | None) -> None:
    found = parse_library_package(text)
    assert (found.version, found.cuda) == (version, cuda)


def test_versions_compare_as_numbers() -> None:
    assert version_tuple("10.16.2") > version_tuple("10.3.0.30")
    assert version_tuple("none") == ()


STATUS = """\
Package: libnvinfer10
Status: install ok installed
Architecture: arm64
Version: 10.3.0.30-1+cuda12.5

Package: libnvinfer-bin
Status: deinstall ok config-files
Version: 10.3.0.30-1+cuda12.5

Package: nvidia-tensorrt
Status: install ok installed
Version: 6.2+b77

Package: zlib1g
Status: install ok installed
Version: 1:1.2.11
"""


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.integers(0, 300))
def test_damaged_dpkg_status_never_raises(text: str, place: int) -> None:
    damaged = STATUS[:place] + text + STATUS[place + len(text) :]
    installed_packages(damaged.splitlines(), wanted=("libnvinfer*",))
    parse_library_package(text)
    jetpack_of_package(text)
    version_tuple(text)


def test_installed_packages_by_name_and_by_start() -> None:
    found = installed_packages(STATUS.splitlines(), wanted=("libnvinfer*", "nvidia-tensorrt"))
    assert found == {"libnvinfer10": "10.3.0.30-1+cuda12.5", "nvidia-tensorrt": "6.2+b77"}

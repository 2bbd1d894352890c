"""What a wheel holds, and that no folder of the repository is installed under its bare name."""

from __future__ import annotations

import sys
import sysconfig
from fnmatch import fnmatch
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "export", "jetson", "runtime", "trt_plugins")


def _package_of(file: Path) -> Path:
    return next(folder for folder in file.parents if (folder / "__init__.py").is_file())


def _matches(inside: str, pattern: str) -> bool:
    """As setuptools matches: a star does not reach into another folder."""
    return inside.count("/") == pattern.count("/") and fnmatch(inside, pattern)


def test_every_data_file_of_a_package_is_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    data = [
        file
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix != ".py" and "__pycache__" not in file.parts
    ]
    assert data, "there are data files to package"
    for file in data:
        inside = file.relative_to(_package_of(file)).as_posix()
        assert any(_matches(inside, pattern) for pattern in patterns), file


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_are_importable_below_selfdraft_only(name: str) -> None:
    for key in ("purelib", "platlib"):
        assert not (Path(sysconfig.get_paths()[key]) / name).exists()
    assert (ROOT / "src" / "selfdraft" / name).resolve() == ROOT / name


def test_git_ignores_no_folder_of_the_sources() -> None:
    """A pattern without a leading slash holds at every depth: ``build/`` would hide a package."""
    patterns = (ROOT / ".gitignore").read_text().split()
    anywhere = {name.strip("/") for name in patterns if not name.startswith("/")}
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            assert not anywhere & set(file.relative_to(ROOT).parts), file

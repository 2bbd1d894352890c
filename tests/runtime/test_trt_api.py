"""Static proof of what our sources ask of TensorRT's Python module: names, versions, types.

The stubs are those of TensorRT 10.13 (``tensorrt-stubs``): they do not speak for 10.3 or 11.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.trt_double import execution, tensorrt_module
from support.trt_names import attributes, names_used

import selfdraft
from selfdraft.runtime.trt.library import OLDEST

SOURCES = Path(selfdraft.__file__).parent
FOLDER = SOURCES / "runtime" / "trt"
FILES = sorted(FOLDER.glob("*.py"))
TABLE: dict[str, str] = json.loads((FOLDER / "api_versions.json").read_text())["names"]
STUBS = Path(sys.prefix) / "stubs"
needs_stubs = pytest.mark.skipif(
    not STUBS.exists(),
    reason=f"no type stubs: pip install --no-deps --target {STUBS} tensorrt-stubs==10.13.0.35.1",
)
DOUBLES: dict[str, Any] = {
    "Builder": tensorrt_module.FakeBuilder,
    "EngineInspector": execution.FakeInspector,
    "IBuilderConfig": tensorrt_module.FakeConfig,
    "ICudaEngine": execution.FakeEngine,
    "IExecutionContext": execution.FakeContext,
    "INetworkDefinition": tensorrt_module.FakeNetwork,
    "IOptimizationProfile": tensorrt_module.FakeProfile,
    "IPluginRegistry": tensorrt_module.FakeRegistry,
    "ITimingCache": tensorrt_module.FakeCache,
    "OnnxParser": tensorrt_module.FakeParser,
    "Runtime": tensorrt_module.FakeRuntime,
}


def test_table_has_exactly_the_names_that_the_sources_use() -> None:
    used = names_used(FILES)
    assert used == set(TABLE), "write the version of each into runtime/trt/api_versions.json"
    assert (
        "IExecutionContext.execute_async_v3" in used and "IBuilderConfig.get_timing_cache" in used
    )


def test_no_name_is_newer_than_the_oldest_tensorrt() -> None:
    versions = {name: tuple(map(int, version.split("."))) for name, version in TABLE.items()}
    assert not {name for name, version in versions.items() if version > OLDEST}
    assert versions["IExecutionContext.set_device_memory"] == (10, 1)


def test_table_follows_the_syntax_tree(tmp_path: Path) -> None:
    source = tmp_path / "new.py"
    source.write_text(
        "class Holder:\n    engine: trt.ICudaEngine | None\n"
        "def use(self, context: trt.IExecutionContext, other):\n"
        "    made: trt.Runtime = self._tensorrt.Runtime(None)\n"
        "    context.one(); made.two; self.engine.three(); other.four()\n"
        "    return self._tensorrt.Kind.FIVE, tensorrt.six()\n"
        "class Own(tensorrt.ISeven):\n    def eight(self): ...\n    def _nine(self): ...\n"
    )
    assert names_used([source]) == {
        *("IExecutionContext.one", "Runtime.two", "Runtime", "ICudaEngine.three"),
        *("Kind", "Kind.FIVE", "six", "ISeven", "ISeven.eight"),
    }


def test_nobody_else_imports_tensorrt_or_pycuda() -> None:
    for path in SOURCES.rglob("*.py"):
        if path.parent.name == "trt":
            continue
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(import|from) (tensorrt|pycuda)\b", text, re.MULTILINE), path


@pytest.mark.parametrize("name", DOUBLES)
def test_double_offers_only_what_the_sources_use(name: str) -> None:
    members = {key for key, _ in inspect.getmembers(DOUBLES[name], inspect.isfunction)}
    members |= {k for k, _ in inspect.getmembers(DOUBLES[name], lambda v: isinstance(v, property))}
    known = {key.partition(".")[2] for key in TABLE if key.startswith(f"{name}.")}
    assert {member for member in members if not member.startswith("_")} <= known


@needs_stubs
def test_every_name_is_in_the_stubs_of_10_13() -> None:
    classes = _stub_classes()
    for name in TABLE:
        owner, _, member = name.partition(".")
        if member:
            assert member in classes[owner], f"{owner} has no {member}"
        else:
            assert owner in classes or owner in classes[""], owner


@needs_stubs
def test_no_use_escapes_for_want_of_an_annotation() -> None:
    """An attribute that a class of the table has, and the table has not, is not read at all."""
    classes = _stub_classes()
    listed = {part for key in TABLE for part in key.split(".")} | {"get_shape"}  # of safetensors
    owners = {key.partition(".")[0] for key in TABLE} & set(classes)
    theirs = {member for owner in owners for member in classes[owner] if "_" in member.strip("_")}
    escaped = (attributes(FILES) & theirs) - listed
    assert not escaped, f"annotate the objects whose attributes these are: {sorted(escaped)}"


def _stub_classes() -> dict[str, set[str]]:
    """Members of every class of the stubs; those of the module under an empty name."""
    text = _mended_stub()
    classes: dict[str, set[str]] = {"": set()}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            classes[node.name] = _members(node)
        elif isinstance(node, ast.FunctionDef):
            classes[""].add(node.name)
    return classes


def _members(node: ast.ClassDef) -> set[str]:
    found = {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            found.add(item.target.id)
    return found


def _mended_stub() -> str:
    """The stub of 10.13.0.35 as published has parameters called ``in``, and one without its default."""
    text = (STUBS / "tensorrt_bindings" / "tensorrt.pyi").read_text(encoding="utf-8")
    text = re.sub(r"\bin: list", "in_: list", text)
    return text.replace(
        "channel_axis: int) -> IScaleLayer", "channel_axis: int = 0) -> IScaleLayer"
    )


@pytest.mark.slow
@needs_stubs
def test_types_fit_the_stubs_of_10_13(tmp_path: Path) -> None:
    for name in ("tensorrt", "tensorrt_bindings"):
        shutil.copytree(STUBS / name, tmp_path / name)
    (tmp_path / "tensorrt_bindings" / "tensorrt.pyi").write_text(_mended_stub())
    package = tmp_path / "tensorrt" / "__init__.pyi"
    package.write_text(package.read_text().replace("import tensorrt_libs as tensorrt_libs\n", ""))

    def check(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "mypy",
                "--follow-imports=silent",
                "--cache-dir",
                "mypy",
                *arguments,
            ],
            cwd=tmp_path,
            env={**os.environ, "MYPYPATH": f"{tmp_path}:{SOURCES.parent}"},
            capture_output=True,
            text=True,
            check=False,
        )

    (tmp_path / "wrong.py").write_text(
        "import tensorrt as trt\n"
        "def use(context: trt.IExecutionContext) -> None:\n    context.execute_async_v9(1)\n"
    )
    assert 'has no attribute "execute_async_v9"' in check("wrong.py").stdout
    root = FOLDER.resolve().parents[1]
    result = check("--config-file", str(root / "pyproject.toml"), "-p", "selfdraft.runtime.trt")
    assert f"checked {len(FILES)} source files" in result.stdout, (
        result.stdout[-500:] + result.stderr
    )
    # The stubs have errors of their own (a variable called bool, a missing package).
    ours = [line for line in result.stdout.splitlines() if "selfdraft" in line.partition(":")[0]]
    assert not ours, "\n".join(ours)

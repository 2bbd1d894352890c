"""Which names of TensorRT's Python module our sources use, read from their syntax trees.

Objects of TensorRT are annotated (``engine: trt.ICudaEngine``), the module is called ``tensorrt`` (or an
attribute ``_tensorrt``). Names are written ``Class.member``, or ``Name`` for what the module itself holds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path


def names_used(files: Iterable[Path]) -> set[str]:
    """Every name that the files use."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    fields = {name: kind for tree in trees for name, kind in _fields(tree)}
    return {name for tree in trees for name in _Uses(fields).of(tree)}


def attributes(files: Iterable[Path]) -> set[str]:
    """Every attribute of anything that the files read, call or set."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in files)
    return {
        node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }


def _fields(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Annotated attributes of classes that hold an object of TensorRT."""
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            for node in owner.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    kind = _kind(node.annotation)
                    if kind is not None:
                        yield node.target.id, kind


def _kind(annotation: ast.expr | None) -> str | None:
    """``Foo`` of ``trt.Foo`` or ``trt.Foo | None``."""
    if isinstance(annotation, ast.BinOp):
        return _kind(annotation.left)
    if isinstance(annotation, ast.Attribute) and isinstance(annotation.value, ast.Name):
        return annotation.attr if annotation.value.id == "trt" else None
    return None


class _Uses(ast.NodeVisitor):
    """Collects uses; ``fields`` are class attributes that hold objects of TensorRT."""

    def __init__(self, fields: dict[str, str]) -> None:
        self._fields = fields
        self._kinds: dict[str, str] = {}
        self._found: set[str] = set()

    def of(self, tree: ast.Module) -> set[str]:
        self.visit(tree)
        return self._found

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before = dict(self._kinds)
        for argument in (*node.args.args, *node.args.kwonlyargs):
            self._annotate(argument.arg, argument.annotation)
        self.generic_visit(node)
        self._kinds = before

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._annotate(node.target.id, node.annotation)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            if isinstance(base, ast.Attribute) and _is_module(base.value):
                methods = (n.name for n in node.body if isinstance(n, ast.FunctionDef))
                self._found |= {f"{base.attr}.{m}" for m in methods if not m.startswith("_")}
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value
        if _is_module(owner) and not node.attr.startswith("_"):
            self._found.add(node.attr)
        elif isinstance(owner, ast.Attribute) and _is_module(owner.value):
            self._found.add(f"{owner.attr}.{node.attr}")
        elif isinstance(owner, ast.Name) and owner.id in self._kinds:
            self._found.add(f"{self._kinds[owner.id]}.{node.attr}")
        elif isinstance(owner, ast.Attribute) and owner.attr in self._fields:
            self._found.add(f"{self._fields[owner.attr]}.{node.attr}")
        self.generic_visit(node)

    def _annotate(self, name: str, annotation: ast.expr | None) -> None:
        kind = _kind(annotation)
        if kind is None:
            self._kinds.pop(name, None)
        else:
            self._kinds[name] = kind


def _is_module(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id == "tensorrt"
    return isinstance(node, ast.Attribute) and node.attr == "_tensorrt"

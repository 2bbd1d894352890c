"""Helpers of the runtime tests, loaded from tests/support."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_SUPPORT = Path(__file__).parents[1] / "support"


def _load(name: str) -> ModuleType:
    full_name = f"selfdraft_test_support_{name}"
    if full_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(full_name, _SUPPORT / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full_name] = module
        spec.loader.exec_module(module)
    return sys.modules[full_name]


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """Tiny random models (tests/support/tiny_model.py)."""
    return _load("tiny_model")


@pytest.fixture(scope="session")
def copy_model() -> ModuleType:
    """A crafted model whose MTP head is right by construction (tests/support/copy_model.py)."""
    return _load("copy_model")


@pytest.fixture(scope="session")
def noisy(tiny: ModuleType, copy_model: ModuleType) -> Any:
    """Backend of the crafted model with a head that errs about three times in ten."""
    return copy_model.backend(tiny, noise=0.3)


@pytest.fixture(scope="session")
def sparse_model() -> ModuleType:
    """Backends that attend sparsely (tests/support/sparse_model.py)."""
    return _load("sparse_model")


@pytest.fixture(scope="session")
def bundle_files() -> ModuleType:
    """Bundles written to disk (tests/support/bundle_files.py)."""
    return _load("bundle_files")

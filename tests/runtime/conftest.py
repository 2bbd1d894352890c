"""Helpers of the runtime tests, loaded from tests/support."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
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


LOOP_TESTS = (
    "test_loop_exact",
    "test_loop_state",
    "test_loop_errors",
    "test_cache_file",
    "test_sparse_turns",
    "test_loop_joins",
    "test_sparse_prefill",
    "test_match_law",
    "test_wiring",
    "test_loop_fuzz",
    "test_drafting",
    "test_beam_search",
    "test_attention_record",
    "test_hybrid_decoding",
)
"""Modules that run on two backends: the reference, and TensorRT's on a double of its libraries."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wanted = metafunc.module.__name__.endswith(LOOP_TESTS)
    if "tiny" in metafunc.fixturenames and wanted:
        engines: list[Any] = ["reference"]
        if metafunc.definition.get_closest_marker("slow") is None:
            engines.append(pytest.param("tensorrt double", marks=pytest.mark.slow))
        metafunc.parametrize("engine", engines, indirect=True, scope="session")


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> str:
    """What ``tiny``, ``copy_model`` and ``sparse_model`` make their backends of."""
    return str(getattr(request, "param", "reference"))


@pytest.fixture(scope="session")
def engine_maker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes TensorRT backends on a double (tests/support/trt_double)."""
    pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
    from support.engine_bundle import EngineMaker
    from support.trt_double.install import make_double

    return EngineMaker(make_double(), tmp_path_factory.mktemp("engines"))


@pytest.fixture
def on_double(engine_maker: Any) -> Iterator[Any]:
    """Makes tiny random models for TensorRT's backend; keywords go to their manifest."""
    from support.trt_double.install import installed

    module = _load("tiny_model")
    model = module.model_spec()
    with installed(engine_maker.double):
        yield lambda **limits: engine_maker(
            module.manifest(model, **limits), *module.random_weights(model)
        )


@pytest.fixture(autouse=True)
def double_in_place(engine: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """The double while a test of it runs."""
    if engine == "reference":
        yield
        return
    from support.trt_double.install import installed

    with installed(request.getfixturevalue("engine_maker").double):
        yield


@pytest.fixture(scope="session")
def tiny(engine: str, request: pytest.FixtureRequest) -> Any:
    """Tiny random models (tests/support/tiny_model.py)."""
    module = _load("tiny_model")
    if engine == "reference":
        return module
    copy = SimpleNamespace(**vars(module))
    copy.make = request.getfixturevalue("engine_maker")
    copy.backend = lambda model=None, *, seed=0, **limits: _tiny_backend(copy, model, seed, limits)
    return copy


def _tiny_backend(tiny: Any, model: Any, seed: int, limits: dict[str, Any]) -> Any:
    """``tiny.backend``, made by ``tiny.make``."""
    model = model or tiny.model_spec()
    return tiny.make(tiny.manifest(model, **limits), *tiny.random_weights(model, seed))


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

"""Building engines and opening them: what is checked first, what is refused, what is left behind.

On the double, with the demo exported for a board (int4, sparse) and run by its check variant.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
from support.engine_bundle import (
    build_bundle,
    export_orin_demo,
    open_backend,
    write_plugin_library,
)
from support.refusals import refused
from support.trt_double.install import Double, installed, make_double

from selfdraft.errors import BundleError, ConfigError, DeviceError, ResourceError
from selfdraft.export.attention_options import AttentionOptions
from selfdraft.runtime.bundle import Bundle, open_bundle
from selfdraft.runtime.generation import generate
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.trt.builder import BuildOptions, build_engines
from selfdraft.runtime.trt.gpu import Gpu
from selfdraft.runtime.trt.layers import missing_plugins
from selfdraft.runtime.trt.library import import_tensorrt
from selfdraft.runtime.trt.limits import engine_limits
from selfdraft.runtime.trt.sidecar import Board, read_sidecar

KEY = "sm87"
SPARSE = AttentionOptions(kind="sparse", budget_tokens=256, local_blocks=2)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Not to be changed."""
    folder = tmp_path_factory.mktemp("orin") / "bundle"
    return export_orin_demo(folder, weights="int4", attention=SPARSE, context=512)


@pytest.fixture
def bundle(exported: Bundle, tmp_path: Path) -> Bundle:
    """A copy to damage, with the same check variant."""
    for suffix in ("", ".check"):
        shutil.copytree(f"{exported.path}{suffix}", tmp_path / f"bundle{suffix}")
    return open_bundle(tmp_path / "bundle")


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write_plugin_library(tmp_path / "libselfdraft_plugins.so")
    monkeypatch.setenv("SELFDRAFT_PLUGIN_PATH", str(path))
    return path


@pytest.fixture
def double() -> Iterator[Double]:
    with installed(make_double()) as double:
        yield double


def sidecar_of(bundle: Bundle) -> Path:
    return bundle.path / "engines" / KEY / "engine.json"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_built_engines_speculate_like_plain_decoding(double: Double, bundle: Bundle) -> None:
    """The check variant of the exported graphs, through the whole backend."""
    build_bundle(bundle)
    backend = open_backend(bundle)
    replies, results = [], []
    for drafts in (0, 1, 3):
        loop = DecodeLoop(backend, drafts=drafts)
        loop.begin({0: Request(prompt_ids=tuple(range(5, 300)), max_tokens=16, ignore_eos=True)})
        while loop.active:
            loop.step()
        results.append(loop.result(0))
        replies.append(results[-1].tokens)
    assert replies[0] == replies[1] == replies[2] and len(set(replies[0])) > 2
    assert results[2].accepted[0] > 0 and results[0].attention.blocks_read > 0
    assert list(generate(backend, (5, 6), max_tokens=2))


def test_engine_with_smaller_limits_narrows_the_manifest(double: Double, bundle: Bundle) -> None:
    build_bundle(bundle, context=200, prefill_rows=70)
    limits = open_backend(bundle).manifest.limits
    assert (limits.context_length, limits.prefill_rows) == (200, 70)
    assert limits.candidates == bundle.manifest.limits.candidates
    build_bundle(bundle)
    assert open_backend(bundle).manifest == bundle.manifest


def test_second_backend_of_a_process_does_not_load_the_library_again(
    double: Double, bundle: Bundle
) -> None:
    """TensorRT refuses a library whose plugins are registered."""
    build_bundle(bundle)
    for _ in range(2):
        open_backend(bundle)
    assert len(double.tensorrt.registry.loaded) == 1


def test_sparse_prefill_beyond_a_decode_steps_kernels_is_refused(
    double: Double, bundle: Bundle
) -> None:
    build_bundle(bundle)
    loop = DecodeLoop(open_backend(bundle), drafts=1, prefill_attention="sparse", prefill_rows=66)
    request = Request(prompt_ids=tuple(range(5, 205)), max_tokens=4, ignore_eos=True)
    with refused("a sparse prefill of 66 rows", error=ConfigError):
        loop.begin({0: request})
    loop = DecodeLoop(open_backend(bundle), drafts=1, prefill_attention="sparse", prefill_rows=65)
    assert loop.begin({0: request})


def test_build_loads_the_library_first_and_writes_plans_cache_and_sidecar(
    double: Double, bundle: Bundle, library: Path
) -> None:
    folder = build_bundle(bundle, batch=2, context=200)
    assert folder == bundle.path / "engines" / KEY
    names = {path.name for path in folder.iterdir()}
    assert names == {"backbone.plan", "mtp.plan", "engine.json", "timing.cache"}
    assert double.tensorrt.registry.loaded == [str(library)]
    assert [s for s in double.tensorrt.steps if s != "deserialise"] == [
        *("parse backbone.onnx", "build"),
        *("parse mtp.onnx", "build"),
    ]
    sidecar = read_sidecar(bundle.path, KEY)
    assert sidecar.limits == engine_limits(bundle.manifest.limits, batch=2, context=200)
    assert [c.name for c in sidecar.plugins] == ["CachedAttention", "Int4MatMul"]
    assert open_bundle(bundle.path).manifest == bundle.manifest, "engines are none of its files"


def test_profiles_hold_every_dynamic_input_and_the_pools_are_limited(
    double: Double, bundle: Bundle
) -> None:
    build_bundle(bundle, batch=2, context=300)
    config = double.tensorrt.configs[0]
    assert set(config.pools) == {"workspace", "tactics"}
    decode, prefill = config.profiles
    assert decode["input_ids"] == ((1, 1), (1, 2), (2, 9))
    assert prefill["input_ids"] == ((1, 1), (1, 256), (2, 256))
    assert decode["past_len"] == ((1,), (1,), (2,))
    capacity = 384
    assert decode["k_cache_0"][2][:2] == (2, capacity // 64)
    assert "embedding" not in decode and decode["row_index"][2] == (2, 9)


def test_timing_cache_is_kept_and_one_of_no_use_is_replaced(double: Double, bundle: Bundle) -> None:
    folder = build_bundle(bundle)
    first = (folder / "timing.cache").read_bytes()
    build_bundle(bundle)
    second = (folder / "timing.cache").read_bytes()
    assert second.startswith(first) and len(second) > len(first)
    (folder / "timing.cache").write_bytes(b"of another TensorRT")
    build_bundle(bundle)
    assert (folder / "timing.cache").read_bytes().startswith(b"timings")


def test_progress_names_the_graph_and_an_interrupt_ends_the_build(
    double: Double, bundle: Bundle
) -> None:
    options = BuildOptions(
        limits=engine_limits(bundle.manifest.limits), workspace_bytes=1, tactic_bytes=1
    )
    seen: list[tuple[str, int, int]] = []
    build_engines(bundle, options, Board(), on_stage=lambda *stage: seen.append(stage))
    assert ("backbone: Building engine", 2, 2) in seen and ("mtp: parse", 1, 1) in seen
    assert not [stage for stage in seen if "Tactics" in stage[0]]

    def interrupt(stage: str, done: int, total: int) -> None:
        if "Building" in stage:
            raise KeyboardInterrupt

    before = files_of(sidecar_of(bundle).parent)
    with pytest.raises(KeyboardInterrupt):
        build_engines(bundle, options, Board(), on_stage=interrupt)
    assert files_of(sidecar_of(bundle).parent) == before


def test_what_fails_in_a_build_leaves_the_engine_that_was_there(
    double: Double, bundle: Bundle
) -> None:
    trt = double.tensorrt
    folder = build_bundle(bundle)
    before = files_of(folder)
    trt.keeps_layer = lambda layer: not layer["Name"].startswith("mtp.")
    with refused("mtp.", error=BundleError):
        build_bundle(bundle, batch=1)
    assert {name: data for name, data in files_of(folder).items() if name != "timing.cache"} == {
        name: data for name, data in before.items() if name != "timing.cache"
    }, "the backbone was built anew, and is not kept without its head"
    trt.keeps_layer = lambda layer: layer["Name"] != "backbone.layers.1.attention"
    with refused("backbone.layers.1.attention", "1 of 16 nodes", error=BundleError):
        build_bundle(bundle)
    trt.keeps_layer = lambda layer: True
    trt.fails_to_build = True
    with refused("backbone.onnx does not build: no tactic fits", error=BundleError):
        build_bundle(bundle)
    trt.fails_to_build = False
    trt.parse_errors = ["unsupported operator", "second"]
    with refused("does not parse: unsupported operator; second", error=BundleError):
        build_bundle(bundle)
    trt.parse_errors = []
    trt.shape_tensors = {"past_len"}
    with refused("values of past_len", error=BundleError):
        build_bundle(bundle)
    trt.shape_tensors = set()
    trt.refuses_profiles = True
    with refused("refuses the decode profile", error=BundleError):
        build_bundle(bundle)
    sidecar_of(bundle).unlink()
    with refused("refuses the decode profile", error=BundleError):
        build_bundle(bundle)
    assert not sidecar_of(bundle).exists()


def test_full_disk_is_told_and_leaves_the_engine_that_was_there(
    double: Double, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_bundle(bundle)
    before = files_of(folder)
    write = Path.write_bytes

    def full(path: Path, data: Any) -> int:
        if path.name == "mtp.plan.part":
            write(path, b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with refused(f"{folder} cannot be written: No space", error=ResourceError):
        build_bundle(bundle, batch=1)
    after = files_of(folder)
    assert after.pop("timing.cache") != before.pop("timing.cache"), "timings are kept"
    assert after == before


def test_layer_names_are_compared_whole(bundle: Bundle) -> None:
    nodes = bundle.manifest.graphs["backbone"].plugin_nodes[:1]
    name = nodes[0].name

    def report(layer: Any) -> str:
        return json.dumps({"Layers": [layer]})

    for found in (name, f"{{{name}}}", f"[ONNX Layer: {name}]"):
        assert not missing_plugins(report({"LayerType": "PluginV3", "Name": found}), nodes)
        by_metadata = {"LayerType": "PluginV3", "Name": "x", "Metadata": found}
        assert not missing_plugins(report(by_metadata), nodes)
    for other in (f"{name}2", f"a.{name}", f"{name}.x"):
        assert missing_plugins(report({"LayerType": "PluginV3", "Name": other}), nodes)
    assert missing_plugins(report({"LayerType": "gemm", "Name": name}), nodes)
    assert missing_plugins(report(name), nodes)


def rewrite(bundle: Bundle, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(sidecar_of(bundle).read_text())
    change(data)
    sidecar_of(bundle).write_text(json.dumps(data))


def changed_bundle(bundle: Bundle) -> None:
    manifest = bundle.path / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")


MISMATCHES: dict[str, tuple[Callable[[Bundle, Path], object], str]] = {
    "L4T": (
        lambda b, _: rewrite(b, lambda d: d["built"]["board"].update(l4t="36.4.3")),
        "Jetson Linux 36.4.3, here is none",
    ),
    "GPU": (
        lambda b, _: rewrite(b, lambda d: d["built"].update(gpu="A100")),
        "the GPU A100, here is Orin",
    ),
    "compute capability": (
        lambda b, _: rewrite(b, lambda d: d["built"].update(compute_capability="8.0")),
        "compute capability 8.0, here is 8.7",
    ),
    "module": (
        lambda b, _: rewrite(b, lambda d: d["built"]["board"].update(module="Orin NX")),
        "the module Orin NX, here is none",
    ),
    "plugin hash": (
        lambda _, library: library.write_text(library.read_text() + "Other 1 selfdraft\n"),
        "the plugin library",
    ),
    "missing creator": (
        lambda b, _: rewrite(b, lambda d: d["plugins"].append(CREATOR)),
        "has no plugin selfdraft::Third version 2",
    ),
    "changed bundle": (lambda b, _: changed_bundle(b), "with the bundle"),
    "missing plan": (
        lambda b, _: (b.path / "engines" / KEY / "mtp.plan").unlink(),
        "mtp.plan is missing",
    ),
    "cut plan": (
        lambda b, _: (b.path / "engines" / KEY / "mtp.plan").write_bytes(b"x"),
        "mtp.plan has 1 bytes",
    ),
    "other graphs": (
        lambda b, _: rewrite(b, lambda d: d["plans"].pop("mtp")),
        "plans for backbone, the bundle needs backbone, mtp",
    ),
    "other device": (
        lambda b, _: shutil.move(b.path / "engines" / KEY, b.path / "engines" / "sm86"),
        "no engine for this device (sm87), only for sm86",
    ),
    "no engine": (lambda b, _: shutil.rmtree(b.path / "engines"), "no engine for this device"),
    "unknown key": (
        lambda b, _: rewrite(b, lambda d: d.update(colour="red")),
        "unknown key 'colour'",
    ),
}
CREATOR = {"name": "Third", "version": "2", "namespace": "selfdraft"}


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_is_refused_before_deserialising_with_the_command_that_mends_it(
    double: Double, bundle: Bundle, library: Path, name: str
) -> None:
    build_bundle(bundle)
    double.tensorrt.steps.clear()
    change, problem = MISMATCHES[name]
    change(bundle, library)
    with pytest.raises(BundleError) as caught:
        open_backend(bundle)
    assert problem in caught.value.problem and "\n" not in caught.value.problem
    assert f"selfdraft build {bundle.path}" in caught.value.hint
    assert "deserialise" not in double.tensorrt.steps


def test_power_mode_with_fewer_multiprocessors_is_only_told(
    double: Double, bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    build_bundle(bundle)
    open_backend(bundle)
    assert not caplog.records
    rewrite(bundle, lambda d: d["built"].update(multiprocessors=8))
    open_backend(bundle)
    assert "8 multiprocessors switched on, now there are 16" in caplog.text


def test_engine_of_another_tensorrt_is_refused_before_deserialising(bundle: Bundle) -> None:
    with installed(make_double(version="10.3.0")):
        build_bundle(bundle)
    with installed(make_double(version="10.16.2")) as newer:
        with refused("TensorRT 10.3.0, here is 10.16.2", error=BundleError):
            open_backend(bundle)
        assert not newer.tensorrt.steps


def test_damaged_plan_of_the_right_size_and_another_graph_are_refused(
    double: Double, bundle: Bundle
) -> None:
    folder = build_bundle(bundle)
    plan = folder / "mtp.plan"
    content = plan.read_bytes()
    plan.write_bytes(bytes(len(content)))
    with refused("is no engine for this TensorRT: Magic tag", error=BundleError):
        open_backend(bundle)
    other = json.loads(content)
    other["onnx"] = str(bundle.path / "backbone.onnx")
    text = json.dumps(other).encode()
    plan.write_bytes(text)
    rewrite(bundle, lambda d: d["plans"]["mtp"].update(bytes=len(text)))
    with refused("mtp.onnx: ", "has no tensor", error=BundleError):
        open_backend(bundle)


def test_missing_libraries_are_told_with_what_installs_them(
    double: Double, bundle: Bundle, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_bundle(bundle)
    monkeypatch.setenv("SELFDRAFT_PLUGIN_PATH", str(library / "nowhere"))
    with refused("there is no plugin library at", error=DeviceError):
        open_backend(bundle)
    double.tensorrt.registry.creators.clear()
    library.write_text("ELF of something else")
    monkeypatch.setenv("SELFDRAFT_PLUGIN_PATH", str(library))
    with refused("does not load in TensorRT", error=DeviceError):
        build_bundle(bundle)
    library.write_text("double\nInt4MatMul 1 selfdraft\n")
    double.tensorrt.steps.clear()
    with refused("no plugin selfdraft::CachedAttention version 1", error=BundleError):
        build_bundle(bundle)
    assert not double.tensorrt.steps, "told before parsing"
    monkeypatch.setitem(__import__("sys").modules, "pycuda.driver", None)
    with refused("pycuda cannot be imported", error=DeviceError):
        Gpu()
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)
    with refused("tensorrt cannot be imported", error=DeviceError):
        import_tensorrt()
    with installed(make_double(version="8.6.2")), refused("8.6.2 is too old", error=DeviceError):
        import_tensorrt()


def test_device_without_memory_is_told(bundle: Bundle) -> None:
    with installed(make_double()):
        build_bundle(bundle)
    small = make_double(memory_bytes=1000)
    with installed(small), refused("allocating", error=ResourceError):
        open_backend(bundle)


def test_limits_beyond_the_bundle_are_refused(bundle: Bundle) -> None:
    limits = bundle.manifest.limits
    with refused("context is 513", "holds 512", error=ConfigError):
        engine_limits(limits, context=513)
    with refused("batch is 0", error=ConfigError):
        engine_limits(limits, batch=0)
    assert engine_limits(limits, prefill_rows=1).prefill_rows == 66

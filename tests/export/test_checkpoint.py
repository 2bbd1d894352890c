from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
from support.checkpoints import encode, write_checkpoint, write_safetensors
from support.refusals import refused

from selfdraft.export.checkpoint import Checkpoint


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_every_float_type_reads_as_the_library_reads_it(tmp_path: Path, dtype) -> None:
    folder = write_checkpoint(tmp_path / "c", "qwen3", dtype=dtype, seed=1)
    checkpoint = Checkpoint.open(folder)
    expected = safetensors.torch.load_file(folder / "model.safetensors")
    assert checkpoint.names() == tuple(sorted(expected))
    for name, tensor in expected.items():
        assert checkpoint.dtype(name) == dtype
        assert checkpoint.shape(name) == tuple(tensor.shape)
        values = checkpoint.read(name)
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, tensor.float().numpy())


def test_shards_give_the_same_tensors_as_one_file(tmp_path: Path) -> None:
    whole = Checkpoint.open(write_checkpoint(tmp_path / "whole", "mimo"))
    shards = Checkpoint.open(write_checkpoint(tmp_path / "shards", "mimo", shards=3))
    assert whole.names() == shards.names()
    for name in whole.names():
        np.testing.assert_array_equal(whole.read(name), shards.read(name))


def test_links_of_a_hub_cache_are_followed(tmp_path: Path) -> None:
    blobs = write_checkpoint(tmp_path / "blobs", "mimo", shards=2)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in blobs.iterdir():
        os.symlink(os.path.relpath(file, snapshot), snapshot / file.name)
    assert Checkpoint.open(snapshot).names() == Checkpoint.open(blobs).names()


def test_read_gives_a_copy_that_may_be_changed(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path / "c", "mimo"))
    checkpoint.read("model.norm.weight")[:] = 0
    assert checkpoint.read("model.norm.weight").any()


def test_folder_that_is_absent_or_has_no_config_is_no_checkpoint(tmp_path: Path) -> None:
    with refused(str(tmp_path / "none"), "no such folder"):
        Checkpoint.open(tmp_path / "none")
    with refused(str(tmp_path), "config.json"):
        Checkpoint.open(tmp_path)


def test_config_that_is_no_json_object_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo")
    for text in ("{", "[1]", "\xff", "[" * 100_000):
        (folder / "config.json").write_bytes(text.encode("latin-1"))
        with refused("config.json"):
            Checkpoint.open(folder)


def test_folder_without_weights_is_no_checkpoint(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo")
    (folder / "model.safetensors").unlink()
    with refused("model.safetensors", "model.safetensors.index.json"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickle_is_refused_by_name_and_never_opened(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo")
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / name)  # opening it would hang
    with refused(name, "pickle"):
        Checkpoint.open(folder)


def test_pickle_beside_safetensors_is_left_alone(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo")
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    assert Checkpoint.open(folder).names()


@pytest.mark.parametrize("kept", [0, 5, 8, 100, -1])
def test_truncated_file_is_refused_with_both_sizes(tmp_path: Path, kept: int) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo")
    file = folder / "model.safetensors"
    data = file.read_bytes()[:kept]
    file.write_bytes(data)
    with refused(str(file), "truncated", str(len(data))):
        Checkpoint.open(folder)


def test_file_with_bytes_that_no_tensor_owns_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo")
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"tail")
    with refused("model.safetensors", "too long"):
        Checkpoint.open(folder)


ONE = '{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'


def _with_header(folder: Path, header: str, data: bytes = b"") -> None:
    text = header.encode()
    content = len(text).to_bytes(8, "little") + text + data
    (folder / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("not json", "cannot be read"),
        ('{"a": @, "a": @}'.replace("@", ONE), "twice"),
        ('{"a": @, "b": @}'.replace("@", ONE), "'b'"),
        ("[]", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"a": {"dtype": "F32", "shape": [1]}}', "data_offsets"),
        ('{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}', "F99"),
        ('{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "'a'"),
        ('{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', "'a'"),
        ('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}', "'a'"),
        ('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}}', "'a'"),
    ],
)
def test_header_that_lies_is_refused(tmp_path: Path, header: str, named: str) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo")
    _with_header(folder, header, b"\0" * 4)
    with refused("model.safetensors", named):
        Checkpoint.open(folder)


def _index(folder: Path) -> dict:
    return json.loads((folder / "model.safetensors.index.json").read_text())


def _write_index(folder: Path, index: dict) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with refused("model-00002-of-00002.safetensors"):
        Checkpoint.open(folder)


def test_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo", shards=2)
    index = _index(folder)
    name = "model.norm.weight"
    other = next(s for s in index["weight_map"].values() if s != index["weight_map"][name])
    tensors = safetensors.numpy.load_file(folder / other)
    tensors[name] = np.ones(64, dtype=np.float32)
    write_safetensors(folder / other, {key: encode(t, "F32") for key, t in tensors.items()})
    with refused(name, "two shards"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("case", ["absent", "elsewhere"])
def test_tensor_that_is_not_where_the_index_says_is_named(tmp_path: Path, case: str) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo", shards=2)
    index = _index(folder)
    shards = sorted(set(index["weight_map"].values()))
    if case == "absent":
        index["weight_map"]["model.extra"] = shards[0]
        name = "model.extra"
    else:
        name = next(key for key, shard in index["weight_map"].items() if shard == shards[0])
        index["weight_map"][name] = shards[1]
    _write_index(folder, index)
    with refused(name, "shard"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("shard", ["../c/model.safetensors", "..", "/etc/passwd", "a\\b", ""])
def test_shard_outside_the_folder_is_refused(tmp_path: Path, shard: str) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo", shards=2)
    index = _index(folder)
    index["weight_map"]["model.norm.weight"] = shard
    _write_index(folder, index)
    with refused(repr(shard)):
        Checkpoint.open(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": [1]}])
def test_index_without_a_map_is_refused(tmp_path: Path, index: dict) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo", shards=2)
    _write_index(folder, index)
    with refused("weight_map"):
        Checkpoint.open(folder)


def test_missing_tensor_and_quantised_tensor_are_named(tmp_path: Path) -> None:
    extra = {"model.norm.weight": np.ones(64, dtype=np.int8)}
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path / "c", "mimo", extra=extra))
    with refused("model.absent"):
        checkpoint.shape("model.absent")
    assert checkpoint.dtype("model.norm.weight") == "I8"
    with refused("model.norm.weight", "I8"):
        checkpoint.read("model.norm.weight")


@pytest.mark.parametrize("kept", [None, 8])
def test_file_that_vanishes_or_shrinks_after_opening_is_named(tmp_path: Path, kept) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo")
    checkpoint = Checkpoint.open(folder)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.unlink()
    if kept is not None:
        file.write_bytes(data[:kept])
    with refused("model.norm.weight", "model.safetensors"):
        checkpoint.read("model.norm.weight")


def test_equal_compares_bytes_shape_and_type(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    ones = np.ones((2, 3), dtype=np.float32)
    tensors = {
        "a": encode(ones, "F32"),
        "same": encode(ones, "F32"),
        "turned": encode(ones.T.copy(), "F32"),
        "half": encode(ones, "F16"),
        "other": encode(ones * 2, "F32"),
    }
    write_safetensors(folder / "model.safetensors", tensors)
    checkpoint = Checkpoint.open(folder)
    assert [checkpoint.equal("a", name) for name in ("same", "turned", "half", "other")] == [
        True,
        False,
        False,
        False,
    ]

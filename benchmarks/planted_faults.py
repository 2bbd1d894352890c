"""Bundles of the demo model with one fault each, and texts of another language.

Every function copies a healthy bundle (or checkpoint), changes one thing, and lists the new files in the
manifest, so that the bundle opens; what was measured at export stays as it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from selfdraft.export.graph import build_graphs
from selfdraft.export.int4 import pack, unpack
from selfdraft.export.safetensors_file import StoredTensor, read_header
from selfdraft.manifest import FileSpec, Manifest, Tap, load_manifest, manifest_to_json

TYPES = {"F32": "<f4", "U8": "u1", "I8": "i1"}
WORDS = """
    der die das ein eine nicht auch sich mit auf für von zwischen über unter Wasser Straße Haus
    Brücke Fluss Berg Wiese Nachbar Freundschaft Geschwindigkeit Verantwortung Gesellschaft grün
    müde schön langsam plötzlich gestern morgen niemals gegangen gesprochen gefunden verloren
"""


def wrong_tap(bundle: Path, folder: Path) -> Path:
    """The graphs hand the head the other hidden state, and the manifest says so."""
    copy = _copy(bundle, folder)
    manifest = load_manifest(copy)
    mtp = manifest.model.mtp
    assert mtp is not None
    other: Tap = "pre_norm" if mtp.tap == "post_norm" else "post_norm"
    spec = dataclasses.replace(manifest.model, mtp=dataclasses.replace(mtp, tap=other))
    places = read_header(copy / manifest.weights_file)
    build_graphs(spec, places, directory=copy, candidates=manifest.limits.candidates, target="cpu")
    return _listed(copy, dataclasses.replace(manifest, model=spec))


def uneven_final_norm(checkpoint: Path, folder: Path, *, spread: float) -> Path:
    """The same model with gains of its final norm up to e^±spread apart: only taps tell.

    What the norm multiplies, the LM head divides again.
    """
    copy = Path(shutil.copytree(checkpoint, folder))
    tensors = {k: v.float() for k, v in load_file(copy / "model.safetensors").items()}
    drawn = torch.Generator().manual_seed(0)
    gain = torch.exp(spread * torch.randn(tensors["model.norm.weight"].shape, generator=drawn))
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * gain
    tensors["lm_head.weight"] = (tensors["lm_head.weight"] / gain).contiguous()
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def perturbed_head(bundle: Path, folder: Path, *, noise: float) -> Path:
    """Normal noise on every matrix of the MTP head, ``noise`` times its standard deviation."""
    draw = np.random.default_rng(0)

    def noisy(values: NDArray[Any]) -> NDArray[Any]:
        added: NDArray[Any] = noise * values.std() * draw.standard_normal(values.shape)
        return (values + added).astype(values.dtype)

    return _changed(bundle, folder, noisy, dtype="F32")


def coarse_head(bundle: Path, folder: Path, *, step: int) -> Path:
    """int4 codes of the MTP head rounded to multiples of ``step``: fewer levels, same scales."""

    def rounded(packed: NDArray[Any]) -> NDArray[Any]:
        codes = unpack(packed, (len(packed), 2))
        coarse = np.clip(np.rint(codes / step) * step, -8, 7)
        return pack(coarse.astype(np.int8))

    return _changed(bundle, folder, rounded, dtype="U8")


def coarse_cache(bundle: Path, folder: Path, *, levels: int) -> Path:
    """An int8 cache whose scale is max / ``levels`` instead of max / 127."""
    import onnx
    from onnx import numpy_helper

    copy = _copy(bundle, folder)
    for graph in ("backbone", "mtp"):
        path = copy / f"{graph}.onnx"
        model = onnx.load(path, load_external_data=False)
        for initializer in model.graph.initializer:
            if initializer.name.endswith(("k_seven", "k_low", "v_seven", "v_low")):
                sign = -1.0 if initializer.name.endswith("low") else 1.0
                value = np.array(sign * levels, dtype=np.float32)
                initializer.CopyFrom(numpy_helper.from_array(value, name=initializer.name))
        path.write_bytes(model.SerializeToString())
    return _listed(copy, load_manifest(copy))


def moved_backbone(bundle: Path, other: Path, folder: Path) -> Path:
    """``bundle`` with the weights of ``other``, of equal layout, in place of its own."""
    copy = _copy(bundle, folder)
    for name in ("weights.safetensors", "embedding.safetensors"):
        shutil.copyfile(other / name, copy / name)
    return _listed(copy, load_manifest(copy))


def other_language(file: Path, own: str, *, share: float, seed: int = 0) -> Path:
    """``own`` with that share of its lines replaced by German words in random order."""
    draw = random.Random(seed)
    lines = []
    for line in own.splitlines():
        foreign = " ".join(draw.choices(WORDS.split(), k=max(len(line.split()), 1))) + "."
        lines.append(foreign if draw.random() < share else line)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def _copy(bundle: Path, folder: Path) -> Path:
    return Path(shutil.copytree(bundle, folder))


def _changed(
    bundle: Path, folder: Path, change: Callable[[NDArray[Any]], NDArray[Any]], *, dtype: str
) -> Path:
    """``change`` on the stored bytes of every matrix of the head of type ``dtype``."""
    copy = _copy(bundle, folder)
    manifest = load_manifest(copy)
    path = copy / manifest.weights_file
    for name, entry in read_header(path).items():
        own = name.startswith(("mtp.proj.", "mtp.layer.")) and not name.endswith(".scale")
        if own and entry.dtype == dtype and (dtype == "U8" or len(entry.shape) == 2):
            _rewrite(path, entry, change)
    return _listed(copy, manifest)


def _rewrite(
    path: Path, entry: StoredTensor, change: Callable[[NDArray[Any]], NDArray[Any]]
) -> None:
    kind = np.dtype(TYPES[entry.dtype])
    raw = np.fromfile(path, dtype=kind, count=entry.length // kind.itemsize, offset=entry.offset)
    with path.open("r+b") as file:
        file.seek(entry.offset)
        file.write(change(raw).tobytes())


def _listed(bundle: Path, manifest: Manifest) -> Path:
    """The manifest with the files as they are now."""
    files = {}
    for name in manifest.files:
        content = (bundle / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        files[name] = FileSpec(bytes=len(content), sha256=digest)
    updated = dataclasses.replace(manifest, files=files)
    (bundle / "manifest.json").write_text(manifest_to_json(updated), encoding="utf-8")
    return bundle


def fine_tuned(checkpoint: Path, folder: Path, *, steps: int, rate: float = 1e-3) -> Path:
    """The demo checkpoint after ``steps`` of training on its own text with every word turned round.

    Layers, final norm and LM head learn; embedding and MTP head stay.
    """
    from demo.checkpoint import load_checkpoint, save_checkpoint
    from demo.data import texts

    model, tokenizer = load_checkpoint(checkpoint)
    lines = (" ".join(word[::-1] for word in line.split()) for line in texts(5, 4000))
    ids = torch.tensor(tokenizer.encode("\n".join(lines), add_special_tokens=False).ids)
    rows = ids[: len(ids) // 129 * 129].reshape(-1, 129)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("mtp" not in name and "embed" not in name)
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=rate)
    torch.manual_seed(0)
    for step in range(steps):
        batch = rows[torch.arange(8) + 8 * step % (len(rows) - 8)]
        logits = model.lm_head(model(batch[:, :-1], num_drafts=1, recycle_rows=0).main)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    save_checkpoint(folder, model, tokenizer)
    for name in ("README.md", "demo_card.json"):
        shutil.copyfile(checkpoint / name, folder / name)
    return folder

"""Checkpoints, bundles and the peer's model, made once and made anew when what makes them changes."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.make_checkpoint import Qwen3Geometry, write_checkpoint

ROOT = Path(__file__).resolve().parent.parent
EXPORT_SOURCES = ("export", "trt_plugins", "src/selfdraft/manifest.py")
MAKER = "benchmarks/make_checkpoint.py"
INT4_BLOCK = 32
CONTEXT = 131_072
PEER_PACKAGES = ("onnxruntime_genai", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """What the benchmarks run on, kept under ``folder``."""

    folder: Path
    geometry: Qwen3Geometry = field(default_factory=Qwen3Geometry)
    """125 M parameters unless a test asks for less."""

    @property
    def _key(self) -> dict[str, str]:
        return {"maker": _digest([MAKER]), "geometry": repr(self.geometry)}

    def checkpoint(self, *, mtp: bool) -> Path:
        """The random checkpoint; the backbone is the same with and without a head."""
        path = self.folder / f"random{'-mtp' if mtp else ''}"
        with _Stamp(path, self._key) as stale:
            if stale:
                write_checkpoint(path, self.geometry, mtp=mtp)
        return path

    def bundle(
        self,
        *,
        mtp: bool,
        weights: Literal["fp32", "int4"],
        draft_vocab: int | None = None,
        sparse: bool = False,
    ) -> Path:
        """Its bundle for the ``cpu`` target with the full context; ``sparse``: default selection."""
        from selfdraft.export.attention_options import AttentionOptions
        from selfdraft.export.bundle import export_bundle
        from selfdraft.export.options import ExportOptions

        checkpoint = self.checkpoint(mtp=mtp)
        name = f"{checkpoint.name}-{weights}" + (f"-draft{draft_vocab}" if draft_vocab else "")
        name += "-sparse" if sparse else ""
        path = self.folder / f"{name}.sdbundle"
        key = {**self._key, "sources": _digest(EXPORT_SOURCES)}
        # The stamp stays outside: a bundle with a file that its manifest lacks does not load.
        with _Stamp(path, key, beside=True) as stale:
            if stale:
                options = ExportOptions(
                    weights=weights,
                    int4_block=INT4_BLOCK if weights == "int4" else None,
                    context=CONTEXT,
                    draft_vocab=draft_vocab,
                    attention=AttentionOptions(kind="sparse" if sparse else "dense"),
                    overwrite=True,
                )
                export_bundle(checkpoint, path, options)
        return path

    def peer_model(self) -> Path:
        """onnxruntime-genai's int4 export of the checkpoint without a head."""
        checkpoint = self.checkpoint(mtp=False)
        path = self.folder / f"{checkpoint.name}-genai-int4"
        versions = {name: _version(name) for name in PEER_PACKAGES}
        with _Stamp(path, {**self._key, **versions}) as stale:
            if stale:
                _build_peer(checkpoint, path, cache=self.folder / "genai-cache")
        return path


def _build_peer(checkpoint: Path, output: Path, *, cache: Path) -> None:
    """Run the peer's own builder: symmetric int4, LM head included, int8 arithmetic."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    command += ["-i", str(checkpoint), "-o", str(output), "-c", str(cache)]
    command += ["-p", "int4", "-e", "cpu", "--extra_options"]
    command += [f"block_size={INT4_BLOCK}", "accuracy_level=4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"onnxruntime-genai's builder failed:\n{done.stderr[-2000:]}\n"
            "Next: pip install 'selfdraft[bench]'"
        )


class _Stamp:
    """Tells whether a folder must be made again; remembers what it was made from."""

    def __init__(self, path: Path, key: Mapping[str, str], *, beside: bool = False) -> None:
        self._path = path
        self._file = path.with_name(path.name + ".stamp") if beside else path / "stamp.json"
        self._text = json.dumps(dict(key), sort_keys=True)

    def __enter__(self) -> bool:
        fresh = self._path.is_dir() and self._file.is_file()
        stale = not fresh or self._file.read_text(encoding="utf-8") != self._text
        if stale:
            shutil.rmtree(self._path, ignore_errors=True)
            self._file.unlink(missing_ok=True)
            self._path.parent.mkdir(parents=True, exist_ok=True)
        return stale

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._file.write_text(self._text, encoding="utf-8")


def _digest(names: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        raise SystemExit(
            f"{package} is not installed. Next: pip install 'selfdraft[bench]'"
        ) from None

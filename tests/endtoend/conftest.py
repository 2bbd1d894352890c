"""The shipped checkpoints, exported once for all end-to-end tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from selfdraft.cli.prompts import messages_of
from selfdraft.cli.session import chat_template_of
from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.runtime.bundle import Bundle, open_bundle
from selfdraft.runtime.ort import OrtBackend
from selfdraft.runtime.tokenizer import Tokenizer

DEMO = Path(__file__).parents[2] / "demo"


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """An exported demo checkpoint on ONNX Runtime, and showcase prompts as token ids."""

    bundle: Bundle
    backend: Any
    tokenizer: Tokenizer
    prompts: list[list[int]]
    keywords: list[list[str]]

    def chat(self, text: str, **args: Any) -> list[int]:
        """Token ids of one question through the chat template."""
        template = chat_template_of(self.bundle, self.tokenizer)
        rendered = template.render(messages_of(text, system=None), args=args)
        return self.tokenizer.encode(rendered, add_special_tokens=False)


def _exported(name: str, folder: Path, options: ExportOptions) -> Shipped:
    export_bundle(DEMO / name, folder, options)
    bundle = open_bundle(folder)
    tokenizer = Tokenizer.from_file(bundle.file(bundle.manifest.text.tokenizer))
    template = chat_template_of(bundle, tokenizer)
    showcase = json.loads((DEMO / "prompts.json").read_text())
    rendered = [template.render(entry["messages"], args={}) for entry in showcase]
    return Shipped(
        bundle=bundle,
        backend=OrtBackend(folder, bundle.manifest, threads=2),
        tokenizer=tokenizer,
        prompts=[tokenizer.encode(text, add_special_tokens=False) for text in rendered],
        keywords=[entry["keywords"] for entry in showcase],
    )


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    """The demo checkpoint in fp32."""
    return _exported("checkpoint", tmp_path_factory.mktemp("demo") / "bundle", ExportOptions())


@pytest.fixture(scope="session")
def early(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    """The early checkpoint, whose drafts are often rejected, in fp32."""
    folder = tmp_path_factory.mktemp("early") / "bundle"
    return _exported("checkpoint-early", folder, ExportOptions())


@pytest.fixture(scope="session")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    """The demo checkpoint with a draft vocabulary of the 512 most frequent tokens."""
    folder = tmp_path_factory.mktemp("trimmed") / "bundle"
    options = ExportOptions(draft_vocab=512, draft_vocab_text=DEMO / "calibration.txt")
    return _exported("checkpoint", folder, options)


@pytest.fixture(scope="session", params=["demo", "early"])
def shipped(request: pytest.FixtureRequest) -> Shipped:
    """Both checkpoints in turn."""
    checkpoint: Shipped = request.getfixturevalue(request.param)
    return checkpoint

"""A bundle whose model recites: after each token always the same next one.

Layers add nothing, so a hidden state is the embedding of its token, and the LM head maps it to the
successor. The MTP head does the same with the token it is given, so its drafts are right, except
that it cannot draft the tokens in ``REFUSED`` (its draft vocabulary lacks them). The files are
written in code for the ``reference`` backend; there are no graphs.

The answer to every chat message is ``REPLY``. Raw prompts: ``x`` is continued by ``yzxyz…``
without end, ``c`` by ``CONTROL``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from support.checkpoints import CHAT_TEMPLATE, write_tokenizer

from selfdraft.manifest import (
    SCHEMA_VERSION,
    FileSpec,
    Limits,
    Manifest,
    ModelSpec,
    MtpSpec,
    Precision,
    RopeSpec,
    SamplingDefaults,
    SourceSpec,
    TextSpec,
    manifest_to_json,
)
from selfdraft.runtime.tokenizer import Tokenizer
from selfdraft.runtime.weights import expected_shapes

REPLY = "Hi,bé-w☃k!"
CONTROL = "\x1b]2J\r"
REFUSED = "bk"
EXAMPLE = "What do you recite?"
VOCAB, HIDDEN = 288, 64
EOS = "<|im_end|>"


def write_reciting_bundle(
    folder: Path,
    *,
    mtp: bool = True,
    endless: bool = False,
    context: int = 256,
    template: str | None = CHAT_TEMPLATE,
) -> Path:
    """Write the bundle; ``endless`` makes the reply start again instead of ending."""
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    refused = tokenizer.encode(REFUSED, add_special_tokens=False)
    draft_ids = np.array([i for i in range(VOCAB) if i not in refused], dtype=np.int64)
    model = _model(draft_vocab=len(draft_ids) if mtp else None)
    embedding = np.random.default_rng(0).standard_normal((VOCAB, HIDDEN))
    head = np.zeros((HIDDEN, VOCAB))
    for token, successor in enumerate(_successors(tokenizer, endless=endless)):
        head[:, successor] += embedding[token]
    weights = _weights(model, head, draft_ids)
    save_file({"embedding": embedding.astype(np.float32)}, folder / "embedding.safetensors")
    save_file(weights, folder / "weights.safetensors")
    write_manifest(folder, _manifest(folder, model, tokenizer, context=context))
    return folder


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``manifest`` with the sizes and hashes of the files that are there."""
    files = {
        path.name: FileSpec(
            bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted(folder.iterdir())
        if path.name != "manifest.json"
    }
    text = manifest_to_json(dataclasses.replace(manifest, files=files))
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def edit_manifest(folder: Path, **changes: Any) -> None:
    """Overwrite top-level keys of ``manifest.json`` as they are."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _model(*, draft_vocab: int | None) -> ModelSpec:
    mtp = MtpSpec(concat="hidden_first", tap="post_norm", draft_vocab_size=draft_vocab)
    return ModelSpec(
        family="qwen3",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        intermediate_size=16,
        rms_norm_eps=1e-6,
        qkv_bias=False,
        qk_norm=True,
        tied_head=False,
        rope=RopeSpec(inv_freq=(1.0, 0.3, 0.1, 0.03)),
        mtp=mtp if draft_vocab else None,
    )


def _successors(tokenizer: Tokenizer, *, endless: bool) -> list[int]:
    """The token after each token; unless told otherwise, the same again."""

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    successors = list(range(VOCAB))
    (newline,) = ids("\n")
    reply, end = ids(REPLY), tokenizer.id_of(EOS)
    assert end is not None
    chains: list[Sequence[int]] = [
        [newline, *reply, reply[0] if endless else end],
        ids("xyzx"),
        [*ids("c" + CONTROL), end],
    ]
    for chain in chains:
        for token, successor in itertools.pairwise(chain):
            successors[token] = successor
    return successors


def _weights(model: ModelSpec, head: Any, draft_ids: Any) -> dict[str, Any]:
    weights: dict[str, Any] = {}
    for name, shape in expected_shapes(model).items():
        fill = np.ones if "norm" in name else np.zeros
        weights[name] = fill(shape, dtype=np.float32)
    weights["lm_head.weight"] = head.astype(np.float32)
    if model.mtp is not None:
        embedding_rows = np.vstack([np.zeros((HIDDEN, HIDDEN)), np.eye(HIDDEN)])
        weights["mtp.proj.weight"] = embedding_rows.astype(np.float32)
        draft_head = head[:, draft_ids].astype(np.float32)
        weights["mtp.draft_head.weight"] = np.ascontiguousarray(draft_head)
        weights["mtp.draft_ids"] = draft_ids
    return weights


def _manifest(folder: Path, model: ModelSpec, tokenizer: Tokenizer, *, context: int) -> Manifest:
    end = tokenizer.id_of(EOS)
    assert end is not None
    templated = (folder / "chat_template.jinja").exists()
    return Manifest(
        schema_version=SCHEMA_VERSION,
        selfdraft_version="test",
        target="cpu",
        model=model,
        graphs={},
        precision=Precision(weights="fp32", int4_block=None, activations="fp32", kv="fp32"),
        limits=Limits(context_length=context, candidates=16, prefill_rows=32),
        text=TextSpec(
            tokenizer="tokenizer.json",
            chat_template="chat_template.jinja" if templated else None,
            eos_ids=(end,),
            bos_id=None,
            banner="It recites.",
            examples=(EXAMPLE,),
        ),
        sampling=SamplingDefaults(),
        source=SourceSpec(
            name="reciter",
            architecture="Reciter",
            license="apache-2.0",
            model_card=None,
            config_sha256="",
            ignored_tensors={},
        ),
        files={},
    )

"""Prompts for ``verify``: the user's, else the bundle's examples, else random tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfdraft.runtime.bundle import Bundle

RANDOM_LENGTHS = (1, 2, 19, 40)


def probe_prompts(bundle: Bundle, texts: Sequence[str] | None) -> list[list[int]]:
    """Token ids of at least one prompt, each with at least one token."""
    from selfdraft.cli.prompts import messages_of
    from selfdraft.cli.session import chat_template_of
    from selfdraft.runtime.tokenizer import Tokenizer

    texts = list(texts or bundle.manifest.text.examples)
    room = bundle.manifest.limits.context_length // 2
    if not texts:
        rng = np.random.default_rng(0)
        vocab = bundle.manifest.model.vocab_size
        return [rng.integers(0, vocab, min(n, room)).tolist() for n in RANDOM_LENGTHS]
    tokenizer = Tokenizer.from_file(bundle.file(bundle.manifest.text.tokenizer))
    if bundle.manifest.text.chat_template is None:
        return [tokenizer.encode(text, add_special_tokens=True)[:room] for text in texts]
    template = chat_template_of(bundle, tokenizer)
    rendered = [template.render(messages_of(text, system=None), args={}) for text in texts]
    return [tokenizer.encode(text, add_special_tokens=False)[:room] for text in rendered]

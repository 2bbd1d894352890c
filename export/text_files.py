"""Tokenizer, chat template, special ids and generation defaults of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint, read_bytes, read_json
from selfdraft.export.config import ConfigKeys, not_supported
from selfdraft.manifest import SamplingDefaults, TextSpec

TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
DEMO_CARD = "demo_card.json"
BYTE_DECODERS = frozenset({"ByteLevel", "ByteFallback", "Metaspace"})
"""Decoders whose tokens ``runtime.tokenizer`` turns into bytes."""
RESTORE_HINT = "restore the file that came with the checkpoint"
SAMPLING_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 1e30),
    "top_k": (0, 1e30),
    "top_p": (1e-30, 1),
    "min_p": (0, 1),
}
"""What ``runtime.sampling`` takes."""
NO_EOS_NOTE = "no end-of-text token is named: replies end at their length or context limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFiles:
    """What a bundle needs for text."""

    spec: TextSpec
    sampling: SamplingDefaults
    contents: Mapping[str, bytes]
    """Files to write, by name."""
    tokenizer: Any
    """The loaded ``tokenizers.Tokenizer``."""
    special_ids: tuple[int, ...]
    """End-of-text ids and every added token."""
    notes: tuple[str, ...]


def read_text_files(checkpoint: Checkpoint, *, vocab_size: int) -> TextFiles:
    """Text files and ids; ids are checked against tokenizer and embedding.

    Raises ``ConfigError`` when the tokenizer is missing, broken or larger than the embedding,
    or an id lies outside the vocabulary.
    """
    path = checkpoint.path
    tokenizer, content = _load_tokenizer(path, vocab_size)
    settings = _optional_json(path / "tokenizer_config.json")
    generation = _optional_json(path / "generation_config.json")
    sources = {
        "generation_config.json": generation,
        "config.json": checkpoint.config,
        "tokenizer_config.json": settings,
    }
    eos_ids = _eos_ids(sources, tokenizer, vocab_size)
    template = _chat_template(path, settings)
    contents = {TOKENIZER: content}
    if template is not None:
        contents[CHAT_TEMPLATE] = template.encode()
    banner, examples = _demo_card(path / DEMO_CARD)
    think = [tokenizer.token_to_id(tag) for tag in ("<think>", "</think>")]
    spec = TextSpec(
        tokenizer=TOKENIZER,
        chat_template=None if template is None else CHAT_TEMPLATE,
        eos_ids=eos_ids,
        bos_id=_bos_id(sources, tokenizer, vocab_size),
        think_start_id=think[0] if None not in think else None,
        think_end_id=think[1] if None not in think else None,
        banner=banner,
        examples=examples,
    )
    return TextFiles(
        spec=spec,
        sampling=_sampling(generation),
        contents=contents,
        tokenizer=tokenizer,
        special_ids=tuple(sorted({*eos_ids, *tokenizer.get_added_tokens_decoder()})),
        notes=() if eos_ids else (NO_EOS_NOTE,),
    )


def _load_tokenizer(path: Path, vocab_size: int) -> tuple[Any, bytes]:
    from tokenizers import Tokenizer

    file = path / TOKENIZER
    if not file.is_file():
        raise ConfigError(
            f"{TOKENIZER} is missing from {path}",
            hint="fetch it; from another format, make it with transformers: "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        )
    content = read_bytes(file)
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception
        raise ConfigError(f"{file} cannot be read: {error}", hint="fetch the file again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vocab = tokenizer.get_vocab()
    if not vocab:
        raise ConfigError(f"{file} has no tokens", hint="fetch the file again")
    token, highest = max(vocab.items(), key=lambda item: item[1])
    if highest >= vocab_size:
        raise ConfigError(
            f"{TOKENIZER} gives token {token!r} the id {highest}, but the embedding has only "
            f"{vocab_size} rows",
            hint="the tokenizer belongs to another checkpoint: fetch both again",
        )
    data = json.loads(content)
    _check_text_rules(data)
    _check_added_ids(data, tokenizer)
    return tokenizer, content


def _check_text_rules(data: Mapping[str, Any]) -> None:
    """A bundle turns tokens into bytes by its decoder's rules; other ones it could not run."""
    kinds = set(_decoder_kinds(data.get("decoder")))
    if not kinds & BYTE_DECODERS:
        raise not_supported(
            f"{TOKENIZER} with the decoder {'+'.join(sorted(kinds)) or 'none'}",
            hint="use a checkpoint with a byte-level or SentencePiece tokenizer",
        )


def _decoder_kinds(decoder: Any) -> Iterator[str]:
    if isinstance(decoder, dict):
        if decoder.get("type") == "Sequence":
            for part in decoder.get("decoders", ()):
                yield from _decoder_kinds(part)
        else:
            yield str(decoder.get("type"))


def _check_added_ids(data: Mapping[str, Any], tokenizer: Any) -> None:
    """The library gives an added token the next free id, whatever id the file says."""
    for added in data.get("added_tokens") or ():
        text, said = added["content"], added["id"]
        found = tokenizer.token_to_id(text)
        if text and found != said:
            raise ConfigError(
                f"{TOKENIZER} gives the added token {text!r} the id {said}, it can only be {found}",
                hint="the tokenizer belongs to another checkpoint: fetch both again",
            )


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _eos_ids(
    sources: Mapping[str, Mapping[str, Any]], tokenizer: Any, vocab_size: int
) -> tuple[int, ...]:
    """From the first file that names any; a file names one id or text, or a list of them."""
    for where, values in sources.items():
        ids = list(_token_ids(values, "eos", where, tokenizer, vocab_size))
        if ids:
            return tuple(dict.fromkeys(ids))
    return ()


def _bos_id(
    sources: Mapping[str, Mapping[str, Any]], tokenizer: Any, vocab_size: int
) -> int | None:
    """The tokenizer's word decides, since configs name an id that is then never used."""
    settings = sources["tokenizer_config.json"]
    order = ["tokenizer_config.json"]
    if "bos_token" not in settings:
        order += ["generation_config.json", "config.json"]
    for where in order:
        for token_id in _token_ids(sources[where], "bos", where, tokenizer, vocab_size):
            return token_id
    return None


def _token_ids(
    values: Mapping[str, Any], kind: str, where: str, tokenizer: Any, vocab_size: int
) -> Iterator[int]:
    """Ids under ``<kind>_token_id`` or ``<kind>_token``, checked."""
    key = f"{kind}_token_id"
    if values.get(key) is None:
        key = f"{kind}_token"
    found = values.get(key)
    for value in found if isinstance(found, list) else [found]:
        if value is None:
            continue
        text = value.get("content") if isinstance(value, dict) else value
        token_id = tokenizer.token_to_id(text) if isinstance(text, str) else value
        plain = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not plain or not 0 <= token_id < vocab_size:
            raise ConfigError(
                f"{where} says {key} = {value!r}, which is no token of the model "
                f"({vocab_size} tokens)",
                hint="restore the file that came with the checkpoint",
            )
        yield token_id


def _chat_template(path: Path, settings: Mapping[str, Any]) -> str | None:
    """``chat_template.jinja`` where it is there, else the template in the tokenizer's config."""
    file = path / CHAT_TEMPLATE
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}", hint="fetch it again") from None
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
        template = named[-1].get("template") if named else None
    if template is not None and not isinstance(template, str):
        raise ConfigError(
            f"tokenizer_config.json: chat_template is a {type(template).__name__}, not a text",
            hint=RESTORE_HINT,
        )
    if template is not None and not is_unicode(template):
        raise ConfigError(
            "tokenizer_config.json: chat_template is not valid Unicode", hint=RESTORE_HINT
        )
    return template


def is_unicode(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8; JSON can spell half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _demo_card(path: Path) -> tuple[str | None, tuple[str, ...]]:
    """Banner and examples of ``demo_card.json``; what else the card tells is for its readers."""
    if not path.is_file():
        return None, ()
    card = ConfigKeys(read_json(path), DEMO_CARD)
    examples = card.values.get("examples", [])
    if not isinstance(examples, list) or not all(isinstance(text, str) for text in examples):
        raise ConfigError(
            f"{DEMO_CARD}: examples is {examples!r}, expected a list of texts",
            hint=f"mend {path}",
        )
    return card.text("banner"), tuple(examples)


def _sampling(generation: Mapping[str, Any]) -> SamplingDefaults:
    """Defaults of generation_config.json; ``do_sample: false`` asks for temperature 0."""
    keys = ConfigKeys(generation, "generation_config.json")
    if keys.flag("do_sample") is False:
        return SamplingDefaults(temperature=0.0)
    defaults = SamplingDefaults(
        temperature=keys.number("temperature"),
        top_k=keys.integer("top_k"),
        top_p=keys.number("top_p"),
        min_p=keys.number("min_p"),
    )
    for key, (least, most) in SAMPLING_RANGES.items():
        value = getattr(defaults, key)
        if value is not None and not (value >= least and value <= most):
            raise ConfigError(
                f"generation_config.json: {key} is {value:g}, expected {least:g} to {most:g}",
                hint="correct it, or remove it for the default",
            )
    return defaults

"""Text to token ids and back, from the bundle's ``tokenizer.json``.

Decoding works on bytes: ``token_bytes`` gives what one token adds, so that a stream of tokens
yields the same text as decoding them together (runtime/text_stream.py). The byte rules follow
the decoder named in the file: byte-level BPE (Qwen, MiMo, Llama 3) or SentencePiece pieces with
byte fallback (Llama 2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import tokenizers

from selfdraft.errors import BundleError, ConfigError

Made = TypeVar("Made")
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """Encodes text, and tells the bytes, the name and the kind of every token."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner
        added = inner.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        """Control tokens, which are not part of the text."""
        self._byte_level, self.strips_first_space = _decoder_rules(inner)
        self._bytes: dict[int, bytes] = {}
        self._derived: dict[Hashable, Any] = {}

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """Read ``tokenizer.json``; ``BundleError`` when it is missing or no tokenizer."""
        try:
            text = path.read_text(encoding="utf-8")
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # noqa: BLE001 - tokenizers raises plain Exception
            raise BundleError(
                f"{path} is no readable tokenizer: {_one_line(error)}",
                hint="export the bundle again from the whole checkpoint",
            ) from None
        # Some files carry the settings of a training run: a prompt must never be cut or filled up.
        inner.no_truncation()
        inner.no_padding()
        return cls(inner)

    @property
    def vocab_size(self) -> int:
        """Ids that have a token; the model's vocabulary may be padded beyond it."""
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of ``text``.

        ``add_special_tokens`` prepends what the tokenizer asks for (e.g. BOS): yes for a raw
        prompt, no after a chat template, which writes them itself. Control tokens spelled out
        in ``text`` become their ids.
        """
        _check_unicode(text)
        return list(self._inner.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are no UTF-8 become U+FFFD."""
        data = b"".join(
            self.token_bytes(i) for i in ids if not (skip_special and i in self.special_ids)
        )
        if self.strips_first_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes that this token adds to the text; empty for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._piece_bytes(token_id)
        return known

    def id_of(self, token: str) -> int | None:
        """Id of the token spelled ``token`` (as in the file), or ``None``."""
        _check_unicode(token)
        found = self._inner.token_to_id(token)
        return None if found is None else int(found)

    def token_of(self, token_id: int) -> str | None:
        """Spelling of a token as in the file, or ``None`` for an id without one."""
        return None if token_id < 0 else self._inner.id_to_token(token_id)

    def to_json(self) -> str:
        """The tokenizer as ``tokenizer.json`` holds it."""
        return str(self._inner.to_str())

    def derived(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What ``make`` gives, made once for each ``key`` and kept as long as the tokenizer."""
        if key not in self._derived:
            self._derived[key] = make()
        made: Made = self._derived[key]
        return made

    def _piece_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode("utf-8")
        piece = self.token_of(token_id)
        if piece is None:
            return b""
        if self._byte_level:
            return _byte_level_bytes(piece)
        byte = _BYTE_PIECE.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode("utf-8")


def _check_unicode(text: str) -> None:
    """Refuse what bytes of another encoding become on a command line."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the text is not valid Unicode at character {error.start}",
            hint="pass the text as UTF-8",
        ) from None


def _decoder_rules(inner: tokenizers.Tokenizer) -> tuple[bool, bool]:
    """``(byte level, strip the first space)`` from the decoder of the file."""
    decoder = json.loads(inner.to_str())["decoder"]
    parts = _flat_decoders(decoder)
    kinds = [part["type"] for part in parts]
    if "ByteLevel" in kinds:
        return True, False
    if {"ByteFallback", "Metaspace"} & set(kinds):
        stripping = any(p["type"] == "Strip" and p.get("start", 0) > 0 for p in parts)
        prepended = any(
            p["type"] == "Metaspace" and p.get("prepend_scheme", "always") != "never" for p in parts
        )
        return False, stripping or prepended
    raise BundleError(
        f"the tokenizer has decoder {'+'.join(kinds) or 'none'}; its bytes are not known",
        hint="use a checkpoint with a byte-level or SentencePiece tokenizer",
    )


def _flat_decoders(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] != "Sequence":
        return [decoder]
    return [part for child in decoder["decoders"] for part in _flat_decoders(child)]


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHAR[char] for char in piece)
    except KeyError:
        return piece.encode("utf-8")


def _byte_of_char() -> dict[str, int]:
    """Inverse of the byte-level alphabet: printable Latin-1 stands for itself, the remaining
    68 bytes are the characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(shifted)})
    return table


_BYTE_OF_CHAR = _byte_of_char()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]

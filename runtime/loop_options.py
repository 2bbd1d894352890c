"""The numbers a loop is made with, and the requests it is given, checked."""

from __future__ import annotations

from selfdraft.errors import ConfigError, ResourceError
from selfdraft.runtime.adaptive.policy import AllSlots, BatchPolicy, DraftPolicy, FixedDrafts
from selfdraft.runtime.backend import Backend
from selfdraft.runtime.request import Request

MAX_DRAFTS = 8


def checked_policy(backend: Backend, drafts: int | DraftPolicy | BatchPolicy | None) -> BatchPolicy:
    """What decides on the drafts of a step; a number stands for itself."""
    has_mtp = backend.manifest.has_mtp
    most = drafts if drafts is None or isinstance(drafts, int) else drafts.most
    if most and not has_mtp:
        raise ConfigError(
            f"drafts is {most}, but this bundle has no MTP head",
            hint="decode with drafts=0, or export a checkpoint that has one",
        )
    most = checked("drafts", most, int(has_mtp), 0, MAX_DRAFTS)
    if drafts is None or isinstance(drafts, int):
        return AllSlots(FixedDrafts(most))
    return drafts if isinstance(drafts, BatchPolicy) else AllSlots(drafts)


def checked(name: str, value: int | None, default: int, least: int, most: int) -> int:
    if value is None:
        return default
    if not least <= value <= most:
        raise ConfigError(f"{name} is {value}", hint=f"give {name} a value from {least} to {most}")
    return value


def check_request(request: Request, *, vocab_size: int, context_length: int) -> None:
    """Raise ``ConfigError`` for an unknown token, ``ResourceError`` where no room is left."""
    request.check_ids(vocab_size)
    length = len(request.prompt_ids) + len(request.resumed_token_ids)
    if length >= context_length:
        raise ResourceError(
            f"the prompt has {length} tokens, the context holds {context_length} with the reply",
            hint=f"shorten the prompt to {context_length - 1} tokens or fewer",
        )

"""A bundle to another machine: beside the one that is there, then in its place.

What differs arrives in a folder of its own and is hashed there. Only then is it moved to where it
belongs, by one command that ends with the manifest: until that begins a bundle that was there is as
it was, and cut short in the midst of it the folder has no manifest, so that nobody takes it for a
bundle. The same command goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from selfdraft.cli.push_remote import Place, hashes_at, rsync, scp, ssh
from selfdraft.errors import ConfigError, DeviceError, VerificationError
from selfdraft.manifest import MANIFEST_NAME
from selfdraft.runtime.bundle import ENGINES_FOLDER, Bundle

INCOMING = f"{ENGINES_FOLDER}/.incoming"
"""The engines' folder is the one that may hold what a manifest does not list."""
OLD_MANIFEST = "manifest.old.json"
"""The manifest that was there, in ``INCOMING``, while its files are being replaced."""
MOST_FOUND = 1000
"""Files that are looked at; a folder with more of them holds other things than a bundle."""

OnStage = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a push did."""

    program: str
    """That copied; nothing where all was there."""
    copied: tuple[str, ...]
    removed: tuple[str, ...]
    """Files of the bundle that was there before."""


def push_bundle(bundle: Bundle, place: Place, *, on_stage: OnStage) -> Pushed:
    """Make the folder ``place`` the bundle; engines that are there stay.

    Raises ``DeviceError`` where the other machine is not reached or the copy ends early,
    ``VerificationError`` for files that arrived otherwise than they left, and ``ConfigError`` for a
    folder with files of something else.
    """
    names = list(bundle.manifest.files)
    on_stage("connect", 0, 1)
    removed = _left_over(place, set(names))
    incoming = place.below(INCOMING)
    folders = {str(PurePosixPath(base, name).parent) for base in (".", INCOMING) for name in names}
    ssh(
        place,
        f"mkdir -p {incoming.folder} && cd {place.folder} && xargs -d '\\n' mkdir -p --",
        given=sorted(folders),
    )
    on_stage("hash what is there", 0, 1)
    differing = _differing(bundle, place, names)
    on_stage("copy", 0, 1)
    program = _copy(bundle, incoming, differing) if differing else "nothing"
    on_stage("check hashes there", 0, 1)
    wrong = _differing(bundle, incoming, differing)
    if wrong:
        raise VerificationError(
            f"{len(wrong)} of {len(differing)} files at {place.text} differ: "
            f"{', '.join(wrong[:3])}",
            hint=f"copy them again: selfdraft push {bundle.path} {place.text}",
        )
    scp(bundle.path / MANIFEST_NAME, incoming, MANIFEST_NAME)
    on_stage("put in place", 0, 1)
    _put_in_place(place, moved=differing, removed=removed)
    return Pushed(program=program, copied=tuple(differing), removed=tuple(removed))


def _left_over(place: Place, names: set[str]) -> list[str]:
    """Files that the bundle there has and ``names`` has not.

    Raises ``ConfigError`` for files of no bundle: beside them the new one could not be opened.
    """
    found = ssh(
        place,
        f"[ ! -d {place.folder} ] || {{ cd {place.folder} && find . -path ./{ENGINES_FOLDER} "
        f"-prune -o ! -type d -print | head -n {MOST_FOUND}; }}",
    )
    others = {line.removeprefix("./") for line in found.splitlines()} - names - {MANIFEST_NAME}
    if not others:
        return []
    unknown = sorted(others - _listed_there(place))
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise ConfigError(
            f"{place.text} has files that are of no bundle: {', '.join(unknown[:3])}{more}",
            hint="name a folder for the bundle alone, or remove them there",
        )
    return sorted(others)


def _listed_there(place: Place) -> set[str]:
    """What the manifest there lists, if there is one that can be read."""
    known: set[str] = set()
    for path in (MANIFEST_NAME, f"{INCOMING}/{OLD_MANIFEST}"):
        text = ssh(place, f"cat {place.folder}/{path} 2>/dev/null || true")
        try:
            known |= set(json.loads(text)["files"])
        except (ValueError, KeyError, TypeError):
            continue
    return known


def _differing(bundle: Bundle, place: Place, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that ``place`` lacks or has otherwise."""
    if not names:
        return []
    found = hashes_at(place, names)
    return [name for name in names if found.get(name) != bundle.manifest.files[name].sha256]


def _copy(bundle: Bundle, incoming: Place, names: Sequence[str]) -> str:
    """The program that copied."""
    if rsync(bundle.path, incoming, names):
        return "rsync"
    for name in _differing(bundle, incoming, names):
        scp(bundle.path / name, incoming, name)
    return "scp"


def _put_in_place(place: Place, *, moved: Sequence[str], removed: Sequence[str]) -> None:
    """One command over there: the old manifest goes first, the new one comes last."""
    script = (
        f"set -e; cd {place.folder}; "
        f"[ ! -e {MANIFEST_NAME} ] || mv -f {MANIFEST_NAME} {INCOMING}/{OLD_MANIFEST}; "
        'while IFS= read -r line; do name="${line#?}"; case "$line" in '
        f'+*) mv -f -- "{INCOMING}/$name" "$name";; -*) rm -f -- "$name";; esac; done; '
        f"mv -f {INCOMING}/{MANIFEST_NAME} {MANIFEST_NAME}; rm -rf {INCOMING}"
    )
    lines = [*(f"+{name}" for name in moved), *(f"-{name}" for name in removed)]
    try:
        ssh(place, f"sh -c '{script}'", given=lines)
    except DeviceError as error:
        raise DeviceError(
            f"{error.problem}, while the new files were put in place: {place.text} may be no bundle now",
            hint="give the same command again: nothing has to be copied anew",
        ) from None

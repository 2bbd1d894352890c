"""A fresh bundle's own acceptance, counted by its decode loop and kept in its manifest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfdraft.baseline import (
    FIRST_BUCKET,
    Baseline,
    BucketCounts,
    DraftCounts,
    TaskBaseline,
    bucket_of,
    bucket_range,
    sum_counts,
)
from selfdraft.cli.eval_acceptance import Bucket, acceptance_by_position
from selfdraft.cli.session import EngineOptions, Session, open_session
from selfdraft.errors import BundleError, ConfigError
from selfdraft.manifest import MANIFEST_NAME, FileSpec, Manifest, load_manifest, manifest_to_json

if TYPE_CHECKING:
    from selfdraft.runtime.bundle import Bundle

OnProgress = Callable[[str, int, int], None]
CALIBRATION_FILE = "calibration.json"
CALIBRATION_SCHEMA = "selfdraft.calibration/1"
DRAFTS = 3
PLACES = 32
"""Continuations of a text in every ``FIRST_BUCKET`` tokens of it."""
REPLY_TOKENS = 32
LEAST_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskText:
    """Tokens of one kind of text."""

    task: str
    text: str
    """Name of its file."""
    sha256: str
    ids: tuple[int, ...]


def read_task_texts(session: Session, files: Mapping[str, Path], *, tokens: int) -> list[TaskText]:
    """At most ``tokens`` of each file, and no more than leaves room for a reply.

    Raises ``ConfigError`` for a file that cannot be read or is too short.
    """
    limit = session.bundle.manifest.limits.context_length - REPLY_TOKENS
    found = []
    for task, file in files.items():
        try:
            content = file.read_bytes()
            ids = session.tokenizer.encode(content.decode(), add_special_tokens=False)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{file} cannot be read as UTF-8 text: {error}", hint="give a plain text file"
            ) from None
        kept = tuple(ids[: max(min(tokens, limit), 0)])
        if len(kept) < LEAST_TOKENS:
            raise ConfigError(
                f"{file} gives {len(kept)} tokens, a baseline needs {LEAST_TOKENS} or more",
                hint="give a text of some pages, or a larger --context",
            )
        digest = hashlib.sha256(content).hexdigest()
        found.append(TaskText(task=task, text=file.name, sha256=digest, ids=kept))
    return found


def measure_baseline(
    session: Session, texts: Sequence[TaskText], *, on_progress: OnProgress
) -> Baseline:
    """Greedy continuations from places all along each text, with ``DRAFTS`` drafts a step."""
    tasks = [_measured_task(session, text, on_progress) for text in texts]
    digest = hashlib.sha256("".join(text.sha256 for text in texts).encode())
    return Baseline(
        text=", ".join(dict.fromkeys(text.text for text in texts)),
        text_sha256=texts[0].sha256 if len(texts) == 1 else digest.hexdigest(),
        tokens=sum(len(text.ids) for text in texts),
        method="decoded",
        tasks=tuple(tasks),
    )


def _measured_task(session: Session, text: TaskText, on_progress: OnProgress) -> TaskBaseline:
    buckets = acceptance_by_position(
        session,
        text.ids,
        bucket=FIRST_BUCKET,
        trials=PLACES,
        tokens=REPLY_TOKENS,
        on_progress=lambda _, done, total: on_progress(f"baseline {text.task}", done, total),
    )
    return _task(text.task, buckets)


def add_baseline(
    bundle: Path, files: Mapping[str, Path], *, tokens: int, on_progress: OnProgress
) -> Manifest:
    """Measure the bundle on ``files`` by task, and store counts and texts in it.

    The texts' tokens go into ``calibration.json``, for ``selfdraft probe``. Until the manifest is replaced
    at the end, the bundle is the one that it was.
    """
    session = open_session(bundle, EngineOptions(drafts=DRAFTS))
    texts = read_task_texts(session, files, tokens=tokens)
    baseline = measure_baseline(session, texts, on_progress=on_progress)
    manifest = load_manifest(bundle)
    content = _calibration(texts)
    listed = {**manifest.files, CALIBRATION_FILE: _spec(content)}
    updated = dataclasses.replace(manifest, baseline=baseline, files=dict(sorted(listed.items())))
    (bundle / CALIBRATION_FILE).write_bytes(content)
    _replace(bundle / MANIFEST_NAME, manifest_to_json(updated).encode())
    return updated


def stored_texts(bundle: Bundle) -> list[TaskText]:
    """The texts of the baseline; empty where the bundle has none. Raises ``BundleError``."""
    if CALIBRATION_FILE not in bundle.manifest.files:
        return []
    path = bundle.file(CALIBRATION_FILE)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["schema"] != CALIBRATION_SCHEMA:
            raise ValueError(f"schema {record['schema']!r}")
        return [TaskText(**{**one, "ids": tuple(map(int, one["ids"]))}) for one in record["texts"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(
            f"{path} cannot be read: {error}", hint="export the bundle again with --calibrate"
        ) from None


def _calibration(texts: Sequence[TaskText]) -> bytes:
    record: dict[str, Any] = {"schema": CALIBRATION_SCHEMA}
    record["texts"] = [dataclasses.asdict(text) for text in texts]
    return (json.dumps(record, separators=(",", ":")) + "\n").encode()


def _spec(content: bytes) -> FileSpec:
    return FileSpec(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def _task(task: str, buckets: Sequence[Bucket]) -> TaskBaseline:
    """Uniform buckets joined into those of ``bucket_of``."""
    counts: dict[int, list[DraftCounts]] = {}
    for bucket in buckets:
        one = DraftCounts(drafted=bucket.drafted, accepted=bucket.accepted)
        counts.setdefault(bucket_of(bucket.start), []).append(one)
    joined = {index: sum_counts(parts) for index, parts in counts.items()}
    return TaskBaseline(
        task=task,
        counts=sum_counts(joined.values()),
        buckets=tuple(
            BucketCounts(start=bucket_range(index)[0], end=bucket_range(index)[1], counts=total)
            for index, total in sorted(joined.items())
        ),
    )

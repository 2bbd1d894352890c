"""Telemetry in a file: JSON lines, or Prometheus text for a collector of text files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from selfdraft.errors import ResourceError
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.telemetry.alerts import AlertEvent
from selfdraft.runtime.telemetry.meter import Telemetry
from selfdraft.runtime.telemetry.prometheus import prometheus_client, prometheus_text

SCHEMA = "selfdraft.telemetry/1"
PROMETHEUS_SUFFIX = ".prom"


class TelemetryFile:
    """Writes what one telemetry counts; call ``reply`` after each reply.

    A name that ends in ``.prom`` gets the counters as Prometheus text, replaced as a whole each time. Any
    other gets a JSON line for each alert that was raised or ended, and one for the reply with the window
    after it; lines are appended. Raises ``ResourceError`` for a place that cannot be written, and
    ``ConfigError`` for Prometheus text without its library, both before anything runs.
    """

    def __init__(
        self, path: Path, telemetry: Telemetry, *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._telemetry, self._wall_clock = path, telemetry, wall_clock
        self._as_prometheus = path.suffix == PROMETHEUS_SUFFIX
        if self._as_prometheus:
            prometheus_client()
        new = not os.path.lexists(path)
        try:
            path.open("ab").close()
            if new:  # a request that is refused leaves nothing behind
                path.unlink()
        except OSError as error:
            raise _not_written(path, error) from None

    def reply(self, task: str, result: GenerationResult, events: Sequence[AlertEvent]) -> None:
        """One reply ended; ``events`` are the alerts raised or ended meanwhile."""
        try:
            if self._as_prometheus:
                self._replace(prometheus_text(self._telemetry))
            else:
                self._append([*map(self._alert_line, events), self._reply_line(task, result)])
        except OSError as error:
            raise _not_written(self._path, error) from None

    def _alert_line(self, event: AlertEvent) -> dict[str, Any]:
        return self._line("alert") | {"raised": event.raised, **event.alert.to_json()}

    def _reply_line(self, task: str, result: GenerationResult) -> dict[str, Any]:
        snapshot = result.telemetry or self._telemetry.snapshot()
        return self._line("reply") | {
            "task": task,
            "verification": result.verification,
            "num_prompt_tokens": result.prompt_tokens,
            "num_tokens": len(result.tokens),
            "num_steps": result.steps,
            "spec_decode_num_draft_tokens_per_pos": list(result.drafted),
            "spec_decode_num_accepted_tokens_per_pos": list(result.accepted),
            "acceptance_rate": result.acceptance_rate,
            "tokens_per_step": result.tokens_per_step,
            "window": snapshot.to_json(),
        }

    def _line(self, kind: str) -> dict[str, Any]:
        return {"schema": SCHEMA, "event": kind, "unix_time": self._wall_clock()}

    def _append(self, lines: Sequence[dict[str, Any]]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    def _replace(self, text: bytes) -> None:
        partial = self._path.with_name(f".{self._path.name}.partial-{os.getpid()}")
        try:
            partial.write_bytes(text)
            os.replace(partial, self._path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _not_written(path: Path, error: OSError) -> ResourceError:
    return ResourceError(
        f"{path} cannot be written: {error.strerror}", hint="choose another place for --telemetry"
    )

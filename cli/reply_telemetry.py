"""What generate and chat do with telemetry: count, write to a file, show alerts."""

from __future__ import annotations

from pathlib import Path

from selfdraft.cli.console import note
from selfdraft.cli.session import Session
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.telemetry.files import TelemetryFile
from selfdraft.runtime.telemetry.meter import Telemetry


class ReplyTelemetry:
    """Counts the replies of one command. Raises as ``TelemetryFile`` does."""

    def __init__(self, session: Session, path: Path | None) -> None:
        self.meter = Telemetry(baseline=session.bundle.manifest.baseline)
        self._file = TelemetryFile(path, self.meter) if path else None

    def after(self, task: str, result: GenerationResult) -> None:
        """A reply ended: show on stderr what was raised or ended, and write the file."""
        events = self.meter.take_events()
        for event in events:
            note(event.text)
        if self._file:
            self._file.reply(task, result, events)

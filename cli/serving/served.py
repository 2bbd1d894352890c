"""What the handlers of all requests share: the bundle, its service and the settings."""

from __future__ import annotations

from dataclasses import dataclass

from selfdraft.cli.serving.failures import ApiError
from selfdraft.cli.serving.metrics import ServerMetrics
from selfdraft.cli.serving.settings import ServerSettings
from selfdraft.cli.session import Session
from selfdraft.runtime.chat_template import ChatTemplate
from selfdraft.runtime.serving.service import Service
from selfdraft.runtime.telemetry.meter import Telemetry
from selfdraft.runtime.thinking_text import known_tags
from selfdraft.runtime.thought_split import TagTexts, tag_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One bundle on one service."""

    session: Session
    service: Service
    metrics: ServerMetrics
    settings: ServerSettings
    template: ChatTemplate | None
    """None where the bundle has none: then there is no chat."""
    tags: TagTexts | None
    """Thinking tags that the tokenizer knows."""
    started: int
    """Unix time."""

    @property
    def model(self) -> str:
        """Name of the model in the API."""
        return self.settings.model_name or self.session.bundle.manifest.source.name

    def check_model(self, name: str | None) -> None:
        """Refuse the name of another model; none at all is this one."""
        if name is not None and name != self.model:
            raise ApiError(
                404,
                f"there is no model {name[:200]!r} here, only {self.model!r}",
                code="model_not_found",
                param="model",
            )


def serve_session(
    session: Session,
    service: Service,
    settings: ServerSettings,
    *,
    telemetry: Telemetry,
    started: int,
) -> Served:
    """``session`` ready to be asked. Raises ``ConfigError`` for a template that cannot be used."""
    tags = known_tags(session.tokenizer)
    has_template = session.bundle.manifest.text.chat_template is not None
    return Served(
        session=session,
        service=service,
        metrics=ServerMetrics(service, telemetry),
        settings=settings,
        template=session.chat_template() if has_template else None,
        tags=tag_texts(session.tokenizer, tags) if tags else None,
        started=started,
    )

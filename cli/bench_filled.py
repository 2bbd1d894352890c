"""``selfdraft bench --attention``: sparse against dense steps on filled caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from selfdraft.cli.console import print_json_line, say, stage_progress, table
from selfdraft.errors import ConfigError
from selfdraft.runtime.slot_checks import has_sparse_layers

if TYPE_CHECKING:
    from selfdraft.cli.measure_filled import Attention, FilledOptions
    from selfdraft.cli.session import Session
    from selfdraft.cli.synthetic_cache import Content

DEFAULT_TOKENS = 16


def filled_options(
    session: Session,
    *,
    attention: str,
    contexts: tuple[int, ...] | None,
    drafts: tuple[int, ...] | None,
    tokens: int | None,
    repeats: int,
    warmup: int,
    forced_acceptance: tuple[float, ...] | None,
    content: Content,
) -> FilledOptions:
    """The options as far as the bundle can do them. Raises ``ConfigError``, ``ResourceError``."""
    from selfdraft.cli.bench import check_forced, check_room
    from selfdraft.cli.measure_filled import FilledOptions

    tokens = tokens or DEFAULT_TOKENS
    contexts = contexts or (session.bundle.manifest.limits.context_length,)
    check_room(session, max(contexts), f"{max(contexts)} tokens")
    if min(contexts) < tokens + 2:
        raise ConfigError(
            f"--context has {min(contexts)}, a run alone has {tokens} tokens",
            hint=f"give --context values from {tokens + 2}, or lower --tokens",
        )
    if any(drafts or ()) and forced_acceptance is None:
        raise ConfigError(
            "--attention fills the caches with random rows, so drafts cannot be judged",
            hint="add a verdict: --force-acceptance 0.87, or leave --drafts out",
        )
    check_forced(forced_acceptance, drafts or ())
    return FilledOptions(
        contexts=contexts,
        attentions=_attentions(session, attention),
        drafts=drafts or (),
        tokens=tokens,
        repeats=repeats,
        warmup=warmup,
        forced_acceptance=forced_acceptance,
        content=content,
    )


def bench_filled(
    session: Session, options: FilledOptions, *, head: dict[str, Any], as_json: bool
) -> None:
    """Measure, and print a JSON line or a table row for each series."""
    from selfdraft.cli.bench_filled_record import HEADER, filled_records, filled_row
    from selfdraft.cli.measure_filled import measure_filled

    with stage_progress(quiet=as_json) as on_stage:
        result = measure_filled(session.backend, options, on_stage=on_stage)
    records = filled_records(result, options, session.bundle.manifest, head=head)
    if as_json:
        for record in records:
            print_json_line(record)
        return
    threads = f", {head['threads']} threads" if head["threads"] else ""
    say(
        f"{head['cpu']}{threads}, {head['backend']}; synthetic caches: {options.content.described()}"
    )
    say(table([filled_row(record) for record in records], header=HEADER))


def _attentions(session: Session, text: str) -> tuple[Attention, ...]:
    """``sparse,dense`` as given, each once; sparse only where the bundle has it."""
    manifest = session.bundle.manifest
    parts = dict.fromkeys(part.strip() for part in text.split(","))
    for part in parts:
        if part not in ("sparse", "dense"):
            raise ConfigError(f"--attention has {part!r}", hint="choose from sparse,dense")
        if part == "sparse" and not has_sparse_layers(manifest):
            raise ConfigError(
                "--attention sparse: every layer of this bundle attends densely",
                hint="measure --attention dense, or export with: --attention sparse",
            )
    return cast("tuple[Attention, ...]", tuple(parts))

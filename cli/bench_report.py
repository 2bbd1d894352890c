"""``selfdraft bench report FILE…``: a Markdown table to publish, and plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from selfdraft.cli.bench_schema import BenchLine, read_lines
from selfdraft.cli.console import note, say
from selfdraft.cli.svg import Axes, svg_document
from selfdraft.errors import ConfigError, ResourceError

COLUMNS = (
    "context",
    "drafts",
    "tok/s (p10–p90)",
    "× plain",
    "tokens a step",
    "accepted",
    "step ms",
    "first token ms",
    "prompt tok/s",
    "GB/s (of peak)",
    "J/token",
)
INKS = ("#333333", "#2a6f97", "#e07a5f", "#6a994e", "#9c6ade")


def print_report(files: Sequence[Path], *, output: Path | None) -> None:
    """Markdown on stdout; with ``output`` also ``speed.svg`` and ``acceptance.svg`` there."""
    if not files:
        raise ConfigError(
            "report needs a file of --json lines", hint="selfdraft bench report run.jsonl"
        )
    lines = tuple(line for path in files for line in read_lines(path))
    say(markdown(lines))
    if output is not None:
        _write_plots(lines, output)


def markdown(lines: Sequence[BenchLine]) -> str:
    """Settings, a table, and why figures are not valid; no figure that was not measured."""
    head = lines[0]
    settings = [head.model, f"weights {head.weights}", f"{head.backend}", head.device, head.cpu]
    settings += [f"mode {head.power_mode}"] if head.power_mode else []
    settings += [f"selfdraft {head.selfdraft}"]
    rows = [_row(line) for line in lines]
    reasons = sorted({reason for line in lines for reason in line.invalid_reasons or ()})
    parts = [
        ", ".join(str(part) for part in settings if part) + ".",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|" + "---|" * len(COLUMNS),
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
    if any(line.synthetic for line in lines):
        parts.append("Acceptance marked * was forced: synthetic figures.")
    parts += [f"**Invalid run**: {reason}." for reason in reasons]
    if all(line.valid is None for line in lines):
        parts.append("No board was watched: power, clocks and temperatures were not measured.")
    return "\n".join(parts)


def speed_plot(lines: Sequence[BenchLine]) -> str:
    """Tokens per second by context, a colour for each number of drafts."""
    contexts = sorted({line.context for line in lines})
    top = max(line.tok_per_s.p90 for line in lines)
    axes = Axes(
        left=60,
        top=40,
        width=480,
        height=240,
        x_range=(0, len(contexts) + 1),
        y_range=(0, top * 1.1),
    )
    axes.frame(title="tokens per second", x_label=_contexts_label(contexts), x_ticks=())
    drafts = sorted({line.drafts for line in lines})
    width = 0.7 / len(drafts)
    for index, count in enumerate(drafts):
        own = [line for line in lines if line.drafts == count]
        xs = [contexts.index(line.context) + 1 + (index - len(drafts) / 2) * width for line in own]
        speeds = [line.tok_per_s.median for line in own]
        axes.bars(xs, speeds, width=width * 0.9, colour=INKS[index % len(INKS)])
    axes.legend([(f"K = {count}", INKS[i % len(INKS)]) for i, count in enumerate(drafts)])
    return svg_document([axes], width=600, height=360)


def acceptance_plot(lines: Sequence[BenchLine]) -> str | None:
    """Share accepted by draft position, a colour for each context; None without drafts."""
    deepest: dict[int, BenchLine] = {}
    for line in lines:
        if line.drafts and line.drafts >= deepest.get(line.context, line).drafts:
            deepest[line.context] = line
    if not deepest:
        return None
    most = max(line.drafts for line in deepest.values())
    axes = Axes(left=60, top=40, width=480, height=240, x_range=(0.5, most + 0.5), y_range=(0, 1))
    ticks = range(1, most + 1)
    axes.frame(title="share accepted", x_label="draft position", x_ticks=ticks)
    for index, line in enumerate(deepest.values()):
        known = [(i, s) for i, s in enumerate(line.accepted_shares, start=1) if s is not None]
        colour = INKS[(index + 1) % len(INKS)]
        axes.points([i for i, _ in known], [s for _, s in known], colour=colour)
    names = [(f"{n} tokens", INKS[(i + 1) % len(INKS)]) for i, n in enumerate(deepest)]
    axes.legend(names)
    return svg_document([axes], width=600, height=360)


def _write_plots(lines: Sequence[BenchLine], folder: Path) -> None:
    plots = {"speed.svg": speed_plot(lines), "acceptance.svg": acceptance_plot(lines)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in plots.items():
            if text is not None:
                (folder / name).write_text(text, encoding="utf-8")
                note(f"wrote {folder / name}")
    except OSError as error:
        raise ResourceError(
            f"{folder} cannot be written: {error.strerror}", hint="choose another --output"
        ) from None


def _contexts_label(contexts: Sequence[int]) -> str:
    return "context in tokens: " + ", ".join(str(context) for context in contexts)


def _row(line: BenchLine) -> list[str]:
    speed = line.tok_per_s
    star = "*" if line.synthetic else ""
    shares = ", ".join("–" if s is None else f"{100 * s:.0f} %" for s in line.accepted_shares)
    return [
        str(line.context),
        str(line.drafts),
        f"{speed.median:.1f} ({speed.p10:.1f}–{speed.p90:.1f})",
        f"{line.speedup:.2f}",
        f"{line.tokens_per_step:.2f}",
        f"{shares}{star}" if shares else "",
        f"{line.step_ms.median:.2f}",
        _number(line.ttft_ms, "{:.0f}"),
        _number(line.prefill_tok_per_s, "{:.0f}"),
        _bandwidth(line),
        _number(line.joules_per_token, "{:.3f}"),
    ]


def _bandwidth(line: BenchLine) -> str:
    if line.gb_per_s is None:
        return "–"
    share = "" if line.roofline_share is None else f" ({100 * line.roofline_share:.0f} %)"
    return f"{line.gb_per_s:.1f}{share}"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)

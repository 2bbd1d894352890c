"""The report of a probe as one HTML file that needs nothing else.

Every figure in its tables carries the value of the JSON record in a ``data`` element, and the record itself
stands at the end of the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from selfdraft.cli.probe_plots import interval_bars, position_plot
from selfdraft.cli.probe_record import cause_text
from selfdraft.errors import ConfigError, ResourceError

Record = Mapping[str, Any]
STYLE = """
body { font-family: sans-serif; max-width: 900px; margin: 2em auto; color: #333; line-height: 1.4 }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: 2px 10px 2px 0; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd }
td.n { text-align: right; white-space: nowrap }
.verdict { border-left: 4px solid #2a6f97; padding-left: 1em }
"""


def check_place(path: Path) -> None:
    """Raise ``ConfigError`` for a place where no report can be written."""
    if path.suffix.lower() not in (".html", ".htm") or not path.resolve().parent.is_dir():
        raise ConfigError(
            f"no report can be written to {path}", hint="give a FILE.html in a folder that exists"
        )


def write_html(path: Path, record: Record) -> None:
    """Write the page. Raises ``ResourceError`` where the file cannot be written."""
    try:
        path.write_text(page(record), encoding="utf-8")
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be written: {error.strerror}", hint="choose another --html"
        ) from None


def page(record: Record) -> str:
    """The whole document."""
    title = f"Probe of {record['source']}"
    values = json.dumps(record, ensure_ascii=True, default=str).replace("<", "\\u003c")
    body = [f"<h1>{escape(title)}</h1>", _verdict(record), _measurements(record)]
    body += [_effects(record), _positions(record), _untold(record)]
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n"
        f'<script type="application/json" id="record">{values}</script>\n</body></html>\n'
    )


def _verdict(record: Record) -> str:
    verdict = record["verdict"]
    advice = "".join(f"<li>{escape(text)}</li>" for text in verdict["advice"])
    found = f"<p><b>{escape(verdict['summary'])}</b></p>"
    expected = record["expected"]
    if expected is not None:
        found += f"<p>Expected on the baseline text: {_percent(expected)}</p>"
    return f'<div class="verdict">{found}<ul>{advice}</ul></div>'


def _measurements(record: Record) -> str:
    rows = record["measurements"]
    names = [f"{row['text']}: {row['setting']}" for row in rows]
    cells = [
        [
            escape(row["text"]),
            escape(row["setting"]),
            *_shares(row["share"]),
            _plain(row["share"]["rows"]),
        ]
        for row in rows
    ]
    plot = interval_bars(names, [row["share"] for row in rows])
    header = ("text", "measured", "accepted", "low", "high", "rows")
    heading = "<h2>Accepted first drafts, in percent, with 95 % intervals</h2>"
    return heading + plot + _table(header, cells)


def _effects(record: Record) -> str:
    rows = sorted(record["effects"], key=lambda row: -row["gain"]["value"])
    if not rows:
        return ""
    names = [f"{row['cause']}: {row['text']}" for row in rows]
    cells = [
        [
            escape(cause_text(row["cause"])),
            escape(row["text"]),
            escape(row["compared"]),
            *_shares(row["gain"]),
            "named" if row["named"] else "",
        ]
        for row in rows
    ]
    plot = interval_bars(names, [row["gain"] for row in rows])
    header = ("cause", "text", "compared", "gain", "low", "high", "")
    return "<h2>What one change gains, in points</h2>" + plot + _table(header, cells)


def _positions(record: Record) -> str:
    rows = record["positions"]
    if not rows:
        return ""
    cells = [
        [_plain(row["start"]), _plain(row["end"]), *_shares(row["far"]), *_shares(row["near"])]
        for row in rows
    ]
    header = ("from", "to", "far", "low", "high", "near", "low", "high")
    return "<h2>Along the text</h2>" + position_plot(rows) + _table(header, cells)


def _untold(record: Record) -> str:
    if not record["untold"]:
        return ""
    lines = "".join(f"<li>{escape(text)}</li>" for text in record["untold"])
    return f"<h2>What could not be told</h2><ul>{lines}</ul>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML; those that begin with a tag of their own are figures."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _cell(content: str) -> str:
    kind = ' class="n"' if content.startswith("<data") else ""
    return f"<td{kind}>{content}</td>"


def _shares(share: Mapping[str, float]) -> list[str]:
    return [_percent(share[key]) for key in ("value", "low", "high")]


def _percent(value: float) -> str:
    return f'<data value="{value!r}">{value * 100:.1f}</data>'


def _plain(value: int) -> str:
    return f'<data value="{value!r}">{value}</data>'

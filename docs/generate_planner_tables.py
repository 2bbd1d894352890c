"""Writes the error tables of docs/planner.md from the calibration, so that both say the same.

Usage: ``python docs/generate_planner_tables.py`` (``--check`` only compares).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from selfdraft.jetson.planner.calibration import (
    Prediction,
    fitted,
    leave_one_out,
    mean_error,
    predict,
    published,
    speculative_ratio,
)

PAGE = Path(__file__).with_name("planner.md")
START, END = "<!-- tables: docs/generate_planner_tables.py -->", "<!-- end of tables -->"


def tables() -> str:
    """The part of the page between its marks."""
    table, own = published(), fitted()
    left_out = leave_one_out(table)
    stated = [p for p in left_out if p.row.mode_stated]
    efficiencies = own.efficiencies
    factors = ", ".join(f"{name} {factor:.2f}" for name, factor in own.frameworks.items())
    fit = (
        f"Fitted: bandwidth {efficiencies.bandwidth:.3f} of the peak, "
        f"{efficiencies.layer_us:.1f} µs a layer; factors {factors}."
    )
    single = (
        f"From one figure each: {efficiencies.sm_bytes_per_clock:.1f} bytes per SM and clock, "
        f"{efficiencies.tensor:.2f} of the tensor cores' peak."
    )
    mean = (
        f"Mean error {_share(mean_error(left_out))}; {_share(mean_error(stated))} over the "
        f"{len(stated)} rows whose power mode is stated."
    )
    return "\n".join(
        [
            fit,
            single,
            "",
            "Each row predicted by a fit to the others:",
            "",
            *_rows(left_out),
            "",
            mean,
            "",
            "Figures that no fit has seen:",
            "",
            *_rows([predict(table, own, row) for row in table.checks], sources=True),
            "",
            "Speculation, three drafts with the whole LM head, at the published tokens a step:",
            "",
            "| model | published | predicted | error |",
            "|---|---|---|---|",
            *(
                f"| {row.model} | {row.ratio:.3f} | {ratio:.3f} | {_signed(ratio / row.ratio - 1)} |"
                for row in table.speculative
                for ratio in [speculative_ratio(table, own, row)]
            ),
        ]
    )


def _rows(predictions: Iterable[Prediction], *, sources: bool = False) -> list[str]:
    header = "| model | framework, storage | board | published | predicted | error |"
    lines = [
        header + (" source |" if sources else ""),
        "|---|---|---|---|---|---|" + ("---|" if sources else ""),
    ]
    for prediction in predictions:
        row = prediction.row
        mode = row.mode if row.mode_stated else f"{row.mode} (not stated)"
        line = (
            f"| {row.model} | {row.framework}, {row.weights}, head {row.head} | {row.device}, "
            f"{mode} | {row.tok_per_s:g} | {prediction.tok_per_s:.1f} | {_signed(prediction.error)} |"
        )
        lines.append(f"{line} {row.source} |" if sources else line)
    return lines


def _signed(error: float) -> str:
    return f"{100 * error:+.1f} %"


def _share(error: float) -> str:
    return f"{100 * error:.1f} %"


def page_with_tables(page: str) -> str:
    """The page, its tables as they are now."""
    head, _, rest = page.partition(START)
    _, _, tail = rest.partition(END)
    return f"{head}{START}\n{tables()}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` tell whether it is up to date."""
    page = PAGE.read_text(encoding="utf-8")
    wanted = page_with_tables(page)
    if arguments == ["--check"]:
        return int(page != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

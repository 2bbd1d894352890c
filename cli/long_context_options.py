"""Options of ``selfdraft export`` for long contexts: sparse attention and the storage of the KV."""

from __future__ import annotations

from typing import Annotated

import typer

PANEL = "Long context"

AttentionOption = Annotated[
    str,
    typer.Option(
        "--attention",
        metavar="checkpoint|dense|sparse",
        help="Attend to all tokens, or to the blocks of 64 that matter to each token; checkpoint: "
        "as its config asks.",
        rich_help_panel=PANEL,
    ),
]
SelectorOption = Annotated[
    str,
    typer.Option(
        "--selector",
        metavar="NAME",
        help="How blocks are chosen: mean_std, min_max, infllm_v2 (MiniCPM4) or window (never).",
        rich_help_panel=PANEL,
    ),
]
SpreadOption = Annotated[
    float | None,
    typer.Option(
        "--spread",
        metavar="C",
        help="mean_std, min_max: weight of how much a block's keys differ against their centre. "
        "Short needles want more, long ones less.",
        show_default="5 and 1",
        rich_help_panel=PANEL,
    ),
]
BudgetOption = Annotated[
    int,
    typer.Option(
        "--budget",
        min=0,
        metavar="N",
        help="Tokens a row sees, sinks and local blocks included.",
        rich_help_panel=PANEL,
    ),
]
BudgetShareOption = Annotated[
    float,
    typer.Option(
        "--budget-share",
        metavar="P",
        help="The budget is at least this share of the row's context.",
        rich_help_panel=PANEL,
    ),
]
SinksOption = Annotated[
    int,
    typer.Option(
        "--sinks",
        min=0,
        metavar="N",
        help="Blocks at the start that every row sees.",
        rich_help_panel=PANEL,
    ),
]
LocalBlocksOption = Annotated[
    int,
    typer.Option(
        "--local-blocks",
        metavar="N",
        help="Blocks up to the row's own that it always sees.",
        rich_help_panel=PANEL,
    ),
]
FirstLayersOption = Annotated[
    int,
    typer.Option(
        "--first-layers",
        min=0,
        metavar="N",
        help="Layers at the start with --first-budget instead.",
        rich_help_panel=PANEL,
    ),
]
FirstBudgetOption = Annotated[
    int | None,
    typer.Option(
        "--first-budget",
        min=1,
        metavar="N",
        help="Tokens a row sees in those.",
        show_default="all",
        rich_help_panel=PANEL,
    ),
]
MtpWindowOption = Annotated[
    int,
    typer.Option(
        "--mtp-window",
        metavar="N",
        help="Tokens the MTP head sees beside the sinks.",
        rich_help_panel=PANEL,
    ),
]
KvOption = Annotated[
    str | None,
    typer.Option(
        "--kv",
        metavar="fp32|fp16|int8",
        help="Storage of the KV cache: fp32 or int8 on the CPU, fp16 or int8 on Orin.",
        show_default="fp32, Orin fp16",
        rich_help_panel=PANEL,
    ),
]

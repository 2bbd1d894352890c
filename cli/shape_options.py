"""Options that shape a reply beside its sampling: thinking budget, structured output, beams."""

from __future__ import annotations

from typing import Annotated

import typer

_THINKING = "Thinking"
_STRUCTURE = "Structured output"
_BEAMS = "Beam search"

ThinkingBudgetOption = Annotated[
    int | None,
    typer.Option(
        "--thinking-budget",
        envvar="SELFDRAFT_THINKING_BUDGET",
        min=0,
        metavar="N",
        help="Tokens that the reply may think: 0, 64, 128 … 4096, or any number.",
        show_default="any length",
        rich_help_panel=_THINKING,
    ),
]
WrapUpOption = Annotated[
    str | None,
    typer.Option(
        "--wrap-up",
        metavar="TEXT",
        help="Sentence that ends thinking which is cut.",
        show_default=False,
        rich_help_panel=_THINKING,
    ),
]
BudgetPromptOption = Annotated[
    str | None,
    typer.Option(
        "--budget-prompt",
        metavar="TEXT",
        help="Tells the model in the system prompt; {budget} stands for the number.",
        show_default="what the chat template does with thinking_budget",
        rich_help_panel=_THINKING,
    ),
]
ThinkStartOption = Annotated[
    str | None,
    typer.Option(
        "--think-start",
        metavar="TEXT",
        help="Tag that opens thinking.",
        show_default="the tokenizer's",
        rich_help_panel=_THINKING,
    ),
]
ThinkEndOption = Annotated[
    str | None,
    typer.Option(
        "--think-end",
        metavar="TEXT",
        help="Tag that closes thinking; may be several tokens.",
        show_default="the tokenizer's",
        rich_help_panel=_THINKING,
    ),
]
JsonSchemaOption = Annotated[
    str | None,
    typer.Option(
        "--json-schema",
        metavar="FILE|JSON",
        help="The reply is JSON that this schema allows.",
        show_default=False,
        rich_help_panel=_STRUCTURE,
    ),
]
RegexOption = Annotated[
    str | None,
    typer.Option(
        "--regex",
        metavar="PATTERN",
        help="The whole reply matches this pattern.",
        show_default=False,
        rich_help_panel=_STRUCTURE,
    ),
]
GrammarOption = Annotated[
    str | None,
    typer.Option(
        "--grammar",
        metavar="FILE",
        help="The reply follows this Lark grammar.",
        show_default=False,
        rich_help_panel=_STRUCTURE,
    ),
]
NumBeamsOption = Annotated[
    int | None,
    typer.Option(
        "--num-beams",
        min=1,
        max=64,
        metavar="N",
        help="Search with N beams; needs --no-stream or --json.",
        show_default=False,
        rich_help_panel=_BEAMS,
    ),
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        metavar="P",
        help="Scores are divided by length to the power P; above 0 favours long replies.",
        show_default="1",
        rich_help_panel=_BEAMS,
    ),
]
EarlyStoppingOption = Annotated[
    str | None,
    typer.Option(
        "--early-stopping",
        metavar="true|false|never",
        help="Stop with N finished beams; when no beam would do better now; or could at any length.",
        show_default="false",
        rich_help_panel=_BEAMS,
    ),
]

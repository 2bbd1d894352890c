"""Options on what a reply may say and where it ends: penalties, bans, stop strings."""

from __future__ import annotations

from typing import Annotated

import typer

_WORDS = "Words"
_END = "End of the reply"

StopTextOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        help="End the reply before this text; may be repeated.",
        show_default=False,
        rich_help_panel=_END,
    ),
]
KeepStopOption = Annotated[
    bool,
    typer.Option("--keep-stop", help="Leave the --stop text in the reply.", rich_help_panel=_END),
]
MinTokensOption = Annotated[
    int,
    typer.Option(
        "--min-tokens",
        min=0,
        metavar="N",
        help="Neither end tokens nor --stop end the reply sooner.",
        rich_help_panel=_END,
    ),
]
RepetitionPenaltyOption = Annotated[
    float,
    typer.Option(
        "--repetition-penalty",
        metavar="P",
        help="Above 1 makes tokens of prompt and reply less likely.",
        rich_help_panel=_WORDS,
    ),
]
FrequencyPenaltyOption = Annotated[
    float,
    typer.Option(
        "--frequency-penalty",
        metavar="P",
        help="Taken from a token's logit for each time the reply has it, -2 to 2.",
        rich_help_panel=_WORDS,
    ),
]
PresencePenaltyOption = Annotated[
    float,
    typer.Option(
        "--presence-penalty",
        metavar="P",
        help="Taken from the logits of tokens that the reply has, -2 to 2.",
        rich_help_panel=_WORDS,
    ),
]
LogitBiasOption = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        metavar="ID|TEXT=B",
        help="Added to a token's logit, -100 to 100; may be repeated.",
        show_default=False,
        rich_help_panel=_WORDS,
    ),
]
BanTokenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ban-token",
        metavar="ID|TEXT",
        help="Never draw this token; may be repeated.",
        show_default=False,
        rich_help_panel=_WORDS,
    ),
]
AllowTokenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-token",
        metavar="ID|TEXT",
        help="Draw these tokens only; may be repeated.",
        show_default=False,
        rich_help_panel=_WORDS,
    ),
]
BadWordOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bad-word",
        metavar="TEXT",
        help="Never say this in its usual spelling; may be repeated.",
        show_default=False,
        rich_help_panel=_WORDS,
    ),
]
NoRepeatNgramOption = Annotated[
    int,
    typer.Option(
        "--no-repeat-ngram",
        min=0,
        metavar="N",
        help="Never say N tokens in a row twice; 0: they may.",
        rich_help_panel=_WORDS,
    ),
]
LogprobsOption = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        min=0,
        max=20,
        metavar="N",
        help="With --json: log-probabilities of each token and the N likeliest.",
        show_default=False,
    ),
]
EveryOption = Annotated[
    str | None,
    typer.Option(
        "--every",
        metavar="N|sentence",
        help="Deliver the text N tokens, or a sentence, at a time.",
        show_default="as it comes",
        rich_help_panel=_END,
    ),
]
MaxChunksOption = Annotated[
    int | None,
    typer.Option(
        "--max-chunks",
        min=1,
        metavar="N",
        help="Stop after N chunks of --every; --save-cache keeps what --resume needs.",
        show_default=False,
        rich_help_panel=_END,
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with the stopped reply of --load-cache, with its prompt and options.",
        rich_help_panel=_END,
    ),
]

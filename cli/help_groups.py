"""Help in sections: options that belong together stand under a heading of their own."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

OTHERS = "Options"


class GroupedCommand(TyperCommand):
    """A command whose help lists options by their ``rich_help_panel``, those without one first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; every mistake of usage says of which command it is, so that a hint can name it."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "format_message") and getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then the options of each group."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], OTHERS: []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(section_of(param), []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def section_of(param: Any) -> str:
    """The heading that a parameter stands under."""
    if param.param_type_name == "argument":
        return "Arguments"
    return getattr(param, "rich_help_panel", None) or OTHERS

"""``selfdraft doctor``: what is wrong with this board, and what mends it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfdraft.cli.console import print_json, say, table
from selfdraft.cli.options import JsonOption
from selfdraft.errors import ConfigError, DeviceError, VerificationError

if TYPE_CHECKING:
    from selfdraft.jetson.device import Device
    from selfdraft.jetson.doctor import Diagnosis, Finding
    from selfdraft.jetson.explain import Match

SCHEMA = "selfdraft.doctor/1"
EXPLAIN_SCHEMA = "selfdraft.doctor.explain/1"


def command(
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="TEXT",
            help="Explain an error message of TensorRT, CUDA or pip; - reads stdin.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show what is well, too.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Look for what goes wrong on a Jetson: finding, consequence, and the command that mends it.

    Changes nothing. Exits with 0 when nothing is worse than a notice, with 6 at a warning, with 5
    at a failure.

    \b
    Examples:
      selfdraft doctor
      selfdraft doctor --explain "No module named 'tensorrt'"
      trtexec --loadEngine=model.plan 2>&1 | selfdraft doctor --explain -
    """
    from selfdraft.jetson.checks import CHECKS
    from selfdraft.jetson.doctor import diagnose
    from selfdraft.jetson.probe import probe

    device = probe()
    if explain is not None:
        _explain(sys.stdin.read() if explain == "-" else explain, device, as_json=json_output)
        return
    diagnosis = diagnose(device, CHECKS)
    if json_output:
        print_json(_record(diagnosis))
    else:
        from selfdraft.cli.doctor_text import device_rows, diagnosis_lines

        say(table(device_rows(device)))
        for line in diagnosis_lines(diagnosis, verbose=everything):
            say(line)
    _end(diagnosis)


def _end(diagnosis: Diagnosis) -> None:
    """The exit code: by the gravest finding."""
    worst = diagnosis.worst
    if worst in (None, "notice"):
        return
    found = diagnosis.with_status(worst)
    names = ", ".join(finding.check for finding in found)
    problem = f"{len(found)} {worst}{'s' if len(found) > 1 else ''}: {names}"
    error = DeviceError if worst == "failure" else VerificationError
    raise error(problem, hint=(found[0].mend or "").removeprefix("# "))


def _record(diagnosis: Diagnosis) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "schema": SCHEMA,
        "worst": diagnosis.worst,
        "device": asdict(diagnosis.device),
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "left_out": diagnosis.left_out,
    }


def _explain(text: str, device: Device, *, as_json: bool) -> None:
    from selfdraft.jetson.explain import explain
    from selfdraft.jetson.explanations import EXPLANATIONS

    if not text.strip():
        raise ConfigError("there is no text to explain", hint="give the message, or pipe the log")
    matches = explain(text, EXPLANATIONS)
    if not matches:
        raise VerificationError(
            "no message that is known",
            hint="give the first lines with the word error; selfdraft doctor checks the board",
        )
    records = [(match, _findings(match, device)) for match in matches]
    if as_json:
        print_json({"schema": EXPLAIN_SCHEMA, "matches": [_match(*r) for r in records]})
        return
    for match, findings in records:
        for line in _match_lines(match, findings):
            say(line)


def _findings(match: Match, device: Device) -> list[Finding]:
    """What the checks of an explanation find wrong on this device."""
    from selfdraft.jetson.checks import check_named
    from selfdraft.jetson.doctor import SEVERITIES, run_check

    checks = [check_named(name) for name in match.explanation.checks]
    found = [run_check(check, device) for check in checks if check.applies_to(device)]
    return [finding for finding in found if finding.status in SEVERITIES]


def _match(match: Match, findings: list[Finding]) -> dict[str, Any]:
    from dataclasses import asdict

    explanation = match.explanation
    return {
        "name": explanation.name,
        "line": match.line,
        "title": explanation.title,
        "cause": explanation.cause,
        "mend": explanation.mend,
        "harmless": explanation.harmless,
        "kinds": explanation.kinds,
        "findings": [asdict(finding) for finding in findings],
    }


def _match_lines(match: Match, findings: list[Finding]) -> list[str]:
    explanation = match.explanation
    harmless = " (no error)" if explanation.harmless else ""
    lines = [
        f"{explanation.name}: {explanation.title}{harmless}",
        f"  in: {match.line[:200]}",
        f"  {explanation.cause}",
        f"  → {explanation.mend}",
    ]
    for finding in findings:
        lines += [f"  here: {finding.check}: {finding.found}", f"  → {finding.mend}"]
    return lines

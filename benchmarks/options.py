"""Command-line options that every benchmark shares."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.artifacts import Artifacts
from benchmarks.timing import Schedule


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the common options; ``description`` is the module's docstring."""
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("--work", type=Path, default=Path("out/bench"), help="where models are kept")
    made.add_argument("--threads", type=int, default=2, help="threads inside an operator")
    made.add_argument("--rounds", type=int, default=12, help="blocks of each contender")
    made.add_argument("--steps", type=int, default=16, help="timed steps of a block")
    made.add_argument("--json", type=Path, help="append JSON lines here instead of printing them")
    return made


def schedule(args: argparse.Namespace) -> Schedule:
    """The schedule asked for."""
    return Schedule(rounds=args.rounds, steps=args.steps)


def artifacts(args: argparse.Namespace) -> Artifacts:
    """Models kept under ``--work``."""
    return Artifacts(folder=args.work)

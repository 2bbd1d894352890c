"""Where the demo package and its checkpoints lie."""

from pathlib import Path

DEMO = Path(__file__).parents[2] / "demo"
CHECKPOINTS = [DEMO / "checkpoint", DEMO / "checkpoint-early"]

"""Writes the expected outputs of the imitated boards anew: ``python tests/jetson/write_golden.py``.

Read the difference before committing it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fake_boards import BOARDS
from support.golden import doctor_text, write_golden

from selfdraft.jetson.probe import probe


def main() -> None:
    """Write the files of every board."""
    for name, build in BOARDS.items():
        with tempfile.TemporaryDirectory() as folder:
            device = probe(build(Path(folder)))
            write_golden(f"{name}.probe.json", json.dumps(asdict(device), indent=1) + "\n")
            write_golden(f"{name}.doctor.txt", doctor_text(device))


if __name__ == "__main__":
    main()

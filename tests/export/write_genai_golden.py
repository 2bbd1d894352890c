"""Records onnxruntime-genai's answers anew: ``python tests/export/write_genai_golden.py``.

Needs extras ``export`` and ``bench``. Read the test's difference before committing it.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.genai_export import build, record
from support.hybrid import CONFIG, write_hybrid

GOLDEN = Path(__file__).parent / "golden" / "qwen3_5_genai.npz"


def main() -> None:
    """Write the checkpoint of the test, let the builder export it, keep the answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_hybrid(folder / "c", prefix="model.language_model.")
        build(folder / "c", folder / "theirs")
        recorded = record(folder / "theirs", head_dim=CONFIG["head_dim"])
        made_by = f"onnxruntime-genai {version('onnxruntime-genai')}"
        GOLDEN.parent.mkdir(exist_ok=True)
        np.savez_compressed(GOLDEN, made_by=np.array(made_by), **recorded)
    print(f"{GOLDEN.name}: {made_by}")


if __name__ == "__main__":
    main()

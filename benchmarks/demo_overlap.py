"""How many of their blocks neighbouring rows share on the demo model, with real text and drafts.

    python -m benchmarks.demo_overlap

The demo checkpoint with a budget of 512 tokens continues a text of 4,000 tokens, plainly and with
one draft. A step of two rows reads the union of their blocks; what it reads beyond a step of one
row is what the rows do not share. No time is measured.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.artifacts import ROOT
from benchmarks.engines import open_backend
from benchmarks.options import parser
from benchmarks.record import record, write_records
from selfdraft.cli.filled_backend import FilledBackend
from selfdraft.manifest import capacity_for
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.ort import OrtBackend
from selfdraft.runtime.request import Request
from selfdraft.runtime.tokenizer import Tokenizer

BUDGET = 512
LOCAL_BLOCKS = 2
LENGTH = 4_000
TOKENS = 96


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The record of the overlap."""
    bundle = args.work / "demo-sparse.sdbundle"
    _export(bundle)
    backend = open_backend(bundle, threads=args.threads)
    tokenizer = Tokenizer.from_file(bundle / backend.manifest.text.tokenizer)
    text = (ROOT / "demo" / "calibration.txt").read_text(encoding="utf-8")
    prompt = tokenizer.encode(text, add_special_tokens=False)[:LENGTH]
    plain, _ = _blocks(backend, prompt, drafts=0)
    drafting, accepted = _blocks(backend, prompt, drafts=1)
    one, two = plain.mean(axis=0), drafting.mean(axis=0)  # by layer
    overlap = 1 - (two - one) / one
    figures = {
        "length": LENGTH,
        "budget": BUDGET,
        "local_blocks": LOCAL_BLOCKS,
        "blocks_of_one_row": one.round(3).tolist(),
        "blocks_of_two_rows": two.round(3).tolist(),
        "row_overlap_by_layer": overlap.round(4).tolist(),
        "acceptance": accepted,
        "figure": f"rows share {overlap.mean():.0%} of their blocks",
        "wanted": "",
        "met": None,
    }
    return [record("overlap on the demo model", figures, threads=args.threads)]


def _export(bundle: Path) -> None:
    from selfdraft.export.attention_options import AttentionOptions
    from selfdraft.export.bundle import export_bundle
    from selfdraft.export.options import ExportOptions

    attention = AttentionOptions(kind="sparse", budget_tokens=BUDGET, local_blocks=LOCAL_BLOCKS)
    options = ExportOptions(attention=attention, context=8192, overwrite=True)
    export_bundle(ROOT / "demo" / "checkpoint", bundle, options)


def _blocks(
    backend: OrtBackend, prompt: list[int], *, drafts: int
) -> tuple[np.ndarray[Any, Any], float | None]:
    """Blocks read ``[steps, layers]`` by the steps of full depth, and the acceptance."""
    checked: Any = backend
    context = LENGTH + TOKENS + 1
    states = checked.allocate(batch=1, capacity=capacity_for(context))
    noting = FilledBackend(checked, states, attend_all=False)
    loop = DecodeLoop(noting, drafts=drafts, context_length=context)
    loop.begin({0: Request(prompt_ids=tuple(prompt), max_tokens=TOKENS, ignore_eos=True)})
    noting.blocks_read.clear()
    while loop.active:
        loop.step()
    read = np.array(noting.blocks_read)
    # The last token of a request is decoded without a draft.
    return read[:-1] if drafts else read, loop.result(0).acceptance_rate


def main() -> None:
    """Command line."""
    args = parser(__doc__).parse_args()
    records = measure(args)
    write_records(records, args.json)
    for entry in records:
        print(f"{entry['name']}: {entry['figure']}")


if __name__ == "__main__":
    main()

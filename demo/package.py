"""Adds the model card, `demo_card.json` and measured figures to a checkpoint folder.

`python -m demo.package demo/checkpoint --report report.json --command "python -m demo.train ..."`
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from demo.data import texts
from demo.prompts import BANNER, EXAMPLES
from demo.render import BUDGETS, THINK_END

CARD = """---
license: apache-2.0
language: en
---
# selfdraft {name} checkpoint

A very small language model in the MiMo layout ({parameters:,} parameters, {layers} layers, hidden
size {hidden}, {heads} query and {kv_heads} kv heads, one MTP block). It exists to try and test
self-speculative decoding; it is not a useful assistant.

**Licence** Apache-2.0, weights and training text included.

**Trained on** text from the generators in `demo/` only (closed questions about checked facts, open
requests, memory dialogues, needles in long texts, scaled thinking). No other text was used.

**Made by**

    {command}

SHA-256 of `model.safetensors`: `{digest}`.

Weights are stored in bfloat16. Loss: next token + 0.3 x first draft + 0.1 x second and third draft
(the MTP block fed with its own output after `final_layernorm` and the true next tokens, on a part
of the rows). {start}

**Conventions** The MTP block reads `[hidden_layernorm(h_p) ; token_layernorm(emb(x_(p+1)))]` with
h_p taken before `model.norm`, at position p; nothing is zeroed at position 0. Recycled hidden for
later drafts: the output after `final_layernorm`.

## Measured (greedy, held-out combinations of the same generators; `python -m demo.evaluate demo/{folder} --seed {seed}`)

| figure | value |
|---|---|
{figures}

Acceptance is the share of drafts that equal the model's own greedy reply. It holds for this text
only and says nothing about other models.

## Limits
{banner_limits} It was trained up to 2,048 tokens; positions up to {positions} are allowed but
untested. Facts are few and fixed. Prompts outside its topics get fluent nonsense.
"""


def figure_rows(report: dict[str, Any]) -> str:
    """Table rows of the card."""
    accept = report["acceptance"]
    by_position = ", ".join(f"{value:.3f}" for value in accept["by_position"])
    rows = [
        ("acceptance of draft 1, 2, 3, 4 (per step of 4 drafts, unconditional)", by_position),
        ("acceptance of draft 1 at every reply position", f"{accept['first_draft_any_slot']:.3f}"),
        ("tokens per step with 4 drafts", accept["tokens_per_step_4_drafts"]),
        ("closed questions right", accept["closed_score"]),
    ]
    for length, score in report.get("needle", {}).items():
        rows.append((f"needle, about {length} tokens, 4 facts", score))
    for row in report.get("thinking", []):
        value = (
            f"{row['within']} within it, mean {row['mean_tokens']} tokens, "
            f"{row['right']} answers right, {row['right_when_cut_at_half']} when cut at half"
        )
        rows.append((f"thinking budget {row['budget']}", value))
    return "\n".join(f"| {name} | {value} |" for name, value in rows)


def write_cards(folder: Path, report: dict[str, Any], command: str, start: str) -> None:
    """Writes README.md, demo_card.json and evaluation.json into `folder`."""
    import torch  # noqa: F401  (safetensors needs it for bfloat16)
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    parameters = sum(t.numel() for t in load_file(folder / "model.safetensors").values())
    early = folder.name.endswith("early")
    text = CARD.format(
        name="early demo" if early else "demo", parameters=parameters, layers=config["num_hidden_layers"],
        hidden=config["hidden_size"], heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"],
        positions=config["max_position_embeddings"], command=command, start=start, digest=digest, folder=folder.name, seed=report["seed"], figures=figure_rows(report),
        banner_limits="Trained briefly on purpose: it rejects many drafts and nearly all its answers are wrong." if early
        else "It knows only the topics named in `demo_card.json`.",
    )  # fmt: skip
    (folder / "README.md").write_text(text, encoding="utf-8")
    banner = (
        "An early checkpoint for tests of rejected drafts; its answers are often wrong. "
        if early
        else ""
    ) + BANNER
    card = {"banner": banner, "examples": EXAMPLES, "license": "Apache-2.0", "training_command": command,
            "thinking": {"start": "<think>\n", "end": THINK_END, "budgets": [0, *BUDGETS]}}  # fmt: skip
    for name, content in (("demo_card.json", card), ("evaluation.json", report)):
        (folder / name).write_text(
            json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def calibration_text(*, seed: int = 7, size: int = 30_000) -> str:
    """About `size` characters of training text, for counting token frequencies."""
    parts: list[str] = []
    total = 0
    for text in texts(seed, 10_000):
        if len(text) < 700:
            parts.append(text)
            total += len(text) + 1
        if total > size:
            break
    return "\n".join(parts) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--report", type=Path, required=True, help="JSON printed by demo.evaluate")
    parser.add_argument("--command", required=True, help="the training command, for the card")
    parser.add_argument(
        "--start", default="All weights start random.", help="how the weights started"
    )
    args = parser.parse_args()
    write_cards(
        args.folder, json.loads(args.report.read_text(encoding="utf-8")), args.command, args.start
    )
    Path(__file__).with_name("calibration.txt").write_text(calibration_text(), encoding="utf-8")


if __name__ == "__main__":
    main()

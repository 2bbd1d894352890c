"""Records carry what a figure was measured on, and misses stand out in the table."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.record import SCHEMA, markdown_table, record, write_records


def test_a_record_is_one_json_line_with_machine_and_versions(tmp_path: Path) -> None:
    entry = record("step", {"figure": "1.00x", "met": True}, threads=2)
    path = tmp_path / "new" / "results.jsonl"
    write_records([entry], path)
    write_records([entry], path)
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [entry, entry]
    assert entry["schema"] == SCHEMA
    assert entry["versions"]["onnxruntime"]
    assert {"commit", "cpu", "cores", "load_1min", "threads"} <= set(entry)


def test_the_table_marks_misses_and_leaves_unjudged_figures_open() -> None:
    records = [
        {"name": "a", "figure": "1.0x", "wanted": "<= 1.1x", "met": True},
        {"name": "b", "figure": "2.0x", "wanted": "<= 1.1x", "met": False},
        {"name": "c", "figure": "3.0x", "wanted": "", "met": None},
    ]
    rows = markdown_table(records).splitlines()[2:]
    assert rows == [
        "| a | 1.0x | <= 1.1x | yes |",
        "| b | 2.0x | <= 1.1x | **no** |",
        "| c | 3.0x |  |  |",
    ]

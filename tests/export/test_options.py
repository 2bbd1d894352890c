from __future__ import annotations

from pathlib import Path

import pytest
from support.refusals import refused

from selfdraft.export.options import ExportOptions


def test_defaults_are_fp32_on_the_cpu() -> None:
    options = ExportOptions()
    assert (options.target, options.types.weights, options.candidates) == ("cpu", "fp32", 64)
    assert (options.context, options.draft_vocab, options.int4_block) == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"target": "orin-jp8"}, ("'orin-jp8'", "orin-jp7")),
        ({"target": "orin-jp6", "weights": "fp32"}, ("'fp32'", "target 'orin-jp6'")),
        ({"target": "orin-jp6", "lm_head": "int8"}, ("'int8'", "target 'orin-jp6'")),
        (
            {"target": "orin-jp7", "weights": "int4", "int4_block": 16},
            ("int4_block 16",),
        ),
        ({"target": "orin-jp7", "candidates": 4000}, ("candidates is 4000",)),
        ({"target": "orin-jp6", "weights": "bf16"}, ("'bf16'", "target 'orin-jp6'")),
        ({"target": "cpuu"}, ("'cpuu'", "'cpu'")),
        ({"weights": "int8"}, ("'int8'", "int4")),
        ({"weights": "int4", "int4_block": 48}, ("48",)),
        ({"weights": "int4", "int4_block": 8}, ("8",)),
        ({"int4_block": 32}, ("int4_block 32", "without int4")),
        ({"context": 1}, ("context is 1",)),
        ({"draft_vocab": 0}, ("draft_vocab is 0",)),
        ({"candidates": 0}, ("candidates is 0",)),
        ({"candidates": 5000}, ("candidates is 5000",)),
        ({"prefill_rows": -1}, ("prefill_rows is -1",)),
        ({"draft_vocab_text": Path("text.txt")}, ("text.txt", "draft_vocab")),
    ],
)
def test_value_that_cannot_be_is_refused_by_name(changes, named) -> None:
    with refused(*named):
        ExportOptions(**changes)

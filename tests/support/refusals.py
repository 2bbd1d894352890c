"""Checks what every refusal owes its reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from selfdraft.errors import ConfigError, ToolkitError

EXIT_CODES = {"ConfigError": 2, "BundleError": 3, "ResourceError": 4, "DeviceError": 5}


@contextmanager
def refused(*named: str, error: type[ToolkitError] = ConfigError) -> Iterator[None]:
    """The block raises ``error``; its one-line problem has every text of ``named``, and a hint."""
    with pytest.raises(error) as caught:
        yield
    problem, hint = caught.value.problem, caught.value.hint
    assert type(caught.value) is error
    assert caught.value.exit_code == EXIT_CODES[error.__name__]
    assert "\n" not in problem and "\n" not in hint and len(hint) > 5
    for text in named:
        assert text in problem, f"{text!r} not in {problem!r}"

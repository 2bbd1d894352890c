"""Whether a built engine runs our plugins: the engine inspector must list every one of them.

The parser prefers built-in operators to plugins, and some parsers local functions too, so an engine
without our kernels is possible, works, and is slow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from selfdraft.errors import BundleError
from selfdraft.manifest import PluginNode

TEXT_KEYS = ("Name", "Metadata")
"""Where the inspector writes a layer's own name and the ONNX nodes that it came from."""


def missing_plugins(report: str, nodes: Sequence[PluginNode]) -> list[PluginNode]:
    """Nodes without a plugin layer in the inspector's JSON ``report``."""
    texts = list(_plugin_layers(json.loads(report).get("Layers", [])))
    return [node for node in nodes if not any(_names(text, node.name) for text in texts)]


def check_plugins(report: str, nodes: Sequence[PluginNode], *, graph: str) -> None:
    """Raise ``BundleError`` naming the nodes that no plugin layer runs."""
    missing = missing_plugins(report, nodes)
    if missing:
        shown = ", ".join(node.name for node in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise BundleError(
            f"{graph}: the engine has no plugin layer for {len(missing)} of {len(nodes)} nodes: "
            f"{shown}{more}",
            hint="build the plugin library again (selfdraft plugins build), then the engine; nothing "
            "was kept",
        )


def _plugin_layers(layers: Iterable[Any]) -> Iterator[str]:
    for layer in layers:
        if isinstance(layer, dict) and "plugin" in str(layer.get("LayerType", "")).lower():
            yield " ".join(str(layer.get(key, "")) for key in TEXT_KEYS)


def _names(text: str, name: str) -> bool:
    """Whether ``name`` stands in ``text`` as a whole: ``layer1/x`` is not in ``layer11/x``."""
    start = text.find(name)
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(name) : start + len(name) + 1]
        if not (_is_name(before) or _is_name(after)):
            return True
        start = text.find(name, start + 1)
    return False


def _is_name(character: str) -> bool:
    return character.isalnum() or (character != "" and character in "_./-")

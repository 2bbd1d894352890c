"""Whether the states of a manifest are those that its model and target ask for.

A state of another size is read past its end on a board, and one that is bound in place where it must not
be spoils replies in silence: nothing of that shows before a pass runs.
"""

from __future__ import annotations

from selfdraft.errors import BundleError, ConfigError
from selfdraft.manifest import Dim, Manifest, StateSpec
from selfdraft.recurrent import STATE_LEN
from selfdraft.trt_plugins.gated_delta_rule.from_manifest import delta_op

_ANEW = "export the bundle again"


def check_states(manifest: Manifest) -> None:
    """Raise ``BundleError`` naming the first state that is missing, of another shape, or written otherwise."""
    found = {state.name: state for graph in manifest.graphs.values() for state in graph.states}
    for state in found.values():
        _check_place(manifest, state)
    wanted = _recurrent_shapes(manifest)
    recurrent = {name for name, state in found.items() if state.kind in ("recurrent", "conv")}
    odd = sorted(recurrent ^ set(wanted))
    if odd:
        where = "has no state" if odd[0] in wanted else "has a state that its model has not:"
        raise BundleError(f"the manifest {where} {odd[0]}", hint=_ANEW)
    for name, shape in wanted.items():
        if found[name].shape != shape:
            raise BundleError(
                f"the manifest has {name} in the shape {list(found[name].shape)}, its model asks "
                f"for {list(shape)}",
                hint=_ANEW,
            )


def _check_place(manifest: Manifest, state: StateSpec) -> None:
    """Only what no plugin of a board writes has a place of its own (docs/tensorrt.md)."""
    apart = manifest.target != "cpu" and state.name == STATE_LEN
    if state.aliased == apart:
        told = "in place" if state.aliased else "apart"
        right = "apart" if apart else "in place"
        raise BundleError(
            f"the manifest has {state.name} written {told}, {manifest.target} writes it {right}",
            hint=_ANEW,
        )


def _recurrent_shapes(manifest: Manifest) -> dict[str, tuple[Dim, ...]]:
    """Shape of every state of the gated delta nets, by name."""
    try:
        op = delta_op(manifest.model)
    except ConfigError as error:
        raise BundleError(f"the manifest's model: {error.problem}", hint=_ANEW) from None
    if op is None or manifest.model.delta is None:
        return {}
    shapes: dict[str, tuple[Dim, ...]] = {STATE_LEN: ("batch", 1)}
    for layer in manifest.model.delta.layers:
        for name, shape in op.state_shapes.items():
            shapes[f"backbone.{name}_{layer}"] = ("batch", *shape)
    return shapes

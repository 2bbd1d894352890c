"""``selfdraft inspect``: what a bundle holds and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfdraft.cli.attention_facts import (
    attention_facts,
    bytes_by_kind,
    group_text,
    layer_groups,
)
from selfdraft.cli.console import bytes_text, print_json, say, table
from selfdraft.cli.inspect_checkpoint import is_checkpoint, show_checkpoint
from selfdraft.cli.mtp_cost import MtpCost, mtp_cost
from selfdraft.cli.options import ContextOption, InspectedArg, JsonOption
from selfdraft.errors import BundleError, ConfigError

if TYPE_CHECKING:
    from selfdraft.manifest import Manifest

SCHEMA = "selfdraft.inspect/1"


def command(
    bundle: InspectedArg, context: ContextOption = None, json_output: JsonOption = False
) -> None:
    """Show what a bundle holds, or what a checkpoint is and what export would make of it.

    Reads manifest or config and the weights' headers; selfdraft verify checks a bundle's contents.

    \b
    Examples:
      selfdraft inspect BUNDLE --context 4096
      selfdraft inspect CHECKPOINT
      selfdraft inspect ORG/NAME@REVISION
    """
    from selfdraft.manifest import MANIFEST_NAME, load_manifest

    if not (bundle / MANIFEST_NAME).exists() and is_checkpoint(bundle):
        show_checkpoint(bundle, as_json=json_output)
        return
    if not (bundle / MANIFEST_NAME).exists():
        raise _neither(bundle)
    manifest = load_manifest(bundle)
    if context is not None and context > manifest.limits.context_length:
        raise ConfigError(
            f"context is {context}, the bundle holds {manifest.limits.context_length} tokens",
            hint=f"choose up to {manifest.limits.context_length}, or export with a larger --context",
        )
    facts = bundle_facts(bundle, manifest, context=context or manifest.limits.context_length)
    if json_output:
        print_json({"schema": SCHEMA, **facts})
    else:
        _print_facts(facts, manifest)


def _neither(path: Path) -> BundleError:
    if path.is_file():
        found = "it is a file"
    else:
        found = "no manifest.json, no config.json" if path.exists() else "nothing is there"
    return BundleError(
        f"{path} is neither bundle nor checkpoint: {found}",
        hint="give the folder of one of them, or a hub name: ORG/NAME[@REVISION]",
    )


def bundle_facts(bundle: Path, manifest: Manifest, *, context: int) -> dict[str, Any]:
    """Everything ``inspect`` tells, as plain values."""
    from dataclasses import asdict

    from selfdraft.cli.weight_sizes import bytes_by_part

    model = asdict(manifest.model)
    model["rope"] = {"frequencies": len(manifest.model.rope.inv_freq)} | {
        "scale": manifest.model.rope.scale
    }
    parts = bytes_by_part(bundle, manifest)
    kinds = {name: bytes_by_kind(graph, context=context) for name, graph in manifest.graphs.items()}
    states = {name: sum(sizes.values()) for name, sizes in kinds.items()}
    return {
        "bundle": str(bundle),
        "target": manifest.target,
        "selfdraft_version": manifest.selfdraft_version,
        "model": model,
        "precision": asdict(manifest.precision),
        "limits": asdict(manifest.limits),
        "context": context,
        "weight_bytes": parts,
        "attention": attention_facts(manifest, context=context),
        "state_bytes": states,
        "state_bytes_by_kind": kinds,
        "mtp_bytes": _mtp_bytes(mtp_cost(manifest, parts, context=context)),
        "states": [asdict(s) for graph in manifest.graphs.values() for s in graph.states],
        "text": asdict(manifest.text),
        "sampling": asdict(manifest.sampling),
        "source": asdict(manifest.source),
        "engines": _engine_facts(bundle),
        "files": {name: asdict(spec) for name, spec in manifest.files.items()},
        "notes": manifest.notes,
    }


def _mtp_bytes(cost: MtpCost) -> dict[str, Any]:
    from dataclasses import asdict

    keys = ("weights", "draft_head", "states", "buffers")
    values = asdict(cost)
    return {key: values[key] for key in keys} | {"share_of_backbone": cost.share}


def _engine_facts(bundle: Path) -> dict[str, dict[str, Any]]:
    """The engines that were built from the bundle, by device. Raises ``BundleError``."""
    from dataclasses import asdict

    from selfdraft.runtime.bundle import ENGINES_FOLDER
    from selfdraft.runtime.trt.sidecar import SIDECAR_NAME, read_sidecar

    facts = {}
    for path in sorted((bundle / ENGINES_FOLDER).glob(f"*/{SIDECAR_NAME}")):
        sidecar = read_sidecar(bundle, path.parent.name)
        facts[path.parent.name] = {
            "tensorrt": sidecar.built.tensorrt,
            "l4t": sidecar.built.board.l4t,
            "limits": asdict(sidecar.limits),
            "bytes": sum(plan.bytes for plan in sidecar.plans.values()),
        }
    return facts


def _engine_row(device: str, engine: dict[str, Any]) -> tuple[str, str, str, str]:
    limits = engine["limits"]
    system = f"TensorRT {engine['tensorrt']}, L4T {engine['l4t'] or 'none'}"
    most = f"batch {limits['batch']}, context {limits['context']}, prefill {limits['prefill_rows']}"
    return f"  {device}", system, most, bytes_text(engine["bytes"])


def _print_facts(facts: dict[str, Any], manifest: Manifest) -> None:
    rows = [
        ("source", _source_text(manifest)),
        ("model", _model_text(manifest)),
        ("MTP head", _mtp_text(manifest)),
        ("precision", _precision_text(manifest)),
        ("limits", _limits_text(manifest)),
        ("sampling", _sampling_text(manifest)),
        ("text", _text_facts(manifest)),
    ]
    say(table(rows))
    say("\nweights")
    say(table([(f"  {k}", bytes_text(v)) for k, v in facts["weight_bytes"].items()]))
    context = facts["context"]
    say("\nattention")
    groups = layer_groups(manifest, context=context)
    say(table([(f"  {group.name}", group_text(group, context=context)) for group in groups]))
    say(f"\nstates of one sequence, context {context}")
    say(table([_state_row(facts, graph) for graph in facts["state_bytes"]]))
    if manifest.has_mtp:
        say(f"\n{mtp_cost(manifest, facts['weight_bytes'], context=context).text}")
    if facts["engines"]:
        say("\nengines")
        say(table([_engine_row(device, engine) for device, engine in facts["engines"].items()]))
    say("\nfiles")
    files = [(f"  {k}", bytes_text(f.bytes), f.sha256[:12]) for k, f in manifest.files.items()]
    say(table(files))
    for name, reason in manifest.source.ignored_tensors.items():
        say(f"left out: {name}: {reason}")
    for text in manifest.notes:
        say(f"note: {text}")


def _state_row(facts: dict[str, Any], graph: str) -> tuple[str, str, str]:
    kinds = facts["state_bytes_by_kind"][graph]
    shown = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in kinds.items())
    return f"  {graph}", bytes_text(facts["state_bytes"][graph]), shown


def _source_text(manifest: Manifest) -> str:
    source = manifest.source
    return f"{source.name} ({source.architecture}), licence {source.license or 'not stated'}"


def _model_text(manifest: Manifest) -> str:
    m = manifest.model
    return (
        f"{m.family}: {m.num_layers} layers, hidden {m.hidden_size}, "
        f"{m.num_heads}/{m.num_kv_heads} heads of {m.head_dim}, MLP {m.intermediate_size}, "
        f"vocabulary {m.vocab_size}{', tied head' if m.tied_head else ''}"
    )


def _mtp_text(manifest: Manifest) -> str:
    mtp = manifest.model.mtp
    if mtp is None:
        return "none: decoding is plain (speculation is off)"
    vocabulary = f"{mtp.draft_vocab_size} tokens" if mtp.draft_vocab_size else "the LM head"
    return (
        f"tap {mtp.tap}, {mtp.concat}, recycles {mtp.recycle}, drafts from {vocabulary}"
        f"{', first embedding masked' if mtp.mask_first_embedding else ''}"
    )


def _precision_text(manifest: Manifest) -> str:
    p = manifest.precision
    block = f" in blocks of {p.int4_block}" if p.int4_block else ""
    heads = f", LM head {p.lm_head}" if p.lm_head != p.weights else ""
    heads += f", MTP head {p.mtp}" if manifest.has_mtp and p.mtp != p.weights else ""
    heads += f", embedding {p.embedding}" if p.embedding != p.activations else ""
    return f"weights {p.weights}{block}{heads}, activations {p.activations}, KV {p.kv}"


def _limits_text(manifest: Manifest) -> str:
    limits = manifest.limits
    return (
        f"context {limits.context_length} tokens, {limits.candidates} candidates, "
        f"prefill {limits.prefill_rows} tokens at a time"
    )


def _sampling_text(manifest: Manifest) -> str:
    from dataclasses import asdict

    asked = {k: v for k, v in asdict(manifest.sampling).items() if v is not None}
    return ", ".join(f"{k} {v}" for k, v in asked.items()) or "greedy (the model asks for nothing)"


def _text_facts(manifest: Manifest) -> str:
    text = manifest.text
    template = "with chat template" if text.chat_template else "no chat template"
    return f"{template}, end tokens {', '.join(map(str, text.eos_ids)) or 'none'}"

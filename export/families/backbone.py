"""Rules for the whole backbone: embedding, layers, final norm and LM head."""

from __future__ import annotations

from dataclasses import replace

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.config import ConfigKeys
from selfdraft.export.families.base import LayerStyle, WeightRule
from selfdraft.export.families.decoder import layer_rules, matrix_rule, norm_rule
from selfdraft.export.families.delta_net import delta_rules
from selfdraft.export.families.geometry import EMBEDDING, Geometry

LM_HEAD = "lm_head.weight"


def backbone_rules(geometry: Geometry, style: LayerStyle, *, tied: bool) -> list[WeightRule]:
    """Rules of embedding, layers, final norm and, unless ``tied``, LM head.

    Factors on embedding and logits are folded in. A tied head shares the embedding's factor, so
    what the logits need beside it goes into the final norm.
    """
    table = (geometry.vocab_size, geometry.hidden_size)
    rules = [
        WeightRule(
            target="embedding",
            sources=(EMBEDDING,),
            layout="table",
            source_shapes=(table,),
            factor=style.embedding_factor,
        )
    ]
    for i in range(geometry.num_layers):
        rules_of = delta_rules if geometry.is_delta(i) else layer_rules
        rules += rules_of(f"backbone.layers.{i}.", f"model.layers.{i}.", geometry, style)
    norm = norm_rule("backbone.norm", "model.norm.weight", geometry.hidden_size, style)
    if tied:
        rules.append(replace(norm, factor=style.logit_factor / style.embedding_factor))
    else:
        rules += [norm, replace(matrix_rule(LM_HEAD, {LM_HEAD: table}), factor=style.logit_factor)]
    return rules


def read_tied_head(
    checkpoint: Checkpoint, config: ConfigKeys, ignored: dict[str, str], *, default: bool
) -> bool:
    """Whether the LM head is the embedding table; a redundant copy is added to ``ignored``.

    ``default`` counts where config.json has no ``tie_word_embeddings``. Raises ``ConfigError``
    where key and tensors disagree.
    """
    said = config.flag("tie_word_embeddings")
    tied = default if said is None else said
    if LM_HEAD not in checkpoint.tensors:
        if not tied:
            raise ConfigError(
                f"tensor {LM_HEAD!r} is missing and config.json does not tie the embeddings",
                hint="fetch the complete checkpoint; if the head is meant to be the embedding "
                "table, set tie_word_embeddings to true in config.json",
            )
        return True
    if not tied:
        return False
    if not checkpoint.equal(LM_HEAD, EMBEDDING):
        where = (
            "config.json says" if said else "config.json has no tie_word_embeddings, which means"
        )
        raise ConfigError(
            f"{where} tie_word_embeddings = true, but tensor {LM_HEAD!r} differs from "
            f"{EMBEDDING!r}",
            hint="set tie_word_embeddings to false in config.json if the head is its own",
        )
    ignored[LM_HEAD] = "a copy of the embedding table (tie_word_embeddings)"
    return True

"""The shipped checkpoint folders: tensors, tokenizer, template, cards."""

import hashlib
import json
from pathlib import Path

import pytest
from jinja2.sandbox import SandboxedEnvironment
from safetensors import safe_open
from tokenizers import Tokenizer

from demo.checkpoint import load_checkpoint
from demo.data import texts
from demo.evaluate import Evaluator
from demo.prompts import showcase
from demo.render import EMPTY_THINK, Renderer, add_thinking, prompt_text

from .paths import CHECKPOINTS, DEMO

SIZE_LIMIT_BYTES = 13_000_000

checkpoints = pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda folder: folder.name)


def expected_shapes(config: dict) -> dict[str, list[int]]:
    """Every tensor of the MiMo layout."""
    size, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    block = {
        "input_layernorm.weight": [size], "post_attention_layernorm.weight": [size],
        "self_attn.q_proj.weight": [size, size], "self_attn.q_proj.bias": [size],
        "self_attn.k_proj.weight": [kv_size, size], "self_attn.k_proj.bias": [kv_size],
        "self_attn.v_proj.weight": [kv_size, size], "self_attn.v_proj.bias": [kv_size],
        "self_attn.o_proj.weight": [size, size], "mlp.gate_proj.weight": [inner, size],
        "mlp.up_proj.weight": [inner, size], "mlp.down_proj.weight": [size, inner],
    }  # fmt: skip
    mtp = {"token_layernorm.weight": [size], "hidden_layernorm.weight": [size],
           "final_layernorm.weight": [size], "input_proj.weight": [size, 2 * size]}  # fmt: skip
    shapes = {
        "model.embed_tokens.weight": [vocab, size],
        "model.norm.weight": [size],
        "lm_head.weight": [vocab, size],
    }
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes | {f"model.mtp_layers.0.{name}": shape for name, shape in (block | mtp).items()}


def render(folder: Path, messages: list[dict[str, str]], **arguments: object) -> str:
    """The checkpoint's own chat template, rendered in a plain sandbox."""

    def raise_exception(text: str) -> None:
        raise ValueError(text)

    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    rendered = {
        SandboxedEnvironment(trim_blocks=trim, lstrip_blocks=trim)
        .from_string(template)
        .render(messages=messages, raise_exception=raise_exception, **arguments)
        for trim in (False, True)
    }
    assert len(rendered) == 1, "white space options must not matter"
    return rendered.pop()


@checkpoints
def test_tensors_have_exactly_the_mimo_names_and_shapes(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    with safe_open(folder / "model.safetensors", "pt") as weights:
        found = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
        dtypes = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    assert found == expected_shapes(config)
    assert dtypes == {"BF16"}
    assert config["num_key_value_heads"] == 2 and config["max_position_embeddings"] >= 8192


def test_both_checkpoints_stay_small() -> None:
    assert (
        sum(path.stat().st_size for folder in CHECKPOINTS for path in folder.iterdir())
        <= SIZE_LIMIT_BYTES
    )


@checkpoints
def test_cards_and_recorded_hash_belong_to_the_weights(folder: Path) -> None:
    card = json.loads((folder / "demo_card.json").read_text())
    assert card["banner"] and card["examples"]
    text = (folder / "README.md").read_text()
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert "apache-2.0" in text and card["training_command"] in text and digest in text


@checkpoints
def test_tokenizer_round_trips_all_bytes_and_any_text(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    samples = ["".join(chr(code) for code in range(256)), "na\u00efve \u6f22\u5b57 \U0001f600  two  spaces\n\n\ttab",
               *texts(5, 20)]  # fmt: skip
    for text in samples:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    alphabet = {
        tokenizer.decode([i]).encode() for i in range(256 + 5) if len(tokenizer.id_to_token(i)) == 1
    }
    assert tokenizer.get_vocab_size() == 2048 and len(alphabet) >= 128
    assert [
        tokenizer.token_to_id(t)
        for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
    ] == [0, 1, 2, 3, 4]
    assert tokenizer.encode("1234").tokens == ["1", "2", "3", "4"]
    assert tokenizer.encode("<think>x</think>").ids[::2] == [3, 4]


@checkpoints
def test_template_agrees_with_the_training_format(folder: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"},
                {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"}, {"role": "user", "content": "Bye!"}]  # fmt: skip
    bare = [dict(m) for m in messages]
    bare[2]["content"] = "Hello!"
    for template_arguments, budget in [({}, None), ({"thinking_budget": 0}, 0), ({"enable_thinking": False}, 0),
                                       ({"enable_thinking": False, "thinking_budget": 8}, 0),
                                       ({"enable_thinking": True, "thinking_budget": 0}, 0),
                                       ({"thinking_budget": 16}, 16), ({"enable_thinking": True}, 32),
                                       ({"enable_thinking": True, "thinking_budget": 900}, 64)]:  # fmt: skip
        for chat in (messages, messages[1:]):
            expected = prompt_text(bare[4 - len(chat) :], thinking_budget=budget)
            assert (
                render(folder, chat, add_generation_prompt=True, **template_arguments) == expected
            )
    assert render(folder, messages).endswith("Bye!<|im_end|>\n")
    assert EMPTY_THINK not in render(folder, messages, add_generation_prompt=True)


@checkpoints
def test_template_refuses_unknown_roles_and_late_system_messages(folder: Path) -> None:
    for role in ("tool", "system"):
        with pytest.raises(ValueError):
            render(folder, [{"role": "user", "content": "a"}, {"role": role, "content": "b"}])


def test_rendered_chats_tokenize_like_their_text() -> None:
    import random

    from demo.data import draw_document

    tokenizer = Tokenizer.from_file(str(CHECKPOINTS[0] / "tokenizer.json"))
    renderer, rng = Renderer(tokenizer), random.Random(3)
    for _ in range(60):
        chat = draw_document(rng)
        if chat.task != "needle":
            add_thinking(rng, chat, renderer.count, cut_share=0.0)
        ids, weights = renderer.render(rng, chat)
        assert len(ids) == len(weights)
        assert tokenizer.encode(tokenizer.decode(ids, skip_special_tokens=False)).ids == ids


def test_demo_answers_most_showcase_prompts() -> None:
    evaluator = Evaluator(DEMO / "checkpoint")
    right = 0
    asked = [entry for entry in showcase() if entry["keywords"]]
    for entry in asked:
        prompt = evaluator.renderer.encode(prompt_text(entry["messages"]))
        reply = evaluator.text(evaluator.reply(prompt))
        right += all(word.lower() in reply.lower() for word in entry["keywords"])
    assert right >= 0.8 * len(asked)


def test_both_checkpoints_share_one_tokenizer() -> None:
    first, second = ((folder / "tokenizer.json").read_bytes() for folder in CHECKPOINTS)
    assert first == second


@checkpoints
def test_loader_reads_what_the_folder_holds(folder: Path) -> None:
    model, _ = load_checkpoint(folder)
    assert model.config.num_key_value_heads == 2

"""A short training run at a tiny size."""

import hashlib
from dataclasses import replace

import torch

from demo.data import texts
from demo.model import DemoModel
from demo.render import Renderer
from demo.tokenizer import train_tokenizer
from demo.train import BASE, POLISH, Phase, new_model, round_weights, train


def short_run(steps: int) -> tuple[DemoModel, list[float]]:
    """Trains the `tiny` preset on short rows."""
    stage = replace(BASE, phases=[Phase(until=1.0, rows=8, length=128)])
    renderer = Renderer(train_tokenizer(texts(1, 500)))
    model = new_model("tiny", seed=3)
    return model, train(model, renderer, stage, steps=steps, seed=3)


def digest(model: DemoModel) -> str:
    """Hash of all weights, bit for bit."""
    state = model.state_dict()
    return hashlib.sha256(
        b"".join(state[name].numpy().tobytes() for name in sorted(state))
    ).hexdigest()


def test_loss_falls_and_the_same_seed_gives_the_same_bits() -> None:
    model, history = short_run(25)
    assert sum(history[-5:]) < 0.92 * sum(history[:5])
    again, _ = short_run(25)
    assert digest(model) == digest(again)


def test_last_phase_trains_at_2048_tokens() -> None:
    for stage in (BASE, POLISH):
        assert stage.phases[-1].length == 2048 and stage.phases[-1].until == 1.0


def test_cached_generation_equals_the_full_forward() -> None:
    from demo.generate import generate

    model = new_model("tiny", seed=0).eval()
    prompt = [5, 9, 300, 77, 5, 9]
    reply = generate(model, prompt, max_tokens=8, stop=set())
    with torch.inference_mode():
        states = model(torch.tensor([prompt + reply])).main
        full = model.lm_head(states[0]).argmax(-1).tolist()
    assert full[len(prompt) - 1 : -1] == reply


def test_recycled_step_in_parallel_equals_a_step_by_step_draft() -> None:
    model = new_model("tiny", seed=0).eval()
    ids = torch.randint(0, 2048, (1, 12), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        drafts = model(ids, num_drafts=3, recycle_rows=1).drafts
        for slot in (0, 4, 8):
            chain = sequential_drafts(model, ids, slot)
            for depth in range(3):
                torch.testing.assert_close(
                    drafts[depth][:, slot], chain[depth], rtol=1e-4, atol=1e-5
                )


def sequential_drafts(model: DemoModel, ids: torch.Tensor, slot: int) -> list[torch.Tensor]:
    """Three draft states `[1, E]` after `slot`, with the MTP cache filled one row at a time."""
    from demo.model import rope_tables

    hidden, embedded = model.hidden_states(ids), model.model.embed_tokens(ids)
    past, states, recycled = None, [], None
    for position in range(slot + 3):
        source = hidden[:, position] if position <= slot else recycled
        x = model.mtp.join(source[:, None], embedded[:, position + 1, None])
        x, past = model.mtp(x, rope_tables(model.config, torch.tensor([position])), past)
        recycled = model.mtp.final_layernorm(x)[:, 0]
        if position >= slot:
            states.append(recycled)
    return states


def test_polish_stage_continues_from_rounded_weights() -> None:
    model = new_model("tiny", seed=2)
    round_weights(model)
    for parameter in model.parameters():
        assert torch.equal(parameter, parameter.to(torch.bfloat16).float())

"""The kernel that decodes a token in one launch computes what the model computes, on every kind of model it takes."""

import pytest
import torch

from pencil.inference.generation import Generation
from pencil.inference.persistent import PersistentStep, refusal
from pencil.inference.sampling import Sampling
from pencil.models.gpt import GPT, GPTConfig

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a CUDA GPU of compute capability 9.0",
)

SMALL = dict(vocab=1009, context=331, width=208, depth=3, heads=4, head_dim=64, hidden=688)
KINDS = {
    "gpt2": dict(positions="learned", bias=True, activation="gelu-tanh"),
    "llama": dict(norm="rms", activation="swiglu", kv_heads=2, tie_embeddings=False),
    "mistral": dict(norm="rms", activation="swiglu", kv_heads=1, window=37),
    "qwen2": dict(norm="rms", activation="swiglu", qkv_bias=True, kv_heads=2),
    "qwen3": dict(norm="rms", activation="swiglu", qk_norm=True, head_dim=128),
    "neox": dict(bias=True, activation="gelu", rope_fraction=0.25, tie_embeddings=False, head_bias=True),
    "adjacent": dict(rope_pairs="adjacent", activation="relu", head_dim=32),
    "yarn": dict(rope_scaling="yarn", rope_factor=4.0, activation="silu"),
    "geglu": dict(bias=True, activation="geglu", positions="none"),
    "wide heads": dict(head_dim=256, heads=3, bias=True),
}


def model_of(kind: str, **other) -> GPT:
    torch.manual_seed(7)
    model = GPT(GPTConfig(**{**SMALL, **KINDS[kind], **other})).cuda().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model.to(torch.bfloat16)


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_its_logits_are_as_exact_as_the_models(kind, batch):
    """Beside float64 its error is that of the model in bfloat16, at every step, for rows of different lengths."""
    model = model_of(kind)
    exact = GPT(model.config).cuda().double().eval()
    exact.load_state_dict(model.state_dict())
    assert refusal(model, batch) is None
    cache, length = model.new_cache(batch, 313), 149
    generator = torch.Generator("cuda").manual_seed(3)
    tokens = torch.randint(0, 1009, (batch, length), device="cuda", generator=generator)
    begun = [1 + 11 * row for row in range(batch)]  # tokens in the cache before the first step
    for row, count in enumerate(begun):
        alone = model.new_cache(1, 313)
        model(tokens[row : row + 1, :count], cache=alone)
        cache.store[:, :, row] = alone.store[:, :, 0]
        cache.index[row], cache.coords[row], cache.used[row] = alone.index[0], alone.coords[0], count
    newest, active = (
        torch.zeros(batch, 1, dtype=torch.long, device="cuda"),
        torch.ones(batch, dtype=torch.bool, device="cuda"),
    )
    step = PersistentStep(model, cache, newest, active)
    for turn in range(length - max(begun)):
        newest.copy_(torch.stack([tokens[row, begun[row] + turn] for row in range(batch)])[:, None])
        step.logits.fill_(float("nan"))
        logits = step()
        if turn % 13 == 0 or turn == length - max(begun) - 1:
            for row in range(batch):
                text = tokens[row : row + 1, : begun[row] + turn + 1]
                want = exact(text, last=True)[0, -1]
                plain = apart(model(text, last=True)[0, -1], want)
                assert apart(logits[row], want) < 1.5 * plain + 2**-8, (turn, row)
    assert cache.used.tolist() == [count + turn + 1 for count in begun]
    # the cache holds what the model would have put there
    row = batch - 1
    alone = model.new_cache(1, 313)
    model(tokens[row : row + 1, : cache.used[row]], cache=alone)
    used = int(cache.used[row])
    assert apart(cache.store[:, :, row, :, :used], alone.store[:, :, 0, :, :used]) < 2**-6
    assert torch.equal(cache.index[row, :used], alone.index[0, :used])


@torch.no_grad()
def test_a_row_that_has_ended_changes_nothing():
    model = model_of("gpt2")
    cache = model.new_cache(2, 61)
    newest, active = torch.tensor([[5], [7]], device="cuda"), torch.tensor([True, False], device="cuda")
    step = PersistentStep(model, cache, newest, active)
    before = cache.store[:, :, 1, :, :-1].clone()
    both = [step()[0].clone() for _ in range(5)]
    assert cache.used.tolist() == [5, 0]
    assert torch.equal(cache.store[:, :, 1, :, :-1], before)
    alone_cache, token = model.new_cache(1, 61), torch.tensor([[5]], device="cuda")
    alone = PersistentStep(model, alone_cache, token, torch.tensor([True], device="cuda"))
    for one in both:
        assert apart(one, alone()[0]) < 2**-7


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_generation_takes_it_and_repeats_itself(temperature):
    model = model_of("llama")
    how = Sampling(temperature=temperature, top_k=50 if temperature else None, seed=3)
    texts = []
    for _ in range(3):
        generation = Generation(model, [[1, 2, 3], [4]], 200, how)
        list(generation)
        texts.append(generation.rows)
    assert texts[0] == texts[1] == texts[2]
    # one at a time: a row does not depend on its neighbours
    alone = Generation(model, [[1, 2, 3]], 200, how)
    list(alone)
    same = sum(a == b for a, b in zip(alone.rows[0], texts[0][0], strict=True))
    assert same > 20  # sums are rounded in another order, so a close choice may differ later


def test_what_it_does_not_take():
    model = model_of("gpt2")
    assert refusal(model, 9) == "it takes at most 8 sequences, not 9"
    assert refusal(model.float(), 1) == "the weights are not in bfloat16"
    assert "alibi" in str(refusal(model_of("gpt2", positions="alibi"), 1))

"""Continuous batching on a GPU: steps are captured, several follow one another, and an answer is that of an idle server."""

import pytest
import torch

from conftest import unchecked
from pencil.inference.sampling import Sampling
from pencil.serve.row_sampling import RowRules, Rules
from serving import MODELS, changed, continuation, finish, small_engine, tokens_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")


@pytest.fixture(autouse=True)
def quickly():
    with unchecked():
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["rope", "alibi", "captioner", "seq2seq"])
def test_the_same_answer_at_any_load(kind, dtype):
    """Together a thousand answers."""
    model = MODELS[kind]().to("cuda", dtype)
    assert changed(model, 63, 2, ahead=8, rows=13) == 0


def test_one_row_and_several_tiles_give_the_tokens_of_one_step_at_a_time():
    model = MODELS["rope"]().cuda()
    asked = [(list(range(1, 1 + length)), 37) for length in (3, 17, 61)]
    answers = []
    for ahead, tiles in ((1, 1), (8, 1), (5, 2)):
        engine = small_engine(model, ahead=ahead, tiles=tiles)
        ones = [continuation(prompt, most) for prompt, most in asked]
        for one in ones:
            engine.add(one)
        finish(engine)
        answers.append([tokens_of(one) for one in ones])
    assert answers[0] == answers[1] == answers[2]
    assert [len(one) for one in answers[0]] == [37, 37, 37]


def test_rows_with_and_without_rules_are_chosen_as_on_a_cpu():
    """Where it is captured, what only some rows need is computed for all of them."""
    vocab, hows = 5003, [Sampling(0), Sampling(0.7), Sampling(1.1, top_k=7), Sampling(1.0, top_p=0.8, min_p=0.01),
                         Sampling(0.9, repetition_penalty=1.3)]  # fmt: skip
    rows = 3 * len(hows)
    logits = (4 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1))).bfloat16().float()
    uniforms = torch.rand(rows, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = []
    for device in map(torch.device, ("cpu", "cuda")):
        rules = RowRules(rows, vocab, device)
        for row in range(rows):
            rules.set(row, Rules(hows[row % len(hows)], frequency_penalty=0.5 * (row % 2)), [row, 7 * row])
        for _ in range(3):
            choices = rules.choose(logits.to(device), uniforms.to(device))
        found.append(choices.stacked().cpu())
    assert torch.equal(found[0][:2], found[1][:2])
    torch.testing.assert_close(found[0][2:], found[1][2:], rtol=0, atol=1e-12)


def test_a_picture_is_read_after_another():
    """The tensors that a captured prompt reads keep their addresses; those of a picture are read as they come."""
    model = MODELS["captioner"]().cuda()
    engine = small_engine(model)
    first, second = (torch.randn(1, *model.example()[1].shape[1:], device="cuda") for _ in range(2))
    found = []
    for image in (first, second, first):
        one = continuation("a", 5, given={[*model.INPUTS][1]: image})
        engine.add(one)
        finish(engine)
        found.append(tokens_of(one))
    assert found[0] == found[2] != found[1]

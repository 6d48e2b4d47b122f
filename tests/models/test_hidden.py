"""Every model over a vocabulary ends in final states and one output matrix."""

import pytest
import torch
import torch.nn.functional as F

from pencil.families import configure, create

PICTURE = dict(image_size=(6, 10), channels=2, patch=(3, 5))
KINDS = {
    "gpt tied": dict(vocab=29, context=11),
    "gpt own matrix": dict(vocab=29, context=11, tie_embeddings=False, head_bias=True),
    "captioner tied": dict(**PICTURE, vocab=29, context=7),
    "captioner tied, narrow": dict(**PICTURE, vocab=29, context=7, text_width=13),
    "captioner own matrix": dict(**PICTURE, vocab=29, context=7, tie_embeddings=False, bias=True, text_width=13),
    "seq2seq tied, divided": dict(vocab=29, context=7, source_context=11, scale_logits=True, head_bias=True),
    "seq2seq own matrix": dict(vocab=29, context=7, source_context=11, tie_embeddings=False, norm_position="post"),
    "reader masked": dict(vocab=29, context=11),
}


def made(kind):
    torch.manual_seed(0)
    family = kind.split()[0]
    model = create(family, configure(family, None, width=24, heads=3, depth=1, **KINDS[kind])).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    inputs = [torch.randn_like(t) if t.is_floating_point() else torch.randint_like(t, 29) for t in model.example(3)]
    return model, inputs


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_the_output_matrix_times_the_final_states(kind):
    model, inputs = made(kind)
    whole, states = model(*inputs), model.hidden(*inputs)
    assert torch.equal(model.logits(states), whole)
    matrix, bias = model.output_matrix
    assert matrix.shape == (29, states.shape[-1])
    torch.testing.assert_close(F.linear(states, matrix, bias), whole, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("reader")])
def test_one_token_of_each_row(kind):
    model, inputs = made(kind)
    whole, last = model(*inputs), torch.tensor([5, 0, 3])
    torch.testing.assert_close(model(*inputs, last=last)[:, 0], whole[torch.arange(3), last], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(model(*inputs, last=True), whole[:, -1:], atol=1e-12, rtol=1e-12)


def test_a_reader_of_classes_has_no_matrix_over_the_vocabulary():
    model = create("reader", configure("reader", None, width=24, heads=3, depth=1, vocab=29, context=11, classes=5))
    with pytest.raises(ValueError, match="no masked-token head: its output is label"):
        model.hidden(torch.zeros(1, 3, dtype=torch.long))

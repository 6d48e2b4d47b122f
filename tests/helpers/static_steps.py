"""Decode steps with static shapes, compiled: each against the whole text, read without a cache.

Run as a script, in a process without shape checking, which would be part of the graphs. It takes a backend of
torch.compile and the names of models, and prints the number of graphs of each.
"""

import json
import sys

import torch
from torch._dynamo.testing import CompileCounterWithBackend

from pencil.core.masks import NOWHERE
from pencil.core.span import Span
from pencil.families import create
from pencil.models.captioner import CaptionerConfig
from pencil.models.gpt import GPTConfig
from pencil.models.seq2seq import Seq2SeqConfig

VOCAB, CONTEXT = 29, 23
SIZES = dict(vocab=VOCAB, context=CONTEXT, width=24, depth=1, heads=3)
ROPE = dict(rope_factor=2.0, rope_original_context=11)
GPTS = {
    **{scheme: dict(positions=scheme) for scheme in ("learned", "sinusoidal", "rope", "alibi", "shaw", "t5", "none")},
    "rope ntk": dict(positions="rope", rope_scaling="ntk", **ROPE),
    "rope yarn": dict(positions="rope", rope_scaling="yarn", **ROPE),
    "grouped": dict(positions="rope", kv_heads=1, norm="rms", activation="swiglu", tie_embeddings=False),
    "window": dict(positions="rope", window=5),
}
CAPTIONERS = {
    "rope": dict(),
    "alibi, t5": dict(positions="alibi", image_positions="t5"),
    "learned, shaw": dict(positions="learned", image_positions="shaw", mask="causal", text_width=11),
}
SEQ2SEQS = {
    "t5": dict(positions="t5", scale_logits=True, head_bias=True),
    "learned": dict(positions="learned", norm_position="post", share_embeddings=False),
}
KINDS = {"gpt": GPTS, "captioner": CAPTIONERS, "seq2seq": SEQ2SEQS}
MODELS = [f"{family} {kind}" for family, kinds in KINDS.items() for kind in kinds]


def made(name):
    """A lively model in double precision, and its other inputs, one a row."""
    torch.manual_seed(0)
    family, _, kind = name.partition(" ")
    if family == "gpt":
        config, given = GPTConfig(**SIZES, **GPTS[kind]), {}
    elif family == "captioner":
        config = CaptionerConfig(**SIZES, image_size=(6, 9), patch=(3, 3), channels=1, **CAPTIONERS[kind])
        given = {"picture": torch.rand(3, 1, 6, 9)}
    else:
        config = Seq2SeqConfig(**SIZES, source_context=13, **SEQ2SEQS[kind])
        index = torch.tensor([[*range(n), *[NOWHERE] * (7 - n)] for n in (7, 2, 5)])
        given = {"source": torch.randint(VOCAB, (3, 7)), "source_span": Span.at(index)}
    model = create(family, config)
    for p in model.parameters():
        p.add_(torch.randn_like(p) * 0.2)
    return model.double().eval(), given


def of_row(given, row):
    rows = torch.tensor([row])
    return {name: value.pick(rows) if isinstance(value, Span) else value[rows] for name, value in given.items()}


def right_padded(texts):
    """Tokens, span, and the last token of each row."""
    longest = max(map(len, texts))
    tokens = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    index = [[*range(len(text)), *[NOWHERE] * (longest - len(text))] for text in texts]
    return tokens, Span.at(torch.tensor(index)), torch.tensor([len(text) - 1 for text in texts])


def decode(model, given, backend, *kernels):
    """The number of graphs compiled (without a backend none) in steps of rows of different lengths over two buckets, of which one ends early; each against the whole text."""

    def step(tokens, positions, active):
        span = Span.at(torch.where(active, positions, NOWHERE)[:, None])
        return model(tokens[:, None], span=span, cache=cache, last=True)[:, -1]

    if backend:
        torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend or "eager")
    run = torch.compile(step, backend=counter, fullgraph=True, dynamic=False) if backend else step
    drawn = torch.Generator().manual_seed(1)
    texts = [torch.randint(VOCAB, (n,), generator=drawn).tolist() for n in (3, 7, 2)]
    cache = model.new_cache(3)
    tokens, span, last = right_padded(texts)
    logits = model(tokens, span=span, cache=cache, last=last, **given)[:, -1]
    before = cache.filled - 7  # an image
    addresses = cache.store.data_ptr(), cache.index.data_ptr(), cache.used.data_ptr()
    active = torch.tensor([True, True, True])
    for bucket, steps in ((11, 4), (19, 7)):
        cache.fix(before + bucket, *kernels)
        for _ in range(steps):
            for row, text in enumerate(texts):
                if active[row]:
                    alone = model(torch.tensor([text]), last=True, **of_row(given, row))[0, -1]
                    torch.testing.assert_close(logits[row], alone, atol=1e-9, rtol=1e-9)
                    text.append(int(alone.argmax()))
            active[1] = len(texts[1]) < 10
            newest, positions = ([f(text) for text in texts] for f in (lambda t: t[-1], lambda t: len(t) - 1))
            cache.advance(1)
            logits = run(torch.tensor(newest), torch.tensor(positions), active)
    assert [len(text) for text in texts] == [14, 10, 13]
    assert cache.used.tolist() == [before + 14, before + 9, before + 13]
    assert addresses == (cache.store.data_ptr(), cache.index.data_ptr(), cache.used.data_ptr())
    return counter.frame_count


if __name__ == "__main__":
    with torch.no_grad():
        print(json.dumps({name: decode(*made(name), sys.argv[1]) for name in sys.argv[2:]}))

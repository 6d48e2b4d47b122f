"""Encoder–decoders of transformers, small and random, and what they generate beside ours."""

import torch

from pencil.core.masks import NOWHERE
from pencil.core.span import Span
from pencil.inference.beam import search
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling


def built(described):
    """A model of transformers, made from a plain config."""
    import transformers

    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(**described)
    return transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").eval()


def draw(vocab, *shape, seed=7):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def padded(lengths, longest):
    """The index of each row's tokens, with padding after them, and the same mask for theirs."""
    real = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    return torch.arange(longest).expand(len(lengths), -1).masked_fill(~real, NOWHERE), real.long()


@torch.no_grad()
def check_padded(theirs, ours):
    """A batch of sources of different lengths: the same logits, and the padding matters."""
    c = ours.config
    source, target = draw(c.source_vocab or c.vocab, 5, 19), draw(c.vocab, 5, 13, seed=8)
    index, mask = padded([19, 2, 11, 1, 7], 19)
    expected = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    found = ours(target, source, Span.at(index))
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    unpadded = theirs(input_ids=source, decoder_input_ids=target).logits
    assert (unpadded - expected)[1].abs().max() > 1e-2
    # token by token with a cache, the source with the first only
    cache, pieces = ours.new_cache(5, 13), []
    for at in range(13):
        given = {} if at else {"source": source, "source_span": Span.at(index)}
        pieces.append(ours(target[:, at : at + 1], cache=cache, **given))
    assert (torch.cat(pieces, 1) - expected).abs().max() <= 1e-5 * expected.abs().max()


def enliven(theirs):
    """Random weights repeat one word, whatever the source: make the source matter."""
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.ndim > 1 and parameter.requires_grad:
                parameter *= 6 if "encoder_attn" in name or "EncDecAttention" in name else 1.5


def check_generated(theirs, ours, beams=3):
    """Greedy targets of eleven sources of different lengths, and beam search of some; padding is never generated."""
    source, lengths = draw(ours.config.source_vocab or ours.config.vocab, 11, 17), [17, 3, 11, 1, 7, 13, 2, 5, 16, 4, 9]
    start, (index, mask) = theirs.config.decoder_start_token_id, padded(lengths, 17)
    ask = dict(do_sample=False, bad_words_ids=[[start]], pad_token_id=start)
    output = theirs.generate(
        input_ids=source, attention_mask=mask, num_beams=1, max_new_tokens=23, eos_token_id=None, **ask
    )
    rows = [row[1:] for row in output.tolist()]

    def ending(word):  # some targets end with it and others do not, and as many as possible still differ
        ended = sum(word in row for row in rows)
        return 0 < ended < len(rows), len({tuple(row[: row.index(word)] if word in row else row) for row in rows})

    end = max(range(ours.config.vocab), key=ending)
    output = theirs.generate(
        input_ids=source, attention_mask=mask, num_beams=1, max_new_tokens=23, eos_token_id=end, **ask
    )
    grown = Generation(ours, [[start]] * 11, 23, Sampling(0), end=end, never=[start],
                       given={"source": source, "source_span": Span.at(index)})  # fmt: skip
    for _ in grown:
        pass
    for row, expected in zip(grown.rows, output.tolist(), strict=True):
        assert row == expected[: len(row)]
        assert set(expected[len(row) :]) <= {start}  # theirs are filled up to the longest
    assert len({tuple(row) for row in grown.rows}) > 5
    assert set(grown.reasons) == {"end", "length"}
    output = theirs.generate(
        input_ids=source[:5], num_beams=beams, max_new_tokens=7, length_penalty=0.0, early_stopping=False,
        eos_token_id=end, return_dict_in_generate=True, output_scores=True, **ask,
    )  # fmt: skip
    found = search(ours, [[start]] * 5, 7, beams, end=end, never=[start], penalty=0.0, given={"source": source[:5]})
    for rows, expected, score in zip(found, output.sequences.tolist(), output.sequences_scores.tolist(), strict=True):
        assert [start, *rows[0].tokens] == expected[: 1 + len(rows[0].tokens)]
        assert abs(rows[0].log_probability - score) < 1e-3

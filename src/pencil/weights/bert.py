"""BERT and RoBERTa as transformers names them, with the head of masked tokens, of labels, or none.

Separate query, key and value there, one joined matrix here. RoBERTa's positions begin after the id of its padding: the
rows of its table before them are kept, and no token reads them.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..config import UserError
from ..models.reader import Reader, ReaderConfig
from .maps import (
    Architecture,
    Fields,
    Rule,
    anything,
    count_labels,
    fields,
    layers,
    must_have,
    only,
    parts,
    projections,
    same,
    their_word,
    token_ids,
)

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu",
               "silu": "silu", "swish": "silu"}  # fmt: skip
CLASSES = {
    "bert": {
        "BertForMaskedLM": "words",
        "BertForPreTraining": "words",
        "BertForSequenceClassification": "label",
        "BertModel": "pool",
    },
    "roberta": {"RobertaForMaskedLM": "words", "RobertaForSequenceClassification": "label", "RobertaModel": "pool"},
}
BLOCK = {
    "attention.output.dense": "attn.out",
    "attention.output.LayerNorm": "attn_norm",
    "intermediate.dense": "mlp.up",
    "output.dense": "mlp.down",
    "output.LayerNorm": "mlp_norm",
}
QKV = tuple(f"attention.self.{part}" for part in ("query", "key", "value"))
# the parts of each head, and the bias of its logits of tokens
WORDS = {
    "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head"),
}
LABEL = {
    "bert": {"bert.pooler.dense": "head.pool", "classifier": "head.label"},
    "roberta": {"classifier.dense": "head.pool", "classifier.out_proj": "head.label"},
}
FIELDS = fields(
    mapped="architectures vocab_size max_position_embeddings hidden_size num_hidden_layers num_attention_heads "
    "intermediate_size hidden_act layer_norm_eps type_vocab_size tie_word_embeddings problem_type id2label num_labels "
    "pad_token_id head_of_tensors",
    neutral="hidden_dropout_prob attention_probs_dropout_prob classifier_dropout directionality pooler_fc_size "
    "pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type output_past",
    position_embedding_type=only("absolute"),
)


def settings(theirs: Fields, kind: str) -> dict[str, Any]:
    head, activation = _head(theirs, kind), theirs.one_of("hidden_act", ACTIVATIONS)
    rows, offset = theirs.size("max_position_embeddings"), 0
    if kind == "roberta":
        pad = theirs["pad_token_id"]
        if type(pad) is not int or not 0 <= pad < rows - 1:
            raise UserError(
                f"this {theirs.what}'s pad_token_id is {pad!r}: its positions begin after it, in a table of "
                f"max_position_embeddings {rows} rows"
            )
        offset = pad + 1
    if head == "words" and kind == "bert" and activation != "gelu":
        raise UserError(
            f"this {theirs.what}'s hidden_act is {theirs['hidden_act']!r}, and our head of masked tokens has only "
            "'gelu'"
        )
    if head == "words" and not theirs["tie_word_embeddings"]:
        raise UserError(
            f"this {theirs.what}'s tie_word_embeddings is False, and our head of masked tokens has only True"
        )
    return dict(
        vocab=theirs.size("vocab_size"),
        context=rows - offset,
        classes=_labels(theirs) if head == "label" else None,
        head=None if head in ("words", "label") else head,
        **theirs.sizes(
            width="hidden_size", depth="num_hidden_layers", heads="num_attention_heads", hidden="intermediate_size"
        ),
        norm_position="post",
        embed_norm=True,
        eps=theirs["layer_norm_eps"],
        activation=activation,
        bias=True,
        positions="learned",
        position_offset=offset,
        token_types=theirs.size("type_vocab_size"),
        pool="class",
    )


def _head(theirs: Fields, kind: str) -> str:
    """The head that the config names, or, where it names none, the one whose tensors are there."""
    of_tensors, heads = theirs.get("head_of_tensors"), CLASSES[kind]
    named = theirs.get("architectures") or ()
    if not named:
        if of_tensors is None:
            raise UserError(f"the config of this {theirs.what} has no architectures: one of {', '.join(heads)}")
        return str(of_tensors)
    if named[0] not in heads:
        raise UserError(
            f"this {theirs.what}'s architectures is {named[0]!r}, which ours does not have: only {', '.join(heads)}"
        )
    # a model without a head may be without its pooler too, which its config does not say
    return "states" if heads[named[0]] == "pool" and of_tensors == "states" else heads[named[0]]


def _found(shapes: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """What a config may leave out: the head whose tensors are there."""
    heads = {"words": WORDS[kind][2], "label": "classifier", "pool": f"{kind}.pooler"}
    present = (head for head, start in heads.items() if any(name.startswith(f"{start}.") for name in shapes))
    return {"head_of_tensors": next(present, "states")}


def _labels(theirs: Fields) -> int:
    """The number of labels."""
    count = count_labels(theirs)
    theirs.one_of("problem_type", {"single_label_classification": "label"}, "single_label_classification")
    if count < 2:
        raise UserError(f"this {theirs.what} has one label: it gives a number, and ours one of several classes")
    return count


def describe(c: ReaderConfig, kind: str, name: str) -> dict[str, Any]:
    must_have(
        c,
        name,
        norm_position="post",
        embed_norm=True,
        norm="layer",
        bias=True,
        positions="learned",
        kv_heads=(None, c.heads),
        activation=tuple(dict.fromkeys(ACTIVATIONS.values())),
    )
    if c.output == "words" and kind == "bert":
        must_have(c, f"{name} for masked tokens", activation="gelu")
    if c.output in ("label", "pool"):
        must_have(c, name, pool="class")
    if not c.token_types:
        raise UserError(f"model.token_types is 0, which a {name} does not have: only 1 or more")
    if (kind == "roberta") != bool(c.position_offset):
        only = "1 or more" if kind == "roberta" else "0"
        raise UserError(f"model.position_offset is {c.position_offset}, which a {name} does not have: only {only}")
    head = "pool" if c.output == "states" else c.output
    theirs: dict[str, Any] = dict(
        model_type=kind,
        architectures=[next(one for one, made in CLASSES[kind].items() if made == head)],
        vocab_size=c.vocab,
        max_position_embeddings=c.context + c.position_offset,
        hidden_size=c.width,
        num_hidden_layers=c.depth,
        num_attention_heads=c.heads,
        intermediate_size=c.mlp_width,
        hidden_act=their_word(ACTIVATIONS, c.activation),
        layer_norm_eps=c.eps,
        type_vocab_size=c.token_types,
    )
    if kind == "roberta":
        theirs["pad_token_id"] = c.position_offset - 1
    if c.classes:
        theirs["id2label"] = {str(i): f"LABEL_{i}" for i in range(c.classes)}
    return theirs


def rules(c: ReaderConfig, kind: str) -> Iterator[Rule]:
    tables = f"{kind}.embeddings"
    yield same(f"{tables}.word_embeddings.weight", "tokens.weight")
    yield same(f"{tables}.token_type_embeddings.weight", "types.weight")
    yield same(f"{tables}.position_embeddings.weight", "encoder.positions.table")
    yield from parts(same, f"{tables}.LayerNorm", "encoder.embed_norm")
    for i in range(c.depth):
        theirs, ours = f"{kind}.encoder.layer.{i}", f"encoder.blocks.{i}"
        yield from projections([f"{theirs}.{part}" for part in QKV], f"{ours}.attn.qkv", [c.width] * 3)
        yield from layers(theirs, ours, BLOCK)
    if c.output == "words":
        dense, norm, bias = WORDS[kind]
        yield from parts(same, dense, "head.map")
        yield from parts(same, norm, "head.norm")
        yield same(f"{bias}.bias", "head.bias")
    elif c.output == "label":
        for part, named in LABEL[kind].items():
            yield from parts(same, part, named)
    elif c.output == "pool":
        yield from parts(same, f"{kind}.pooler.dense", "head.pool")


def _unused(c: ReaderConfig, kind: str) -> dict[str, Any]:
    """The numbers of the positions, and heads that the model does not read."""
    unused: dict[str, Any] = {rf"{kind}\.embeddings\.position_ids": _not_counted}
    if c.output == "words" or (c.output == "label" and kind == "roberta"):
        unused[rf"{kind}\.pooler\.dense\.(weight|bias)"] = anything
    if c.output == "words" and kind == "bert":  # whether two sentences follow one another
        unused[r"cls\.seq_relationship\.(weight|bias)"] = anything
    return unused


def _not_counted(numbers: Tensor, c: ReaderConfig) -> str | None:
    counted = torch.arange(c.context + c.position_offset)
    return None if torch.equal(numbers.flatten().long(), counted) else "is not 0, 1, 2, …"


def _inputs(c: ReaderConfig, generator: torch.Generator, length: int) -> tuple[Tensor, ...]:
    """Random tokens; RoBERTa gives its padding another position, so there is none."""
    tokens = token_ids(c.vocab, length, generator)
    pad = c.position_offset - 1
    return (tokens.masked_fill(tokens == pad, 0 if pad else c.vocab - 1),)


def _answer(original: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
    """What the head gives; without a head the pooler's vector, and without that the hidden states."""
    answer = original(input_ids=given[0])
    names = ("logits", "prediction_logits", "pooler_output", "last_hidden_state")
    return next(value for value in (getattr(answer, name, None) for name in names) if value is not None)


def _outputs(c: ReaderConfig, kind: str) -> dict[str, str]:
    inner = f"{kind}." if c.output in ("words", "label") else ""
    blocks = {f"encoder.blocks.{i}.post": f"{inner}encoder.layer.{i}" for i in range(c.depth)}
    return {"encoder.input": f"{inner}embeddings"} | blocks


def _architecture(name: str, kind: str) -> Architecture:
    table, words = f"{kind}.embeddings.word_embeddings.weight", WORDS[kind][2]
    tied = {f"{words}.decoder.weight": table, f"{words}.decoder.bias": f"{words}.bias"}
    return Architecture(
        name,
        "transformers",
        (kind,),
        Reader,
        ReaderConfig,
        FIELDS,
        partial(settings, kind=kind),
        partial(describe, kind=kind, name=name),
        partial(rules, kind=kind),
        tied=lambda c: tied if c.output == "words" else {},
        unused=partial(_unused, kind=kind),
        # files of the model without a head have no prefix, and the first ones have other names for norms
        renamed={
            r"^(?=(embeddings|encoder|pooler)\.)": f"{kind}.",
            r"LayerNorm\.gamma$": "LayerNorm.weight",
            r"LayerNorm\.beta$": "LayerNorm.bias",
        },
        written=lambda c: {} if c.output in ("words", "label") else {rf"^{kind}\.": ""},
        sizes=partial(_found, kind=kind),
        dropout={"hidden_dropout_prob": ("dropout", 0.1), "attention_probs_dropout_prob": ("attention_dropout", 0.1)},
        defaults=dict(
            hidden_act="gelu",
            layer_norm_eps=1e-12,
            type_vocab_size=2,
            tie_word_embeddings=True,
            pad_token_id=0 if kind == "bert" else 1,
        ),
        inputs=_inputs,
        ask=_answer,
        outputs=partial(_outputs, kind=kind),
    )


BERT = _architecture("BERT", "bert")
ROBERTA = _architecture("RoBERTa", "roberta")

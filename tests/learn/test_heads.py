"""Heads whose function is known are named for it, and no others; the scores are sums over the patterns."""

import io
import json
import math

import numpy as np
import pytest
import torch

from pencil.api.loading import load
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.cli.main import main
from pencil.core.probe import Probe
from pencil.data.tokenizers.tokenizer import CharTokenizer
from pencil.families import configure, create, family
from pencil.inference.head_patterns import all_scores, chances, line, repeated, windows
from pencil.learn.heads import show
from pencil.learn.heads.inputs import head_inputs, separators
from pencil.learn.heads.scores import DRAWS, FEWEST, measure, observe, untrained
from pencil.runs.run import Run

GPT = family("gpt").heads
PLACES, SHARP = 23, 5.0  # SHARP squared times the height of a normed one-hot: scores of hundreds
TEXT = "the quick brown fox jumps over the lazy dog, and the dog does not mind it at all. " * 3


def blank(vocab: int, width: int, depth: int, heads: int, context: int):
    """A gpt whose every matrix is zero, with unit norms: nothing happens but what is put in."""
    model = create("gpt", configure("gpt", None, vocab=vocab, context=context, width=width, depth=depth, heads=heads,
                                    hidden=7, positions="learned"))  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(float("norm" in name))
    return model.eval()


def parts(model, layer: int, head: int):
    """W_Q, W_K and W_V of one head, as views to be written into, and its columns of W_O."""
    attention, width = model.blocks[layer].attn, model.config.head_width
    rows = slice(head * width, (head + 1) * width)
    return [w[rows] for w in (attention.w_q, attention.w_k, attention.w_v)] + [attention.out.weight[:, rows]]


@pytest.fixture(scope="module")
def posted():
    """Three heads that use positions alone: the previous one, the first, and none in particular."""
    model = blank(vocab=13, width=3 * PLACES, depth=1, heads=3, context=PLACES)
    with torch.no_grad():
        model.positions.table[:, :PLACES] = torch.eye(PLACES)
        want, have, *_ = parts(model, 0, 0)
        want[:, :PLACES] = SHARP * torch.eye(PLACES)
        have[1:, : PLACES - 1] = SHARP * torch.eye(PLACES - 1)  # a key is that of the next position
        want, have, *_ = parts(model, 0, 1)
        want[0, :PLACES] = have[0, 0] = SHARP
    return model


def some_texts(vocab: int, count: int = 5, length: int = PLACES):
    rng = np.random.default_rng(3)
    return [(torch.from_numpy(rng.integers(0, vocab, (1, length))),) for _ in range(count)]


def test_constructed_heads_are_named_for_what_they_do(posted):
    before, first, even = measure(posted, GPT, some_texts(13)).heads
    assert before.names == ("previous token",)
    assert before.scores["previous"].mean == pytest.approx(1, abs=1e-6)
    assert first.names == ("first token",)
    assert first.scores["first"].mean == pytest.approx(1, abs=1e-6)
    assert even.names == ()
    assert even.untrained
    assert even.scores["broad"].mean == pytest.approx(1, abs=1e-6)
    # uniform attention scores the baseline: 1/n for one of n keys, over the queries that have a choice
    harmonic = sum(1 / n for n in range(2, PLACES + 1)) / (PLACES - 1)
    for name in ("previous", "first", "own"):
        assert even.scores[name].mean == pytest.approx(harmonic, abs=1e-6)
        assert even.scores[name].baseline == pytest.approx(harmonic, abs=0.01)
    assert not before.untrained
    assert not first.untrained


def inducing(vocab: int, context: int):
    """The known construction: block 0 writes each token's predecessor beside it, block 1 matches its own token there.

    The residual stream has the token in the first channels, its position in the next, the previous token in the last.
    """
    width = vocab + context + vocab
    model = blank(vocab, width, depth=2, heads=1, context=context)
    token, place, past = slice(0, vocab), slice(vocab, vocab + context), slice(vocab + context, width)
    with torch.no_grad():
        model.tokens.weight[:, token] = torch.eye(vocab)
        model.positions.table[:, place] = torch.eye(context)
        want, have, give, out = parts(model, 0, 0)
        want[:context, place] = SHARP * torch.eye(context)
        have[1:context, place][:, : context - 1] = SHARP * torch.eye(context - 1)
        give[:vocab, token] = out[past, :vocab] = torch.eye(vocab)
        want, have, *_ = parts(model, 1, 0)
        want[:vocab, token] = have[:vocab, past] = SHARP * torch.eye(vocab)
    return model


def test_a_constructed_induction_head_is_found_and_its_baseline_is_low():
    report = measure(inducing(19, 2 * 17), GPT, some_texts(19))
    before, head = report.heads
    assert report.repeated == 17
    assert before.names == ("previous token",)
    assert head.names == ("induction",)
    # nothing comes before the first token, which writes itself: its match is found twice, and the attention is halved
    counts = np.geomspace(FEWEST, 17, DRAWS).round()
    assert head.scores["induction"].mean == pytest.approx(np.mean(1 - 0.5 / (counts - 1)), abs=1e-6)
    assert head.scores["induction"].baseline < 0.15
    assert before.scores["induction"].mean < 0.01


def test_a_head_that_attends_a_fixed_distance_back_is_no_induction_head():
    """Seven back is where induction attends in sequences of eight; but this head does so whatever the token is."""
    model = blank(vocab=13, width=PLACES, depth=1, heads=1, context=PLACES)
    with torch.no_grad():
        model.positions.table.copy_(torch.eye(PLACES))
        want, have, *_ = parts(model, 0, 0)
        want.copy_(SHARP * torch.eye(PLACES))
        have[7:, : PLACES - 7] = SHARP * torch.eye(PLACES - 7)
    (head,) = measure(model, GPT, some_texts(13)).heads
    found = head.scores["induction"]
    assert found.mean == pytest.approx(found.baseline, abs=1e-6)
    assert head.names == ()


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("positions", ["rope", "alibi"])
def test_nothing_is_named_in_a_model_of_random_weights(positions):
    torch.manual_seed(1)
    config = configure("gpt", None, vocab=29, context=31, width=64, depth=2, heads=8, positions=positions)
    report = measure(create("gpt", config).eval(), GPT, some_texts(29, 5, 31))
    assert len(report.heads) == 16
    assert all(head.names == () and head.untrained for head in report.heads)
    assert show.words(report) == [
        "No score is clearly beyond its baseline: there is no head to name.",
        "All of them spread their attention as untrained heads do.",
    ]


def test_nothing_is_named_where_random_weights_are_sharp():
    """Heads that attend to few tokens, but to no position in particular."""
    torch.manual_seed(2)
    model = create("gpt", configure("gpt", None, vocab=29, context=31, width=48, depth=1, heads=3, positions="none"))
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight.mul_(20)
    report = measure(model.eval(), GPT, some_texts(29, 11, 31))
    assert all(head.scores["broad"].mean < 0.8 and head.names == () for head in report.heads)


def by_loops(pattern: np.ndarray, mask: np.ndarray, rows, targets) -> dict[str, np.ndarray]:
    """The scores of a whole pattern (h, T, S), written out."""
    found: dict[str, list] = {}
    for t in rows:
        seen = [s for s in range(mask.shape[1]) if mask[t, s]]
        for name, keys in targets(t).items():
            keys = [s for s in keys if s in seen]
            if keys and len(keys) < len(seen):
                found.setdefault(name, []).append(sum(pattern[:, t, s] for s in keys))
        if len(seen) > 1:
            p = pattern[:, t, seen]
            entropy = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(1)
            found.setdefault("broad", []).append(entropy / math.log(len(seen)))
    return {name: np.mean(each, axis=0) for name, each in found.items()}


def small(name: str):
    """A model of the family with weights large enough for sharp attention, and its inputs."""
    torch.manual_seed(5)
    sizes = dict(width=24, heads=3, depth=2)
    tokens, other = torch.randint(0, 17, (1, 11)), torch.randint(0, 17, (1, 7))
    picture = torch.rand(1, 1, 6, 8)
    shape = dict(image_size=(6, 8), channels=1, patch=(2, 2))
    model, given = {
        "gpt": lambda: (configure("gpt", None, vocab=17, context=13, **sizes), (tokens,)),
        "reader": lambda: (configure("reader", None, vocab=17, context=13, **sizes), (tokens,)),
        "captioner": lambda: (configure("captioner", None, vocab=17, context=13, **shape, **sizes), (tokens, picture)),
        "vit": lambda: (configure("vit", None, classes=5, **shape, **sizes), (picture,)),
        "seq2seq": lambda: (
            configure("seq2seq", None, vocab=17, context=13, source_context=13, **sizes),
            (tokens, other),
        ),
    }[name]()
    model = create(name, model).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("qkv.weight"):
                parameter.mul_(15)
    return model, given


def neighbours(t: int):
    """The neighbouring patches in a grid of 3 by 4, after a class token."""
    row, column = divmod(t - 1, 4)
    near = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return [1 + 4 * r + c for r, c in near if 0 <= r < 3 and 0 <= c < 4] if t else []


WRITTEN_OUT = {
    "gpt": [("blocks.{}.attn", "", lambda m: np.tril(np.ones((11, 11))), range(11),
             lambda t: {"previous": [t - 1], "first": [0] * (t > 0), "own": [t]})],
    "reader": [("encoder.blocks.{}.attn", "", lambda m: np.ones((11, 11)), range(11),
                lambda t: {"previous": [t - 1], "next": [t + 1], "first": [0] * (t > 0), "own": [t]})],
    # two delimiters and twelve patches, then eleven words
    "captioner": [("blocks.{}.attn", "", lambda m: np.tril(np.ones((25, 25))) + (np.arange(25) < 14), range(14, 25),
                   lambda t: {"previous": [t - 1] * (t > 14), "first": [14] * (t > 14), "own": [t],
                              "picture": list(range(1, 13))})],
    "vit": [("blocks.{}.attn", "", lambda m: np.ones((13, 13)), range(13),
             lambda t: {"class": [0] * (t > 0), "own": [t], "near": neighbours(t)})],
    "seq2seq": [("encoder.blocks.{}.attn", "encoder", lambda m: np.ones((7, 7)), range(7),
                 lambda t: {"previous": [t - 1], "next": [t + 1], "first": [0] * (t > 0), "own": [t]}),
                ("blocks.{}.attn", "decoder", lambda m: np.tril(np.ones((11, 11))), range(11),
                 lambda t: {"previous": [t - 1], "first": [0] * (t > 0), "own": [t]}),
                ("blocks.{}.cross", "cross", lambda m: np.ones((11, 7)), range(11),
                 lambda t: {"first": [0], "last": [6]})],
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_scores_are_what_loops_over_the_whole_pattern_give(name):
    model, given = small(name)
    probe = Probe("*.pattern")
    with torch.no_grad():
        plain = model(*given, probe=probe)
        found = observe(model, family(name).heads.groups(model, given), given, all_scores)
        assert torch.equal(plain, model(*given, probe=probe))
    compared = 0
    for path, group, mask, rows, targets in WRITTEN_OUT[name]:
        for layer in range(2):
            pattern = probe.values[f"{path.format(layer)}.pattern"][0].double().numpy()
            for score, values in by_loops(pattern, mask(model) > 0, rows, targets).items():
                np.testing.assert_allclose(found[group, layer, score].numpy(), values, rtol=1e-6, err_msg=score)
                compared += 1
    assert compared == len(found)


def test_the_baseline_is_the_mean_over_all_orders_of_the_keys():
    """Weights dealt out to the keys in any order, many times, give the baseline on average."""
    model, given = small("gpt")
    probe = Probe("blocks.1.attn.pattern")
    with torch.no_grad():
        model(*given, probe=probe)
    pattern, rng = next(iter(probe.values.values()))[0].double(), np.random.default_rng(0)
    layout, draws = line(model.mask, 11), []
    for _ in range(200):
        dealt = pattern.clone()
        for t in range(11):
            dealt[:, t, : t + 1] = pattern[:, t, rng.permutation(t + 1)]
        draws.append(torch.stack([all_scores(dealt, layout)[name] for name in ("previous", "first", "own")]))
    mean = torch.stack(draws).mean(0)
    error = torch.stack(draws).std(0) / 200**0.5
    for i, name in enumerate(("previous", "first", "own")):
        assert ((mean[i] - chances(layout)[name]).abs() < 5 * error[i]).all()


def test_induction_counts_what_came_after_the_same_token():
    layout = repeated(create("gpt", configure("gpt", None, vocab=3)).mask, 5, 2)
    tokens = [8, 9, *"abcde", *"abcde"]
    for query, key in layout.targets["induction"].nonzero().tolist():
        if layout.rows[query]:
            assert tokens[key - 1] == tokens[query]
            assert key < 7 <= query
    assert (layout.targets["induction"] & layout.rows[:, None]).sum() == 4


def test_an_untrained_twin_is_made_without_touching_the_random_state():
    model, _ = small("gpt")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    twin = untrained(model)
    assert torch.equal(torch.rand(3), expected)
    assert not torch.equal(twin.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight)


def test_texts_are_cut_so_that_there_are_several():
    assert [one[0].shape[1] for one in windows(np.arange(100), 64)] == [12] * 8
    long = windows(np.arange(10_000), 64)
    assert len(long) == 32
    assert all(one[0].shape == (1, 64) for one in long)
    assert long[0][0][0, 0] == 0
    assert long[-1][0][0, 0] == 64 * (10_000 // 64 - 1)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The model that was built, as a run that reads letters."""
    tokenizer = CharTokenizer(TEXT)
    model = inducing(tokenizer.vocab, 2 * 17)
    config = {"run": {"family": "gpt"}, "model": model.config, "train": {}}
    run = Run.create(tmp_path_factory.mktemp("built") / "built", config, tokenizer)
    run.write_weights(model, {})
    return run.path


def heads(capsys, *words, code=0):
    """What `pencil heads` prints, in this process."""
    with pytest.raises(SystemExit) as ended:
        main(["heads", *map(str, words)])
    assert ended.value.code == code
    return capsys.readouterr()


@pytest.mark.usefixtures("light")
def test_the_verb_prints_a_table_and_sentences_and_draws_a_picture(kept, tmp_path, capsys, monkeypatch):
    (tmp_path / "text.txt").write_text(TEXT)
    shown = heads(capsys, kept, "--text", tmp_path / "text.txt").out
    assert max(map(len, shown.splitlines()[:6])) <= 100
    assert "previous token: 0.0" in shown
    assert "induction: 1.0" in shown
    assert "No head shows: first token, own token." in shown
    assert "\n1.0 counts from 0, as an index does: it is head 1 of blocks.1.\n" in shown
    assert (kept / "heads.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    data = json.loads(heads(capsys, kept, "--text", "-", "--json", "--out", tmp_path / "h.png").out)
    assert [head["names"] for head in data["heads"]] == [["previous token"], ["induction"]]
    assert (tmp_path / "h.png").exists()


@pytest.mark.usefixtures("light")
def test_the_verb_uses_the_runs_own_held_out_data(run, tmp_path, capsys):
    data = json.loads(heads(capsys, run, "--json", "--out", tmp_path / "h.png").out)
    assert data["texts"] == 32
    assert data["tokens"] == 31
    assert len(data["heads"]) == 6


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(
    "name,data,columns",
    [
        ("captioner", "scenes", {"previous", "first", "own", "picture", "induction", "broad"}),
        ("vit", "digits", {"class", "near", "own", "broad"}),
        ("seq2seq", "pairs.tsv", {"previous", "next", "first", "last", "own", "broad"}),
        ("reader", "labels.tsv", {"previous", "next", "first", "own", "broad"}),
        ("reader", "plain.txt", {"previous", "next", "first", "own", "broad"}),
    ],
)
def test_every_family_is_measured_on_its_own_held_out_data(name, data, columns, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"the {a} sees the {b}" for a in "cat dog fox owl".split() for b in "hen pig ant bee elk".split()]
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in 3 * lines))
    (tmp_path / "labels.tsv").write_text("".join(f"{line}\t{'xy'[i % 2]}\n" for i, line in enumerate(2 * lines)))
    (tmp_path / "plain.txt").write_text("\n".join(19 * lines))
    sizes = {"width": 24, "heads": 3, "depth": 1} | ({"context": 31} if data == "plain.txt" else {})
    run, task, _ = new_run(TrainingRequest(name, data, model=sizes), out=tmp_path / "run")
    torch.manual_seed(3)
    run.write_weights(task.build(), {})
    loaded = load(run.path)
    report = measure(loaded.model, family(name).heads, head_inputs(loaded), separators(loaded))
    assert {score for head in report.heads for score in head.scores} == columns
    assert len(report.heads) == (9 if name == "seq2seq" else 3)
    assert not any(head.names for head in report.heads)
    if name == "seq2seq":  # the one with several groups of heads in a picture
        assert show.picture(report, name).startswith(b"\x89PNG")


def test_what_cannot_be_measured_is_one_sentence(kept, tmp_path, capsys):
    def refused(*words):
        printed = heads(capsys, *words, code=2)
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        return printed.err

    (tmp_path / "latin.txt").write_bytes("déjà vu, une fois de plus".encode("latin-1"))
    assert "there is no run" in refused(tmp_path / "none")
    assert "is not a run" in refused(tmp_path)
    assert "5 tokens, and at least 16 are needed" in refused(kept, "--prompt", "short")
    assert "(or give a text by --text or --prompt)" in refused(kept)
    assert "--text and --prompt are both a text to measure on: give one" in refused(
        kept, "--prompt", "a", "--text", "b"
    )
    assert "No such file" in refused(kept, "--text", tmp_path / "none.txt")
    assert "not UTF-8 text" in refused(kept, "--text", tmp_path / "latin.txt")
    assert "is a folder; --out is the file to write" in refused(kept, "--out", tmp_path)
    assert "--out writes a .png file" in refused(kept, "--out", tmp_path / "heads.txt")
    dit = configure("dit", None, width=24, heads=3, depth=1, classes=3)
    run = Run.create(tmp_path / "dit", {"run": {"family": "dit"}, "model": dit, "train": {}}, None)
    run.write_weights(create("dit", dit), {})
    assert "is a dit: this model denoises in many steps, and a head attends differently at each" in refused(run.path)
    vit = configure("vit", None, width=24, heads=3, depth=1, classes=3)
    run = Run.create(tmp_path / "vit", {"run": {"family": "vit"}, "model": vit, "train": {}}, None)
    run.write_weights(create("vit", vit), {})
    assert "is a vit, which reads more than a text" in refused(run.path, "--prompt", "a b c")

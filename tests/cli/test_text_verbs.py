"""The verbs as a user types them: seq2seq on pairs of texts, reader on texts with labels or masked tokens."""

import io
import json
import re
import shlex
import tomllib

import pytest

from commands import REVIEWS, SMALL, WORDS, is_png, metrics, write_pairs
from pencil.api.loading import load
from pencil.train.loop.report import Metrics


def test_train_and_sample_dates(type_in, tmp_path):
    shown = type_in("train", "seq2seq", "--data", "dates", *SMALL)
    assert "the run is in runs/dates-seq2seq" in shown.err
    assert "generated while training, 1,000 held out" in shown.err
    assert "best" not in shown.err  # weights are not selected on a test set
    config = tomllib.loads((tmp_path / "runs" / "dates-seq2seq" / "config.toml").read_text())
    assert config["model"]["context"] == 16
    assert config["run"]["tokenizer"] == "char"
    one = type_in("sample", "runs/dates-seq2seq", "--source", "the 3rd of May, 1999").out
    assert one.endswith("\n")


def test_train_evaluate_and_resume_on_own_pairs(type_in, tmp_path):
    write_pairs(tmp_path / "words.tsv", [(word, word[::-1]) for word in WORDS])
    shown = type_in("train", "seq2seq", "--data", "words.tsv", *SMALL, "--vocab", 300)
    run = tmp_path / "runs" / "words-seq2seq"
    assert "runs/words-seq2seq" in shown.err
    assert re.search(r"; exact_match [01]\.\d{4}, val_loss", shown.err)  # too few to select the best weights
    assert tomllib.loads((run / "config.toml").read_text())["run"]["tokenizer"] == "bpe"
    assert is_png(run / "loss.png")
    assert "\t" in (run / "samples" / "step-00000003.txt").read_text()
    shown = type_in("eval", "runs/words-seq2seq")
    found = metrics(shown.out)
    assert {"val_loss", "exact_match", "character_error_rate", "chrf", "bleu"} <= set(found)
    for name in ("mistakes.txt", "attention-1.png"):
        assert f"runs/words-seq2seq/eval/{name}" in shown.err
    assert is_png(run / "eval" / "attention-1.png")
    again = json.loads(type_in("eval", "runs/words-seq2seq", "--json", "--out", "seen").out)
    assert {k: round(v, 6) for k, v in again.items()} == found
    assert is_png(tmp_path / "seen" / "attention-1.png")
    assert "Trained 5 steps" in type_in("resume", "runs/words-seq2seq", "--train.steps", 5).err
    assert [line["step"] for line in Metrics.read(run) if "val_loss" in line] == [0, 3, 5]


@pytest.mark.usefixtures("light")
def test_targets_of_one_source_and_of_several(type_in, seq2seq_run, tmp_path, monkeypatch):
    one = type_in("sample", seq2seq_run, "--source", "abd").out
    assert (
        one == type_in("sample", seq2seq_run, "--source", "abd", "--seed", 9).out
    )  # greedy unless --temperature is given
    other = type_in("sample", seq2seq_run, "--source", "cc").out
    both = type_in("sample", seq2seq_run, "--source", "abd", "--source", "cc").out
    assert both == f"abd: {one}cc: {other}"
    monkeypatch.setattr("sys.stdin", io.StringIO("abd\n"))
    assert type_in("sample", seq2seq_run, "--source", "-").out == one
    assert not type_in("sample", seq2seq_run, "--source", "abd", "--out", "out.txt").out
    assert (tmp_path / "out.txt").read_text() == one
    many = type_in("sample", seq2seq_run, "--source", "abd", "--temperature", 2, "--count", 7).out
    assert len(many.splitlines()) == 7
    assert len(set(many.splitlines())) > 1
    assert many == type_in("sample", seq2seq_run, "--source", "abd", "--temperature", 2, "--count", 7).out
    short = type_in("sample", seq2seq_run, "--source", "abd", "--temperature", 2, "--max-new-tokens", 2).out
    assert len(short) <= 3


def ranked(out):
    lines = [line.split("  ", 1) for line in out.splitlines()]
    return [(float(score), "" if text == "(empty)" else text) for score, text in lines]


@pytest.mark.usefixtures("light")
def test_beam_search_prints_the_highest_scoring_targets(type_in, seq2seq_run, tmp_path):
    found = ranked(type_in("sample", seq2seq_run, "--source", "abd", "--beams", 5).out)
    assert len(found) == len({text for _, text in found}) == 5
    assert [score for score, _ in found] == sorted((score for score, _ in found), reverse=True)
    assert ranked(type_in("sample", seq2seq_run, "--source", "abd", "--beams", 5, "--count", 2).out) == found[:2]
    greedy = type_in("sample", seq2seq_run, "--source", "abd").out.strip("\n")
    one = ranked(type_in("sample", seq2seq_run, "--source", "abd", "--beams", 1, "--length-penalty", 0).out)
    assert [text for _, text in one] == [greedy]
    words = ("sample", seq2seq_run, "--source", "abd", "--source", "c", "--beams", 5)
    lines = type_in(*words).out.splitlines()
    assert (lines[0], lines[6]) == ("abd:", "c:")
    assert [text for _, text in ranked("\n".join(lines[1:6]))] == [text for _, text in found]
    type_in(*words, "--out", "out.txt")
    assert (tmp_path / "out.txt").read_text().splitlines() == lines
    plain = ranked(type_in("sample", seq2seq_run, "--source", "abd", "--beams", 5, "--length-penalty", 0).out)
    assert [score for score, _ in plain] != [score for score, _ in found]
    brief = ranked(type_in("sample", seq2seq_run, "--source", "abd", "--beams", 5, "--max-new-tokens", 1).out)
    assert all(len(text) <= 1 for _, text in brief)


@pytest.mark.parametrize("how", [(), ("--beams", 3)])
def test_attention_picture_of_a_target(type_in, seq2seq_run, tmp_path, how):
    plain = type_in("sample", seq2seq_run, "--source", "abdce", *how).out
    assert type_in("sample", seq2seq_run, "--source", "abdce", *how, "--attention", "attention.png").out == plain
    assert is_png(tmp_path / "attention.png")


def test_evaluate_and_sample_a_text_classifier(type_in, classifier_run, tmp_path, monkeypatch):
    shown = type_in("eval", classifier_run, "--out", "seen").out
    assert {"val_loss", "accuracy", "balanced_accuracy", "macro_f1"} < set(metrics(shown))
    assert [line.split()[0] for line in shown.splitlines()[-3:]] == ["class", "bad", "so_good"]
    assert is_png(tmp_path / "seen" / "confusion.png")
    assert "wrong" in (tmp_path / "seen" / "mistakes.txt").read_text()
    text = "it is fine here"
    out = type_in("sample", classifier_run, "--prompt", text).out
    lines = metrics(out)
    assert set(lines) == {"so good", "bad"}
    assert sum(lines.values()) == pytest.approx(1, abs=2e-4)
    assert list(lines.values()) == sorted(lines.values(), reverse=True)
    monkeypatch.setattr("sys.stdin", io.StringIO(text + "\n"))
    assert type_in("sample", classifier_run, "--prompt", "-").out == out
    two = type_in("sample", classifier_run, "--prompt", text, "--prompt", "grim").out.splitlines()
    assert (two[0], two[3]) == (f"{text}:", "grim:")
    assert metrics("\n".join(two[1:3])) == pytest.approx(lines, abs=2e-4)
    type_in("sample", classifier_run, "--prompt", text, "--out", "out.txt")
    assert (tmp_path / "out.txt").read_text() == out


def test_evaluate_and_sample_masked_tokens(type_in, masked_run, tmp_path, notes):
    assert set(metrics(type_in("eval", masked_run).out)) == {"val_loss", "perplexity", "accuracy"}
    lines = type_in("sample", masked_run, "--prompt", "the p[mask]ncil").out.splitlines()
    guesses = [line.rsplit(" ", 1) for line in lines]
    assert len(guesses) == 5
    assert all(len(letter) == 1 for letter, _ in guesses)
    assert [float(p) for _, p in guesses] == sorted((float(p) for _, p in guesses), reverse=True)
    two = type_in("sample", masked_run, "--prompt", "[MASK]he p[mask]ncil").out
    assert [len(part.splitlines()) for part in two.split("\n\n")] == [5, 5]
    many = type_in("sample", masked_run, "--prompt", "[mask]he", "--prompt", "the p[mask]ncil").out
    assert many.split("\n\n")[1].splitlines() == ["the p[mask]ncil:", *lines]


@pytest.mark.usefixtures("light")
def test_a_text_classifier_resumes(type_in, tmp_path):
    write_pairs(tmp_path / "reviews.tsv", REVIEWS)
    type_in("train", "reader", "--data", "reviews.tsv", *SMALL, "--tokenizer", "byte", "--model.pool", "mean")
    config = tomllib.loads((tmp_path / "runs" / "reviews-reader" / "config.toml").read_text())
    assert config["run"]["classes"] == ["bad", "so good"]
    assert "Trained 4 steps" in type_in("resume", "runs/reviews-reader", "--train.steps", 4).err


def commands(run):
    return [
        shlex.split(line)[1:] for line in (run / "README.md").read_text().splitlines() if line.startswith("pencil ")
    ]


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("which", ["seq2seq_run", "classifier_run", "masked_run"])
def test_the_model_card_and_its_commands(type_in, request, which):
    run = request.getfixturevalue(which)
    card, model = (run / "README.md").read_text(), load(run).model
    family = "seq2seq" if which == "seq2seq_run" else "reader"
    assert f"A {family} of {sum(p.numel() for p in model.parameters()):,} parameters" in card
    assert re.search(rf"\| {'exact_match' if which == 'seq2seq_run' else 'accuracy'} \| [01]\.\d{{4}} \|", card)
    found = commands(run)
    assert [words[0] for words in found] == ["sample", "eval", "resume"]
    assert type_in(*found[1]).out
    assert "has made 3 steps and train.steps is 3" in type_in(*found[2]).err


@pytest.mark.parametrize("which", ["classifier_run", "seq2seq_run", "masked_run"])
def test_the_sample_command_on_the_card_works(type_in, request, which):
    assert type_in(*commands(request.getfixturevalue(which))[0]).out


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("which, given, cells", [
    ("seq2seq_run", "abd", ["blocks.0.cross.pattern[0,1,0,2]", "encoder.blocks.0.attn.scores[0,2,1,0]", "logits[0,0,3]",
                       "encoder.out[0,1,5]"]),
    ("classifier_run", "it is fine", ["logits[0,1]", "encoder.blocks.0.attn.pattern[0,1,0,1]", "head.pooled[0,7]"]),
    ("masked_run", "the p[mask]ncil", ["logits[0,5,3]", "encoder.blocks.0.mlp.out[0,2,5]", "head.guess[0,5,1]"]),
])  # fmt: skip
def test_receipts_of_text_runs_agree(type_in, request, which, given, cells):
    run = request.getfixturevalue(which)
    for cell in cells:
        out = type_in("why", run, cell, "--input", given).out
        assert "✓" in out
        assert "✗" not in out
    listed = type_in("trace", run, "--input", given).out
    for cell in cells:
        assert re.search(rf"^{re.escape(cell.split('[')[0])} ", listed, re.M)


@pytest.mark.usefixtures("light")
def test_a_given_target_is_traced(type_in, seq2seq_run, tmp_path):
    out = type_in("why", seq2seq_run, "blocks.0.cross.pattern[0,1,2,0]", "--input", "abd", "--text", "dba").out
    assert "✓" in out
    assert "T 'b'" in out
    assert "s 'a'" in out
    type_in("trace", seq2seq_run, "--input", "abd", "--text", "dba", "--out", "a.trace.safetensors", "--html", "a.html")
    assert "✓" in type_in("why", "a.trace.safetensors", "logits[0,0,3]").out
    assert (tmp_path / "a.html").stat().st_size > 1000


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(
    "positions", ["alibi", "t5", "shaw", "sinusoidal", "sinusoidal-halves", "learned", "rope", "none"]
)
def test_every_position_scheme_trains_and_generates(type_in, notes, positions):
    two = (*SMALL, "--train.steps", 2, "--model.positions", positions)
    type_in("train", "gpt", "--data", notes, "--model.context", 31, *two, "--name", "text")
    assert len(type_in("sample", "runs/text", "--prompt", "line", "--max-new-tokens", 5).out) > len("line\n")


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("family, positions", [
    ("captioner", "alibi"), ("vit", "alibi"), ("vit", "t5"), ("seq2seq", "shaw"),
    ("seq2seq", "learned"), ("reader", "alibi"), ("reader", "t5"),
])  # fmt: skip
def test_every_family_trains_with_other_positions(type_in, tmp_path, family, positions):
    data = {"seq2seq": [(word, word[::-1]) for word in WORDS], "reader": REVIEWS}.get(family)
    given = () if data is None else ("--data", write_pairs(tmp_path / "mine.tsv", data))
    shown = type_in("train", family, *given, *SMALL, "--train.steps", 1, "--model.positions", positions, "--name", "a")
    assert "Trained 1 step in" in shown.err
    assert f'positions = "{positions}"' in (tmp_path / "runs" / "a" / "config.toml").read_text()


@pytest.mark.usefixtures("light")
def test_the_transformer_of_2017_trains(type_in, tmp_path):
    write_pairs(tmp_path / "mine.tsv", [(word, word[::-1]) for word in WORDS])
    shown = type_in("train", "seq2seq", "--data", "mine.tsv", *SMALL, "--model.norm_position", "post", "--model.scale_embeddings", "true",
                   "--model.positions", "sinusoidal", "--model.activation", "relu", "--model.share_embeddings", "false",
                   "--train.schedule", "inverse-sqrt", "--train.label_smoothing", 0.1, "--train.optimizer", "adamw")  # fmt: skip
    assert "Trained 3 steps" in shown.err


def test_settings_of_text_families_are_listed(type_in, tmp_path):
    shown = tomllib.loads(type_in("train", "seq2seq", "--preset", "base", "--settings").out)
    assert (shown["model"]["width"], shown["model"]["depth"], shown["model"]["heads"]) == (512, 6, 8)
    assert shown["train"]["schedule"] == "inverse-sqrt"
    write_pairs(tmp_path / "reviews.tsv", REVIEWS)
    shown = tomllib.loads(type_in("train", "reader", "--data", "reviews.tsv", "--settings").out)
    assert shown["model"]["classes"] == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("what, count, symbols", [
    ("seq2seq:base", "63,082,496", ("X_src", "X_emb", "Q_src", "A_src", "X″", "Z")),
    ("bert-base", "109,514,298", ("X_emb", "P", "Q", "A", "Y", "Z")),
])  # fmt: skip
def test_shapes_of_text_presets(type_in, monkeypatch, what, count, symbols):
    monkeypatch.setenv("COLUMNS", "140")
    shown = type_in("shapes", what).out
    assert f"{count} parameters" in shown
    for symbol in symbols:
        assert re.search(rf"^ *{re.escape(symbol)} ", shown, re.M), symbol

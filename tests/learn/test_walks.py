"""The walks: every heading of the documents in its order, and every number from a trace or a check report."""

import itertools
import re
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pencil
from conftest import unchecked
from pencil.config import UserError
from pencil.core.probe import OFF
from pencil.learn.check.check import check, count, shipped
from pencil.learn.figures import FIGURES
from pencil.learn.katas import KATAS
from pencil.learn.katas.grader import grade
from pencil.learn.lab import claims
from pencil.learn.walks import Source, documents, walk
from pencil.learn.walks.data import document
from pencil.learn.walks.questions import exercise
from pencil.learn.walks.sizes import Unresolved, filled
from pencil.learn.walks.tables import LIMITS, RUN_LIMITS
from pencil.learn.worked.examples import EXAMPLES, example
from pencil.models.captioner import Captioner, CaptionerConfig
from pencil.models.gpt import GPT, GPTConfig

SEEDS = Path(__file__).parents[1] / "seeds"
DOCUMENTS = "000", "001", "002", "003", "004"
every = pytest.mark.parametrize("number", DOCUMENTS)
traced, checked = cache(example), cache(check)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Each example is traced once and each file checked once; shapes are checked elsewhere."""
    monkeypatch.setattr("pencil.learn.worked.examples.example", traced)
    monkeypatch.setattr("pencil.learn.walks.sections.check", checked)
    with unchecked():
        yield


@cache
def walked(number):
    return walk(number)


def report(number):
    return checked(shipped()[document(number).check])


def rows(number):
    return tomllib.loads((SEEDS / f"{number}.toml").read_text("utf-8"))["row"]


def in_order(number):
    """The sections in the order of the document's file."""
    return sorted(walked(number).sections, key=lambda section: section.lines)


def plain(markdown):
    """Markdown without its links and its emphasis, as a terminal shows it."""
    return re.sub(r"\*(\w+)\*", r"“\1”", re.sub(r" \(\[[^]]*\]\([^)]*\)\)", "", markdown))


def values(trace, where):
    """The numbers of a tensor, or of the part that an index names."""
    name, _, inside = where.partition("[")
    index = tuple(slice(None) if word == ":" else int(word) for word in inside.rstrip("]").split(",") if word)
    return np.asarray(trace.array(name))[index]


def test_there_is_a_walk_for_each_document():
    assert documents() == sorted(path.stem for path in SEEDS.glob("*.toml")) == list(DOCUMENTS)


@every
def test_every_heading_of_the_document_is_a_section_in_its_order(number):
    wanted = [(row["heading"], row.get("about", ""), row.get("skipped", "")) for row in rows(number)]
    entries = sorted(document(number).sections, key=lambda entry: entry.lines)
    assert [(entry.heading, entry.about, entry.skipped) for entry in entries] == wanted
    if number != "003":
        assert list(document(number).sections) == entries
    assert [(s.title, s.level) for s in walked(number).sections] == [
        (entry.heading.lstrip("# "), entry.heading.count("#", 0, 4)) for entry in document(number).sections
    ]
    for section in walked(number).sections:
        assert section.skipped or len(section.text.split()) > 3, section.title


def test_the_series_of_003_is_walked_in_its_order():
    """The feed has the newest post first; a series begins with its first part."""
    parts = [s.title.rpartition("Part ")[2] for s in walked("003").sections if "— Part" in s.title]
    assert [part[0] for part in parts] == ["1", "2", "3"]
    assert [part.lines[0] for part in walked("003").sections if "— Part" in part.title] == [307, 163, 22]
    assert walked("003").sections[-1].skipped.startswith("book notes")


@every
def test_the_corrections_are_those_of_the_same_heading(number):
    wanted = [[tuple(one) for one in row.get("errata", ())] for row in rows(number)]
    found = [list(section.corrections) for section in in_order(number)]
    assert found == [[(n, plain(words)) for n, words in errata] for errata in wanted]


@every
def test_the_lines_follow_one_another_without_a_gap(number):
    lines = [section.lines for section in in_order(number)]
    for (first, last), (after, _) in itertools.pairwise(lines):
        assert first <= last
        assert after - last in (0, 1)  # document 003 has a heading and the end of the section before it in one line


@every
def test_every_printed_number_and_claim_is_in_one_section_with_its_verdict(number):
    found = [one for section in walked(number).sections for one in section.compared]
    steps = {(step.name, step.line): step for step in report(number).steps}
    assert sorted((one.name, one.line) for one in found) == sorted(steps)
    for one in found:
        assert [n for row in one.rows for n in row] == list(steps[one.name, one.line].numbers), one.name
        assert one.counts == count([steps[one.name, one.line]])
        assert len({len(row) for row in one.rows}) == 1
    told = [claim for section in walked(number).sections for claim in section.claims]
    assert sorted(c.label or c.text for c in told) == sorted(c.label or c.text for c in report(number).claims)
    for section in walked(number).sections:
        for one in (*section.compared, *section.claims):
            assert section.lines[0] <= one.line <= section.lines[1]
        assert [one.line for one in section.compared] == sorted(one.line for one in section.compared)


@every
def test_every_number_of_a_tensor_is_the_traced_one(number):
    found = 0
    for section in walked(number).sections:
        for one in section.shown:
            assert one.source.startswith("example:")
            whole = values(traced(one.source.removeprefix("example:")), one.name)
            tables = np.atleast_2d(whole).reshape(-1, *np.atleast_2d(whole).shape[-2:])[tuple(map(slice, LIMITS))]
            assert np.array_equal(np.array([grid.rows for grid in one.grids]), tables), one.name
            assert all(len(grid.down) == len(grid.rows) for grid in one.grids)
            assert all(len(grid.across) == len(grid.rows[0]) for grid in one.grids)
            found += tables.size
    assert found > 100


@every
def test_just_the_weights_of_masked_tokens_are_marked(number):
    """Found from the mask where there is one, which is not how the walk finds them."""
    marked = 0
    for one in (shown for section in walked(number).sections for shown in section.shown):
        for grid in one.grids:
            marked += len(grid.masked)
            assert not grid.masked or one.name.partition("[")[0].endswith("pattern")
            assert all(grid.rows[i][j] == 0 for i, j in grid.masked)
        trace = traced(one.source.removeprefix("example:"))
        name, _, index = one.name.partition("[")
        mask = f"{name.removesuffix('pattern')}mask"
        if name.endswith("pattern") and mask in trace:
            cells = tuple(int(word) for word in index.rstrip("]").split(",") if word)
            hidden = np.atleast_2d(np.isneginf(np.broadcast_to(trace.array(mask), trace.array(name).shape)[cells]))
            for grid, wanted in zip(one.grids, hidden.reshape(-1, *hidden.shape[-2:]), strict=False):
                inside = wanted[: len(grid.rows), : len(grid.rows[0])]
                assert grid.masked == {(int(i), int(j)) for i, j in np.argwhere(inside)}
    assert (marked > 0) == (number != "004")


@every
def test_a_tensor_beside_printed_numbers_has_the_right_ones(number):
    for entry, section in zip(document(number).sections, walked(number).sections, strict=True):
        names = {one.name for one in section.compared}
        assert {step for step, _ in entry.beside} <= names, section.title
        for one in section.compared:
            if one.where:
                right = [n.exact for row in one.rows for n in row]
                assert np.allclose(values(traced(entry.example), one.where).ravel(), right, rtol=1e-12, atol=1e-15)


def test_the_worked_examples_of_000_and_004_are_beside_their_traces():
    beside = {
        number: [one.name for s in walked(number).sections for one in s.compared if one.where] for number in DOCUMENTS
    }
    assert {"match", "weights", "output", "patches"} <= {*beside["000"]}
    assert {"z", "Z0", "Q1", "Q2", "scores1", "attn1", "out1", "scores2", "attn2", "out2", "Z_after_cls"} <= {
        *beside["004"]
    }


@every
def test_every_receipt_agrees_and_is_of_the_section(number):
    found = [one for section in walked(number).sections for one in section.unfolded]
    receipts = [one for one in found if one.command.startswith("pencil why")]
    assert receipts
    for one in receipts:
        assert re.fullmatch(r"recorded \S+ ✓|.*\(given to the model\)|.*\(learned\)", one.lines[-1]), one.title
        source, cell = re.fullmatch(r"pencil why example:(\S+) '(.+)'", one.command).groups()
        assert np.ndim(values(traced(source), cell)) == 0
    for one in found:
        assert len(one.lines) > 1


@every
def test_every_name_of_a_kata_a_lab_claim_and_an_example_exists(number):
    for entry in document(number).sections:
        assert {*entry.katas} <= {*KATAS}, entry.title
        assert {*entry.labs} <= {*claims()}, entry.title
        assert entry.example in EXAMPLES
    sections = [section for section in walked(number).sections if not section.skipped]
    assert sum(bool(s.shown or s.compared or s.unfolded) for s in sections) >= len(sections) * 0.6


def test_each_document_with_figures_has_them():
    drawn = {number: [one.command for s in walked(number).sections for one in s.figures] for number in DOCUMENTS}
    assert [len(drawn[number]) for number in DOCUMENTS] == [0, 0, 6, 1, 2]
    assert any("--of curve" in command for command in drawn["002"])
    drawings = [one.drawing for entry in document("002").sections for one in entry.figures if one.drawing]
    assert drawings == list(FIGURES["002"])
    for section in (*walked("003").sections, *walked("004").sections):
        for one in section.figures:
            assert one.png().startswith(b"\x89PNG")


def test_an_unknown_document_is_one_sentence_with_the_list():
    with pytest.raises(UserError, match="no document 005 to walk; known: 000 .*001.*002.*003.*004"):
        walk("005")


# ---- questions, and what a walk shows once


@every
def test_every_question_takes_its_answers_and_no_others(number):
    asked = [question for section in walked(number).sections for question in section.questions]
    assert len(asked) > 6
    for question in asked:
        right = [blank.written for blank in question.blanks]
        assert grade(question, right).solved, question.title
        assert not grade(question, ["0" if one != "0" else "1" for one in right]).solved
        assert question.ask.strip().endswith((".", "?", ")")), question.ask
        assert question.working, question.title


def test_the_documents_own_turns_are_asked():
    turns = [section for section in walked("000").sections if section.title.startswith("YOUR TURN")]
    assert len(turns) == 6
    assert all(section.questions for section in turns)
    (width,) = [q for s in walked("003").sections if s.title == "Dimension arithmetic" for q in s.questions]
    assert [blank.value for blank in width.blanks] == [512 / 8]


def test_a_row_of_an_exercise_is_asked_with_what_it_needs():
    whole, row = exercise("004", "Output of head 2"), exercise("004", "Output of head 2 | patch 3")
    wanted = [blank for blank in whole.blanks if blank.label.startswith("patch 3, ")]
    assert list(row.blanks) == wanted != []
    assert [len(table.rows) for table in row.tables] == [1, 5]
    assert row.tables[0].rows[0] == whole.tables[0].rows[3]
    assert row.working
    assert all("patch 3" in line for line in row.working)
    (table,) = exercise("000", "softmax | token 2").tables
    assert [list(line) for line in table.rows] == [[0, 4]]
    with pytest.raises(UserError, match="asks for no row patch 9; it asks for cls, patch 1"):
        exercise("004", "Output of head 2 | patch 9")
    whole, row = exercise("004", "MSA output"), exercise("004", "MSA output | each patch 3")
    assert [list(table.rows) for table in row.tables] == [[table.rows[3]] for table in whole.tables]
    assert len(row.tables) == 2


def test_a_table_that_a_question_does_not_need_is_left_out():
    whole = exercise("003", "cross")
    asked = exercise("003", "cross | word 2 | without keys of the words, values of the words")
    assert [(table.name, len(table.rows)) for table in asked.tables] == [
        ("queries of the words", 1),
        ("keys of the patches", 3),
        ("values of the patches", 3),
    ]
    assert asked.tables[0].rows[0] == whole.tables[0].rows[1]
    assert (asked.blanks, asked.ask, asked.working) == (whole.blanks, whole.ask, whole.working)
    with pytest.raises(UserError, match="asks for no row word 1"):
        exercise("003", "cross | word 1")
    with pytest.raises(UserError, match="has no table K; it has queries of the words, keys of the words"):
        exercise("003", "cross | without K")


@every
def test_each_number_is_shown_once_and_later_steps_say_where(number):
    seen, places = {}, {}
    for step, group in walked(number).groups:
        for one in (shown for section in group for shown in section.shown):
            numbers = {value for grid in one.grids for row in grid.rows for value in row}
            tensor = one.source, one.name.partition("[")[0]
            if one.again:
                for at, symbol in re.findall(r"step (\d+): ([^;]+)", one.again):
                    assert int(at) <= step
                    assert (int(at), symbol) in places[tensor], one.again
                assert numbers <= seen[tensor]
            else:
                cells = values(traced(one.source.removeprefix("example:")), one.name).size
                assert cells == 1 or not numbers <= seen.get(tensor, set()) or numbers <= {0, 1}, (step, one.name)
                seen.setdefault(tensor, set()).update(numbers)
                places.setdefault(tensor, set()).add((step, one.symbol))


@every
def test_the_arithmetic_of_a_cell_is_unfolded_once(number):
    first: dict[str, int] = {}
    for step, group in walked(number).groups:
        for one in (receipt for section in group for receipt in section.unfolded):
            assert one.again == (f"step {first[one.command]}" if one.command in first else ""), one.command
            first.setdefault(one.command, step)


@every
def test_no_text_has_markup(number):
    for section in walked(number).sections:
        said = [section.text, section.then, section.skipped, *(words for _, words in section.corrections)]
        said += [words for claim in section.claims for words in (claim.text, claim.evidence)]
        said += [question.ask for question in section.questions]
        for words in said:
            assert not re.search(r"\]\(|\*\w|[{}]|__", words), words


def test_every_document_has_its_title_and_who_wrote_it():
    assert walked("000").credit == "by Rahul Rai, 2026-06-15"
    assert walked("003").credit == "by Rupesh Kumar Yadav Mediboyina, 2026-02-05 to 2026-03-10"
    assert walked("001").credit == "author not named, 2025-01-15"
    assert walked("002").credit == "author not named, 2026-02-18"
    assert walked("004").credit == "author not named"


# ---- the sizes in sentences

COUNTS = r"\b\d[\d,]*|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twice)\b"
# numbers that are no size: names, a weight of nothing, and the matrices for queries, keys and values
NO_SIZES = r"[Hh]ead [12]|weight is 0|GPT-2|has three matrices"


def counts(text):
    return re.findall(COUNTS, re.sub(NO_SIZES, "", text), re.I)


@every
def test_no_text_has_a_size_written_in_it(number):
    for entry in document(number).sections:
        assert counts(re.sub(r"\{[^{}]*\}", "", entry.text)) == [], entry.heading


def primes():
    """Models whose sizes are those of no document."""
    torch.manual_seed(0)
    both = CaptionerConfig(
        image_size=(39, 34), channels=1, patch=(13, 17), vocab=29, context=13, width=51, depth=1, heads=3, hidden=74,
        delimiters="none", positions="learned",
    )  # fmt: skip
    gpt = GPTConfig(vocab=29, context=17, width=57, depth=1, heads=3, hidden=74, positions="learned")
    yield "000", pencil.trace(Captioner(both), torch.arange(13)[None], torch.rand(1, 1, 39, 34))
    yield "001", pencil.trace(Captioner(both), torch.arange(13)[None], torch.rand(1, 1, 39, 34))
    yield "002", pencil.trace(GPT(gpt), torch.arange(17)[None])
    yield "003", pencil.trace(GPT(gpt), torch.arange(17)[None])
    yield "004", pencil.trace(Captioner(both), torch.arange(13)[None], torch.rand(1, 1, 39, 34))


def test_with_a_run_every_sentence_has_the_sizes_of_the_run():
    texts = {}
    for number, trace in primes():
        of_run = walk(number, Source("runs/mine", trace))
        texts[number] = " ".join(section.text for section in of_run.sections)
        for mine, section in zip(of_run.sections, walked(number).sections, strict=True):
            written = counts(section.text)
            assert not {*counts(mine.text)} & {*written}, mine.text
            assert "{" not in mine.text
            assert (mine.questions, mine.corrections, mine.claims) == ((), (), ())
    assert "A 39×34 image is cut into six patches of 13×17." in texts["000"]
    assert "Here T is 13, V is 29, D is 51 and the width of the MLP 74, 1.45 times D." in texts["001"]
    assert "The same 17 tokens through three heads of width 19." in texts["002"]
    assert "back, applied to each token alone: 1.3 times as wide inside as outside, which is 57." in texts["002"]
    assert "so that three heads of width 19 cost" in texts["003"]
    assert "six patches, 19 tokens of width 51, three heads of width 17" in texts["004"]


def test_a_sentence_about_what_a_run_lacks_is_left_out():
    text = "Here are {N patch}. It reads {T word}."
    sizes = {"N": "patches.flat:N", "T": "tokens:1"}
    trace = traced("nanogpt-block")
    assert filled(text, sizes, trace, leave_out=True) == "It reads four words."
    with pytest.raises(Unresolved, match="the trace has no tensor of patches.flat:N"):
        filled(text, sizes, trace)


def test_a_sentence_counts_the_weights_that_no_mask_hides():
    """Two frames of four patches; a causal mask over four tokens."""
    patterns = " ".join(f"{{seen {one}.pattern}}" for one in ("full", "spatial", "temporal", "windowed"))
    assert filled(patterns, {}, traced("video-attention")) == f"{8 * 8} {2 * 4 * 4} {4 * 2 * 2} {2 * 4 * 4}"
    assert filled("{seen blocks.0.attn.pattern}", {}, traced("nanogpt-block")) == str(1 + 2 + 3 + 4)
    with pytest.raises(Unresolved, match="the trace has no tensor full.pattern"):
        filled("{seen full.pattern}", {}, traced("nanogpt-block"))


# ---- the numbers of a run


def of_example(number, name):
    return walk(number, Source("runs/mine", traced(name)))


def sections(walked):
    return {(section.title, section.lines[0]): section for section in walked.sections}


def test_a_run_has_the_sections_with_its_own_numbers():
    trace = traced("nanogpt-block")
    found = walk("001", Source("runs/mine", trace))
    assert found.run == "runs/mine"
    part = [s for s in found.sections if s.lines[0] < 136]
    scores = {one.name: one for s in part for one in s.shown}["blocks.0.attn.scores[0,0]"]
    assert np.array_equal(np.array(scores.grids[0].rows), trace.array("blocks.0.attn.scores")[0, 0])
    assert scores.source == "runs/mine"
    assert not any(s.lacking or s.missing or s.compared or s.claims for s in part)
    for section in part:
        for one in section.unfolded:
            assert one.command.startswith("pencil why runs/mine ")
            assert one.lines[-1].endswith("✓")
        assert "example" not in section.text


def test_a_section_whose_part_the_model_lacks_is_named_with_the_reason():
    found = of_example("001", "nanogpt-block")
    lacking = [section.lacking for section in found.sections if section.lacking]
    assert lacking == [
        "0.1 Image → patch tokens: this model reads no image",
        "0.3 Concatenate image+text as one sequence: this model has not an image and a text in one sequence",
    ]
    assert not any(section.shown or section.unfolded for section in found.sections if section.lacking)
    rotated = {s.title: s for s in of_example("002", "nanogpt-block").sections}["RoPE: The Modern Alternative"]
    assert rotated.lacking == "RoPE: The Modern Alternative: this model does not rotate its queries and keys"
    rotated = {s.title: s for s in of_example("002", "rope").sections}["RoPE: The Modern Alternative"]
    assert [one.name.partition("[")[0] for one in rotated.shown][:2] == ["blocks.0.attn.q_unrotated", "blocks.0.attn.q"]


def test_the_image_sections_have_a_captioners_numbers():
    found = sections(of_example("001", "vit-text"))
    section = found["0.1 Image → patch tokens", 153]
    assert [one.name for one in section.shown] == [
        "given.picture[0,0]", "patches.flat[0]", "patches.out[0]", "image_positions.embedding[0]"
    ]  # fmt: skip
    assert not any(section.lacking for section in found.values())


def test_a_model_with_an_encoder_only_is_read_there():
    trace = pencil.trace(_Encoder(), torch.randn(1, 5, 7))
    found = walk("002", Source("runs/mine", trace))
    named = {one.name for s in found.sections for one in s.shown}
    assert "encoder.blocks.0.attn.q[0,0]" in named


def test_large_tensors_are_cut_and_say_so():
    trace = pencil.trace(_Encoder(), torch.randn(1, 5, 7))
    found = walk("002", Source("runs/mine", trace))
    (wide,) = {one for s in found.sections for one in s.shown if one.symbol == "Q_1"}
    assert wide.shape == (1, 1, 13, 11)
    assert np.array(wide.grids[0].rows).shape == RUN_LIMITS[1:]
    assert wide.cut == "8 of 13 rows, 8 of 11 columns"
    (cell,) = {one.title for s in found.sections if s.title == "Queries, Keys, and Values" for one in s.unfolded}
    assert cell == "encoder.blocks.0.attn.q[0,0,1,0]"


def test_an_index_beyond_a_short_input_is_brought_back():
    trace = pencil.trace(_Encoder(tokens=1), torch.randn(1, 5, 7))
    found = walk("002", Source("runs/mine", trace))
    titles = {one.title for s in found.sections for one in s.unfolded}
    assert "encoder.blocks.0.attn.q[0,0,0,0]" in titles


def test_a_run_with_nothing_of_a_document_is_refused():
    class Sum(nn.Module):
        def forward(self, numbers):
            return numbers.sum()

    trace = pencil.trace(Sum(), torch.ones(3))
    with pytest.raises(UserError, match="runs/mine has no tensor that a section of 004 is about"):
        walk("004", Source("runs/mine", trace))


class _Encoder(nn.Module):
    """A module that names one value of a block, inside an encoder."""

    NAMES = {"encoder.blocks.0.attn.q": ("B h T d", "Q", "")}

    def __init__(self, tokens=13):
        super().__init__()
        self.map, self.tokens = nn.Linear(7, 11), tokens

    def forward(self, numbers, probe=OFF):
        made = self.map(numbers)[:, None].repeat(1, 1, 3, 1)[:, :, : self.tokens]
        return probe("encoder.blocks.0.attn.q", made)

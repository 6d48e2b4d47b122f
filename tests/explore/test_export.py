"""The file without a server: its views, its size, and what it says it lacks. And contributions as data."""

import re

import pytest
from json_shapes import ANSWER, ATTENTION, CONTRIBUTIONS, MODEL, PICTURE, PICTURE_OF, check
from shared_page import graph_of, views_of
from small_runs import FIRST, write_run

from pencil.config import UserError
from pencil.explore import export
from pencil.explore.cells import contributions
from pencil.explore.export import export_page
from pencil.explore.outline import outline as outline_of
from pencil.explore.session import Session
from pencil.tracing.graph import Graph
from pencil.tracing.trace_base import TraceBase

SOME = [name if name in ("vit", "captioner", "dit") else pytest.param(name, marks=pytest.mark.long) for name in FIRST]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def get(name, **changed):
        key = (name, *changed.items())
        if key not in made:
            made[key] = Session.open(write_run(name, folder / str(len(made)), **changed))
        return made[key]

    return get


def first(one):
    options = {"steps": 3, "step": 2} if one.profile.draws else {"tokens": 3} if one.profile.writes else {}
    return {"input": {**one.about()["example"], "options": options}}


def parts(page):
    """The graph and the views in a page."""
    return graph_of(page), views_of(page)


@pytest.mark.parametrize("name", SOME)
def test_a_file_has_every_view(session, name, monkeypatch):
    monkeypatch.setattr(export, "MOST_DIVIDED", 12)
    one = session(name)
    graph, views = parts(export_page(one, first(one), "answer"))
    check(views["model"], MODEL)
    check(views["answer"], ANSWER)
    check(views["attention"], ATTENTION)
    check(views["picture"], PICTURE)
    assert views["picture_of"]
    for cell, drawn in views["picture_of"].items():
        check(drawn, PICTURE_OF)
        assert drawn["cell"] == cell
        for lens in drawn["lens"]:
            assert lens["cell"].partition("[")[0] in graph["names"]
    for found in views["contributions"].values():
        check(found, CONTRIBUTIONS)
    cells = [token["cell"] for token in views["answer"].get("tokens", ())] or [graph["start"]]
    for cell in cells:
        found = views["contributions"][f"{cell}||"]
        assert found["value"] == pytest.approx(found["total"], abs=1e-4)
    assert any(key.rpartition("|")[2] for key in views["contributions"])
    assert any("Katas" in line for line in views["left_out"])
    assert not any("tensors" in line for line in views["left_out"])
    assert all(node["key"] or node["plan"] for node in graph["nodes"])
    assert views["view"] == "answer"


def test_a_file_that_would_be_too_large_keeps_what_is_near_the_first_cell(session, monkeypatch):
    one = session("gpt", width=96, hidden=384, context=61, depth=3)
    state = {"input": {"text": "the cat sat on the mat " * 2, "options": {"tokens": 2}}}
    monkeypatch.setattr(export, "MOST_VIEW_BYTES", 150_000)
    monkeypatch.setattr(export, "MOST_DIVIDED", 3)
    whole = len(export_page(one, state).encode())
    monkeypatch.setattr(export, "MOST_FILE_BYTES", 2 * whole // 3)
    page = export_page(one, state)
    assert whole // 2 < len(page.encode()) <= 2 * whole // 3
    graph, views = parts(page)
    assert any(re.search(r"values of \d+ of \d+ tensors", line) for line in views["left_out"])
    names = {node["name"]: node for node in graph["nodes"]}
    assert names["logits"]["key"] or names["logits"]["plan"]
    assert any(node["key"] is None and not node["plan"] for node in graph["nodes"])
    # what is kept unfolds to the same receipt as in the whole trace
    trace = one.record(state)
    kept, _ = export._fitting_nodes(trace, [graph["start"]], 600_000)
    lean = TraceBase(export.Lean(trace.graph, kept), trace.labels, trace.facts)
    from pencil.tracing.receipt import receipt

    node = trace.graph.names["logits"]
    assert str(receipt(lean, node, 5)) == str(receipt(trace, node, 5))
    for i in kept:
        assert isinstance(lean.graph, Graph)
        assert lean.graph.has(i)


@pytest.mark.long
def test_a_model_of_four_blocks_at_256_tokens_fits_into_five_megabytes(session):
    one = session("gpt", width=256, hidden=1024, context=256, depth=4, heads=8)
    page = export_page(one, {"input": {"text": ("the cat sat on the mat " * 12)[:245], "options": {"tokens": 12}}})
    assert len(page.encode()) <= 5_000_000
    assert any("tensors" in line for line in parts(page)[1]["left_out"])


@pytest.mark.parametrize("name", SOME)
def test_contributions_sum_and_divide(session, name):
    one = session(name)
    state = first(one)
    one.record(state)
    key = one.state(state).key
    cell = outline_of(one, key)["start"]
    found = contributions(one, key, cell)
    check(found, CONTRIBUTIONS)
    assert found["value"] == pytest.approx(float(one.trace(key)[cell]), abs=1e-4)
    assert sum(part["value"] for part in found["parts"]) == pytest.approx(found["total"])
    assert abs(found["total"] - found["value"]) <= found["allowed"]
    assert found["held"]
    divided = next(part for part in found["parts"] if part["parts"] and part["kind"] == "head")
    inner = contributions(one, key, cell, part=divided["id"])
    check(inner, CONTRIBUTIONS)
    assert inner["value"] == divided["value"]
    assert sum(part["value"] for part in inner["parts"]) == pytest.approx(divided["value"])
    with pytest.raises(UserError):
        contributions(one, key, cell, part="no such part")
    if name in ("vit", "gpt"):
        name, index = one.trace(key).locate(cell)
        other = (
            one.loaded.classes[0]
            if one.profile.output(one.loaded) == "classes"
            else one.answer(state)["tokens"][0]["top"][3]["label"]
        )
        less = contributions(one, key, cell, other)
        assert less["against"] == other
        at = (
            *index[:-1],
            one.trace(key).labels["K" if name == "vit" else "V"].index(other)
            if "V" in one.trace(key).labels
            else one.loaded.classes.index(other),
        )
        assert less["value"] == pytest.approx(
            float(one.trace(key).array(name)[index] - one.trace(key).array(name)[at]), abs=1e-4
        )

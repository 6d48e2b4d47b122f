"""Katas and documents over HTTP: no answer in the page, graded and kept as in the terminal."""

import json

import pytest
from served import Pretended, serving

from conftest import unchecked
from pencil.explore.katas_and_walks import TRIES
from pencil.learn.katas import KATAS, kata, progress


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_DATA", str(tmp_path))


@pytest.fixture(scope="module", autouse=True)
def quickly():
    """Katas and walks are proved elsewhere; here their shapes need no checking."""
    with unchecked():
        yield


@pytest.fixture(scope="module")
def served(quickly):
    with serving(Pretended()) as found:
        yield found


def standing(name):
    return progress.read(progress.file()).get(name, progress.NEW)


def right(name, seed):
    return [blank.written for blank in kata(name).make(seed).blanks]


def answered(served, name, answers, seed=3, **how):
    return served.post(f"/api/katas/{name}/answer", {"seed": seed, "answers": answers}, **how).data


def test_every_kata_is_listed_with_its_progress(served):
    found = served.get("/api/katas").data
    assert [one["name"] for one in found["katas"]] == list(KATAS)
    assert found["next"] == next(iter(KATAS))
    assert {one["due"] for one in found["katas"]} == {"new"}


@pytest.mark.parametrize("name", ["softmax", "cut", "wrong-cells", "rope"])
def test_a_question_comes_without_its_answers(served, name):
    found = served.get(f"/api/katas/{name}?seed=3").data
    question = kata(name).make(3)
    assert found["ask"] == question.ask
    assert len(found["blanks"]) == len(question.blanks)
    assert set(found) == {
        "kata", "title", "topic", "seed", "drawing", "given", "ask", "digits", "choices", "blanks", "rows",
        "across", "tries_left",
    }  # fmt: skip
    assert all(set(blank) == {"label", "decimals", "words"} for blank in found["blanks"])
    text = json.dumps(found)
    for mistake in question.mistakes:
        assert mistake.hint not in text
    if name == "softmax":
        assert not any(blank.written in text for blank in question.blanks)


def test_numbers_follow_from_the_seed(served):
    same, other, fresh, own = (
        served.get(f"/api/katas/softmax{end}").data for end in ("?seed=3", "?seed=4", "?seed=new", "")
    )
    assert same["given"] != other["given"]
    assert served.get("/api/katas/softmax?seed=3").data == same
    assert served.get(f"/api/katas/softmax?seed={fresh['seed']}").data["given"] == fresh["given"]
    assert own["seed"] is None


def test_a_right_answer_is_counted_once_as_in_the_terminal(served):
    served.get("/api/katas/softmax?seed=3")
    found = answered(served, "softmax", right("softmax", 3))
    assert (found["solved"], found["outcome"], found["due"]) == (True, "solved", "tomorrow")
    assert answered(served, "softmax", right("softmax", 3))["outcome"] is None
    now = standing("softmax")
    assert (now.attempts, now.solved, now.wrong, now.box) == (1, 1, 0, 1)
    listed = {one["name"]: one for one in served.get("/api/katas").data["katas"]}
    assert (listed["softmax"]["attempts"], listed["softmax"]["solved"]) == (1, 1)


def test_a_known_mistake_is_named_and_the_second_try_counts_as_corrected(served):
    question = kata("softmax").make(3)
    mistake = question.mistakes[0]
    served.get("/api/katas/softmax?seed=3")
    found = answered(
        served,
        "softmax",
        [f"{value:.{blank.decimals}f}" for value, blank in zip(mistake.values, question.blanks, strict=True)],
    )
    assert found["hint"] == {"name": mistake.name, "hint": mistake.hint}
    assert (found["solved"], found["tries_left"], found["outcome"]) == (False, TRIES - 1, None)
    assert standing("softmax").attempts == 0
    assert answered(served, "softmax", right("softmax", 3))["outcome"] == "corrected"
    assert (standing("softmax").attempts, standing("softmax").wrong, standing("softmax").box) == (1, 1, 1)


def test_the_last_wrong_try_counts_and_so_does_leaving_after_one(served):
    blanks = len(kata("softmax").make(3).blanks)
    served.get("/api/katas/softmax?seed=3")
    outcomes = [answered(served, "softmax", ["7"] * blanks)["outcome"] for _ in range(TRIES)]
    assert outcomes == [None] * (TRIES - 1) + ["wrong"]
    assert standing("softmax").wrong == 1
    served.get("/api/katas/softmax?seed=4")
    answered(served, "softmax", ["7"] * blanks, seed=4)
    served.get("/api/katas/cut?seed=4")
    assert standing("softmax").wrong == 2


def test_answers_that_cannot_be_read_do_not_count(served):
    blanks = len(kata("softmax").make(3).blanks)
    served.get("/api/katas/softmax?seed=3")
    found = answered(served, "softmax", ["1", "", "x" * 90, "1 2"][:blanks] + ["1"] * (blanks - 4))
    assert found["unread"] == [i for i in (1, 2, 3) if i < blanks]
    assert found["tries_left"] == TRIES


def test_the_working_counts_as_seen_unless_the_exercise_is_done(served):
    served.get("/api/katas/softmax?seed=3")
    found = served.post("/api/katas/softmax/working", {"seed": 3}).data
    question = kata("softmax").make(3)
    assert found["working"] == list(map(str, question.working))
    assert found["answers"][0] == f"{question.blanks[0].label} = {question.blanks[0].written}"
    assert found["outcome"] == "seen"
    assert answered(served, "softmax", right("softmax", 3))["outcome"] is None  # copied, not solved
    assert (standing("softmax").attempts, standing("softmax").seen, standing("softmax").solved) == (1, 1, 0)
    served.get("/api/katas/cut?seed=3")
    answered(served, "cut", right("cut", 3))
    assert served.post("/api/katas/cut/working", {"seed": 3}).data["outcome"] is None
    assert standing("cut").seen == 0


def test_two_pages_work_on_their_own_questions(served):
    other = served.new_page()
    blanks = len(kata("softmax").make(3).blanks)
    served.get("/api/katas/softmax?seed=3")
    served.get("/api/katas/softmax?seed=3", token=other)
    answered(served, "softmax", ["7"] * blanks, token=other)
    assert answered(served, "softmax", right("softmax", 3))["outcome"] == "solved"
    assert answered(served, "softmax", right("softmax", 3), token=other)["outcome"] == "corrected"


@pytest.mark.parametrize(
    "body, status",
    [({"seed": 3}, 400), ({"seed": 3, "answers": "1"}, 400), ({"seed": 3, "answers": [1]}, 400), ({"seed": -1, "answers": []}, 400),
     ({"seed": True, "answers": []}, 400), ({"seed": 3, "answers": ["1"] * 1001}, 413), ({"seed": 3, "answers": ["1"] * 50}, 400)],
)  # fmt: skip
def test_answers_of_other_shapes_are_refused(served, body, status):
    assert served.post("/api/katas/softmax/answer", body).status == status
    assert served.get("/api/katas/softmax?seed=x").status == 400
    assert standing("softmax").attempts == 0


def test_a_damaged_progress_file_is_set_aside(served, tmp_path):
    (tmp_path / "katas.json").write_text("{")
    assert served.get("/api/katas").status == 200
    assert (tmp_path / "katas.json.damaged").exists()


# ---- documents


def test_the_documents_are_listed(served):
    listed = served.get("/api/documents").data["documents"]
    assert [one["number"] for one in listed] == ["000", "001", "002", "003", "004"]
    assert served.get("/api/documents/999").status == 404


def test_a_document_has_the_sections_of_its_walk_and_its_own_numbers(served):
    from pencil.learn.walks import walk

    found, expected = served.get("/api/documents/004").data, walk("004")
    assert [one["title"] for one in found["sections"]] == [one.title for one in expected.sections]
    shown = [(one["name"], one["grids"]) for section in found["sections"] for one in section["shown"]]
    told = [(one.name, len(one.grids)) for section in expected.sections for one in section.shown]
    assert [(name, len(grids)) for name, grids in shown] == told
    verdicts = {one["verdict"] for s in found["sections"] for c in s["compared"] for row in c["rows"] for one in row}
    assert verdicts >= {"right"}
    first = next((i, 0) for i, section in enumerate(expected.sections) if section.figures)
    picture = served.get(f"/api/documents/004/figure?section={first[0]}&figure=0").data["picture"]
    assert picture.startswith("data:image/png;base64,iVBOR")
    assert served.get("/api/documents/004/figure?section=999").status == 404

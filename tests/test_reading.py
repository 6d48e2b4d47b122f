"""docs/learn/reading.md: its excerpts are the source as it is, short enough to be read, each with a paragraph."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("reading", ROOT / "tools" / "reading.py")
reading = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reading)
PAGE = reading.PAGE.read_text(encoding="utf-8")


def test_the_excerpts_are_those_of_the_source():
    assert reading.stale(PAGE) == [], "python tools/reading.py writes them anew"
    assert len(reading.EXCERPT.findall(PAGE)) == PAGE.count("```python")


def test_it_can_be_read_in_one_sitting():
    assert 500 < reading.count_lines(PAGE) <= 1500


def test_every_excerpt_has_a_paragraph():
    sections = re.split(r"^### ", PAGE, flags=re.M)[1:]
    for section in sections:
        words = re.sub(r"<!--.*?```\n(?=\n|$)", "", reading.EXCERPT.sub("", section), flags=re.S).split()
        assert len(words) > 25, section.splitlines()[0]
        assert reading.EXCERPT.search(section)


def test_a_changed_or_missing_definition_is_noticed():
    first = reading.EXCERPT.search(PAGE)
    assert first is not None
    changed = PAGE.replace(first[3], first[3] + "    pass\n")
    assert reading.stale(changed) == [f"{first[1]}: {first[2]}"]
    assert reading.refreshed(changed) == PAGE
    with pytest.raises(LookupError, match=r"core/embed.py has no Words"):
        reading.excerpt("core/embed.py", "Words")


def test_the_page_has_prose_and_code_side_by_side():
    page = reading.as_html(PAGE)
    assert page.count("<pre>") == len(reading.EXCERPT.findall(PAGE))
    assert "src/pencil/core/attention.py, line " in page
    assert "class GPT(" in page
    assert "<!--" not in page

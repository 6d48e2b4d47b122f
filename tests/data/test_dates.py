import calendar
import re
import time
from datetime import date, datetime

import numpy as np
import pytest

from pencil.data.tables import generated_dates
from pencil.data.tables.generated_dates import ABBREVIATED, CHARACTERS, FORMS, NUMBERED, SPELLED, Dates

MONTH = r"(?:january|february|march|april|may|june|july|august|september|october|november|december)"
SHORT = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sept|sep|oct|nov|dec)"
UNITS = "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth".split()
TENS = {"twentieth": 20, "thirtieth": 30, "twenty": 20, "thirty": 30}


def rng(key):
    return np.random.Generator(np.random.Philox(key=key))


def ordinal(word):
    ten, _, unit = word.partition("-")
    return TENS[ten] + (UNITS.index(unit) if unit else 0) if ten in TENS else UNITS.index(ten)


def of_century(source):
    """Whether the year has two digits."""
    return not re.search(r"\d{4}", source)


def by(pattern):
    return lambda text: datetime.strptime(text, pattern).date()


def short_month(text):
    """The month's letters cut to three, which strptime knows."""
    return re.sub(r"[a-z]+\.?", lambda word: word[0][:3], text)


# how each form looks, in small letters, and what Python makes of it: strptime reads years of two digits from 69 on as
# 19xx, so these are set straight by the rule that they lie from 1950 to 2049
READERS = {
    rf"the \d\d?(?:st|nd|rd|th) of {MONTH}, \d{{4}}": lambda t: by("the %d of %B, %Y")(re.sub(r"(?<=\d)[a-z]+", "", t)),
    rf"the [a-z-]+ of {MONTH}, \d{{4}}": lambda t: by("%d of %B, %Y")(f"{ordinal(t.split()[1])} {t.split(maxsplit=2)[2]}"),
    rf"\d\d? {MONTH} \d{{4}}": by("%d %B %Y"),
    rf"\d\d? {SHORT}\.? \d{{4}}": lambda t: by("%d %b %Y")(short_month(t)),
    rf"{MONTH} \d\d?, \d{{4}}": by("%B %d, %Y"),
    rf"{MONTH} \d\d?(?:st|nd|rd|th), \d{{4}}": lambda t: by("%B %d, %Y")(re.sub(r"(?<=\d)[a-z]+", "", t)),
    rf"{SHORT}\.? \d\d?, \d{{4}}": lambda t: by("%b %d, %Y")(short_month(t)),
    rf"[a-z]+day, \d\d? {MONTH} \d{{4}}": by("%A, %d %B %Y"),
    rf"[a-z]{{3}} \d\d? {MONTH} \d{{4}}": by("%a %d %B %Y"),
    rf"\d{{4}} {MONTH} \d\d?": by("%Y %B %d"),
    r"\d\d?\.\d\d?\.\d{4}": by("%d.%m.%Y"),
    r"\d\d?/\d\d?/\d{4}": by("%m/%d/%Y"),
    r"\d{8}": by("%Y%m%d"),
    rf"\d\d? {MONTH} \d\d": by("%d %B %y"),
    rf"\d\d?-{SHORT}-\d\d": by("%d-%b-%y"),
    r"\d\d\.\d\d\.\d\d": by("%d.%m.%y"),
    r"\d\d/\d\d/\d\d": by("%m/%d/%y"),
}  # fmt: skip


def read(source):
    """The days a source may mean, by Python's own parser, and which forms it looks like."""
    text = source.lower()
    forms = [pattern for pattern in READERS if re.fullmatch(pattern, text)]
    days = {READERS[pattern](text) for pattern in forms}
    if of_century(text):
        days = {day.replace(year=day.year - 100 if day.year >= 2050 else day.year) for day in days}
    for day in days:
        named = re.match(r"([a-z]+)(day,| \d+ [a-z]+ \d{4}$)", text)
        if named:
            assert calendar.day_abbr[calendar.weekday(day.year, day.month, day.day)].lower() == text[:3], source
    return days, forms


@pytest.mark.parametrize("held_out", [False, True], ids=["train", "test"])
def test_python_reads_the_same_day_in_every_source_and_no_other(held_out):
    met = set()
    for source, target in Dates().draw(rng(3), 7919, held_out):
        days, forms = read(source)
        assert days == {date.fromisoformat(target)}, source
        met.update(forms)
    assert met == set(READERS)
    assert len(READERS) == len(FORMS)


def test_each_form_is_written_as_it_should_be():
    values = [(i + 0.5) / len(FORMS) for i in range(len(FORMS))]
    assert [generated_dates._pair(date(1999, 5, 3), form, 0, 0.5) for form in values] == [(source, "1999-05-03") for source in (
        "the 3rd of May, 1999", "the third of May, 1999", "3 May 1999", "3 May 1999", "May 3, 1999", "May 3rd, 1999",
        "May 3, 1999", "Monday, 3 May 1999", "Mon 3 May 1999", "1999 May 3", "3.5.1999", "5/3/1999", "19990503",
        "3 May 99", "3-May-99", "03.05.99", "05/03/99",
    )]  # fmt: skip
    day = date(2005, 9, 21)
    shorts = {generated_dates._pair(day, 3.5 / len(FORMS), short, 0.5)[0] for short in (0.1, 0.3, 0.6, 0.9)}
    assert shorts == {"21 Sep 2005", "21 Sep. 2005", "21 Sept 2005", "21 Sept. 2005"}
    assert generated_dates._pair(day, 1.5 / len(FORMS), 0, 0)[0] == "the twenty-first of september, 2005"
    assert generated_dates._pair(day, 0, 0, 0.95)[0] == "THE 21ST OF SEPTEMBER, 2005"


def test_the_words_for_days_are_english():
    assert len(SPELLED) == len(NUMBERED) == 31
    assert [ordinal(word) for word in SPELLED] == list(range(1, 32))
    endings = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
    assert list(NUMBERED) == [f"{day}{endings.get(day, 'th')}" for day in range(1, 32)]
    assert [month[0] for month in ABBREVIATED] == list(calendar.month_abbr)[1:]


def test_years_of_two_digits_are_1950_to_2049():
    years = {int(target[:4]) for source, target in Dates().draw(rng(5), 20011) if of_century(source)}
    assert (min(years), max(years)) == (1950, 2049)
    assert len(years) == 100


def test_every_edge_of_the_range_is_among_the_days():
    trained, held = generated_dates._days(False), generated_dates._days(True)
    every = np.sort(np.concatenate([trained, held])).tolist()
    assert every == list(range(date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal() + 1))
    assert len(held) == len(every) // 10
    # fixed for every machine and numpy version
    assert [date.fromordinal(day).isoformat() for day in held[:7].tolist()] == [
        "1900-01-01", "1900-01-22", "1900-02-08", "1900-02-13", "1900-02-24", "1900-03-08", "1900-03-11",
    ]  # fmt: skip
    decades = np.bincount([date.fromordinal(day).year // 10 - 190 for day in held.tolist()], minlength=20)
    assert decades.min() > 0.08 * 3652
    assert decades.max() < 0.12 * 3653


def test_held_out_days_are_never_trained_on():
    trained = {target for _, target in Dates().draw(rng(7), 20_000)}
    tested = {target for _, target in Dates().draw(rng(7), 20_000, held_out=True)}
    assert len(trained) > 15_000
    assert len(tested) > 6_000
    assert not trained & tested


def test_the_characters_are_those_that_occur_and_no_more():
    drawn = [*Dates().draw(rng(11), 20_011), *Dates().draw(rng(11), 20_011, held_out=True)]
    assert "".join(sorted(set("".join(text for pair in drawn for text in pair)))) == CHARACTERS
    assert len(set(CHARACTERS)) == len(CHARACTERS)


def test_one_in_ten_is_in_small_letters_and_one_in_capitals():
    sources = [source for source, _ in Dates().draw(rng(13), 9973) if re.search("[A-Za-z]{3}", source)]
    for same in (str.islower, str.isupper):
        assert 0.08 < sum(map(same, sources)) / len(sources) < 0.12


def test_the_same_generator_draws_the_same_dates():
    mine, other = rng(17), rng(17)
    first = Dates().draw(mine, 31)
    assert first == Dates().draw(other, 31)
    second = Dates().draw(mine, 31)
    assert second == Dates().draw(other, 31)
    assert first != second
    assert Dates().draw(mine, 0) == []


def test_a_batch_is_drawn_in_a_blink():
    generator, given = rng(19), []
    Dates().draw(generator, 64)
    for _ in range(11):
        begin = time.process_time()
        Dates().draw(generator, 64)
        given.append(time.process_time() - begin)
    assert min(given) < 0.002

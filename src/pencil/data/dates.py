"""Dates as people write them, each with the same day in ISO: an endless data set that needs no file."""

import re
from datetime import date
from functools import lru_cache

import numpy as np

VERSION = 1  # of the days held out, the forms and the order they are drawn in: a change in any raises it
FIRST, LAST = date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal()
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
ABBREVIATED = tuple(
    ("May",) if month == "May" else (month[:3], month[:3] + ".", *(("Sept", "Sept.") if month == "September" else ()))
    for month in MONTHS
)
_UNITS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
SPELLED = (
    *_UNITS,
    "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth",
    "nineteenth", "twentieth", *(f"twenty-{unit}" for unit in _UNITS), "thirtieth", "thirty-first",
)  # fmt: skip
NUMBERED = tuple(
    f"{day}{'th' if 11 <= day <= 13 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}" for day in range(1, 32)
)
FULL = (
    "the {nth} of {month}, {year}",
    "the {spelled} of {month}, {year}",
    "{day} {month} {year}",
    "{day} {short} {year}",
    "{month} {day}, {year}",
    "{month} {nth}, {year}",
    "{short} {day}, {year}",
    "{weekday}, {day} {month} {year}",
    "{weekday:.3} {day} {month} {year}",
    "{year} {month} {day}",
    "{day}.{number}.{year}",
    "{number}/{day}/{year}",
    "{year}{number:02}{day:02}",
)
TWO_DIGITS = (
    "{day} {month} {of_century:02}",
    "{day}-{month:.3}-{of_century:02}",
    "{day:02}.{number:02}.{of_century:02}",
    "{number:02}/{day:02}/{of_century:02}",
)
FORMS = FULL + TWO_DIGITS


def _characters() -> str:
    words = (*WEEKDAYS, *MONTHS, *SPELLED, *NUMBERED, *(short for month in ABBREVIATED for short in month))
    text = "".join((*words, *(re.sub(r"\{.*?\}", "", form) for form in FORMS), "0123456789-"))
    return "".join(sorted(set(text + text.lower() + text.upper())))


CHARACTERS = _characters()  # every one that a source or a target can hold


@lru_cache
def _days(held_out: bool) -> np.ndarray:
    """The days held out, a tenth of all, or the others; by the raw numbers of a keyed generator, alike everywhere."""
    count = LAST - FIRST + 1
    order = np.random.Philox(key=0).random_raw(count).argsort(kind="stable")
    return FIRST + np.sort(order[: count // 10] if held_out else order[count // 10 :])


class Dates:
    """Pairs of a date as somebody would write it and the same day in ISO, from 1900-01-01 to 2099-12-31.

    Each source means one day only, by these rules:
    - between dots the day comes first (3.5.1999), between slashes the month (5/3/1999);
    - eight digits are the year, the month and the day (19990503);
    - a year of two digits is 1950 to 1999 from 50 on and 2000 to 2049 below, so only those years are written so;
    - the word for a month is its name, its first three letters, or Sept, with a full stop after it or none;
    - a weekday is the true one;
    - the case of letters says nothing: one source in ten is all in small letters, one all in capitals.

    A tenth of the days is held out: training pairs never name one of these, in any form. `draw` gives pairs for a
    random generator.
    """

    def draw(self, rng: np.random.Generator, count: int, held_out: bool = False) -> list[tuple[str, str]]:
        """`count` pairs of a source and its ISO date; `held_out` takes only days kept for the test."""
        days = _days(held_out)
        which = rng.integers(0, len(days), count)
        chances = rng.random((count, 3)).tolist()
        return [_pair(date.fromordinal(n), *chance) for n, chance in zip(days[which].tolist(), chances, strict=True)]

    def longest(self) -> list[tuple[str, str]]:
        """One day in every form: none is written longer in any."""
        day, shorts = date(2000, 9, 27), 0.99
        return [_pair(day, (i + 0.5) / len(FORMS), shorts, 0.5) for i in range(len(FORMS))]


def _pair(day: date, form: float, short: float, case: float) -> tuple[str, str]:
    """A day written in a form, an abbreviation and a case, each chosen by a number from 0 to 1."""
    forms = FORMS if 1950 <= day.year < 2050 else FULL
    shorts = ABBREVIATED[day.month - 1]
    source = forms[int(form * len(forms))].format(
        day=day.day,
        nth=NUMBERED[day.day - 1],
        spelled=SPELLED[day.day - 1],
        weekday=WEEKDAYS[day.weekday()],
        number=day.month,
        month=MONTHS[day.month - 1],
        short=shorts[int(short * len(shorts))],
        year=day.year,
        of_century=day.year % 100,
    )
    return source.lower() if case < 0.1 else source.upper() if case >= 0.9 else source, day.isoformat()

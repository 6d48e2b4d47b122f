"""Dates as people write them, each with its ISO date: an endless data set of pairs, generated on the fly."""

import re
from datetime import date
from functools import lru_cache

import numpy as np

VERSION = 1  # raised by any change of the held-out days, the forms, or the order of random draws
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


CHARACTERS = _characters()  # all that occur in sources and targets


@lru_cache
def _days(held_out: bool) -> np.ndarray:
    """The held-out days, a tenth of all, or the others; from raw generator output, so equal on every numpy version."""
    count = LAST - FIRST + 1
    order = np.random.Philox(key=0).random_raw(count).argsort(kind="stable")
    return FIRST + np.sort(order[: count // 10] if held_out else order[count // 10 :])


class Dates:
    """Pairs of a date as a person writes it and its ISO form, from 1900-01-01 to 2099-12-31.

    Each source is one day only, by these rules:
    - with full stops the day comes first (3.5.1999), with slashes the month (5/3/1999);
    - eight digits are the year, the month and the day (19990503);
    - a year of two digits is 1950 to 1999 from 50 on and 2000 to 2049 below; other years always have four digits;
    - a month is its name, its first three letters, or Sept, with or without a full stop;
    - a weekday is the true one;
    - letter case has no meaning: one source in ten is all lower case, one in ten all upper case.

    A tenth of the days is held out: no training pair has one of these, in any form. `draw` samples pairs with a
    generator.
    """

    def draw(self, rng: np.random.Generator, count: int, held_out: bool = False) -> list[tuple[str, str]]:
        """`count` pairs of a source and its ISO date; `held_out` uses only the held-out days."""
        days = _days(held_out)
        which = rng.integers(0, len(days), count)
        values = rng.random((count, 3)).tolist()
        return [_pair(date.fromordinal(n), *row) for n, row in zip(days[which].tolist(), values, strict=True)]

    def longest(self) -> list[tuple[str, str]]:
        """A day with the longest spelling, in every form."""
        day, shorts = date(2000, 9, 27), 0.99
        return [_pair(day, (i + 0.5) / len(FORMS), shorts, 0.5) for i in range(len(FORMS))]


def _pair(day: date, form: float, short: float, case: float) -> tuple[str, str]:
    """A day in a form, an abbreviation and a letter case, each chosen by a value in [0, 1)."""
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

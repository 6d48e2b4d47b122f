"""The commands kata and kata grade."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Annotated

from cyclopts import App, Parameter

from ..config import UserError
from ..console import note
from ..learn.katas import KATAS, kata, sheets
from ..learn.katas import page as sections
from ..learn.katas.progress import Record
from .screens.exercise import Screen, ask
from .screens.kata_sheets import PLAIN, SHEET, Printing, grade, printed, printed_page

app = App(name="kata", version_flags=())
app.command(grade)
now: Callable[[], datetime] = datetime.now
Flag = Annotated[bool, Parameter(negative=())]


@app.default
def exercise(
    *names: str,
    new: Flag = False,
    seed: int | None = None,
    page: str | None = None,
    every: Annotated[bool, Parameter(name="--list", negative=())] = False,
    topic: str | None = None,
    printing: Printing = PLAIN,
) -> int:
    """Exercises to work by hand: shows the next one, and its working after your answer.

    Type one number a line, or all on one line; ? shows the working (counted as seen, not solved), q quits.

    Parameters
    ----------
    names
        The exercise, with the numbers of its document; several with --print. Without a name: one that is due, else the
        next new one.
    new
        Use fresh numbers.
    seed
        Use the fresh numbers of this seed again.
    page
        All exercises of a document in its order: 000 to 004. With --out they are written as a page to print.
    every
        List all exercises and your progress.
    topic
        Only exercises of this topic; --list shows the topics.
    """
    options = {"a name": names or None, "--page": page, "--list": every, "--new": new, "--seed": seed, "--topic": topic}
    _fit_together(options | printing.options())
    for name in names:
        kata(name)
    if seed is not None and seed < 0:
        raise UserError(f"--seed is 0 or more, not {seed}")
    if printing.count is not None:
        return printed(names, topic, seed, printing)
    if page is not None and any(printing.options().values()):
        return printed_page(page, seed, new, printing)
    if len(names) > 1:
        raise UserError(f"several exercises ({', '.join(names)}) make a worksheet: add --print and their number")
    record = Record(note, lambda: now())
    if every:
        return _list(topic, record)
    if page is not None:
        return _page(page, random.SystemRandom().randrange(10_000) if new else seed, record)
    chosen = names[0] if names else _next(topic, record)
    if chosen is None:
        return 0
    if seed is None and (new or (not names and chosen in record.standings)):
        seed = random.SystemRandom().randrange(10_000)  # an exercise that comes back has fresh numbers
    screen = Screen()
    outcome, _ = ask(kata(chosen).make(seed), screen)
    record.add(chosen, outcome)
    if outcome is not None:
        when = "today, with fresh numbers" if record.when(chosen) == "due" else record.when(chosen)
        screen.write(f"{chosen} comes back {when}. Next: pencil kata", "dim")
    return 0


# the options that each task allows
ALLOWED = {
    "--page": ("--new", "--seed", *SHEET),
    "--list": ("--topic",),
    "--print": ("a name", "--topic", "--seed", *SHEET),
    "": ("a name", "--topic", "--new", "--seed"),
}


def _fit_together(values: dict[str, object]) -> None:
    """Refuse options that cannot be combined."""
    options = [word for word, value in values.items() if value is not None and value is not False]
    task = next((word for word in ALLOWED if word in options), "")
    for word in options:
        if word != task and word not in ALLOWED[task]:
            if not task:
                raise UserError(f"{word} is for a worksheet: add --print and the number of exercises")
            raise UserError(f"{task} and {word} do not go together")
    for one, other in (("a name", "--topic"), ("--new", "--seed")):
        if one in options and other in options:
            raise UserError(f"{one} and {other} do not go together")
    if "--seed" in options and not task and "a name" not in options:
        raise UserError("--seed repeats the numbers of one exercise: name it, as in pencil kata softmax --seed 7")


# ---- progress


def _names(topic: str | None) -> list[str]:
    wanted = None if topic is None else sheets.topic(topic)
    return [name for name, kata in KATAS.items() if wanted in (None, kata.topic)]


def _next(topic: str | None, record: Record) -> str | None:
    """The exercise that is due or new; if there is none, None, and a message about the next one."""
    names = _names(topic)
    chosen = record.following(names)
    if chosen is None:
        soonest = min(names, key=lambda name: record.of(name).due or now().date())
        when = record.when(soonest)
        screen = Screen()
        screen.write(f"Nothing is due today; {soonest} comes back {when}.")
        screen.write(f"To practise now: pencil kata {soonest} --new")
    return chosen


def _page(name: str, seed: int | None, record: Record) -> int:
    """All exercises of a page, one after the other."""
    screen, done = Screen(), Counter()
    page = [
        (section if not i else None, question)
        for section in sections(name, seed)
        for i, question in enumerate(section.questions)
    ]
    for i, (section, question) in enumerate(page, 1):
        if section is not None:
            screen.write(section.title, "bold")
            screen.write(f"{section.about}{chr(10) if section.about else ''}", "dim")
        screen.write(f"{i} of {len(page)}", "dim")
        outcome, left = ask(question, screen)
        if question.kata in KATAS:  # the others belong to the page alone
            record.add(question.kata, outcome)
        done[outcome] += 1
        if left:
            break
        screen.write()
    screen.write(f"{done['solved']} of {len(page)} right at once, {done['corrected']} after a wrong answer.", "bold")
    return 0


def _list(topic: str | None, record: Record) -> int:
    """All exercises by topic, with the learner's progress."""
    screen, last = Screen(), None
    names = _names(topic)
    wide = max(map(len, names))
    for name in sorted(names, key=lambda name: [kata.topic for kata in KATAS.values()].index(KATAS[name].topic)):
        kata, standing = KATAS[name], record.of(name)
        if kata.topic != last:
            screen.write(f"{chr(10) if last else ''}{kata.topic}", "bold")
        last = kata.topic
        score = f", {standing.solved} of {standing.attempts} solved" if standing.attempts else ""
        screen.write(f"{name:{wide}}  {kata.title}", indent=2)
        if standing.attempts:
            screen.write(f"{'':{wide}}  {record.when(name)}{score}", "dim", indent=2)
    tried = [name for name in names if record.of(name).attempts]
    due = [name for name in tried if record.when(name) == "due"]
    screen.write(f"\n{len(names)} exercises: {len(names) - len(tried)} new, {len(due)} due.")
    return 0

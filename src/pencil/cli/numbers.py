"""How values on the command line are read: a whole number is never rounded."""

import re
from collections.abc import Sequence
from typing import Any, get_args

from cyclopts import Parameter, Token, convert


def _whole(kind: Any, tokens: Sequence[Token]) -> Any:
    """A value of its type; where a whole number is wanted, 1.5 is refused, not rounded."""
    if int in (kind, *get_args(kind)):
        for token in tokens:
            if re.fullmatch(r"[+-]?\d*\.\d+", token.value) and float(token.value) % 1:
                raise ValueError(f"{token.value} is not a whole number")
    return convert(kind, tokens)


PARAMETERS = Parameter(converter=_whole)

"""What enforces the shapes and types under pytest; a whole number may stand for a real one, as in plain Python."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))

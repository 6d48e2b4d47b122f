"""The five documents, walked section by section: text and data, drawn by the terminal and by a page."""

from .data import documents
from .sections import Compared, Section, Source, Unfolded, Walk, walk
from .tables import Shown

__all__ = ["Compared", "Section", "Shown", "Source", "Unfolded", "Walk", "documents", "walk"]

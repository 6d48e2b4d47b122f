"""The five documents, walked section by section: text and data, drawn by the terminal and by a page.

A walk is data. `examples/walks` has an entry for each section of a document: our words, its questions, the tensors, the
cell to unfold. Printed numbers and claims come from the example's own file, by the lines of the section. `learn/walks`
makes plain records of them; the terminal and the page only draw these.
"""

from .data import documents
from .sections import Compared, Section, Source, Unfolded, Walk, walk
from .tables import Grid, Shown

__all__ = ["Compared", "Grid", "Section", "Shown", "Source", "Unfolded", "Walk", "documents", "walk"]

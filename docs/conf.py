"""The site of `make docs`: Sphinx with MyST, so that the pages stay the Markdown that is read in the repository too."""

project = "Pencil"
author = "The authors of Pencil"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "Pencil"
html_extra_path = ["vit-4x4.html"]
exclude_patterns = ["README.md"]  # index.rst includes it
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # Pygments has no lexer for CSV

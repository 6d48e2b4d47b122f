"""The page as the server gives it out: an empty document with the token, and the built application."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..console import visible
from .errors import Unknown

FILES = Path(__file__).parents[1] / "page"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="token" content="{token}">
<meta name="command" content="{command}">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/app.css">
</head>
<body>
<div id="app"></div>
<noscript><p>This page computes and draws with JavaScript: allow it for this address.</p></noscript>
<script type="module" src="/app.js"></script>
</body>
</html>
"""


def page(names: Sequence[str], token: str, command: str) -> str:
    """The document; its title is the names of the models, and `command` is what starts the server again."""
    title = " and ".join(visible(name, one_line=True) for name in names)
    command = visible(command, one_line=True)
    return PAGE.format(token=escape(token), title=escape(f"{title} · Pencil"), command=escape(command))


def built(name: str) -> bytes:
    """A file of the built application."""
    try:
        return (FILES / name).read_bytes()
    except OSError:
        raise Unknown(f"the page was not built: {name} is missing; run make page in the checkout of Pencil") from None

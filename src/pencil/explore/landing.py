"""The page as the server gives it out: an empty document, the same for everyone, and the built application."""

from pathlib import Path

from .errors import Unknown

FILES = Path(__file__).parents[1] / "page"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Pencil</title>
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


def built(name: str) -> bytes:
    """A file of the built application."""
    try:
        return (FILES / name).read_bytes()
    except OSError:
        raise Unknown(f"the page was not built: {name} is missing; run make page in the checkout of Pencil") from None

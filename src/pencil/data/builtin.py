"""Data sets that come with Python or with the package: nothing to download."""

from collections.abc import Callable


def pydoc() -> str:
    """Python's own documentation topics, which every CPython carries."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


TEXTS: dict[str, Callable[[], str]] = {"pydoc": pydoc}

"""Under pytest the shapes that functions annotate are enforced; a process that a test starts runs as it does for a user."""

from pathlib import Path

from jaxtyping import install_import_hook

SRC = Path(__file__).parents[2] / "src"


def modules_with_shapes() -> list[str]:
    """The modules that annotate the shapes of tensors: checking every call of all the others takes half of the suite."""
    return [
        ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((SRC / "pencil").rglob("*.py"))
        if "from jaxtyping import" in path.read_text(encoding="utf-8")
    ]


install_import_hook(modules_with_shapes(), "typechecker.checked")

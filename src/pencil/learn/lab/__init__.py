"""The removal lab: each part of a transformer is removed, and what breaks is measured.

Each module in FILES has a tuple CLAIMS.

The lab removes parts from outside. A model is built whole, then a module of it is replaced; `core` and `models` know
nothing of the lab. A claim states its least effect beforehand, and is tested on seeds that were not used to design it.
"""

from importlib import import_module

from ...config import UserError
from .claim import Claim

# in the order they are listed and run
FILES = (
    "claims_scores",
    "claims_residual",
    "claims_order",
    "claims_training",
    "claims_cache",
    "claims_attention",
    "claims_parts",
    "claims_images",
    "claims_recurrent",
)


def claims() -> dict[str, Claim]:
    """Every claim by its name."""
    found = [claim for file in FILES for claim in import_module(f".{file}", __name__).CLAIMS]
    return {claim.name: claim for claim in found}


def claim_of(name: str) -> Claim:
    """The claim of that name."""
    known = claims()
    if name not in known:
        raise UserError(f"there is no claim {name}; known: {', '.join(known)}")
    return known[name]

"""The removal lab: each part of a transformer is removed, and what breaks is measured.

Each module in MODULES has a tuple CLAIMS.

The lab removes parts from outside. A model is built whole, then a module of it is replaced; `core` and `models` know
nothing of the lab. A claim states its least effect beforehand, and is tested on seeds that were not used to design it.
"""

from importlib import import_module

from ...config import UserError
from .claim import Claim

MODULES = "claims_attention", "claims_blocks", "claims_positions", "claims_images", "claims_recipe"
# in the order they are listed and run
NAMES = (
    "scaling", "residual", "layernorm", "pre-norm", "positions", "causal-mask", "warm-up", "embedding-scale",
    "kv-cache", "heads", "heads-cost", "qkv", "ffn", "ffn-facts", "switch", "cross-attention", "swap", "batchnorm",
    "dropout", "label-smoothing", "averaging", "ada-zero", "unet", "rnn-time", "rnn-gradient", "rnn-recall",
)  # fmt: skip


def claims() -> dict[str, Claim]:
    """Every claim by its name."""
    by_name = {claim.name: claim for module in MODULES for claim in import_module(f".{module}", __name__).CLAIMS}
    return {name: by_name[name] for name in NAMES}


def claim_of(name: str) -> Claim:
    """The claim of that name."""
    if name not in NAMES:
        raise UserError(f"there is no claim {name}; known: {', '.join(NAMES)}")
    return claims()[name]

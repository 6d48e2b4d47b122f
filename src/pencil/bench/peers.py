"""Models of other libraries with our weights: those that are installed, and those of a folder that the user names."""

import contextlib
import importlib
import importlib.util
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ..config import UserError
from ..weights.dit import DIT
from ..weights.gpt2 import GPT2
from ..weights.llama_original import LLAMA_ORIGINAL
from ..weights.maps import Architecture, write
from ..weights.nanogpt import NANOGPT
from ..weights.timm_vit import TIMM_VIT

# what model.py of a folder defines, and whose it then is
FOLDERS = {"nanoGPT": ("GPT", "GPTConfig"), "gpt-fast": ("Transformer", "ModelArgs")}


class Peers:
    """The libraries to compare with, each loaded once, when it is first asked for."""

    def __init__(
        self, installed: bool = False, folders: tuple[Path, ...] = (), notify: Callable[[str], None] | None = None
    ):
        self.installed, self.notify, self._missing = installed, notify, set[str]()
        self.modules = dict(map(_load, folders))

    def package(self, name: str) -> Any:
        """An installed package, if packages are compared; None, with a notice, where it cannot be imported."""
        if not self.installed:
            return None
        try:
            return importlib.import_module(name)
        except ImportError as error:
            if name not in self._missing and self.notify is not None:
                self.notify(f"{name} is left out: {error}")
            self._missing.add(name)
            return None

    def transformers_gpt(self, ours: Any) -> nn.Module | None:
        if (library := self.package("transformers")) is None:
            return None
        fields = {name: value for name, value in _described(GPT2, ours).items() if name != "architectures"}
        config = library.GPT2Config(
            **fields, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=None, eos_token_id=None
        )
        return filled(library.GPT2LMHeadModel(config), GPT2, ours)

    def timm_vit(self, ours: Any) -> nn.Module | None:
        if (library := self.package("timm")) is None:
            return None
        theirs = _described(TIMM_VIT, ours)
        made = library.create_model(
            theirs["architecture"],
            img_size=ours.config.image_size,
            in_chans=ours.config.channels,
            num_classes=ours.config.classes,
            **theirs.get("model_args", {}),
        )
        return filled(made, TIMM_VIT, ours)

    def diffusers_dit(self, ours: Any) -> nn.Module | None:
        if (library := self.package("diffusers")) is None:
            return None
        fields = {name: value for name, value in _described(DIT, ours).items() if not name.startswith("_")}
        return filled(library.DiTTransformer2DModel(**fields), DIT, ours)

    def nanogpt(self, ours: Any) -> nn.Module | None:
        module, c = self.modules.get("nanoGPT"), ours.config
        if module is None:
            return None
        sizes = dict(vocab_size=c.vocab, block_size=c.context, n_layer=c.depth, n_head=c.heads, n_embd=c.width)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its size
            theirs = module.GPT(module.GPTConfig(**sizes, bias=c.bias, dropout=0.0))
        return filled(theirs, NANOGPT, ours)

    def gpt_fast(self, ours: Any) -> nn.Module | None:
        module, c = self.modules.get("gpt-fast"), ours.config
        if module is None:
            return None
        args = module.ModelArgs(
            block_size=c.context,
            vocab_size=c.vocab,
            n_layer=c.depth,
            n_head=c.heads,
            dim=c.width,
            intermediate_size=c.mlp_width,
            n_local_heads=c.kv_heads or c.heads,
            rope_base=c.rope_theta,
            norm_eps=c.eps,
        )
        return filled(module.Transformer(args), LLAMA_ORIGINAL, ours)


def _described(architecture: Architecture, ours: Any) -> dict[str, Any]:
    assert architecture.describe is not None
    return architecture.describe(ours.config)


def filled(theirs: nn.Module, architecture: Architecture, ours: Any) -> nn.Module:
    """Their model with our weights, on our device."""
    tensors = dict(write(architecture, ours.state_dict(), ours.config))
    unknown = theirs.load_state_dict(tensors, strict=False).unexpected_keys
    if unknown:
        raise UserError(f"this version of {architecture.name} has no {unknown[0]}, so it cannot be given our weights")
    return theirs.to(next(ours.parameters()).device).eval()


def _load(folder: Path) -> tuple[str, ModuleType]:
    """The module model.py of a folder, and whose it is."""
    path = folder / "model.py"
    name = f"pencil_peer_{folder.resolve().name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    for library, names in FOLDERS.items():
        if all(hasattr(module, name) for name in names):
            return library, module
    raise UserError(f"{path} is neither nanoGPT's (GPT and GPTConfig) nor gpt-fast's (Transformer and ModelArgs)")

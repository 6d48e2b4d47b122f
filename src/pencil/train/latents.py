"""Pictures as an autoencoder keeps them: fewer places, more channels. Encoded once, before training, and kept on disk.

The autoencoder is one of diffusers (AutoencoderKL), which is not needed for anything else.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import UserError
from ..data.augment import Look
from ..data.images import Examples, PictureData
from ..data.text import cache_folder
from ..files import beside, flush_folder
from ..models.parts import numbers
from ..runs import Run

AT_ONCE = 16  # pictures through the autoencoder


class Codec:
    """Pictures to latents and back."""

    def __init__(self, vae: Any, device: torch.device | str = "cpu", source: str = ""):
        self.source = source
        self.vae, self.device = vae.to(device).eval().requires_grad_(False), torch.device(device)
        sizes = vae.config
        self.colours, self.channels = int(sizes.in_channels), int(sizes.latent_channels)
        self.factor = 2 ** (len(sizes.block_out_channels) - 1)
        self.scale, self.shift = float(sizes.scaling_factor), float(getattr(sizes, "shift_factor", None) or 0.0)

    @staticmethod
    def open(source: str, device: torch.device | str = "cpu") -> "Codec":
        """From a folder, or the folder of a pipeline that has one in vae/, or by a name on the hub."""
        try:
            from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
        except ImportError:
            raise UserError("--vae needs diffusers: pip install 'pencil-transformers[diffusers]'") from None
        folder = Path(source).expanduser()
        if folder.is_dir():
            folder = folder / "vae" if (folder / "vae" / "config.json").is_file() else folder
            if not (folder / "config.json").is_file():
                raise UserError(f"{source} is not an autoencoder of diffusers: it has no config.json")
            kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("_class_name")
            if kind != "AutoencoderKL":
                raise UserError(f"{source} is a {kind}, and --vae is an AutoencoderKL of diffusers")
        try:
            vae = AutoencoderKL.from_pretrained(
                str(folder) if folder.is_dir() else source,
                low_cpu_mem_usage=False,  # else it asks for another package
            )
        except (OSError, ValueError) as error:
            raise UserError(f"the autoencoder {source} cannot be loaded: {str(error).splitlines()[0]}") from None
        return Codec(vae, device, str(folder.resolve()) if folder.is_dir() else source)

    @property
    def hash(self) -> str:
        """Of its weights and how its latents are scaled."""
        seen = hashlib.sha256(f"{self.scale} {self.shift}".encode())
        for name, tensor in sorted(self.vae.state_dict().items()):
            seen.update(name.encode() + tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return seen.hexdigest()

    def latents_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """The sides of what a picture of this size becomes."""
        height, width = size
        if height % self.factor or width % self.factor:
            raise UserError(
                f"the autoencoder makes one place of {self.factor}×{self.factor} dots, and that does not divide "
                f"{height}×{width}: choose another --size"
            )
        return height // self.factor, width // self.factor

    @torch.no_grad()
    def encode(self, pictures: np.ndarray) -> Tensor:
        """Bytes (n, C, H, W) to latents: the middle of what the autoencoder deems likely, scaled to a spread near 1."""
        x = numbers(torch.from_numpy(np.ascontiguousarray(pictures)).to(self.device))
        return (self.vae.encode(x).latent_dist.mode() - self.shift) * self.scale

    @torch.no_grad()
    def decode(self, latents: Tensor) -> np.ndarray:
        """Latents to pictures as bytes."""
        parts = latents.float().to(self.device).split(AT_ONCE)
        return np.concatenate([as_bytes(self.vae.decode(part / self.scale + self.shift).sample) for part in parts])


def codec_of(run: Run, device: torch.device | str = "cpu") -> Codec | None:
    """The autoencoder a run's latents are of, if there is one, as it was."""
    facts = run.config["run"]
    if "vae" not in facts:
        return None
    codec = Codec.open(facts["vae"], device)
    if codec.hash != facts["vae_hash"]:
        raise UserError(f"the autoencoder {facts['vae']} has changed since {run.path} was trained in its latents")
    return codec


def as_bytes(x: Tensor) -> np.ndarray:
    """From −1 … 1 to 0 … 255."""
    return ((x.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu().numpy()


class LatentExamples:
    """Latents on disk, with the targets of their pictures."""

    def __init__(self, latents: np.ndarray, targets: Sequence[Any]):
        self.latents, self.which = latents, np.flatnonzero(np.isfinite(latents[:, 0, 0, 0])).tolist()
        self.targets = [targets[i] for i in self.which]

    def __len__(self) -> int:
        return len(self.which)

    def take(self, which, look, rng=None):
        rows = list(which)
        return self.latents[[self.which[i] for i in rows]].astype(np.float32), [self.targets[i] for i in rows]


def as_latents(data: PictureData, codec: Codec, look: Look, say: Callable[[str], None]) -> PictureData:
    """The same data set with every picture as its latents, which are read from the cache if they are there."""
    sides = (codec.channels, *codec.latents_of(look.size))
    known = hashlib.sha256(f"{data.hash} {codec.hash} {look.size} {look.channels}".encode()).hexdigest()[:32]
    parts = {}
    for name, examples in (("train", data.train), ("test", data.test)):
        path = cache_folder() / f"latents-{known}-{name}.f16"
        count = len(examples)
        if not path.is_file() or path.stat().st_size != 2 * count * int(np.prod(sides)):
            say(f"Encoding {count:,} pictures of {data.name} at {look.size[0]}×{look.size[1]} ({name}), once.")
            _write(path, examples, codec, look, (count, *sides))
        kept = np.memmap(path, np.float16, "r", shape=(count, *sides))
        parts[name] = LatentExamples(kept, examples.targets)
        if not len(parts[name]):
            raise UserError(f"none of the pictures of {data.name} can be decoded")
    return replace(data, **parts)


def _write(path: Path, examples: Examples, codec: Codec, look: Look, shape: tuple[int, ...]) -> None:
    """Every picture's latents, in order; those of one that cannot be decoded are no numbers. Whole, or not at all."""
    aside = beside(path)
    try:
        out = np.memmap(aside, np.float16, "w+", shape=shape)
        for first in range(0, shape[0], AT_ONCE):
            rows = range(first, min(first + AT_ONCE, shape[0]))
            pictures, _ = examples.take(rows, look)
            if len(pictures) == len(rows):
                out[first : rows.stop] = codec.encode(pictures).cpu().numpy()
                continue
            for row in rows:
                alone, _ = examples.take([row], look)
                out[row] = codec.encode(alone).cpu().numpy() if len(alone) else np.nan
        out.flush()
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)

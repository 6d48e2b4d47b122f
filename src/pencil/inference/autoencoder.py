"""The autoencoder of latent diffusion: an AutoencoderKL of diffusers, which nothing else needs."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from ..config import UserError, install
from ..data.hub import offline_if_unreachable
from ..files import read_json
from ..models.build import normalize
from ..runs.run import Run

BATCH = 16  # images through the autoencoder at a time
PICTURE_CHANNELS = (1, 3)
MAX_BLOCKS, MAX_SIZE = 16, 4096  # of an autoencoder's list of blocks, and of any of its sizes


class Autoencoder:
    """Images to latents and back."""

    def __init__(self, vae: Any, device: torch.device | str = "cpu", source: str = ""):
        self.source = source
        self.vae, self.device = vae.to(device).eval().requires_grad_(False), torch.device(device)
        sizes = vae.config
        self.image_channels, self.channels = int(sizes.in_channels), int(sizes.latent_channels)
        self.factor = 2 ** (len(sizes.block_out_channels) - 1)
        self.scale, self.shift = float(sizes.scaling_factor), float(getattr(sizes, "shift_factor", None) or 0.0)

    @staticmethod
    def open(source: str, device: torch.device | str = "cpu") -> "Autoencoder":
        """From a folder, or the folder of a pipeline that has one in vae/, or by a name on the hub."""
        folder = Path(source).expanduser()
        if folder.is_dir():
            folder = folder / "vae" if (folder / "vae" / "config.json").is_file() else folder
            _check_folder(folder, source)
        try:
            from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
        except ImportError:
            raise UserError(f"--vae needs diffusers: {install('latents')}") from None
        place = str(folder) if folder.is_dir() else source
        try:
            with offline_if_unreachable(place, model=True):
                vae = AutoencoderKL.from_pretrained(
                    place,
                    low_cpu_mem_usage=False,  # else it needs another package
                    use_safetensors=True,  # its other format is pickle, which runs code when it is opened
                )
        except (OSError, ValueError, RuntimeError, TypeError, SafetensorError) as error:
            raise UserError(f"the autoencoder {source} cannot be loaded: {str(error).splitlines()[0]}") from None
        return Autoencoder(vae, device, str(folder.resolve()) if folder.is_dir() else source)

    @property
    def hash(self) -> str:
        """Of its weights and the scaling of its latents."""
        sha = hashlib.sha256(f"{self.scale} {self.shift}".encode())
        for name, tensor in sorted(self.vae.state_dict().items()):
            sha.update(name.encode() + tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return sha.hexdigest()

    def latent_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the latents of an image of this size."""
        height, width = size
        if height % self.factor or width % self.factor:
            raise UserError(
                f"the autoencoder makes one latent of {self.factor}×{self.factor} pixels, which does not divide "
                f"{height}×{width}: choose another --size"
            )
        return height // self.factor, width // self.factor

    @torch.no_grad()
    def encode(self, images: np.ndarray) -> Tensor:
        """Bytes (n, C, H, W) to latents: the mode of the posterior, scaled to a variance near 1."""
        x = normalize(torch.from_numpy(np.ascontiguousarray(images)).to(self.device))
        return (self.vae.encode(x).latent_dist.mode() - self.shift) * self.scale

    @torch.no_grad()
    def decode(self, latents: Tensor) -> np.ndarray:
        """Latents to images as bytes."""
        parts = latents.float().to(self.device).split(BATCH)
        return np.concatenate([to_bytes(self.vae.decode(part / self.scale + self.shift).sample) for part in parts])


def _check_folder(folder: Path, source: str) -> None:
    """Refuse what is no AutoencoderKL in safetensors, or one of sizes that none has, before it is built."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{source} is not an autoencoder of diffusers: it has no config.json")
    config = read_json(folder / "config.json")
    kind = config.get("_class_name")
    if kind != "AutoencoderKL":
        raise UserError(f"{source} is a {kind}, and --vae is an AutoencoderKL of diffusers")
    for name, value in config.items():
        numbers = value if isinstance(value, list) else [value]
        if len(numbers) > MAX_BLOCKS or any(type(n) is int and n > MAX_SIZE for n in numbers):
            raise UserError(f"{source} has {name} {str(value)[:40]} in its config.json, which no autoencoder has")
    layers = config.get("layers_per_block", 1)
    if type(layers) is int and layers > MAX_BLOCKS:
        raise UserError(f"{source} has layers_per_block {layers} in its config.json, which no autoencoder has")
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{source} has no weights in a .safetensors file; other formats are not opened")


def has_latents(run: Run, config: Any) -> bool:
    """Whether a run's images are latents: it has an autoencoder, or channels that no picture has."""
    return "vae" in run.config["run"] or config.channels not in PICTURE_CHANNELS


def autoencoder_for(
    run: Run, config: Any, source: str | None, device: torch.device | str = "cpu"
) -> Autoencoder | None:
    """The autoencoder that turns a run's samples into images: the run's own, or the one given where it has none."""
    if source is None:
        autoencoder = autoencoder_of(run, device)
        if autoencoder is None and has_latents(run, config):
            raise UserError(
                f"{run.path} makes latents of {config.channels} channels and has no autoencoder, which makes pictures "
                "of them: give its folder by --vae"
            )
        return autoencoder
    if "vae" in run.config["run"]:
        raise UserError(f"{run.path} has its own autoencoder, {run.config['run']['vae']}: leave --vae out")
    autoencoder = Autoencoder.open(source, device)
    if autoencoder.channels != config.channels:
        raise UserError(
            f"the autoencoder {source} takes latents of {autoencoder.channels} channels, and {run.path} makes "
            f"{config.channels}"
        )
    return autoencoder


def autoencoder_of(run: Run, device: torch.device | str = "cpu") -> Autoencoder | None:
    """The autoencoder a run was trained with, if there is one; refused if it has changed."""
    facts = run.config["run"]
    if "vae" not in facts:
        return None
    autoencoder = Autoencoder.open(facts["vae"], device)
    if autoencoder.hash != facts["vae_hash"]:
        raise UserError(f"the autoencoder {facts['vae']} has changed since {run.path} was trained with it")
    return autoencoder


def to_bytes(x: Tensor) -> np.ndarray:
    """From −1 … 1 to 0 … 255."""
    return ((x.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu().numpy()

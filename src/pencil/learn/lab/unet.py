"""A convolutional U-Net: the baseline beside the DiT. It predicts the same from the same: a picture, the time, a class.

It has the parts that the U-Nets of diffusion share: convolutions at ever smaller sizes and back, skip connections
between equal sizes, and in each block a GroupNorm that is scaled and shifted by the time and the class. It has no
attention, which those of Stable Diffusion have besides.
"""

import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor, cat, nn

from ...core.embed import TimestepEmbedding, Tokens

GROUPS = 4  # of each GroupNorm


class ConvBlock(nn.Module):
    """Two convolutions, added to their input. The condition scales and shifts the norm between them."""

    def __init__(self, inputs: int, channels: int, width: int):
        super().__init__()
        self.norm_in, self.conv_in = nn.GroupNorm(GROUPS, inputs), nn.Conv2d(inputs, channels, 3, padding=1)
        self.ada = nn.Linear(width, 2 * channels)
        self.norm_out, self.conv_out = nn.GroupNorm(GROUPS, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.residual = nn.Identity() if inputs == channels else nn.Conv2d(inputs, channels, 1)
        # as the gates of adaLN-Zero: before training the block passes its input on
        nn.init.zeros_(self.conv_out.weight)
        nn.init.zeros_(self.conv_out.bias)  # pyright: ignore[reportArgumentType]

    def forward(self, x: Float[Tensor, "B i H W"], condition: Float[Tensor, "B D"]) -> Float[Tensor, "B o H W"]:
        scale, shift = self.ada(F.silu(condition))[:, :, None, None].chunk(2, 1)
        inner = self.conv_in(F.silu(self.norm_in(x)))
        return self.residual(x) + self.conv_out(F.silu(self.norm_out(inner) * (1 + scale) + shift))


class UNet(nn.Module):
    """Down over the sizes, once in the middle, and up again; `channels` has one number a size, the largest size first.

    Pictures of any height and width are taken: an odd side is halved to the larger half, and going up each size is that
    of the skip connection.
    """

    def __init__(self, channels: tuple[int, ...], width: int, classes: int, pictures: int = 1):
        super().__init__()
        first, last = channels[0], channels[-1]
        self.time, self.labels = TimestepEmbedding(width), Tokens(classes, width)
        self.first = nn.Conv2d(pictures, first, 3, padding=1)
        inputs = (first, *channels[:-1])
        self.down = nn.ModuleList(ConvBlock(i, o, width) for i, o in zip(inputs, channels, strict=True))
        self.middle = ConvBlock(last, last, width)
        # each reads what comes from below beside the skip connection
        below = (*channels[1:], last)
        self.up = nn.ModuleList(ConvBlock(i + o, o, width) for i, o in zip(below, channels, strict=True))
        self.norm, self.head = nn.GroupNorm(GROUPS, first), nn.Conv2d(first, pictures, 3, padding=1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)  # pyright: ignore[reportArgumentType]

    def forward(
        self, picture: Float[Tensor, "B C H W"], timestep: Num[Tensor, "B"], label: Int[Tensor, "B"]
    ) -> Float[Tensor, "B C H W"]:
        condition = self.time(timestep) + self.labels(label)
        x, kept = self.first(picture), []
        for block in self.down:
            x = block(x, condition)
            kept.append(x)
            x = F.avg_pool2d(x, 2, ceil_mode=True)
        x = self.middle(x, condition)
        for block, skip in zip(reversed(self.up), reversed(kept), strict=True):
            x = block(cat((F.interpolate(x, size=skip.shape[-2:]), skip), 1), condition)
        return self.head(F.silu(self.norm(x)))

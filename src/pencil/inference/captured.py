"""A denoiser captured in a CUDA graph: the kernels of one call, replayed for the later ones without Python."""

import torch
from torch import Tensor

from .diffusion_sampling import Denoiser


class Captured:
    """The same kernels in the same order as `denoise`, so the same numbers to the last bit.

    The first call runs as it is: it compiles what is compiled, and prepares the libraries of the device. The second is
    captured, and replayed from then on: later calls have the shapes of the first, and the weights stay where they are.
    """

    def __init__(self, denoise: Denoiser):
        self.denoise, self.calls = denoise, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.x, self.timestep, self.output = (torch.empty(0) for _ in range(3))

    def __call__(self, x: Tensor, timestep: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 1:
            return self.denoise(x, timestep)
        if self.graph is None:
            self._capture(x, timestep)
        assert self.graph is not None
        self.x.copy_(x)
        self.timestep.copy_(timestep)
        self.graph.replay()
        return self.output.clone()  # the next replay writes over it

    def _capture(self, x: Tensor, timestep: Tensor) -> None:
        self.x, self.timestep, self.graph = x.clone(), timestep.clone(), torch.cuda.CUDAGraph()
        # other threads may go on using the device
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.output = self.denoise(self.x, self.timestep)

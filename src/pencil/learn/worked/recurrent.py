"""A recurrent network by hand: three states, and what its gradient is multiplied by on the way back."""

import torch
from torch import Tensor, nn

from ...core.probe import OFF, Probe
from ...tracing.live_trace import LiveTrace, trace

WORDS = ["the", "cat", "sat"]


class RNN(nn.Module):
    """h_t = tanh(W_h h_{t−1} + W_x x_t + b) over three words, from a state of zeros.

    A step back multiplies the gradient by the Jacobian ∂h_t/∂h_{t−1} = diag(1 − h_t²) W_h; from the third state to the
    first that is a product of two, whose norm is at most ‖W_h‖².
    """

    NAMES = {
        "a_1": ("B H", "a_1", "W_x x_1 + b"),
        "h_1": ("B H", "h_1", "tanh(a_1)"),
        "a_2": ("B H", "a_2", "W_h h_1 + W_x x_2 + b"),
        "h_2": ("B H", "h_2", "tanh(a_2)"),
        "a_3": ("B H", "a_3", "W_h h_2 + W_x x_3 + b"),
        "h_3": ("B H", "h_3", "tanh(a_3)"),
        "states": ("B T H", "H", "[h_1; h_2; h_3]"),
        "jacobian_2": ("B H H", "J_2", "diag(1 − h_2²) W_h"),
        "jacobian_3": ("B H H", "J_3", "diag(1 − h_3²) W_h"),
        "product": ("B H H", "J", "J_3 J_2"),
        "product_norm": ("B", "‖J‖", "‖J_3 J_2‖"),
        "weight_norm": ("B", "‖W_h‖", ""),
        "bound": ("B", "‖W_h‖²", "‖W_h‖ ‖W_h‖"),
    }
    WEIGHTS = {"w_h": "W_h", "w_x": "W_x", "b": "b"}
    INPUTS = {"x": "X"}

    def __init__(self):
        super().__init__()
        self.w_h = nn.Parameter(torch.tensor([[0.5, -0.3], [0.2, 0.6]]))
        self.w_x = nn.Parameter(torch.tensor([[1.0, -0.5, 0.0], [0.2, 0.7, -1.0]]))
        self.b = nn.Parameter(torch.tensor([0.1, -0.2]))
        self.double()
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(weight.mul(10).round() / 10)  # one decimal, in double precision too

    def forward(self, x: Tensor, probe: Probe = OFF) -> Tensor:
        states: list[Tensor] = []
        for t in range(x.shape[1]):
            read = x[:, t] @ self.w_x.mT + self.b
            into = probe(f"a_{t + 1}", states[-1] @ self.w_h.mT + read if states else read)
            states.append(probe(f"h_{t + 1}", into.tanh()))
        product = None
        for t in range(1, len(states)):
            jacobian = probe(f"jacobian_{t + 1}", (1 - states[t] * states[t])[..., None] * self.w_h)
            product = jacobian if product is None else jacobian @ product
        if product is not None:
            probe("product_norm", spectral_norm(probe("product", product)))
            norm = probe("weight_norm", spectral_norm(self.w_h[None]))
            probe("bound", norm ** (len(states) - 1))
        return probe("states", torch.stack(states, 1))


def spectral_norm(matrices: Tensor) -> Tensor:
    """The largest singular value of 2×2 matrices: with s the sum of their squares, √((s + √(s² − 4·det²))/2)."""
    squares = (matrices * matrices).sum((-2, -1))
    determinant = matrices[..., 0, 0] * matrices[..., 1, 1] - matrices[..., 0, 1] * matrices[..., 1, 0]
    return ((squares + (squares * squares - 4 * determinant * determinant).sqrt()) / 2).sqrt()


def rnn() -> LiveTrace:
    """An RNN over three words: each state from the one before, and the Jacobians that its gradient is multiplied by."""
    x = torch.tensor([[[1.0, 0.0, 0.5], [0.5, 1.0, -0.5], [0.0, 0.5, 1.0]]], dtype=torch.float64)
    return trace(RNN(), x, words={"T": WORDS})

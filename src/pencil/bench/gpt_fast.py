"""Decoding with gpt-fast's model as its generate.py does: static cache, compiled decode step, tokens on the device."""

from contextlib import nullcontext
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..inference.sampling import Sampling
from .plan import Plan


def _sees(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


class FastDecoder:
    """gpt-fast's Transformer, and the loop around it."""

    def __init__(self, model: Any, plan: Plan):
        self.model, self.plan = model, plan
        self.masked = "mask" in signature(model.forward).parameters  # as it is since 2024; before, it had its own
        self.mask: Any = None
        self.step = torch.compile(self._next, mode="reduce-overhead", fullgraph=True) if plan.cuda else self._next

    def to(self, dtype: torch.dtype) -> None:
        self.model.to(dtype)

    def _room(self, batch: int, length: int) -> None:
        """New caches, in the dtype that the model has now."""
        self.model.max_seq_length = self.model.max_batch_size = -1
        with self.plan.device:
            self.model.setup_caches(max_batch_size=batch, max_seq_length=length)
        self.mask = self._causal(self.model.max_seq_length) if self.masked else None

    def _causal(self, queries: int) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(_sees, 1, 1, queries, self.model.max_seq_length, device=str(self.plan.device))

    def logits(self, tokens: Tensor) -> Tensor:
        self._room(*tokens.shape)
        return self._ask(tokens, torch.arange(tokens.shape[1], device=tokens.device))

    def _ask(self, tokens: Tensor, position: Tensor) -> Tensor:
        if not self.masked:
            return self.model(tokens, position)
        if len(position) > 1:
            return self.model(self._causal(len(position)), tokens, position)
        mask = self.mask[:, :, position // self.mask.BLOCK_SIZE[0]]
        mask.mask_mod, mask.seq_lengths = self.mask.mask_mod, (1, self.model.max_seq_length)
        return self.model(mask, tokens, position)

    def _next(self, tokens: Tensor, position: Tensor, temperature: Tensor | None, top_k: int | None) -> Tensor:
        """The next token of each row; without a temperature, the likeliest."""
        logits = self._ask(tokens, position)[:, -1]
        if temperature is None:
            return logits.argmax(-1, keepdim=True)
        logits = logits / temperature
        if top_k is not None:
            smallest = torch.topk(logits, top_k).values[:, -1:]
            logits = torch.where(logits < smallest, -torch.inf, logits)
        probabilities = torch.softmax(logits, -1)
        # a draw without waiting for the device: the largest p/e with exponential e
        return (probabilities / torch.empty_like(probabilities).exponential_(1)).argmax(-1, keepdim=True)

    @torch.no_grad()
    def generate(self, prompts: Tensor, tokens: int, sampling: Sampling) -> list[list[int]]:
        model, (batch, length) = self.model, prompts.shape
        if model.max_batch_size != batch or model.max_seq_length < length + tokens:
            self._room(batch, length + tokens)
        # a tensor, since a Python number would be compiled in
        temperature = torch.tensor(sampling.temperature, device=prompts.device) if sampling.temperature else None
        rule = temperature, sampling.top_k
        found = [self._next(prompts, torch.arange(length, device=prompts.device), *rule)]
        position = torch.tensor([length], device=prompts.device)
        # as in generate.py: the plain products are fused best by the compiler
        with sdpa_kernel(SDPBackend.MATH) if self.plan.cuda else nullcontext():
            for _ in range(tokens - 1):
                found.append(self.step(found[-1].clone(), position, *rule).clone())
                position += 1
        return torch.cat(found, 1).tolist()

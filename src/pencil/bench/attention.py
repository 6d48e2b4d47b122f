"""attention: each mask's route against float64, and its time beside torch's attention with a dense mask."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.attention import attend
from ..core.masks import Seen, causal, full, padding, prefix, window
from ..core.probe import Probe
from .equality import Equality, bound, compare, matmul_precision, relative_error
from .plan import Plan, Row
from .timing import OURS, Contender, run_case

JOB = "attention"
WIDTH = 64


def run(plan: Plan) -> Iterator[Row]:
    batch, heads, length = (
        (32, 12, 512) if plan.cuda and not plan.quick else (1, 3, 128) if plan.quick else (2, 12, 512)
    )
    masks = {
        "causal": causal,
        "full": full,
        f"prefix of {length // 2}": prefix(length // 2),
        f"window of {length // 4}": causal & window(length // 4),
        "padding": full & padding,
    }
    index = torch.arange(length, device=plan.device)[None]
    torch.manual_seed(0)
    shape = batch, heads, length, WIDTH
    q, k, v, weight = (torch.randn(shape, device=plan.device, dtype=plan.dtype) for _ in range(4))
    for t in (q, k, v):
        t.requires_grad_()
    baseline = None
    for name, mask in masks.items():
        seen = mask.over(index, start=0)
        errors = _errors(seen, plan)
        dense = seen.matrix()
        theirs = partial(
            F.scaled_dot_product_attention,
            attn_mask=dense if name not in ("causal", "full") else None,
            is_causal=name == "causal",
        )
        ours = partial(attend, mask=seen)
        exact = Equality(errors, {dtype: bound(getattr(torch, dtype), length, 1) for dtype in errors})
        same = compare(partial(ours, q, k, v), partial(theirs, q, k, v), plan.dtype, length, 1)
        contenders = [
            Contender(OURS, _step(ours, q, k, v, weight), equality=exact),
            Contender("torch", _step(theirs, q, k, v, weight), equality=same),
        ]
        case = f"{name}, {batch}×{heads}×{length}×{WIDTH}, forward and backward"
        rows = run_case(plan, JOB, case, "tokens/s", batch * length, contenders)
        rows[0]["route"] = seen.route
        baseline = baseline or rows[1]["seconds"]  # torch's causal kernel, the first
        rows[0]["times_causal"] = rows[0]["seconds"] / baseline
        yield from rows


def _step(call: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(call(q, k, v), (q, k, v), weight)


def _errors(seen: Seen, plan: Plan) -> dict[str, float]:
    """The worst relative error of output and gradients against float64 by the plain route, in each dtype."""
    length = seen.matrix().shape[-1]
    torch.manual_seed(1)
    base = [torch.randn(2, 3, length, WIDTH, device=plan.device) for _ in range(4)]

    def results(dtype: torch.dtype, *probe: Probe) -> list[Tensor]:
        q, k, v = (t.to(dtype).detach().requires_grad_() for t in base[:3])
        z = attend(q, k, v, seen, None, None, 0.0, *probe)
        return [z, *torch.autograd.grad(z, (q, k, v), base[3].to(dtype))]

    with matmul_precision("highest"):
        exact = results(torch.float64, Probe())
        dtypes = {torch.float32, plan.dtype}
        return {
            str(dtype).removeprefix("torch."): max(
                relative_error(a, b) for a, b in zip(results(dtype), exact, strict=True)
            )
            for dtype in sorted(dtypes, key=str)
        }

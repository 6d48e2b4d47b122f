"""Sums of products: matrices, and the patches of a convolution."""

from ..graph import Plan
from .words import Call, P, row_major, rule, total

OPERANDS = (
    ("mat1", "mat2"),
    ("batch1", "batch2"),
    ("mat", "vec"),
    ("self", "mat2"),
    ("self", "vec"),
    ("self", "tensor"),
)


@rule("dot", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv")
def _dot(call: Call) -> Plan:
    a, b = next((call.args[x], call.args[y]) for x, y in OPERANDS if x in call.args and y in call.args)
    rows, columns = row_major(a.shape), row_major(b.shape)
    inner = a.shape[-1]
    if len(b.shape) == 1:  # a matrix, or a vector, with a vector
        left, right = rows[:-1], [0] * (len(a.shape) - 1)
        terms = P(("ref", a.node, 0, left, [[rows[-1], inner]])), P(("ref", b.node, 0, right, [[1, inner]]))
    else:
        batch = [0] * (len(a.shape) - 2)
        left = [*rows[:-1], 0]
        right = [*(columns[:-2] or batch), 0, columns[-1]]
        terms = P(("ref", a.node, 0, left, [[rows[-1], inner]])), P(("ref", b.node, 0, right, [[columns[-2], inner]]))
    product = total(terms[0] * terms[1])
    if not call.op.startswith(("addm", "baddbmm")):
        return product
    alpha, beta = call.get("alpha", 1), call.get("beta", 1)
    product = product if alpha == 1 else alpha * product
    given = call.broadcast(call.self)
    return product if beta == 0 else product + (given if beta == 1 else beta * given)


@rule("patch", "convolution")
def _convolution(call: Call) -> Plan:
    x, w = call.input, call.weight
    if call.get("transposed") or call.get("groups", 1) != 1:
        raise NotImplementedError("a convolution that is transposed, or in groups")
    count = len(w.shape) - 2
    stride, dilation = (list(v) * (count if len(v) == 1 else 1) for v in (call.stride, call.dilation))
    here, kernel = row_major(x.shape), row_major(w.shape)
    along = [here[0], 0, *(s * n for s, n in zip(stride, here[2:], strict=True))]
    inner = [here[1], *(d * n for d, n in zip(dilation, here[2:], strict=True))]
    steps = [[s, n] for s, n in zip(inner, w.shape[1:], strict=True)]
    across = [[s, n] for s, n in zip(kernel[1:], w.shape[1:], strict=True)]
    weights = P(("ref", w.node, 0, [0, kernel[0], *([0] * count)], across))
    product = total(P(("ref", x.node, 0, along, steps)) * weights)
    if call.get("bias") is None:
        return product
    return product + P(("ref", call.bias.node, 0, [0, 1, *([0] * count)], []))

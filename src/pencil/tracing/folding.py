"""Where PyTorch does one thing in many operations, their plans written as the formula that they are together.

On a CPU an RMS norm is its parts: x², their mean, 1/√, a product. The slope of its denominator then comes as
−½·Σ(ĝ·x)·(1/rms)³/n·2x, with ĝ the gradient of x/rms. Together with ĝ/rms, which is an operation of its own, that is
the gradient of the norm; it is written −x̂·(Σ ĝ·x̂/n)/rms, with x̂ = x/rms. The values stay what was recorded. No bound
is tightened: in this form every factor is rounded at least as often.
"""

from typing import Any

from .graph import Graph, Node, Plan
from .rules import cells, row_major, sqrt, step, total


def fold_norms(graph: Graph, begin: int = 0) -> None:
    """Fold the gradients of RMS norms among the nodes from `begin` on."""
    for node in range(begin, len(graph.nodes)):
        n = graph.nodes[node]
        if n.op == "mul" and (plan := _folded(graph, n)) is not None:
            n.plan, n.kind = plan, "gradient"


def _folded(graph: Graph, n: Node) -> Plan:
    """The plan of such a product; None where it is another."""
    match [_operand(graph, part) for part in n.plan[1:]]:
        case ("div", slope, int() as count), ("mul", 2.0 | 2, x):
            pass
        case _:
            return None
    match _operand(graph, slope):
        case ("mul", halved, cubed):
            halved, cubed = _operand(graph, halved), _operand(graph, cubed)
        case _:
            return None
    match halved, cubed:
        case ("mul", -0.5, summed), ("pow", inverse, 3 | 3.0):
            summed, inverse = _operand(graph, summed), _operand(graph, inverse)
        case _:
            return None
    match summed, inverse:
        case ("sum", ("ref", products, 0, along, over)), ("div", 1, ("sqrt", ("ref", root, *_))):
            pass
        case _:
            return None
    product, x_node = graph.nodes[products], _source(graph, x)
    match product.plan:
        case ("mul", ("ref", _, 0, _, []) as g, ("ref", _, 0, _, []) as same) if _source(graph, same) == x_node:
            pass
        case _:
            return None
    rows, under = row_major(n.shape), graph.nodes[root].shape
    # of one shape, so that one place means the same cell in each
    whole = all(list(ref[3]) == rows for ref in (g, same, x))
    if n.dtype != product.dtype or not whole or not len(along) == len(rows) == len(under):
        return None
    at = [s if size == own else 0 for s, size, own in zip(row_major(under), under, n.shape, strict=True)]
    rms = step("rms", sqrt(cells(root, at)))
    own_x = step("x̂", cells(x[1], rows) / rms)
    row_g, row_x = (cells(ref[1], along, over) for ref in (g, same))
    return -(own_x * step("Σ ĝ·x̂/n", total(row_g * (row_x / rms)) / count)) / rms


def _operand(graph: Graph, plan: Any) -> Any:
    """The plan of an operand that has no name, through what only moves it; of anything else itself."""
    while isinstance(plan, list | tuple) and plan[0] == "ref" and not plan[4]:
        n = graph.nodes[plan[1]]
        if n.named or n.plan is None:
            return plan
        plan = n.plan
    return plan


def _source(graph: Graph, plan: Any) -> int:
    """The node that a ref reads, through what only is the same tensor; of anything else −1."""
    node = plan[1] if isinstance(plan, list | tuple) and plan[0] == "ref" else -1
    while node >= 0:
        n = graph.nodes[node]
        match n.plan:
            case ("ref", source, 0, strides, []) if list(strides) == row_major(n.shape):
                if n.size != graph.nodes[source].size:
                    break
                node = source
            case _:
                break
    return node

"""A model of any kind as modules, and what goes from one to another: drawn where no block declares its stream."""

from typing import Any

from .graph import Graph, Node, refs


def module_graph(graph: Graph) -> dict[str, Any]:
    """The modules that computed something, in the order of their first operation, and the edges between them."""
    places: dict[str, int] = {}
    nodes: list[dict[str, Any]] = []
    edges: dict[tuple[int, int], None] = {}
    at: dict[int, int] = {}
    # a module's result has its name, where the model names no values itself
    modules = {n.name.rpartition(".")[0] for n in graph.nodes if n.kind == "weight"}
    modules |= {head for head, colon, _ in (n.name.partition(":") for n in graph.nodes) if colon}
    for i, n in enumerate(graph.nodes):
        if n.kind in ("weight", "constant", ""):
            continue
        path = n.name if n.kind == "input" or n.name in modules else path_of(n)
        if path not in places:
            places[path] = len(nodes)
            nodes.append({"path": path, "title": path.rpartition(".")[2] or "model", "operations": 0})
        at[i] = places[path]
        nodes[at[i]]["operations"] += n.kind != "input" and not n.moves
        edges |= dict.fromkeys((at[j], at[i]) for j in refs(n.plan) if j in at and at[j] != at[i])
    return {"nodes": nodes, "edges": [list(edge) for edge in edges]}


def path_of(n: Node) -> str:
    """Where in the model a value is computed; an input belongs to the whole."""
    head = n.name.partition(":")[0]
    return "" if n.kind == "input" else head if head != n.name else n.name.rpartition(".")[0]

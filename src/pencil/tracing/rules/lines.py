"""Operations over a line of cells: sums, choices, softmax, norms, losses."""

import math

import numpy as np

from ..graph import Plan
from .words import Call, In, P, choose, exp, fn, least, log, most, row_major, rule, sqrt, square, step, total


@rule("sum", "sum", "mean", "prod", "amax", "amin", "any", "all", "logsumexp", "linalg_vector_norm", "norm")
def _reduce(call: Call) -> Plan:
    x = call.self
    terms = call.over(x, call.get("dim"), bool(call.get("keepdim", False)))
    count = math.prod(n for _, n in terms[4])
    if call.op == "sum":
        return total(terms)
    if call.op == "mean":
        return total(terms) / count
    if call.op in ("any", "all"):
        return fn("ne")((most if call.op == "any" else least)(fn("ne")(terms, 0)), 0)
    if call.op == "logsumexp":
        top = step("max", most(terms))
        some = top + log(step("total", total(exp(terms - top))))
        return choose(fn("eq")(top, -math.inf), -math.inf, some)
    if call.op in ("linalg_vector_norm", "norm"):
        power = call.get("ord", call.get("p", 2))
        if power != 2:
            raise NotImplementedError(f"a norm of order {power}")
        return sqrt(total(square(terms)))
    return fn({"prod": "prod", "amax": "max", "amin": "min"}[call.op])(terms)


@rule("sum", "var", "std", "var_mean")
def _variance(call: Call) -> Plan:
    x = call.self
    terms = call.over(x, call.get("dim"), bool(call.get("keepdim", False)))
    count = math.prod(n for _, n in terms[4])
    mean = step("mean", total(terms) / count)
    if call.op == "var_mean" and call.out == 1:
        return mean
    correction = call.get("correction", 1 if call.get("unbiased", True) else 0)
    variance = total(square(terms - mean)) / (count - correction)
    return sqrt(step("variance", variance)) if call.op == "std" else variance


@rule("sample", "max", "min", "argmax", "argmin", "topk", "sort", "median", "mode")
def _largest(call: Call) -> Plan:
    x, dim = call.self, call.get("dim")
    if call.op in ("topk", "sort"):
        if not call.get("largest", call.op == "topk" or call.get("descending", False)):
            raise NotImplementedError(f"{call.op} from the least")
        dim = (dim if dim is not None else -1) % len(x.shape)
        terms = call.over(x, dim, keep=True)
        return fn("kth" if call.out == 0 else "kth_at")(terms, P(("axis", dim)))
    if call.op in ("median", "mode"):
        raise NotImplementedError(call.op)
    if isinstance(call.get("other"), In):
        return fn("greater" if call.op == "max" else "lesser")(call.broadcast(x), call.broadcast(call.other))
    terms = call.over(x, dim, bool(call.get("keepdim", False)))
    place = call.op.startswith("arg") or call.out == 1
    return fn(f"{'arg' if place else ''}{call.op.removeprefix('arg')}")(terms)


@rule("softmax", "_softmax", "_log_softmax", "softmax", "_safe_softmax")
def _softmax(call: Call) -> Plan:
    x, terms = call.broadcast(call.self), call.line(call.self, call.dim)
    top = step("max", most(terms))
    sum_ = step("total", total(exp(terms - top)))
    if call.op == "_log_softmax":
        return x - top - log(sum_)
    if call.op == "_safe_softmax":
        # a fully masked row gives zeros
        return choose(fn("eq")(top, -math.inf), 0, exp(x - top) / sum_)
    return exp(x - top) / sum_


@rule("sum", "cumsum")
def _running(call: Call) -> Plan:
    if not call.shape:
        return call.broadcast(call.self)
    strides, dim = row_major(call.shape), call.dim % len(call.shape)
    before = fn("rounded")(P(("ref", call.me, -strides[dim], strides, [])))
    x = call.broadcast(call.self)
    return choose(fn("eq")(P(("axis", dim)), 0), x, before + x)


@rule("layernorm", "native_layer_norm")
def _layer_norm(call: Call) -> Plan:
    x, count = call.input, len(call.normalized_shape)
    lead, strides = len(x.shape) - count, row_major(x.shape)
    inner = list(range(lead, len(x.shape)))
    kept = [s if d < lead else 0 for d, s in enumerate(strides)][: len(call.shape)]
    terms = P(("ref", x.node, 0, kept, [[strides[d], x.shape[d]] for d in inner]))
    n = math.prod(x.shape[lead:])
    mean = step("mean", total(terms) / n)
    if call.out == 1:
        return mean
    variance = step("variance", total(square(terms - mean)) / n)
    std = step("√(variance + ε)", sqrt(variance + call.eps))
    if call.out == 2:
        return 1 / std
    out = (call.broadcast(x) - mean) / std
    out = out if call.get("weight") is None else out * call.broadcast(call.weight)
    return out if call.get("bias") is None else out + call.broadcast(call.bias)


@rule("rmsnorm", "_fused_rms_norm")
def _rms_norm(call: Call) -> Plan:
    x, count = call.input, len(call.normalized_shape)
    lead, strides = len(x.shape) - count, row_major(x.shape)
    kept = [s if d < lead else 0 for d, s in enumerate(strides)][: len(call.shape)]
    terms = P(("ref", x.node, 0, kept, [[strides[d], x.shape[d]] for d in range(lead, len(x.shape))]))
    mean = step("mean of squares", total(square(terms)) / math.prod(x.shape[lead:]))
    eps = call.get("eps", 2.0**-23 if x.dtype == "float32" else 2.0**-52)
    rms = step("√(mean + ε)", sqrt(mean + eps))
    if call.out == 1:
        return 1 / rms
    out = call.broadcast(x) / rms
    return out if call.get("weight") is None else out * call.broadcast(call.weight)


@rule("layernorm", "_native_batch_norm_legit_no_training", "native_batch_norm")
def _batch_norm(call: Call) -> Plan:
    if call.out or call.get("training"):
        raise NotImplementedError("batch norm in training")
    x = call.input

    def channel(t: In) -> P:
        return P(("ref", t.node, 0, [int(d == 1) for d in range(len(x.shape))], []))

    out = (call.broadcast(x) - channel(call.running_mean)) / sqrt(channel(call.running_var) + call.eps)
    out = out if call.get("weight") is None else out * channel(call.weight)
    return out if call.get("bias") is None else out + channel(call.bias)


@rule("loss", "nll_loss_forward")
def _nll(call: Call) -> Plan:
    x, targets = call.self, call.read(call.target).reshape(-1)
    if call.get("weight") is not None or len(x.shape) != 2:
        raise NotImplementedError("a loss with weights or of this shape")
    kept = np.flatnonzero(targets != call.get("ignore_index", -100))
    if call.out == 1:
        return len(kept) if call.get("reduction", 1) else 0
    if not len(kept) and call.get("reduction", 1):
        return P(("num", "nan")) if call.get("reduction", 1) == 1 else 0
    places = kept * x.shape[1] + targets[kept]
    if call.get("reduction", 1) == 0:
        places = np.arange(len(targets)) * x.shape[1] + np.clip(targets, 0, None)
        skipped = fn("eq")(call.broadcast(call.target), call.get("ignore_index", -100))
        return choose(skipped, 0, -P(("list", x.node, call.table(places), 1)))
    loss = -total(P(("list", x.node, call.table(places[None]), len(places))))
    return loss / len(kept) if call.get("reduction", 1) == 1 else loss


@rule("loss", "mse_loss", "binary_cross_entropy_with_logits")
def _cell_loss(call: Call) -> Plan:
    if call.get("weight") is not None or call.get("pos_weight") is not None:
        raise NotImplementedError("a loss with weights")
    alone, reduction = call.get("reduction", 1) == 0, call.get("reduction", 1)
    x, y = (call.broadcast(t) if alone else call.over(t, None) for t in (call.self, call.target))
    if call.op == "mse_loss":
        loss = square(x - y)
    else:
        # x − xy + ln(1 + e^−x), without a power that overflows
        loss = fn("greater")(x, 0) - x * y + log(1 + exp(-fn("abs")(x)))
    if alone:
        return loss
    return total(loss) / math.prod(call.self.shape) if reduction == 1 else total(loss)

"""What kernels that compute in half precision round on the way.

Most kernels read half precision, compute in single and round once, when they store: so a plan is weighed. These do not:
they store every step of theirs in the precision of the tensor, and a sum as it runs. A step of a plan that is stored so
is written ("rounded", plan); a sum or product is ("sum", terms, rounding), with the relative rounding of each addition.
"""

from typing import Any

from .graph import ROUNDING, Node, Plan
from .plan_functions import FUNCTIONS

HALF = ("bfloat16", "float16")
EXACT = ("neg", "abs", "greater", "lesser", "if", "rounded")  # of stored numbers these are numbers that can be stored
# on a CPU, by comparison with each step done alone; a GPU rounds no more than that
IN_OWN_PRECISION = set(
    """_adaptive_avg_pool2d_backward _index_put_impl _unsafe_index_put adaptive_max_pool2d_backward
    avg_pool2d_backward binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits
    col2im embedding_dense_backward glu_backward huber_loss huber_loss_backward index_put logsumexp
    max_pool2d_with_indices_backward mse_loss mse_loss_backward native_batch_norm native_batch_norm.running_mean
    native_batch_norm.running_var nll_loss2d_backward nll_loss_backward prod reflection_pad1d_backward
    reflection_pad2d_backward replication_pad1d_backward replication_pad2d_backward soft_margin_loss
    soft_margin_loss_backward upsample_bicubic2d""".split()
)
# bfloat16 is computed in single precision there
IN_FLOAT16 = {"convolution", "convolution_backward", "sigmoid_backward"}


def rounded_steps(n: Node, plan: Plan) -> Plan:
    """The plan of a node, with what its kernel rounds on the way."""
    coarse = (n.op in IN_OWN_PRECISION and n.dtype in HALF) or (n.op in IN_FLOAT16 and n.dtype == "float16")
    return _every_step(plan, ROUNDING[n.dtype]) if coarse else plan


def _every_step(plan: Plan, rounding: float) -> Plan:
    match plan:
        case float():
            return ("rounded", plan)
        case "is", name, part:
            return ("is", name, _every_step(part, rounding))
        case (head, *parts) if head in FUNCTIONS:
            whole: Any = (head, *(_every_step(part, rounding) for part in parts))
            if head in ("sum", "prod"):
                return (*whole, rounding)
            return ("rounded", whole) if FUNCTIONS[head].smooth and head not in EXACT else whole
    return plan

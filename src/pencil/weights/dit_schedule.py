"""The noise schedule of a diffusion model of diffusers: scheduler_config.json to our settings and back.

A model is trained with a schedule and a prediction target; the rest of that file (spacing of timesteps, clipping) is a
choice of its sampler, and ours has its own.
"""

from collections.abc import Mapping
from typing import Any

from ..config import UserError, with_article
from .fields import their_word

STEPS, FIRST, LAST = 1000, 1e-4, 0.02
SCHEDULES = {"linear": "linear", "squaredcos_cap_v2": "cosine"}
PREDICTIONS = {"epsilon": "eps", "sample": "x0", "v_prediction": "v"}
FLOW = "FlowMatchEulerDiscreteScheduler"
# classes whose defaults are linear betas from FIRST to LAST and a prediction of the noise
USUAL = {
    f"{name}Scheduler"
    for name in "DDIM DDIMInverse DDIMParallel DDPM DDPMParallel DEISMultistep DPMSolverMultistep "
    "DPMSolverMultistepInverse DPMSolverSinglestep EulerAncestralDiscrete EulerDiscrete LMSDiscrete PNDM SASolver "
    "UniPCMultistep".split()
}
# classes whose fields mean the same and have other defaults; those of every other class mean something else
OTHERS = {
    f"{name}Scheduler" for name in "DPMSolverSDE HeunDiscrete KDPM2AncestralDiscrete KDPM2Discrete LCM TCD".split()
}


def schedule_settings(theirs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Our settings from their scheduler; without one, those of the published DiT: linear, and it predicts the noise."""
    found: Mapping[str, Any] = {} if theirs is None else theirs
    if not isinstance(found, Mapping):
        raise UserError(f"this DiT's scheduler must be a table of fields, not {found!r}")
    kind = str(found.get("_class_name", "DDPMScheduler"))
    _one_of(found, "num_train_timesteps", STEPS)
    if kind == FLOW:
        return dict(noise_schedule="flow")
    if kind not in USUAL | OTHERS:
        raise UserError(
            f"this scheduler is {with_article(kind)}, whose noise schedule ours does not have: only those of the "
            f"kinds of DDPMScheduler and {FLOW}"
        )
    schedule = found.get("beta_schedule", "linear")
    if kind not in USUAL:
        for name in ("beta_schedule", "prediction_type", *(("beta_start", "beta_end") if schedule == "linear" else ())):
            if name not in found:
                raise UserError(
                    f"this scheduler is {with_article(kind)} without {name}, whose default is not that of the "
                    f"schedules that ours has: write {name} into scheduler_config.json"
                )
    _one_of(found, "beta_schedule", *SCHEDULES)
    _one_of(found, "prediction_type", *PREDICTIONS)
    for name in ("use_flow_sigmas", "rescale_betas_zero_snr"):
        _one_of({name: bool(found.get(name))}, name, False)
    if schedule == "linear":
        _one_of(found, "beta_start", FIRST)
        _one_of(found, "beta_end", LAST)
    if found.get("trained_betas") is not None:
        raise UserError("this scheduler has trained_betas, a schedule of its own: ours are linear and cosine")
    prediction = PREDICTIONS[found.get("prediction_type", "epsilon")]
    return dict(noise_schedule=SCHEDULES[schedule], prediction=prediction)


def _one_of(found: Mapping[str, Any], name: str, *values: Any) -> None:
    if found.get(name, values[0]) not in values:
        known = " or ".join(map(repr, values))
        raise UserError(f"this scheduler's {name} is {found[name]!r}, which ours does not have: only {known}")


def describe_schedule(config: Any, latents: bool) -> dict[str, Any]:
    """Their scheduler_config.json for a model of ours; x₀ is clipped for images, not for latents, as we do."""
    if config.noise_schedule == "flow":
        return dict(_class_name=FLOW, num_train_timesteps=STEPS, shift=1.0)
    beta_schedule = their_word(SCHEDULES, config.noise_schedule)
    prediction = their_word(PREDICTIONS, config.prediction)
    return dict(
        _class_name="DDIMScheduler",
        num_train_timesteps=STEPS,
        beta_schedule=beta_schedule,
        beta_start=FIRST,
        beta_end=LAST,
        prediction_type=prediction,
        clip_sample=not latents,
        set_alpha_to_one=True,
        steps_offset=0,
    )

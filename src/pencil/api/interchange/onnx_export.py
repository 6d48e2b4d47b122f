"""A run as ONNX files: its forward passes by torch's exporter, each compared with the model in onnxruntime.

One forward pass is one file with its weights. Where there are several they have their weights in one file beside them,
so that nothing is stored twice; so has one whose weights exceed what a file of protobuf can hold.
"""

import hashlib
import inspect
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...config import UserError, nearest, package
from ...data.tokenizers.export import tokenizer_files
from ...families.family import Family
from ...families.predictions import transform_of
from ...inference.autoencoder import has_latents
from ...inference.diffusion import GaussianDiffusion
from ...inference.graphs import Graph, sizes
from ...inference.image_sampling import process_of
from ...runs.run import Run
from .card import onnx_card

ERROR = 1e-4  # of the largest value, above which a file is not what the model computes
WEIGHTS = "weights.bin"
WHOLE = 1 << 30  # bytes of weights that are kept in the file of a graph
SMALL = 1 << 10  # bytes of a tensor that is always kept there
QUANTIZED = ("int8",)
NEED = "export --to onnx needs onnx, onnxscript and onnxruntime"


@dataclass(frozen=True)
class Compared:
    """A file beside the model, over several sizes."""

    error: float  # the largest, as a share of the largest value of its output
    answers: int  # vectors of logits
    others: int  # those whose largest value is another token or class

    def __str__(self) -> str:
        same = f", and {self.answers - self.others:,} of {self.answers:,} answers are the same" if self.answers else ""
        return f"the largest error is {self.error:.1e} of the largest value{same}"


def check_installed() -> None:
    """Refuse where what the export needs is not installed."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        package(name, NEED, "onnx")


def onnx_files(run: Run, record: Family, config: Any, folder: Path, quantize: str | None) -> dict[str, bytes]:
    """The files beside the graphs: the tokenizer and the README."""
    if record.runtime is None:
        raise UserError(f"a {record.name} has no forward passes for ONNX: its record names none (runtime)")
    if quantize not in (None, *QUANTIZED):
        raise UserError(f"--quantize is {' or '.join(QUANTIZED)}, not {quantize}; {nearest(quantize or '', QUANTIZED)}")
    check_installed()
    files = {}
    if (run.path / "tokenizer.json").is_file():
        files = tokenizer_files(run.tokenizer, getattr(config, "context", None))
    elif getattr(config, "vocab", None):
        raise UserError(f"{run.path} has no tokenizer, which the example of an ONNX export needs: import it with one")
    files["README.md"] = onnx_card(folder, run.path, record.runtime.example(run, config), quantize).encode()
    return files


def write_onnx(
    run: Run, record: Family, model: Any, folder: Path, quantize: str | None, notify: Callable[[str], None]
) -> None:
    """Write the graphs of a model into a folder, compare each with the model, and say how near they are."""
    assert record.runtime is not None
    model = model.float().eval().requires_grad_(False)
    graphs, facts = record.runtime.graphs(model), metadata(run, record, model.config, quantize)
    with quiet():
        save({graph.name: exported(graph) for graph in graphs}, folder, facts)
        for graph in graphs:
            found = compared(graph, folder / f"{graph.name}.onnx")
            if not found.error <= ERROR or found.others:
                raise UserError(f"{graph.name}.onnx is not what the model computes: {found}; nothing was written")
            if quantize is None:
                notify(f"{graph.name}.onnx: {found} (onnxruntime {package('onnxruntime', NEED, 'onnx').__version__})")
        if quantize is not None:
            save(quantized(graphs, folder), folder, facts)
            for graph in graphs:
                notify(f"{graph.name}.onnx in {quantize}: {compared(graph, folder / f'{graph.name}.onnx')}")


def exported(graph: Graph) -> Any:
    """The graph as a model of onnx_ir; every named axis may have any size."""
    from torch.export import Dim

    given = graph.random(sizes(batch=3, tokens=3, past=2 + graph.before, source=5))
    axes = [{i: Dim.AUTO for i, axis in enumerate(graph.inputs[name].axes) if isinstance(axis, str)} for name in given]
    shapes = inspect.signature(graph.module.forward).bind(*axes).arguments
    program = torch.onnx.export(
        graph.module,
        tuple(given.values()),
        input_names=list(given),
        output_names=list(graph.outputs),
        dynamic_shapes=dict(shapes),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    return program.model


def compared(graph: Graph, path: Path) -> Compared:
    """A file in onnxruntime beside the module in torch: other sizes than those it was exported with."""
    runtime = package("onnxruntime", NEED, "onnx")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    longest = getattr(graph.module.model.config, "context", 8)
    read = getattr(graph.module.model.config, "source_context", longest)
    error, answers, others = 0.0, 0, 0
    for seed, (batch, tokens, past, source) in enumerate(((2, 11, 0, 7), (5, 1, 13, 3), (1, 2, 1, 1))):
        tokens = min(tokens, longest)
        past = min(past, longest - tokens) + graph.before
        given = graph.random(sizes(batch, tokens, past, min(source, read)), seed)
        with torch.no_grad():
            wanted = graph.module(*given.values())
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        found = session.run(None, {name: value.numpy() for name, value in given.items()})
        for name, ours, array in zip(graph.outputs, wanted, map(torch.from_numpy, found), strict=True):
            off = (ours - array).abs().max().item() if array.isfinite().all() else float("inf")
            error = max(error, off / ours.abs().max().item())
            if name == "logits":
                # two that are nearer than the error may change places
                chosen = ours.gather(-1, array.argmax(-1, keepdim=True))[..., 0]
                answers += chosen.numel()
                others += int((chosen < ours.amax(-1) - 2 * ERROR * ours.abs().max()).sum())
    return Compared(error, answers, others)


def quantized(graphs: list[Graph], folder: Path) -> dict[str, Any]:
    """The saved graphs with matrices of whole numbers; activations are rounded as they come."""
    import onnx_ir
    from onnxruntime.quantization import QuantType, quantize_dynamic

    models = {}
    for graph in graphs:
        path = folder / f"{graph.name}.onnx"
        # seven bits of the eight: sums of full ones exceed 16 bits on processors without VNNI
        quantize_dynamic(path, path, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)
        models[graph.name] = onnx_ir.load(path)
        for value in models[graph.name].graph.initializers.values():
            value.const_value = onnx_ir.tensor(value.const_value.numpy().copy(), name=value.name)
    (folder / WEIGHTS).unlink(missing_ok=True)
    return models


def save(models: Mapping[str, Any], folder: Path, facts: Mapping[str, str]) -> None:
    """Write models with what they should be read with; several of them share a file of weights."""
    import onnx_ir

    tensors = [value for model in models.values() for value in model.graph.initializers.values()]
    if len(models) > 1 or sum(value.const_value.nbytes for value in tensors) > WHOLE:
        places: dict[bytes, tuple[int, int]] = {}
        with (folder / WEIGHTS).open("wb") as file:
            for value in tensors:
                tensor = value.const_value
                if tensor.nbytes < SMALL:
                    continue
                content = tensor.tobytes()
                digest = hashlib.sha256(content).digest()
                if digest not in places:
                    file.write(bytes(-file.tell() % 64))
                    places[digest] = file.tell(), file.write(content)
                value.const_value = onnx_ir.ExternalTensor(
                    WEIGHTS, *places[digest], tensor.dtype, shape=tensor.shape, name=tensor.name, base_dir=folder
                )
    for name, model in models.items():
        for node in model.graph.all_nodes():  # where it was exported from: paths of this machine
            node.metadata_props.clear()
            node.doc_string = None
        model.producer_name, model.producer_version = "pencil", __version__
        model.metadata_props.clear()
        model.metadata_props.update(facts)
        onnx_ir.save(model, folder / f"{name}.onnx")


def metadata(run: Run, record: Family, config: Any, quantize: str | None) -> dict[str, str]:
    """What a file carries, as JSON: labels, how pictures are prepared, what the tokenizer is, the noise schedule."""
    facts: dict[str, Any] = {"pencil": __version__, "family": record.name, "weights": quantize or "float32"}
    if getattr(config, "classes", None):
        facts["labels"] = list(map(str, run.config["run"].get("classes") or range(config.classes)))
    if hasattr(config, "image_size"):
        facts["preprocessing"] = asdict(transform_of(run, config).without_augmentation)
    if (run.path / "tokenizer.json").is_file():
        tokenizer = run.tokenizer
        names = ("kind", "vocab", "begin", "start", "end", "ends", "mask", "pad", "never", "around")
        facts["tokenizer"] = {name: getattr(tokenizer, name) for name in names}
    if hasattr(config, "noise_schedule"):
        facts["noise_schedule"], facts["prediction"] = config.noise_schedule, config.prediction
        process = process_of(config, has_latents(run, config))
        if isinstance(process, GaussianDiffusion):
            facts["alphas_cumprod"] = process.alphas_cumprod.tolist()
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """The exporter's and the quantizer's notes to their own developers are left out."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root", "")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)

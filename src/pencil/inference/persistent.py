"""Decoding with one kernel launch a token, for GPT-shaped models in bfloat16 on a Hopper GPU or a later one.

The kernel is in `persistent.cu`. It computes what the model computes, on the cache the model uses; models that it does
not take are decoded by the captured step.

One launch per token. On a GPU of compute capability 9.0 or later a GPT-shaped model in bfloat16 is decoded by one
kernel (`inference/persistent.cu`), for at most eight sequences. Each multiprocessor runs one block for the whole token.
One of its warps copies the block's rows of every matrix into a ring in shared memory, ahead of their use; the others
multiply with tensor cores. Blocks exchange vectors through memory as pairs of value and tag, so no barrier over the
grid is needed, which would add its latency to that of the read after it. `persistent.py` says which models it takes;
NVRTC, which comes with PyTorch, compiles it for the model's sizes, and the result is cached. It is CUDA C++ and not
Triton, because the ring needs asynchronous copies that run ahead of the code that uses them.
"""

import ctypes
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.cache import Cache
from ..core.layers import GatedMLP, LayerNorm, RMSNorm
from ..core.positions import Learned, Positions, Rope
from ..data.cache import cache_folder
from ..files import write_aside
from ..models.gpt import GPT

MOST_SEQUENCES = 8
FEW_SEQUENCES, LARGE = 4, 1 << 30  # parameters from which the captured step is faster for more than a few sequences
WARPS, DEEP = 15, 2
CHUNK = 1600  # columns of a matrix that are copied at a time, about
SPLITS, KEYS_A_SPLIT = 5, 128
FEW_RINGS = 4  # measured: up to 3.0 (GPT-2 XL) one copy in flight is best, from 7.2 on (2.7 B parameters) more are
MOST_PARAMETERS = 32_000  # bytes of a kernel's arguments
_MAX_DYNAMIC_SHARED_MEMORY = 8  # of CUfunction_attribute
ACTIVATIONS = {"gelu": 0, "geglu": 0, "gelu-tanh": 1, "geglu-tanh": 1, "relu": 2, "silu": 3, "swiglu": 3}
FIELDS = (
    "attn_norm.weight", "attn_norm.bias", "attn.qkv.weight", "attn.qkv.bias", "attn.q_norm.weight",
    "attn.k_norm.weight", "attn.out.weight", "attn.out.bias", "mlp_norm.weight", "mlp_norm.bias", "mlp.gate.weight",
    "mlp.gate.bias", "mlp.up.weight", "mlp.up.bias", "mlp.down.weight", "mlp.down.bias",
)  # fmt: skip


def refusal(model: Any, batch: int) -> str | None:
    """Why the kernel does not take this model; None if it does."""
    if type(model) is not GPT:
        return f"a {type(model).__name__} is not a GPT"
    c, weight = model.config, model.tokens.weight
    if weight.device.type != "cuda" or torch.cuda.get_device_capability(weight.device) < (9, 0):
        return "it needs a CUDA GPU of compute capability 9.0 or higher"
    if any(one.dtype != torch.bfloat16 for one in model.parameters()):
        return "the weights are not in bfloat16"
    if batch > MOST_SEQUENCES:
        return f"it takes at most {MOST_SEQUENCES} sequences, not {batch}"
    if batch > FEW_SEQUENCES and sum(one.numel() for one in model.parameters()) > LARGE:
        return f"more than {FEW_SEQUENCES} sequences of a model this large are decoded faster by the captured step"
    if c.head_width not in (32, 64, 128, 256):
        return f"a head has {c.head_width} channels, not 32, 64, 128 or 256"
    if any(size % 16 for size in (c.width, c.mlp_width)):
        return "the width and the width of the MLP must be multiples of 16"
    if type(model.positions) not in (Learned, Rope, Positions):
        return f"the positions are {c.positions}, not learned, rope or none"
    if type(model.norm) not in (LayerNorm, RMSNorm):
        return f"the norm is {c.norm}, not layer or rms"
    if c.activation not in ACTIVATIONS:
        return f"the activation is {c.activation}, which it does not have"
    if c.depth * 8 * len(FIELDS) > MOST_PARAMETERS:
        return f"{c.depth} blocks are too many"
    if any(not one.is_contiguous() or one.data_ptr() % 16 for one in model.parameters()):
        return "a weight is not contiguous"
    return None


def copies_in_flight(gated: bool, rings: float, stages: int) -> int:
    """How many copies of weights each multiprocessor keeps in flight; `rings`: a block's bytes over those of all rings.

    Chosen by what `benchmarks/decode_flight.py` measured on an H200. A block that fits into the rings is copied as fast
    as there is room. For a larger one three copies saturate the memory; more only queue there, and the vectors that the
    multiprocessors exchange wait behind them. Where those exchanges are a large part of the time, in blocks of a few
    rings without a gated MLP, one is best.
    """
    if rings <= 1:
        return stages
    return 1 if not gated and rings < FEW_RINGS else min(3, stages)


class PersistentStep:
    """The logits of each row's next token, by one launch; the cache gets the new keys and values.

    `flight` sets the number of copies in flight, for measuring; else it is chosen.
    """

    def __init__(self, model: GPT, cache: Cache, tokens: Tensor, active: Tensor, flight: int | None = None):
        c, batch, device = model.config, len(tokens), tokens.device
        heads = c.kv_head_count
        facts = torch.cuda.get_device_properties(device)
        grid = facts.multi_processor_count
        attended, qkv = c.heads * c.head_width, (c.heads + 2 * heads) * c.head_width
        widest = max(c.width, attended, c.mlp_width)
        chunk = _chunk(c.mlp_width)
        owned = 2 * (-(-c.width // grid) // 2 + 1)
        small = _up(3 * c.head_width + 2 * WARPS + WARPS * c.head_width, 4)
        per_block = [_up(-(-rows // grid) + 17, 8) for rows in (qkv, c.width, c.mlp_width)]
        given = 4 * c.width + per_block[0] + 2 * per_block[1] + 2 * per_block[2]
        fixed = 2 * batch * (widest + 8) + 8 * WARPS * 16 * batch + 4 * small + 2 * given + 4 * batch * owned + 512
        stage = 16 * (chunk + 8) + 16
        stages = min(32, (facts.shared_memory_per_block_optin - fixed) // stage)
        if stages < 3:
            raise NoKernel("the shared memory of a multiprocessor is too small for this model")
        block_bytes = sum(one.nbytes for one in model.blocks[0].parameters())
        gated = isinstance(model.blocks[0].mlp, GatedMLP)
        if flight is None:
            flight = copies_in_flight(gated, block_bytes / (grid * stages * stage), stages)
        self.flight, self.stages = min(flight, stages), stages
        rotation = _rotation(model, cache.length, device)
        qkv_bias = c.bias if c.qkv_bias is None else c.qkv_bias
        shifted = getattr(model.norm, "bias", None) is not None
        macros = dict(
            LAYERS=c.depth,
            D=c.width,
            HEADS=c.heads,
            KV_HEADS=heads,
            HEAD=c.head_width,
            HIDDEN=c.mlp_width,
            VOCAB=c.vocab,
            B=batch,
            SLOTS=cache.length + 1,
            GATED=int(gated),
            ACTIVATION=ACTIVATIONS[c.activation],
            RMS=int(isinstance(model.norm, RMSNorm)),
            EPS=f"{c.eps!r}f",
            PAIRS=0 if rotation is None else rotation.shape[1],
            ADJACENT=int(c.rope_pairs == "adjacent"),
            WINDOW=c.window or 0,
            SCALE=f"{c.head_width**-0.5!r}f",
            SPLITS=SPLITS,
            KEYS_A_SPLIT=KEYS_A_SPLIT,
            WARPS=WARPS,
            STAGES=stages,
            FLIGHT=self.flight,
            DEEP=DEEP,
            CHUNK=chunk,
            WIDEST=widest,
            SMALL=small,
            OWNED=owned,
            NORMED=1 << (batch - 1).bit_length(),
            GRID=grid,
            BIAS=int(c.bias),
            QKV_BIAS=int(qkv_bias),
            SHIFTED=int(shifted),
            QK_NORM=int(c.qk_norm),
            HEAD_BIAS=int(model.head is not None and model.head.bias is not None),
            LEARNED=int(isinstance(model.positions, Learned)),
        )
        major, minor = torch.cuda.get_device_capability(device)
        source = Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")
        code = compiled(source, macros, f"sm_{major}{minor}")
        self.kernel = Kernel(code, "decode", grid, 32 * WARPS + 32, fixed + stages * stage)
        self.logits = torch.empty(batch, c.vocab, device=device)

        def exchanged(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.long, device=device)

        self.scratch = [
            exchanged(1),
            exchanged(batch, c.width),
            exchanged(batch, qkv),
            exchanged(batch, c.heads, SPLITS, c.head_width),
            exchanged(batch, c.heads, SPLITS),
            exchanged(batch, c.mlp_width // 2),
        ]
        weights = [_weight(block, name) for block in model.blocks for name in FIELDS]
        table = model.positions.table if isinstance(model.positions, Learned) else None
        head = model.tokens.weight if model.head is None else model.head.weight
        weights += [model.tokens.weight, table, model.norm.weight, getattr(model.norm, "bias", None), head]
        weights += [None if model.head is None else model.head.bias, rotation]
        state = [tokens, active, cache.used, cache.store[0], cache.store[1], cache.index, cache.coords, self.logits]
        self.held = (weights, state)  # their addresses are the kernel's arguments
        self.arguments = (addresses(weights), addresses([*state, *self.scratch]))

    def __call__(self) -> Float[Tensor, "B V"]:
        self.kernel.launch(self.arguments)
        return self.logits


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _chunk(columns: int) -> int:
    """Columns copied at a time: equal parts of the MLP's width, in multiples of 64."""
    return _up(-(-columns // -(-columns // CHUNK)), 64)


def _weight(block: Any, name: str) -> Tensor | None:
    for part in name.split("."):
        block = getattr(block, part, None)
    return block


def _rotation(model: GPT, length: int, device: torch.device) -> Float[Tensor, "L p 2"] | None:
    """The cosine and sine of every position and pair, as the model has them."""
    angles = model.positions.angles(torch.arange(length + 1, device=device)[None, :, None])
    if angles is None:
        return None
    turned = torch.stack((angles[0].cos(), angles[0].sin()), -1)
    return (turned.float() * model.positions.strength).contiguous()


def persistent_step(
    model: Any, cache: Cache, tokens: Tensor, active: Tensor, notify: Callable[[str], None] | None = None
) -> PersistentStep | None:
    """The kernel for this model, if it takes it; where it cannot be compiled, a line says why."""
    if refusal(model, len(tokens)) is not None:
        return None
    try:
        return PersistentStep(model, cache, tokens, active)
    except NoKernel as error:
        if notify is not None:
            notify(f"(decoding without the persistent kernel: {error})")
        return None


class NoKernel(Exception):
    """Why a kernel cannot be compiled or launched here."""


@cache
def _nvrtc() -> Any:
    """The compiler's library: where the loader finds it, or beside PyTorch's other libraries."""
    major = (torch.version.cuda or "").split(".")[0]
    name = f"libnvrtc.so.{major}"
    beside = [path for folder in sys.path for path in sorted(Path(folder).glob(f"nvidia/*/lib/{name}"))]
    for candidate in (name, *map(str, beside)):
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise NoKernel(f"{name} is not found")


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoKernel("libcuda.so.1 is not found") from error


def compiled(source: str, macros: Mapping[str, Any], architecture: str) -> bytes:
    """The kernel for a GPU architecture, compiled at run time by NVRTC, which comes with PyTorch.

    It stays in the cache folder: compiling takes seconds.
    """
    library = _nvrtc()
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device"]
    options += [f"-D{name}={value}" for name, value in macros.items()]
    version = (ctypes.c_int(), ctypes.c_int())
    library.nvrtcVersion(*map(ctypes.byref, version))
    everything = "\n".join([source, *options, *(str(number.value) for number in version)])
    file = cache_folder() / "kernels" / f"{hashlib.sha256(everything.encode()).hexdigest()}.cubin"
    if file.exists():
        return file.read_bytes()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), words):
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise NoKernel(f"NVRTC refuses the kernel: {log.value.decode(errors='replace').strip()}")
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_aside(file, code.raw)
    return code.raw


class Kernel:
    """One entry of a compiled kernel, launched cooperatively: the blocks of its grid all run at the same time."""

    def __init__(self, code: bytes, name: str, blocks: int, threads: int, shared_memory: int):
        torch.cuda.current_stream()  # makes PyTorch's context the current one
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.sizes = (blocks, 1, 1, threads, 1, 1, shared_memory)
        _check(_driver().cuModuleLoadData(ctypes.byref(self.module), code), "loaded")
        _check(_driver().cuModuleGetFunction(ctypes.byref(self.function), self.module, name.encode()), "found")
        attribute = _driver().cuFuncSetAttribute(self.function, _MAX_DYNAMIC_SHARED_MEMORY, shared_memory)
        _check(attribute, "given its shared memory")

    def launch(self, arguments: Sequence[ctypes.Array]) -> None:
        """Launch on the current stream; each argument is a structure that is passed by value."""
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(_driver().cuLaunchCooperativeKernel(self.function, *self.sizes, stream, pointers), "launched")


def _check(status: int, done: str) -> None:
    if status:
        raise NoKernel(f"the kernel cannot be {done}: CUDA driver error {status}")


def addresses(tensors: Sequence[torch.Tensor | None]) -> ctypes.Array:
    """A structure of pointers; a tensor that is not there is the null pointer."""
    return (ctypes.c_uint64 * len(tensors))(*(0 if one is None else one.data_ptr() for one in tensors))

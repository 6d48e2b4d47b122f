"""A CUDA C++ kernel compiled at run time by NVRTC, which comes with PyTorch, and launched cooperatively.

The compiled kernel is kept in the cache folder: compiling takes seconds.
"""

import ctypes
import hashlib
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..data.cache import cache_folder
from ..files import write_aside

_MAX_DYNAMIC_SHARED_MEMORY = 8  # of CUfunction_attribute


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
    """The kernel for a GPU architecture, from the cache folder if it was compiled before."""
    library = _nvrtc()
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device"]
    options += [f"-D{name}={value}" for name, value in macros.items()]
    version = (ctypes.c_int(), ctypes.c_int())
    library.nvrtcVersion(*map(ctypes.byref, version))
    everything = "\n".join([source, *options, *(str(number.value) for number in version)])
    kept = cache_folder() / "kernels" / f"{hashlib.sha256(everything.encode()).hexdigest()}.cubin"
    if kept.exists():
        return kept.read_bytes()
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
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_aside(kept, code.raw)
    return code.raw


class Kernel:
    """One entry of a compiled kernel, with a grid whose blocks all run at the same time."""

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

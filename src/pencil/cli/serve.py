"""serve."""

import gc
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..config import UserError
from ..console import end_at_once, note
from ..files import read_text
from .doctor import install
from .names import check_run
from .parsing import read_token

if TYPE_CHECKING:
    from ..serve.app import Served

USAGE = "RUN... [OPTIONS]"
LOCAL, EVERYWHERE = "127.0.0.1", "0.0.0.0"
TILE, CUDA_TILE = 8, 128  # rows that take a step together: a GPU takes many in the time of a few


def serve(
    *runs: str,
    port: int = 8000,
    lan: Annotated[bool, Parameter(negative=())] = False,
    token_file: Path | None = None,
    rows: int = 64,
    waiting: int = 256,
    seconds: float = 300.0,
    drain: float = 30.0,
    chat_template: Path | None = None,
    log_prompts: Annotated[bool, Parameter(negative=())] = False,
    device: str = "auto",
    dtype: str = "auto",
    debug: Annotated[bool, Parameter(show=False, negative=())] = False,
) -> int:
    """Answer over HTTP, in the form that OpenAI's clients speak: completions, chat, embeddings.

    A request gets the same tokens whatever else the server does, with a seed or at temperature 0. Ctrl-C ends it, and
    SIGTERM after what is under way.

    Parameters
    ----------
    runs
        The folders of the runs; each is a model by its folder's name.
    port
        The port; 0 is any free one.
    lan
        Answer other machines, too, at every address of this one; needs --token-file.
    token_file
        A file with the token that every request must carry: Authorization: Bearer TOKEN.
    rows
        Texts that are written at the same time, in eights (on a GPU in 128s); their memory is taken at the start.
    waiting
        Requests for texts that wait beside them; more are refused (429).
    seconds
        The most time for one request.
    drain
        Seconds that what is under way has when the server ends.
    chat_template
        A file with the Jinja template that makes a prompt of messages; an imported run has its own.
    log_prompts
        Write prompts, as ids of tokens, to standard error; they are written nowhere otherwise.
    device
        auto, cpu, cuda or mps.
    dtype
        float32, bfloat16, float16, int8, or auto: the stored one, on a CPU at least float32.
    """
    if not runs:
        raise UserError(f"name the folder of a run: pencil serve {USAGE}")
    for name, value in (("rows", rows), ("waiting", waiting), ("seconds", seconds), ("drain", drain)):
        if not 0 < value <= 1_000_000:
            raise UserError(f"--{name} must be more than 0 and at most 1,000,000, not {value:g}")
    token = read_token(token_file)
    if lan and token is None:
        raise UserError("--lan answers other machines: it needs --token-file with a token that they must send")
    for path in runs:
        check_run(path)
    _check_extra()
    # from here on torch is needed
    from ..serve.app import Api, server_for
    from ..web_server import listen

    listening = listen(EVERYWHERE if lan else LOCAL, port)  # before a model is opened, which takes longer
    try:
        template = None if chat_template is None else read_text(chat_template)
        served = [_served(path, rows, waiting, template, device, dtype) for path in runs]
        if len({one.name for one in served}) < len(served):
            raise UserError("two of these runs have the same folder name, which is a model's name: rename one")
        sys.setswitchinterval(0.0001)  # whoever writes to a socket waits so long until the models' threads give way
        api = Api(served, seconds, debug, log_prompts)
        for one in served:
            one.worker.on_failure = api.failed
        server = server_for(api, listening.getsockname()[1], token, lan, drain, debug)
        print(f"http://{listening.getsockname()[0]}:{listening.getsockname()[1]}/v1", flush=True)
        gc.collect()
        gc.freeze()  # what is here stays: a collection need not look at it again, which takes as long as many tokens
        # uvicorn ends first, and raises the signal again
        before = signal.signal(signal.SIGTERM, lambda number, frame: None)
        try:
            server.run(sockets=[listening])
        finally:
            signal.signal(signal.SIGTERM, before)
    except KeyboardInterrupt:
        pass
    except SystemExit:  # so uvicorn ends where it cannot start
        raise UserError("the server could not start; --debug shows why") from None
    finally:
        listening.close()
    end_at_once()
    return 0


def _check_extra() -> None:
    for name in ("jinja2", "prometheus_client"):
        if find_spec(name) is None:
            raise UserError(f"pencil serve needs {name}; {install('serve')}")


def _served(path: str, rows: int, waiting: int, template: str | None, device: str, dtype: str) -> "Served":
    """A run opened, with its memory taken; a line says how much."""
    from ..api.loading import load
    from ..api.original import read_original
    from ..device import pick_device
    from ..serve.app import Served
    from ..serve.chat import check_template, template_of
    from ..serve.engine import Engine, can_continue
    from ..serve.worker import Worker

    loaded = load(path, pick_device(device), dtype)
    name, engine = loaded.run.path.resolve().name, None
    if can_continue(loaded):
        tile = CUDA_TILE if next(loaded.model.parameters()).is_cuda else TILE
        engine = Engine(loaded.model, loaded.tokenizer, tiles=-(-rows // tile), rows=tile, waiting=waiting)
        steady = "the same answer at any load" if engine.is_steady else "here a busy server may answer otherwise"
        size = f"{-(-rows // tile) * tile} rows of {engine.context} tokens, {engine.bytes / 2**20:,.0f} MiB"
        note(f"{name}: {size}; {steady}")
        template = template_of(read_original(loaded.run)) if template is None else check_template(template)
    served = Served(name, loaded, Worker(name, engine), template)
    if engine is None:
        count = served.batches.rows  # measured now, not by the first request
        note(f"{name}: a {loaded.run.family}, {count} input{'s' * (count > 1)} at a time; the same answer at any load")
    return served

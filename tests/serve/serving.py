"""A small untrained GPT behind the real server on a free port, and an engine without a server."""

import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from openai import OpenAI

from pencil.data.tokenizers.tokenizer import ByteTokenizer
from pencil.inference.sampling import Sampling
from pencil.models.captioner import Captioner, CaptionerConfig
from pencil.models.gpt import GPT, GPTConfig
from pencil.models.seq2seq import Seq2Seq, Seq2SeqConfig
from pencil.runs.run import Loaded
from pencil.serve.app import Api, Served, server_for
from pencil.serve.engine import Continuation, Engine
from pencil.serve.row_sampling import Rules
from pencil.serve.worker import Worker
from pencil.web_server import listen

NAME = "small"
HANG_SECONDS = 300  # until a test that hangs fails; a busy machine changes nothing


def small_gpt(**settings):
    torch.manual_seed(5)
    sizes = dict(vocab=257, context=101, width=24, depth=2, heads=3) | settings
    return large_weights(GPT(GPTConfig(**sizes)))


def large_weights(model):
    """Weights so large that the next token is far from certain and far from uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.eval()


def small_captioner(**settings):
    torch.manual_seed(6)
    sizes = dict(vocab=257, context=61, width=24, depth=2, heads=3, image_size=(6, 10), patch=(2, 5)) | settings
    return large_weights(Captioner(CaptionerConfig(**sizes)))


def small_seq2seq(**settings):
    torch.manual_seed(7)
    sizes = dict(vocab=257, context=61, source_context=29, width=24, depth=2, heads=3) | settings
    return large_weights(Seq2Seq(Seq2SeqConfig(**sizes)))


def small_engine(model=None, tokenizer=None, **sizes):
    sizes = dict(tiles=2, rows=3, piece=16, prefixes=7, waiting=3) | sizes
    return Engine(model or small_gpt(), tokenizer or ByteTokenizer(ended=True), **sizes)


def continuation(prompt, most=7, rules=None, **options):
    """A continuation that keeps its pieces in `got`."""
    got = []
    ids = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    one = Continuation(ids, most, rules or Rules(Sampling(temperature=0)), got.append, **options)
    one.got = got
    return one


def finish(engine):
    while engine.busy:
        engine.round()


def tokens_of(one):
    """What was generated, to the last bit of how likely it was."""
    assert one.got[-1].error is None, one.got[-1].error
    return [(token.id, token.logprob) for piece in one.got for token in piece.tokens]


@contextmanager
def server(engine=None, template=None, seconds=HANG_SECONDS, token=None, lan=False, others=(), **sizes):
    """The server in a thread of this process; gives its port, its Api and its engine."""
    engine = engine or small_engine(**sizes)
    loaded = Loaded(engine.model, engine.tokenizer, SimpleNamespace(family="gpt"))
    api = Api([Served(NAME, loaded, Worker(NAME, engine), template), *others], seconds)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    running = server_for(api, port, token, lan, drain=HANG_SECONDS)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + HANG_SECONDS
        while not running.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield SimpleNamespace(port=port, api=api, engine=engine, url=f"http://127.0.0.1:{port}", server=running)
    finally:
        running.should_exit = running.force_exit = True
        thread.join(HANG_SECONDS)
        listening.close()


def client(served, token="none"):
    return OpenAI(base_url=f"{served.url}/v1", api_key=token, max_retries=0, timeout=HANG_SECONDS)

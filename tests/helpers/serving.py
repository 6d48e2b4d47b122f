"""Small untrained models behind the real server on a free port, an engine without a server, and mixtures of requests."""

import random
import threading
import time
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import torch

from pencil.data.tokenizers.tokenizer import ByteTokenizer
from pencil.inference.sampling import Sampling
from pencil.models.captioner import Captioner, CaptionerConfig
from pencil.models.gpt import GPT, GPTConfig
from pencil.models.seq2seq import Seq2Seq, Seq2SeqConfig
from pencil.runs.run import Loaded
from pencil.serve.app import Api, Served, server_for
from pencil.serve.engine import Continuation, Engine
from pencil.serve.row_sampling import Rules
from pencil.serve.tile import example_inputs
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
    from openai import OpenAI  # tests of the engine alone do without

    return OpenAI(base_url=f"{served.url}/v1", api_key=token, max_retries=0, timeout=HANG_SECONDS)


MODELS = {
    "rope": partial(small_gpt, kv_heads=1, qk_norm=True),
    "learned": partial(small_gpt, positions="learned", window=13),
    "alibi": partial(small_gpt, positions="alibi", norm="rms", activation="swiglu"),
    "captioner": small_captioner,
    "captioner with biases": partial(small_captioner, positions="alibi", mask="causal"),
    "seq2seq": small_seq2seq,
    "seq2seq with biases": partial(small_seq2seq, positions="t5", buckets=8, norm_position="post"),
}


def inputs(model, seed):
    """A picture, or a source of another length for each seed."""
    generator = torch.Generator().manual_seed(seed)
    given = example_inputs(model, 256, generator)
    return given if "source" not in given else {"source": given["source"][:, : 1 + seed % given["source"].shape[1]]}


def mixture(model, count, seed, most):
    """Requests of all kinds; half of them begin alike."""
    r = random.Random(seed)
    common = [r.randrange(256) for _ in range(60)]
    asked = []
    for _ in range(count):
        prompt = [r.randrange(256) for _ in range(r.randint(1, model.config.context - 31))]
        shared = r.choice([0, 0, 16, 33, 50])
        prompt[:shared] = common[:shared]
        how = Sampling(
            temperature=r.choice([0, 0.7, 1.0, 1.5]), top_k=r.choice([None, 5]), top_p=r.choice([None, 0.9]),
            min_p=r.choice([None, 0.02]), repetition_penalty=r.choice([1.0, 1.0, 1.3]), seed=r.randrange(1000),
        )  # fmt: skip
        rules = Rules(how, presence_penalty=r.choice([0, 0, 0.5]), frequency_penalty=r.choice([0, 0, 0.5]))
        asked.append((prompt[: model.config.context - 31], r.randint(1, most), rules, r.randrange(1000)))
    return asked


def changed(model, count, mixtures, seed=0, most=24, ahead=1, **sizes):
    """How many answers of mixtures differ from those of the idle server, and how many there were."""
    # several steps between two looks of the host are what a GPU does; the answers are those of one
    engine = small_engine(model, waiting=count, ahead=ahead, prefixes=5 * count, **sizes)
    one_by_one = engine if ahead == 1 else small_engine(model, waiting=count, **sizes | {"tiles": 1})
    assert engine.is_steady
    asked, r, wrong = mixture(model, count, seed, most), random.Random(seed), 0
    idle = []

    def new(prompt, most, rules, key):
        return continuation(prompt, most, rules, given=inputs(model, key))

    for one in asked:
        alone = new(*one)
        one_by_one.add(alone)
        finish(one_by_one)
        idle.append(tokens_of(alone))
    for _ in range(mixtures):
        order, running, rate = r.sample(range(count), count), {}, r.choice([0.3, 0.6, 0.95])
        while len(running) < count or engine.busy:
            while len(running) < count and r.random() < rate:
                i = order[len(running)]
                running[i] = new(*asked[i])
                engine.add(running[i])
            engine.round()
        wrong += sum(tokens_of(running[i]) != idle[i] for i in range(count))
    if engine is one_by_one:  # it has read every prompt before
        assert (engine.counts["reused"] > 0) == (len(model.INPUTS) == 1)
    return wrong

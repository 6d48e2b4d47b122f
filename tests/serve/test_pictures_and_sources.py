"""A captioner and an encoder–decoder behind the API: what a chat with them is, and what is refused."""

import base64
import io
import json
from types import SimpleNamespace

import numpy as np
import openai
import pytest
from PIL import Image
from test_api import ask

import pencil
from pencil.families.predictions import picture_tensor
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling
from pencil.runs.run import Loaded
from pencil.serve.app import Served
from pencil.serve.worker import Worker
from serving import client, server, small_captioner, small_engine, small_gpt, small_seq2seq


def url_of(pixels, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(out.getvalue()).decode()


PIXELS = np.random.default_rng(3).integers(0, 255, (6, 10), dtype=np.uint8)
PICTURE = {"type": "image_url", "image_url": {"url": url_of(PIXELS)}}


@pytest.fixture(scope="module")
def served():
    others = []
    for name, model in (("captioner", small_captioner(depth=1)), ("seq2seq", small_seq2seq(depth=1))):
        engine = small_engine(model.double())
        run = SimpleNamespace(family=name, config={"run": {}}, path=name)
        others.append(Served(name, Loaded(model, engine.tokenizer, run), Worker(name, engine)))
    with server(small_engine(small_gpt(depth=1)), others=others) as running:
        yield running


def chat(served, model, *contents, **options):
    roles = ["user", "assistant"]
    messages = [{"role": role, "content": one} for role, one in zip(roles, contents, strict=False)]
    return client(served).chat.completions.create(model=model, messages=messages, **options)


def predicted(served, name, what, tokens):
    loaded = served.api.served[name].loaded
    return pencil.predict(loaded.model, what, tokenizer=loaded.tokenizer, temperature=0.0, max_new_tokens=tokens)


def test_a_picture_is_described(served):
    whole = chat(served, "captioner", [PICTURE], max_tokens=9, temperature=0)
    assert whole.choices[0].message.content == predicted(served, "captioner", PIXELS, 9).new
    assert whole.usage.prompt_tokens == 8 + 1  # six patches and their delimiters, and the token that begins a text
    chunks = list(chat(served, "captioner", [PICTURE], max_tokens=9, temperature=0, stream=True))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == whole.choices[0].message.content
    loaded = served.api.served["captioner"].loaded
    for pixels in (PIXELS, 255 - PIXELS):
        part = PICTURE | {"image_url": {"url": url_of(pixels)}}
        begun = chat(served, "captioner", [part], "ab", max_tokens=9, temperature=0)
        given = {"picture": picture_tensor(pixels[None, None], loaded)}
        tokens = Generation(loaded.model, [[256, 97, 98]], 9, Sampling(0), end=256, vocab=257, given=given)
        receipt = json.loads(ask(served, "GET", f"/receipts/{begun.id}")[2])
        assert [one["id"] for one in receipt["choices"][0]["tokens"]] == [token for (token,) in tokens]


def test_a_source_becomes_its_target(served):
    sources = ["a bad film", "good"]
    whole = client(served).completions.create(model="seq2seq", prompt=sources, max_tokens=9, temperature=0)
    for choice, source in zip(whole.choices, sources, strict=True):
        assert choice.text == predicted(served, "seq2seq", source, 9).new
    assert whole.usage.prompt_tokens == 10 + 4 + 2 + 2  # with the end of each source, and the beginning of its target
    answer = chat(served, "seq2seq", sources[0], max_tokens=9, temperature=0)
    assert answer.choices[0].message.content == whole.choices[0].text


@pytest.mark.parametrize("model, contents, says", [
    ("captioner", ["what is this?"], "describes one picture"),
    ("captioner", [[PICTURE, {"type": "text", "text": "what is this?"}]], "takes no instruction"),
    ("captioner", [[PICTURE, PICTURE]], "describes one picture"),
    ("captioner", [[{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}]], "nothing is fetched"),
    ("captioner", [[{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]], "not a picture"),
    ("captioner", [[PICTURE], "a" * 99], "shorten it"),
    ("seq2seq", [[PICTURE]], "has no other parts"),
    ("seq2seq", [""], "the source is empty"),
    ("seq2seq", ["a" * 40], "the source context is 29"),
    ("seq2seq", ["a", [{"type": "text"}]], "has a text"),
])  # fmt: skip
def test_a_chat_with_them_is_refused_in_one_sentence(served, model, contents, says):
    with pytest.raises(openai.APIStatusError) as caught:
        chat(served, model, *contents)
    assert caught.value.status_code in (400, 415)
    assert says in caught.value.body["message"]


def test_who_takes_turns_and_who_does_not(served):
    turns = [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]
    for messages in (turns, turns[1:], [{"role": "system", "content": "a"}]):
        asked = {"model": "seq2seq", "messages": messages}
        status, _, content = ask(served, "POST", "/v1/chat/completions", asked)
        assert (status, "give one message of the user" in json.loads(content)["error"]["message"]) == (400, True)
    with pytest.raises(openai.BadRequestError, match="describes pictures"):
        client(served).completions.create(model="captioner", prompt="a")
    with pytest.raises(openai.BadRequestError, match="echo"):
        client(served).completions.create(model="seq2seq", prompt="a", echo=True)


def test_so_many_values_that_parsing_them_would_take_long_are_refused(served):
    raw = '{"model": "seq2seq", "prompt": [' + '"a",' * 200_000 + '"a"]}'
    status, _, content = ask(served, "POST", "/v1/completions", raw=raw)
    assert (status, "commas" in json.loads(content)["error"]["message"]) == (413, True)

"""Vectors and classes over HTTP: the numbers of the models themselves, and the same beside any others."""

import asyncio
import base64
import io
import json
from contextlib import contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace

import jsonschema_rs
import numpy as np
import openai
import pytest
import torch
from PIL import Image
from test_api import ask

import pencil
from pencil.data.tokenizers.tokenizer import ByteTokenizer
from pencil.models.reader import Reader, ReaderConfig
from pencil.models.vit import ViT, ViTConfig
from pencil.runs.run import Loaded
from pencil.serve.app import Served
from pencil.serve.vectors_and_classes import Batches, steady
from pencil.serve.worker import Together, Worker
from serving import NAME, client, server

NAMES = ["cat", "dog", "owl"]


@contextmanager
def serving(model, tokenizer, family):
    """A server with one more model."""
    run = SimpleNamespace(family=family, config={"run": {"classes": NAMES}}, path=NAME)
    loaded = Loaded(model.eval(), tokenizer, run)
    with server(others=[Served("other", loaded, Worker("other"))]) as running:
        yield running, loaded


def post(served, path, **body):
    status, _, content = ask(served, "POST", path, {"model": "other"} | body)
    return status, json.loads(content)


def test_vectors_and_classes_of_texts():
    torch.manual_seed(1)
    model = Reader(ReaderConfig(vocab=258, context=31, width=30, depth=1, heads=3, classes=3))
    with serving(model, ByteTokenizer(ended=True), "reader") as (served, loaded):
        texts = ["a bad film", "good"]
        expected = [pencil.embed(model, text, tokenizer=loaded.tokenizer).numpy() for text in texts]
        for options in ({}, {"encoding_format": "float"}):  # the client itself asks for base64
            got = client(served).embeddings.create(model="other", input=texts, **options)
            for one, row in zip(got.data, expected, strict=True):
                assert np.array(one.embedding, np.float32) == pytest.approx(row, abs=1e-6)
        assert got.usage.prompt_tokens == 11 + 5
        status, answer = post(served, "/v1/classify", input=texts)
        assert status == 200
        paths = json.loads(ask(served, "GET", "/openapi.json")[2])["paths"]
        (described,) = paths["/v1/classify"]["post"]["responses"]["200"]["content"].values()
        jsonschema_rs.validate(described["schema"], answer)
        for one, text in zip(answer["data"], texts, strict=True):
            theirs = pencil.predict(model, text, tokenizer=loaded.tokenizer, classes=NAMES)
            assert (one["label"], one["probability"]) == (theirs.label, pytest.approx(theirs.probability))
            assert len(one["classes"]) == 3
        for bad in ({"input": []}, {"input": [""]}, {"input": "a", "dimensions": 2}, {"input": 3}):
            assert post(served, "/v1/embeddings", **bad)[0] == 400
        for path in ("/v1/embeddings", "/v1/classify"):
            status, answer = post(served, path, input=["a", "b" * 31])
            assert status == 400
            assert answer["error"]["message"].startswith("input[1]: ")
            assert "32 tokens and the context is 31" in answer["error"]["message"]
            cut, begun = (post(served, path, input=["a", text], truncate=True) for text in ("b" * 31, "b" * 30))
            assert (cut[0], cut[1]["data"]) == (200, begun[1]["data"])
            assert post(served, path, input="a", truncate="END")[0] == 400
        with pytest.raises(openai.BadRequestError, match="does not continue texts"):
            client(served).completions.create(model="other", prompt="a")
        with pytest.raises(openai.BadRequestError, match="gives no vector"):
            client(served).embeddings.create(model=NAME, input="a")
        assert "without classes" in post(served, "/v1/classify", model=NAME, input="a")[1]["error"]["message"]


def test_an_input_gets_the_same_numbers_beside_any_others():
    torch.manual_seed(2)
    model, r = Reader(ReaderConfig(vocab=258, context=43, width=30, depth=2, heads=3, classes=3)).eval(), Random(3)
    run = SimpleNamespace(family="reader", config={"run": {"classes": NAMES}}, path=NAME)
    batches = Batches(Loaded(model, ByteTokenizer(ended=True), run))
    assert batches.rows == 8
    texts = ["".join(r.choices("abcdef ", k=r.randint(1, 40))).strip() or "a" for _ in range(53)]
    seen = []

    def numbers(compute, some):
        seen.append(len(some))
        return [one.probabilities if hasattr(one, "probabilities") else one for one in compute(some)]

    async def answers(compute, order, most):
        worker = Worker("test")
        how = partial(numbers, compute)

        async def one(i):
            key = batches.key(batches.tokens(texts[i], False, True))
            return await worker.call(Together(how, most, key), texts[i])

        waiting = asyncio.gather(*map(one, order))
        await asyncio.sleep(0)  # all are there before the first is computed
        worker.start(asyncio.get_running_loop())
        try:
            return dict(zip(order, await waiting, strict=True))
        finally:
            worker.stop()

    for compute in (batches.vectors, batches.classes):
        alone = asyncio.run(answers(compute, range(len(texts)), 1))
        assert {*seen} == {1}
        for _ in range(2):
            order = r.sample(range(len(texts)), len(texts))
            together = asyncio.run(answers(compute, order, batches.rows))
            assert all(np.array_equal(together[i], alone[i]) for i in order)
        assert max(seen) == batches.rows
        seen.clear()


def test_a_model_whose_numbers_depend_on_their_neighbours_takes_one_input_at_a_time(monkeypatch):
    model = Reader(ReaderConfig(vocab=258, context=43, width=30, depth=1, heads=3, classes=3)).eval()
    assert steady(model, 8)
    forward = Reader.forward
    monkeypatch.setattr(Reader, "forward", lambda *given: forward(*given) + given[1].float().mean())
    assert not steady(model, 8)
    run = SimpleNamespace(family="reader", config={"run": {"classes": NAMES}}, path=NAME)
    assert Batches(Loaded(model, ByteTokenizer(ended=True), run)).rows == 1


def test_classes_of_pictures():
    torch.manual_seed(1)
    model = ViT(ViTConfig(image_size=(6, 10), channels=3, patch=(2, 5), classes=3, width=30, depth=1, heads=3))
    pixels = np.random.default_rng(3).integers(0, 255, (6, 10, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    with serving(model, None, "vit") as (served, _):
        status, answer = post(served, "/v1/classify", input=url)
        assert status == 200, answer
        theirs = pencil.predict(model, pixels, classes=NAMES)
        assert answer["data"][0]["label"] == theirs.label
        assert answer["data"][0]["probability"] == pytest.approx(theirs.probability)
        message = post(served, "/v1/classify", input=[url, "not a picture"])[1]["error"]["message"]
        assert message.startswith("input[1]: ")
        for bad in ("not a picture", "data:image/png;base64,AAAA", url[:60]):
            status, answer = post(served, "/v1/classify", input=bad)
            assert status in (400, 415)
            assert "/" not in answer["error"]["message"].replace("PNG, JPEG", "")

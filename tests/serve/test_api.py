"""The API as the official client and plain sockets see it: answers, streams, errors, limits, and who may ask."""

import http.client
import json
import socket
import time

import openai
import pytest

from pencil.serve import app
from serving import HANG_SECONDS, NAME, client, continuation, finish, server, small_engine

LAN_TOKEN = "a-token-of-more-than-16-characters"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


@pytest.fixture(scope="module")
def served():
    with server(template=TEMPLATE) as running:
        yield running


def ask(served, method, path, body=None, headers=(), raw=None):
    """One request by plain HTTP: its status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=HANG_SECONDS)
    try:
        given = {"Content-Type": "application/json"} | dict(headers)
        connection.request(method, path, raw if raw is not None else body and json.dumps(body), given)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def complete(served, **body):
    status, _, content = ask(served, "POST", "/v1/completions", {"model": NAME, "prompt": "abc"} | body)
    return status, json.loads(content)


def until(condition):
    """Wait for what another thread does."""
    limit = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


# ---- answers


def test_the_official_client_gets_what_the_engine_gives(served):
    one = continuation("abc", 11)
    engine = small_engine()
    engine.add(one)
    finish(engine)
    answer = client(served).completions.create(model=NAME, prompt="abc", max_tokens=11, temperature=0)
    assert answer.choices[0].text == "".join(piece.text for piece in one.got)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 11, 14)


def test_a_stream_holds_the_same_text_and_ends_with_the_usage(served):
    asked = dict(model=NAME, prompt="abc", max_tokens=11, seed=7)
    whole = client(served).completions.create(**asked)
    *chunks, last = client(served).completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert (last.choices, last.usage) == ([], whole.usage)


def test_chat_goes_through_the_template_of_the_run(served):
    messages = [{"role": "user", "content": "hi"}]
    asked = dict(model=NAME, messages=messages, max_completion_tokens=9, seed=3)
    whole = client(served).chat.completions.create(**asked)
    prompt = "<user>hi\n<bot>"
    same = client(served).completions.create(model=NAME, prompt=prompt, max_tokens=9, seed=3)
    assert whole.choices[0].message.content == same.choices[0].text
    assert whole.usage.prompt_tokens == len(prompt)
    chunks = list(client(served).chat.completions.create(**asked, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    assert client(served).chat.completions.create(**asked | {"messages": parts}).choices == whole.choices


def test_several_prompts_and_samples_are_choices_in_order(served):
    asked = dict(model=NAME, max_tokens=5, seed=1)
    many = client(served).completions.create(prompt=["ab", "cd"], n=2, **asked)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    for i, prompt in enumerate(["ab", "cd"]):
        alone = client(served).completions.create(prompt=prompt, n=2, **asked)
        assert [c.text for c in alone.choices] == [c.text for c in many.choices[2 * i : 2 * i + 2]]
    ids = client(served).completions.create(prompt=[97, 98], **asked)
    assert ids.choices[0].text == many.choices[0].text
    assert many.choices[0].text != many.choices[1].text


def test_logprobs_are_of_the_models_own_distribution(served):
    one = client(served).completions.create(model=NAME, prompt="abc", max_tokens=4, logprobs=2, seed=5, echo=False)
    listed = one.choices[0].logprobs
    assert len(listed.tokens) == len(listed.token_logprobs) == len(listed.top_logprobs) == 4
    greedy = client(served).completions.create(model=NAME, prompt="abc", max_tokens=4, logprobs=1, temperature=0)
    likeliest = greedy.choices[0].logprobs
    for value, top in zip(likeliest.token_logprobs, likeliest.top_logprobs, strict=True):
        assert list(top.values()) == pytest.approx([value], abs=1e-6)
    asked = dict(model=NAME, messages=[{"role": "user", "content": "x"}], max_tokens=3, temperature=0)
    chat = client(served).chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    for entry in chat.choices[0].logprobs.content:
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob, abs=1e-6)
        assert len(entry.top_logprobs) == 3


def test_a_receipt_says_how_each_token_was_chosen(served):
    answer = client(served).completions.create(
        model=NAME, prompt="abc", max_tokens=5, seed=9, temperature=0.8, top_p=0.9
    )
    receipt = json.loads(ask(served, "GET", f"/receipts/{answer.id}")[2])
    assert receipt["rules"]["seed"] == 9
    tokens = receipt["choices"][0]["tokens"]
    assert bytes(one["id"] for one in tokens).decode(errors="replace") == answer.choices[0].text
    for one in tokens:
        assert one["interval"][0] <= one["drawn"] < one["interval"][1]
    assert "abc" not in json.dumps(receipt)
    assert ask(served, "GET", "/receipts/none")[0] == 404


def test_a_request_without_a_seed_says_in_its_receipt_which_it_had(served):
    first = client(served).completions.create(model=NAME, prompt="abc", max_tokens=9)
    seed = json.loads(ask(served, "GET", f"/receipts/{first.id}")[2])["rules"]["seed"]
    again = client(served).completions.create(model=NAME, prompt="abc", max_tokens=9, seed=seed)
    assert again.choices == first.choices


def test_models_health_metrics_and_the_document(served):
    models = client(served).models.list().data
    assert [(one.id, one.object) for one in models] == [(NAME, "model")]
    assert client(served).models.retrieve(NAME).id == NAME
    assert ask(served, "GET", "/healthz")[0] == ask(served, "GET", "/readyz")[0] == 200
    client(served).completions.create(model=NAME, prompt="abc", max_tokens=2)
    text = ask(served, "GET", "/metrics")[2].decode()
    assert 'pencil_tokens_total{kind="generated",model="small"}' in text
    assert 'pencil_requests_total{route="/v1/completions",status="200"}' in text
    paths = json.loads(ask(served, "GET", "/openapi.json")[2])["paths"]
    assert {path.replace("{name}", "{name:path}") for path in paths} == set(app.ROUTES) - {"/openapi.json"}


# ---- refusals


@pytest.mark.parametrize("body, status, says", [
    (dict(model="other"), 404, "these are served: small"),
    (dict(model=3), 400, "model must be a string"),
    (dict(prompt=""), 200, None),  # the tokenizer has an end token, which a text begins after
    (dict(prompt=[]), 400, "prompt must be"),
    (dict(prompt=[257]), 400, "257 tokens"),
    (dict(prompt=[["a"]]), 400, "257 tokens"),
    (dict(prompt=[1.5]), 400, "prompt must be"),
    (dict(prompt=["a"] * 65), 400, "at most 64"),
    (dict(prompt="a" * 102), 400, "shorten it"),
    (dict(prompt="\ud800"), 400, ""),
    (dict(max_tokens=100), 400, "has room for 99"),
    (dict(max_tokens=0), 400, "max_tokens must be from 1"),
    (dict(max_tokens=True), 400, "whole number"),
    (dict(temperature=-0.1), 400, "temperature must be from 0 to 2"),
    (dict(temperature="1"), 400, "must be a number"),
    (dict(top_p=1.1), 400, "top_p"),
    (dict(n=17), 400, "n must be"),
    (dict(prompt=["a", "b"], n=16), 400, "room for 9; ask for fewer"),
    (dict(stop=["a"] * 5), 400, "at most 4"),
    (dict(stop=[""]), 400, "1 to 1000"),
    (dict(logprobs=6), 400, "logprobs"),
    (dict(logit_bias={"999": 1}), 400, "logit_bias"),
    (dict(logit_bias={"9": 101}), 400, "logit_bias"),
    (dict(stream_options=3), 400, "stream_options"),
    (dict(suffix="x"), 400, "suffix is not computed here"),
    (dict(best_of=2), 400, "best_of"),
    (dict(echo=True, logprobs=1), 400, "echo"),
    (dict(unknown=[1, 2], user="me", seed=-5, max_tokens=None), 200, None),
])  # fmt: skip
def test_a_request_is_answered_or_refused_in_one_sentence(served, body, status, says):
    got, answer = complete(served, **body)
    assert got == status, answer
    if says is not None:
        assert says in answer["error"]["message"]
        assert set(answer["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("body, says", [
    (dict(messages=[]), "1 to 1000"), (dict(messages=[{"role": "user"}]), "content"),
    (dict(messages=[{"content": "x"}]), "role"), (dict(tools=[{}]), "tools"),
    (dict(messages=[{"role": "user", "content": [{"type": "text"}]}]), "text"),
    (dict(response_format={"type": "json_object"}), "response_format"), (dict(top_logprobs=2), "needs logprobs"),
])  # fmt: skip
def test_a_chat_is_refused_in_one_sentence(served, body, says):
    asked = {"model": NAME, "messages": [{"role": "user", "content": "x"}]} | body
    status, _, content = ask(served, "POST", "/v1/chat/completions", asked)
    assert status == 400
    assert says in json.loads(content)["error"]["message"]


@pytest.mark.parametrize("raw, headers, status", [
    ("{", {}, 400), ("[1]", {}, 400), ('{"a": NaN}', {}, 400), ("[" * 100_000, {}, 400), ("{}", {"Content-Type": "text/plain"}, 415),
    ("{}", {"Host": "evil.example"}, 403), ("{}", {"Origin": "http://evil.example"}, 403),
    ("{}", {"Sec-Fetch-Site": "cross-site"}, 403), ("x" * (1 << 20) + "x", {}, 413),
])  # fmt: skip
def test_what_is_no_request_of_ours_is_refused(served, raw, headers, status):
    got, sent, content = ask(served, "POST", "/v1/completions", raw=raw, headers=headers)
    assert got == status
    assert json.loads(content)["error"]["message"]
    assert "access-control-allow-origin" not in sent


def test_the_client_raises_its_own_errors(served):
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client(served).completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError) as caught:
        client(served).completions.create(model=NAME, prompt="a" * 200)
    assert caught.value.code == "context_length_exceeded"


def test_another_address_and_another_method(served):
    assert ask(served, "GET", "/v1/nothing")[0] == 404
    status, headers, content = ask(served, "GET", "/v1/completions")
    assert (status, headers["allow"]) == (405, "POST")
    assert "error" in json.loads(content)


# ---- load, ends, and slow or silent connections


def test_a_full_queue_refuses_and_the_others_are_answered():
    with server(tiles=1, rows=2, waiting=1) as running:
        with client(running).completions.create(model=NAME, prompt=["a"] * 3, max_tokens=95, stream=True) as stream:
            next(stream)
            status, headers, content = ask(running, "POST", "/v1/completions", {"model": NAME, "prompt": "b"})
            assert (status, headers["Retry-After"]) == (429, "1")
            assert "try again later" in json.loads(content)["error"]["message"]
        until(lambda: running.engine.running == 0)
        assert complete(running, max_tokens=2)[0] == 200


def test_a_closed_connection_frees_its_rows(served):
    body = json.dumps({"model": NAME, "prompt": ["a"] * 8, "max_tokens": 95}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Type: application/json\r\n"
    generated = served.engine.counts["generated"]
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: served.engine.counts["generated"] > generated)
    until(lambda: served.engine.running == 0)


def test_a_deadline_is_an_error_of_the_request():
    with server(seconds=0.0) as running:
        status, answer = complete(running)
        assert status == 504
        assert "took longer" in answer["error"]["message"]


def test_headers_that_do_not_end_are_refused(served, monkeypatch):
    monkeypatch.setattr(app, "HEADER_SECONDS", 0.05)
    with socket.create_connection(("127.0.0.1", served.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: ")
        assert b" 408 " in connection.recv(100)


def test_a_body_that_does_not_come_is_refused(served, monkeypatch):
    monkeypatch.setattr(app, "BODY_SECONDS", 0.05)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(f"{head}Content-Length: 20\r\n\r\n{{".encode())
        assert b" 408 " in connection.recv(100)


def test_silent_connections_hold_up_nobody(served):
    silent = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(40)]
    try:
        for one in silent:
            one.sendall(b"GET /healthz HT")
        assert complete(served, max_tokens=2)[0] == 200
    finally:
        for one in silent:
            one.close()


def test_beyond_this_machine_every_request_needs_the_token():
    with server(token=LAN_TOKEN, lan=True) as running:
        assert client(running, LAN_TOKEN).completions.create(model=NAME, prompt="a", max_tokens=1).choices
        with pytest.raises(openai.AuthenticationError):
            client(running, "wrong").models.list()
        assert ask(running, "GET", "/metrics")[0] == 401
        assert ask(running, "GET", "/healthz", headers={"Host": "name.of.the.lan"})[0] == 200


def test_a_run_without_a_template_is_no_partner_for_a_chat():
    with server() as running, pytest.raises(openai.BadRequestError, match="has no chat template"):
        client(running).chat.completions.create(model=NAME, messages=[{"role": "user", "content": "x"}])


@pytest.mark.long
def test_generated_requests_of_the_document_make_no_server_error(served):
    """schemathesis: requests that the OpenAPI document allows, and some that it does not."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode

    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    schema.config.generation.update(modes=list(GenerationMode))
    for result in schema.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        def asks(case):
            case.call_and_validate(base_url=served.url, checks=[not_a_server_error])

        asks()


@pytest.mark.long
def test_four_hundred_silent_connections_and_large_bodies_hold_up_nobody(served):
    silent = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(400)]
    try:
        for i, one in enumerate(silent):
            one.sendall(b"POST /v1/completions HT" if i % 2 else b"GET /healthz HTTP/1.1\r\nHost: ")
        for _ in range(7):
            assert ask(served, "POST", "/v1/completions", raw="x" * 3_000_000)[0] == 413
            assert ask(served, "GET", "/healthz")[0] == 200
        assert complete(served, max_tokens=2)[0] == 200
    finally:
        for one in silent:
            one.close()

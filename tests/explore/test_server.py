"""The server of `pencil explore`: its page and requests, what it refuses, and that every refusal is a sentence."""

import hmac
import json
import os
import re
import socket
from contextlib import ExitStack, suppress

import h11
import pytest
from served import KEY, Pretended, serving, state

from pencil.config import UserError
from pencil.explore import requests, security, server
from pencil.explore.server import bind, bind_usual


@pytest.fixture(scope="module")
def two():
    with serving(Pretended("a", "one <script>"), Pretended("b", "two")) as served:
        yield served


@pytest.fixture
def recorded(two):
    assert two.post("/api/record", state()).data["trace"] == KEY
    return two


# ---- the page


def test_the_page_asks_only_this_server(two):
    text = two.get("/", token=None).body.decode()
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["data:,", "/app.css", "/app.js"]
    assert "style=" not in text


def test_who_does_not_know_the_secret_learns_nothing_that_opens_anything(two):
    """Any user of the machine can ask this much: no token, no secret, no name of a run or command."""
    known = {two.explorer.secret, two.token, two.token.partition(".")[0], "runs/a", "one &lt;", "one <", '"two"'}
    for path in ("/", "/server", "/nothing", "/api/models", f"/?secret={'x' * 43}"):
        reply = two.get(path, token=None)
        said = reply.body.decode() + str(reply.headers)
        assert not [word for word in known if word in said], path
    server = two.get("/server", token=None).data["server"]
    for guess in ("", server):
        made = hmac.new(guess.encode(), f"{two.port} {server}".encode(), "sha256").hexdigest()
        assert two.get("/api/models", token=f"{made}.page").status == 403


def test_every_reply_has_the_headers(two):
    for reply in (two.get("/", token=None), two.get("/api/models"), two.get("/nothing"), two.get("/", host="evil")):
        for name, value in security.HEADERS.items():
            assert reply.headers.get_all(name) == [value], name
        assert not any(name.lower().startswith("access-control") for name in reply.headers)
        assert "server" not in reply.headers
    policy = two.get("/").headers["Content-Security-Policy"]
    for part in ("default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"):
        assert part in policy
    assert "unsafe" not in policy


def test_the_built_files_are_served_and_no_others(two):
    assert two.get("/app.js", token=None).headers["Content-Type"].startswith("text/javascript")
    assert two.get("/app.css", token=None).headers["Content-Type"].startswith("text/css")
    for path in (
        "/app.js.map",
        "/../pyproject.toml",
        "/%2e%2e/pyproject.toml",
        "/page/app.js",
        "//etc/passwd",
        "/.git",
    ):
        assert two.get(path, token=None).status == 404, path


def test_the_models_are_listed(two):
    data = two.get("/api/models").data
    assert [one["id"] for one in data["models"]] == ["a", "b"]
    assert data["version"]
    assert data["command"] == 'pencil explore "runs/a"'


# ---- a class


TOKEN = "a-token-for-the-class"


@pytest.fixture(scope="module")
def classroom():
    with serving(Pretended("a", "one"), secret=TOKEN, shared=True) as served:
        yield served


def test_a_class_is_answered_under_any_name_and_only_with_the_token(classroom):
    name = "teacher.lan:8080"
    assert classroom.get("/", host=name, token=None).status == 200
    assert classroom.get("/api/models", host=name).status == 200
    assert classroom.post("/api/answer", state(), host=name, Origin=f"http://{name}").status == 200
    for token in (None, "", TOKEN, "x.page", f"{TOKEN[:-1]}.page", f"{TOKEN}.page.js/.."):
        assert classroom.get("/api/models", host=name, token=token).status == 403
    for origin in ("http://evil.example", f"https://{name}", "null"):
        reply = classroom.post("/api/answer", state(), host=name, Origin=origin)
        assert (reply.status, "another site" in reply.error) == (403, True)
    assert classroom.get("/api/models", host=name, Sec_Fetch_Site="cross-site").status == 403
    assert TOKEN not in classroom.get("/server", token=None).body.decode()


def test_a_class_learns_nothing_of_the_machine_and_keeps_nothing(classroom, tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_DATA", str(tmp_path))
    reply = classroom.get("/api/models").data
    assert reply["command"] == "pencil explore"
    assert reply["models"][0]["path"] == "runs/scenes"
    lesson = {"input": {"text": "abc"}, "target": "b", "steps": 1, "rate": 1}
    for more in ({"lessons": [lesson]}, {"step": "b"}):
        reply = classroom.post("/api/record", {**state(), **more})
        assert (reply.status, "no training steps" in reply.error) == (403, True)
    one, other = classroom.token, classroom.new_page()
    assert classroom.get("/api/katas/softmax?seed=3", token=one).status == 200
    assert classroom.post("/api/katas/softmax/working", {"seed": 3}, token=one).data["outcome"] == "seen"
    seen = [{kata["name"]: kata for kata in classroom.get("/api/katas", token=token).data["katas"]}["softmax"]["seen"]
            for token in (one, other)]  # fmt: skip
    assert seen == [1, 0]
    assert list(tmp_path.iterdir()) == []


# ---- who may ask


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", "127.0.0.1:{port}@evil", ""]
)
def test_another_host_is_refused(two, host):
    reply = two.get("/", token=None, host=host.format(port=two.port))
    assert reply.status == 400
    assert two.token not in reply.body.decode()


def test_our_own_hosts_are_answered(two):
    for name in ("127.0.0.1", "localhost", "LOCALHOST"):
        assert two.get("/api/models", host=f"{name}:{two.port}").status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://localhost:1", ""]
)
def test_another_origin_is_refused(two, origin):
    reply = two.post("/api/answer", state(), Origin=origin.format(port=two.port))
    assert reply.status == 403
    assert "another site" in reply.error


def test_our_own_origin_is_answered(two):
    assert two.post("/api/answer", state(), Origin=f"http://127.0.0.1:{two.port}").status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_request_of_another_site_is_refused(two, site):
    for path in ("/", "/app.js", "/api/models"):
        assert two.get(path, Sec_Fetch_Site=site).status == 403, path
    framed = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}
    assert two.get("/", **framed).status == 403
    link = {**framed, "Sec_Fetch_Dest": "document"}
    assert two.get("/", **link).status == 200  # a link that somebody sent
    assert two.get("/api/models", **link).status == 403


@pytest.mark.parametrize(
    "path", ["/api/models", "/api/katas", "/api/documents", f"/api/trace/{KEY}/attention", "/api/nothing"]
)
def test_everything_under_api_needs_the_token(two, path):
    for token in (None, "", ".", "x", two.token[:-5], "a" + two.token, two.token.partition(".")[0], "é.x"):
        reply = two.get(path, token=token and token.encode("utf-8").decode("latin-1"))
        if token == two.token[:-5]:  # the name of a page may be any
            continue
        assert reply.status == 403, token
        assert "open the address that pencil explore printed" in reply.error


@pytest.mark.parametrize(
    "path", ["answer", "record", "compare", "edit", "export", "katas/softmax/answer", "katas/softmax/working"]
)
def test_every_post_needs_the_token(two, path):
    assert two.post(f"/api/{path}", state(), token=None).status == 403
    others = [security.Tokens("another", two.port), security.Tokens(two.explorer.secret, two.port)]
    for other in others:  # of another user, and of a server that has ended
        assert two.post(f"/api/{path}", state(), token=other.new()).status == 403


def test_the_token_is_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(security.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    tokens = security.Tokens("secret", 7)
    assert tokens.client(tokens.new()) is not None
    assert tokens.client("nothing") is None
    assert len(compared) == 2


def test_two_pages_have_two_names():
    tokens = security.Tokens("secret", 7)
    one, other = tokens.new(), tokens.new()
    assert one.partition(".")[0] == other.partition(".")[0]
    assert tokens.client(one) != tokens.client(other)


def test_only_this_machine_can_connect():
    found = bind(0)
    assert found.getsockname()[0] == "127.0.0.1"
    port = found.getsockname()[1]
    with pytest.raises(UserError, match=f"port {port} cannot be used .*--port"):
        bind(port)
    found.close()
    with pytest.raises(UserError, match="65535"):
        bind(70000)


def test_the_secret_is_kept_where_only_its_user_can_read_it(tmp_path, monkeypatch):
    path = tmp_path / "data" / "explorer-secret"
    monkeypatch.setenv("PENCIL_DATA", str(path.parent))
    before = os.umask(0)  # which would open every file to everyone
    try:
        secret = security.kept_secret()
    finally:
        os.umask(before)
    assert len(secret) == 43
    assert path.read_text() == secret == security.kept_secret()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def _readable(path):
    path.chmod(0o644)


def _linked(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _linked_to_nothing(path):
    path.unlink()
    path.symlink_to(path.with_name("nothing"))


def _pipe(path):
    path.unlink()
    os.mkfifo(path, 0o600)


def _damaged(path):
    path.write_text("")


@pytest.mark.parametrize(
    "change, said",
    [
        (_readable, r"open to other users \(mode 0644\): remove it"),
        (_linked, "is a link.*remove it"),
        (_linked_to_nothing, "is a link.*remove it"),
        (_pipe, "must be a plain file: remove it"),
        (_damaged, "is damaged: remove it"),
    ],
)
def test_a_secret_that_others_may_know_is_refused(tmp_path, monkeypatch, change, said):
    path = tmp_path / "explorer-secret"
    monkeypatch.setenv("PENCIL_DATA", str(tmp_path))
    security.kept_secret()
    change(path)
    with pytest.raises(UserError, match=said):
        security.kept_secret()


def test_a_secret_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_DATA", str(tmp_path))
    security.kept_secret()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 7)
    with pytest.raises(UserError, match="explorer-secret belongs to another user"):
        security.kept_secret()


def test_a_user_has_one_port_as_long_as_it_is_free():
    secret = security.new_secret()
    first, second = bind_usual(secret), bind_usual(secret)
    port = first.getsockname()[1]
    assert second.getsockname()[1] != port
    second.close()
    first.close()
    again = bind_usual(secret)
    assert again.getsockname()[1] == port
    again.close()


# ---- what is asked


def test_each_request_reaches_its_view(recorded):
    trace = f"/api/trace/{KEY}"
    get = recorded.get
    assert get(f"{trace}/receipt?cell=logits%5B0,3%5D&digits=6").data["cell"] == "logits[0,3]"
    assert get(f"{trace}/receipt?cell=x").data["digits"] == 4
    found = get(f"{trace}/slice?name=q&index=0,2,:,:").data
    assert found["index"] == [0, 2, None, None]
    assert (found["low"], found["high"], found["minus"]) == ("-inf", "nan", None)
    assert get(f"{trace}/slice?name=q&minus={KEY}").data["minus"] == "trace of a"
    assert get(f"{trace}/attention?scores=true").data["scores"] is True
    assert get(f"{trace}/picture").data == {"stacks": [], "columns": []}
    assert get(f"{trace}/picture/of?cell=logits%5B0,3%5D").data == {"cell": "logits[0,3]"}
    assert get(f"{trace}/contributions?cell=c&against=d&part=p").data == {"cell": "c", "against": "d", "part": "p"}
    edited = recorded.post("/api/edit", {"state": state(), "edit": "blocks.0.attn.z[:,2]=0"}).data
    assert edited["edit"] == "blocks.0.attn.z[:,2]=0"


def test_an_export_is_a_file(two):
    reply = two.post("/api/export", {"state": state(), "view": "answer"})
    assert reply.headers["Content-Disposition"].startswith("attachment")
    assert reply.body == b"<!doctype html><title>answer</title>"
    asked = two.post("/api/export", {"state": state(), "view": "answer"}, Accept="text/event-stream")
    names = re.findall(r"^event: (\w+)$", asked.body.decode(), re.MULTILINE)
    assert names == ["progress", "file"]
    assert "<title>answer</title>" in asked.body.decode()
    for wrong in ({"open": "head"}, {"more": {"why": 3}}, {"cell": None}, [], {"open": ["x"] * 257}):
        refused = two.post("/api/export", {"state": state(), "view": "answer", "shown": wrong})
        assert 400 <= refused.status < 500
        assert refused.error


def test_two_traces_are_compared(two, monkeypatch):
    seen = []
    monkeypatch.setattr("pencil.explore.server.compare", lambda a, b: seen.append((a, b)) or {"tensors": []})
    assert two.post("/api/compare", {"a": state(), "b": state(model="b")}).data == {"tensors": []}
    assert seen == [("a trace", "a trace")]


def test_a_trace_that_is_not_kept_is_said_to_be_gone(recorded):
    assert recorded.get("/api/trace/ffffffffffffffff/receipt?cell=x").status == 410
    reply = recorded.get(f"/api/trace/{KEY}/receipt?cell=dropped")
    assert reply.status == 410
    assert "no longer kept" in reply.error


@pytest.mark.parametrize(
    "key", ["..%2f..%2fetc%2fpasswd", "%2e%2e", "..", "C:%5Cx", "a%00b", "x" * 3000, "0123456789ABCDEF", "٠١٢٣٤٥٦٧٨٩"]
)
def test_a_path_is_never_more_than_a_name(two, key):
    from urllib.parse import quote

    key = quote(key, safe="%")
    for path in (
        f"/api/trace/{key}/receipt?cell=x",
        f"/api/katas/{key}",
        f"/api/documents/{key}",
        f"/api/documents/{key}/figure",
    ):
        reply = two.get(path)
        assert reply.status in (404, 410), (path, reply.body)
        assert reply.error


@pytest.mark.parametrize("index", ["-1", "0,", "0;1", "1e3", "9999999999", "0," * 50 + "0", "[0]", "٣"])
def test_an_index_is_numbers_and_colons(recorded, index):
    from urllib.parse import quote

    assert recorded.get(f"/api/trace/{KEY}/slice?name=q&index={quote(index)}").status == 400


def test_other_parts_of_an_address_are_checked(recorded):
    trace = f"/api/trace/{KEY}"
    for path in ("receipt", "receipt?cell=", "slice", "picture/of", "receipt?cell=x&digits=99"):
        assert recorded.get(f"{trace}/{path}").status == 400, path
    assert recorded.get(f"{trace}/receipt?cell={'x' * 1001}").status == 413
    assert recorded.get(f"{trace}/nothing").status == 404
    assert recorded.post("/api/models", {}).status == 405
    assert recorded.get("/api/answer").status == 405


# ---- bodies


HOSTILE = {
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "a number": b"7",
    "nothing": b"",
    "deep": b'{"model":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "NaN": b'{"model":"a","input":{"options":{"temperature":NaN}}}',
    "a huge number": b'{"model":"a","input":{"options":{"temperature":' + b"9" * 5000 + b"}}}",
    "beyond a float": b'{"model":"a","input":{"options":{"temperature":' + b"9" * 400 + b"}}}",
    "infinite": b'{"model":"a","input":{"options":{"temperature":1e999}}}',
    "true": b'{"model":"a","input":{"options":{"temperature":true}}}',
    "a word for a number": b'{"model":"a","input":{"options":{"temperature":"1"}}}',
    "options": b'{"model":"a","input":{"options":[1]}}',
    "an unknown input": b'{"model":"a","input":{"path":"/etc/passwd"}}',
    "text": b'{"model":"a","input":{"text":{"$ne":1}}}',
    "a lone surrogate": b'{"model":"a","input":{"text":"\\ud800"}}',
    "input": b'{"model":"a","input":"text"}',
    "edits": b'{"model":"a","input":{},"edits":"blocks.0=0"}',
    "an edit": b'{"model":"a","input":{},"edits":[7]}',
    "no model": b'{"input":{}}',
    "a model of another type": b'{"model":["a"],"input":{}}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused_in_a_sentence(two, name):
    for path in ("answer", "record"):
        reply = two.post(f"/api/{path}", HOSTILE[name])
        assert reply.status == 400, reply.body
        assert 10 < len(reply.error) < 300
    wrapped = b'{"state":' + HOSTILE[name] + b',"edit":"x=0","a":' + HOSTILE[name] + b"}"
    for path in ("edit", "compare", "export"):
        assert two.post(f"/api/{path}", wrapped).status == 400


def test_too_much_of_anything_is_refused(two):
    many = [
        {"model": "a", "input": {"text": "x" * (requests.TEXT_CHARACTERS + 1)}},
        {"model": "a", "input": {}, "edits": ["x=0"] * 65},
        {"model": "a", "input": {}, "edits": ["x" * 2000]},
        {"model": "a", "input": {"options": {f"o{i}": 1 for i in range(40)}}},
    ]
    for body in many:
        assert two.post("/api/answer", body).status == 413
    assert two.post("/api/answer", {"model": "x" * 500, "input": {}}).status == 404
    assert "open: a, b" in two.post("/api/answer", {"model": "c", "input": {}}).error


def test_a_long_body_is_refused_before_it_is_read(two):
    connection = two.connection()
    two.send(connection, "POST", "/api/answer", Content_Length=str(server.STATE_BYTES + 1))
    reply = connection.getresponse()  # although no byte of the body was sent
    assert reply.status == 413
    assert "MB" in json.loads(reply.read())["error"]
    connection.close()
    assert two.post("/api/katas/softmax/answer", b"x" * (server.SMALL_BYTES + 1)).status == 413


def test_a_body_without_a_length_is_counted_while_it_arrives(two, monkeypatch):
    monkeypatch.setattr(server, "STATE_BYTES", 5000)
    chunk = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    reply = two.post("/api/answer", chunk * 6 + b"0\r\n\r\n", Transfer_Encoding="chunked")
    assert reply.status == 413


def test_a_body_that_does_not_arrive_is_not_waited_for(two, monkeypatch):
    monkeypatch.setattr(server, "BODY_SECONDS", 0.05)
    connection = two.connection()
    two.send(connection, "POST", "/api/answer", Content_Length="100")
    assert connection.getresponse().status == 408
    connection.close()


@pytest.mark.parametrize("start", ["", "GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-A: "])
def test_headers_that_never_end_are_refused(two, monkeypatch, start):
    """Whatever trickles in between; a request that is only answered slowly is not concerned."""
    session = two.explorer.sessions["a"]
    monkeypatch.setattr(session, "stepwise", 1)
    with ExitStack() as opened:
        slow = opened.enter_context(two.stream("/api/answer", state()))
        assert next(slow)[0] == "token"
        (answering,) = [one for one in two.server.server_state.connections if one.conn.their_state is not h11.IDLE]
        assert answering._deadline is None
        monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
        other = opened.enter_context(socket.create_connection(("127.0.0.1", two.port), 20))
        other.settimeout(0.01)
        other.sendall(start.format(port=two.port).encode())
        said = b""
        while start and not said:  # a limit between two bytes would never be reached
            with suppress(TimeoutError):
                other.sendall(b"x")
                said = other.recv(4096)
        other.settimeout(20)
        while more := other.recv(4096):
            said += more
        assert said.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"the headers of this request did not end within 0.2 seconds" in said
        session.steps.release()
        assert [name for name, _ in slow] == ["answer"]


def test_a_second_request_on_a_connection_must_end_its_headers_too(two, monkeypatch):
    whole = f"GET /server HTTP/1.1\r\nHost: 127.0.0.1:{two.port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", two.port), 20) as other:
        other.sendall(whole)
        answer = b""
        while not answer.endswith(b"}"):  # headers and content may come one after the other
            answer += other.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(server, "HEADER_SECONDS", 0.05)
        other.sendall(whole[:-2])
        assert b"HTTP/1.1 408" in other.recv(4096)


def test_what_is_not_http_does_not_disturb(two):
    for line in (b"\x16\x03\x01\x02\x00\n\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET /\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", two.port), 10) as other:
            other.sendall(line)
            assert b"200 OK" not in other.recv(100)
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Key": "x", "Sec_WebSocket_Version": "13"}
    assert two.get("/api/nothing", **upgrade).status == 404
    assert two.get("/api/models").status == 200


# ---- failures


def test_a_mistake_is_its_sentence_and_a_fault_is_named(capfd):
    session = Pretended()
    for debug in (False, True):
        with serving(session, debug=debug) as served:
            session.fails = UserError("the text has 300 tokens, and the model reads 256")
            reply = served.post("/api/answer", state())
            assert (reply.status, reply.error) == (400, "the text has 300 tokens, and the model reads 256")
            with served.stream("/api/answer", state()) as found:
                assert list(found)[-1] == (
                    "error",
                    {"error": "the text has 300 tokens, and the model reads 256", "status": 400},
                )
            session.fails = KeyError("secret")
            reply = served.post("/api/answer", state())
            assert reply.status == 500
            assert "KeyError" in reply.error
            assert "secret" not in reply.error
        assert ("Traceback" in capfd.readouterr().err) == debug


def test_a_run_that_vanished_is_said_so(tmp_path):
    session = Pretended()
    session.folder = tmp_path
    (tmp_path / "config.toml").touch()
    with serving(session) as served:
        assert served.post("/api/answer", state()).status == 200
        (tmp_path / "config.toml").unlink()
        for path in ("answer", "record"):
            reply = served.post(f"/api/{path}", state())
            assert reply.status == 410
            assert f"{tmp_path} is no longer there" in reply.error

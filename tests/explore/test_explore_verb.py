"""`pencil explore`: what it prints, opens and refuses, and how it ends."""

import hmac
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from served import Pretended
from shared_page import views_of

from conftest import HERE
from pencil.cli import explore as verb
from pencil.config import UserError
from pencil.explore import server

GPT = HERE / "runs-0.6" / "gpt"


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """The sessions that would be served, and the browser's addresses; nothing is served."""
    found = {"browser": []}

    def serve(sessions, socket, debug, command, secret, ready, lan=False):
        found.update(sessions=sessions, debug=debug, command=command, secret=secret, lan=lan)
        ready(f"http://127.0.0.1:7/#secret={secret}")

    def browse(address):
        path = Path(urllib.request.url2pathname(address.removeprefix("file://")))
        found["browser"].append((address, path, path.read_text(), path.stat().st_mode & 0o777))

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr(verb, "end_at_once", lambda: None)  # which would end the tests
    monkeypatch.setattr(verb.webbrowser, "open", browse)
    monkeypatch.setenv("PENCIL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DISPLAY", ":7")
    return found


def main(*words):
    from pencil.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["explore", *words])
    return ended.value.code


def test_two_runs_are_a_and_b_and_the_browser_opens(opened, capsys):
    assert main(str(GPT), str(GPT)) == 0
    assert [(one.id, one.name) for one in opened["sessions"]] == [("a", "gpt"), ("b", "gpt")]
    address = f"http://127.0.0.1:7/#secret={opened['secret']}"
    assert capsys.readouterr().out == f"{address}\n"
    [(given, path, text, mode)] = opened["browser"]
    assert opened["secret"] not in given  # any user of the machine can list the arguments of a process
    assert f'content="0; url={address}"' in text
    assert mode == 0o600
    assert not path.exists()  # once the server has ended
    assert opened["debug"] is False
    assert opened["command"] == f"pencil explore {GPT} {GPT}"


def test_the_browser_stays_closed_where_it_is_told_or_has_no_window(opened, monkeypatch, tmp_path):
    assert main(str(GPT), "--no-browser", "--debug") == 0
    assert opened["debug"] is True
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(verb.sys, "platform", "linux")
    assert main(str(GPT)) == 0
    assert opened["browser"] == []
    assert not list((tmp_path / "data").glob("*.html"))


def test_a_step_after_the_run_is_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert verb._run_and_step("runs/a@300") == ("runs/a", 300)
    assert verb._run_and_step("runs/a") == ("runs/a", None)
    assert verb._run_and_step("runs/a@last") == ("runs/a@last", None)
    (tmp_path / "b@7").mkdir()
    assert verb._run_and_step("b@7") == ("b@7", None)


@pytest.mark.parametrize(
    "words, said",
    [
        (["nowhere"], "there is no run nowhere"),
        ([f"{GPT}@99999"], "no checkpoint of step 99999"),
        ([str(GPT)] * 3, "at most 2 models"),
        ([str(GPT), "--port", "70000"], "65535"),
        ([str(GPT), "--port", "x"], "--port"),
        (["gpt"], "gpt is a kind of model"),
    ],
)
def test_what_cannot_be_opened_is_a_sentence(opened, capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(*words) == 2
    assert said in capsys.readouterr().err
    assert "sessions" not in opened


def test_a_taken_port_is_a_sentence(opened, capsys):
    found = server.bind(0)
    assert main(str(GPT), "--port", str(found.getsockname()[1])) == 2
    assert "choose another --port" in capsys.readouterr().err
    found.close()


def test_the_command_that_starts_it_again_has_the_port_that_was_asked_for(opened):
    found = server.bind(0)
    port = str(found.getsockname()[1])
    found.close()
    assert main(str(GPT), "--port", port, "--no-browser") == 0
    assert opened["command"] == f"pencil explore {GPT} --port {port}"


def test_a_secret_that_cannot_be_kept_is_said(opened, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENCIL_DATA", str(tmp_path / "file" / "data"))
    assert main(str(GPT)) == 0
    done = capsys.readouterr()
    assert re.fullmatch(r"http://127\.0\.0\.1:7/#secret=[\w-]{43}\n", done.out)
    assert f"cannot be kept in {tmp_path / 'file' / 'data'} (Not a directory): set PENCIL_DATA" in done.err
    assert opened["browser"] == []


def test_a_whole_session_ends_with_ctrl_c_and_status_0(tmp_path):
    run = shutil.copytree(GPT, tmp_path / "gpt")
    # a session of its own, in which Ctrl-C is not ignored
    command = [sys.executable, "-m", "pencil", "explore", str(run), "--no-browser"]
    session = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "PENCIL_DATA": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        address = session.stdout.readline().strip()
        found = re.fullmatch(r"(http://127\.0\.0\.1:(\d+)/)#secret=([\w-]{43})", address)
        assert found, session.stderr.read()
        origin, port, secret = found.groups()
        assert (tmp_path / "explorer-secret").read_text() == secret
        server = json.loads(urllib.request.urlopen(f"{origin}server").read())["server"]
        token = hmac.new(secret.encode(), f"{port} {server}".encode(), "sha256").hexdigest()
        asked = urllib.request.Request(f"{origin}api/models", headers={"X-Pencil-Token": f"{token}.page"})
        assert b'"id":"a"' in urllib.request.urlopen(asked).read()
        session.send_signal(signal.SIGINT)
        out, err = session.communicate(timeout=60)
    finally:
        session.kill()
        session.wait()
    assert session.returncode == 0, err
    assert out == ""
    assert err.splitlines() == ["Open this address in a browser on this machine; Ctrl-C ends the server."]


def test_the_example_is_opened_without_a_run(opened, monkeypatch):
    from pencil.explore.session import Session

    monkeypatch.setattr(Session, "of_examples", classmethod(lambda cls: ["a captioner", "a gpt"]))
    assert main() == 0
    assert opened["sessions"] == ["a captioner", "a gpt"]


def test_a_class_is_served_with_a_token_of_its_own(opened, tmp_path, capsys):
    token = tmp_path / "token"
    for words, sentence in (
        ((), "needs --token-file"),
        (("--token-file", token), "at least 16"),
        (("--token-file", token), "letters, digits"),
    ):
        if words:
            token.write_text("short" if "16" in sentence else "sixteen.and.some.dots")
        assert main(str(GPT), "--lan", *map(str, words)) == 2
        assert sentence in capsys.readouterr().err
    token.write_text("0123456789-abcdef_0\n")
    assert main(str(GPT), "--token-file", str(token)) == 2  # not on this machine alone
    capsys.readouterr()
    assert main(str(GPT), "--lan", "--token-file", str(token), "--port", "0") == 0
    assert (opened["secret"], opened["lan"]) == ("0123456789-abcdef_0", True)
    assert opened["browser"] == []
    assert "read-only" in capsys.readouterr().err


def test_ports_are_checked():
    for port in (-1, 65536):
        with pytest.raises(UserError, match="from 1 to 65535"):
            server.bind(port)


def test_a_server_that_cannot_start_is_said_so(monkeypatch):
    async def fails(self):
        raise RuntimeError("no process")

    monkeypatch.setattr("pencil.explore.uploads.Pictures.start", fails)
    with pytest.raises(UserError, match="could not start"):
        server.serve([Pretended()], server.bind(0), False, "pencil explore", "secret", lambda address: None)


def test_slides_are_one_file_of_the_text_that_was_given(tmp_path, capsys):
    from pencil.cli.main import main as pencil

    def slides(*words):
        with pytest.raises(SystemExit) as ended:
            pencil(["slides", str(GPT), *words])
        return ended.value.code

    path = tmp_path / "talk.html"
    assert slides("--out", str(tmp_path / "talk.pdf")) == 2
    assert ".html" in capsys.readouterr().err
    assert slides("--out", str(path), "--image", "a.png") == 2
    assert "reads no picture" in capsys.readouterr().err
    assert not path.exists()
    assert slides("--out", str(path), "--text", "line") == 0
    html = path.read_text(encoding="utf-8")
    views = views_of(html)
    assert views["answer"]["state"]["input"]["text"] == "line"
    assert views["shown"]["more"]["present"] == "yes"
    assert len(views["tour"]["steps"]) == 10
    assert [len(step["notes"]) > 40 for step in views["tour"]["steps"]] == [True] * 10

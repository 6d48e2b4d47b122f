"""`pencil explore`: what it prints, opens and refuses, and how it ends."""

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest
from served import Pretended

from conftest import HERE
from pencil.cli import explore as verb
from pencil.config import UserError
from pencil.explore import serving

GPT = HERE / "runs-0.6" / "gpt"


@pytest.fixture
def opened(monkeypatch):
    """The subjects that would be served, and the browser's addresses; nothing is served."""
    found = {"browser": []}

    def serve(subjects, socket, debug, command, ready):
        found.update(subjects=subjects, debug=debug, command=command)
        ready("http://127.0.0.1:7/")

    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr(verb, "_end", lambda: None)  # which would end the tests
    monkeypatch.setattr(verb.webbrowser, "open", found["browser"].append)
    monkeypatch.setenv("DISPLAY", ":7")
    return found


def main(*words):
    from pencil.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["explore", *words])
    return ended.value.code


def test_two_runs_are_a_and_b_and_the_browser_opens(opened, capsys):
    assert main(str(GPT), str(GPT)) == 0
    assert [(one.id, one.name) for one in opened["subjects"]] == [("a", "gpt"), ("b", "gpt")]
    assert opened["browser"] == ["http://127.0.0.1:7/"]
    assert capsys.readouterr().out == "http://127.0.0.1:7/\n"
    assert opened["debug"] is False
    assert opened["command"] == f"pencil explore {GPT} {GPT}"


def test_the_browser_stays_closed_where_it_is_told_or_has_no_window(opened, monkeypatch):
    assert main(str(GPT), "--no-browser", "--debug") == 0
    assert opened["debug"] is True
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(verb.sys, "platform", "linux")
    assert main(str(GPT)) == 0
    assert opened["browser"] == []


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
    assert "subjects" not in opened


def test_a_taken_port_is_a_sentence(opened, capsys):
    found = serving.bind(0)
    assert main(str(GPT), "--port", str(found.getsockname()[1])) == 2
    assert "choose another --port" in capsys.readouterr().err
    found.close()


def test_a_whole_session_ends_with_ctrl_c_and_status_0(tmp_path):
    run = shutil.copytree(GPT, tmp_path / "gpt")
    # a session of its own, in which Ctrl-C is not ignored
    command = [sys.executable, "-m", "pencil", "explore", str(run), "--no-browser"]
    session = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        address = session.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address), session.stderr.read()
        page = urllib.request.urlopen(address).read().decode()
        assert "<title>gpt · Pencil</title>" in page
        token = re.search(r'name="token" content="([^"]+)"', page)[1]
        asked = urllib.request.Request(f"{address}api/models", headers={"X-Pencil-Token": token})
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
    from pencil.explore.subject import Subject

    monkeypatch.setattr(Subject, "of_example", classmethod(lambda cls, id="a": "the example"))
    assert main() == 0
    assert opened["subjects"] == ["the example"]


def test_ports_are_checked():
    for port in (-1, 65536):
        with pytest.raises(UserError, match="from 1 to 65535"):
            serving.bind(port)


def test_a_server_that_cannot_start_is_said_so(monkeypatch):
    async def fails(self):
        raise RuntimeError("no process")

    monkeypatch.setattr("pencil.explore.uploads.Pictures.start", fails)
    with pytest.raises(UserError, match="could not start"):
        serving.serve([Pretended()], serving.bind(0), False, "pencil explore", lambda address: None)

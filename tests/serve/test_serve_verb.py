"""`pencil serve` as a command: what it refuses, and a server that ends after what is under way."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest
from openai import OpenAI

from conftest import call
from pencil.data.tokenizers.tokenizer import ByteTokenizer
from pencil.runs.run import Run
from serving import HANG_SECONDS, small_gpt


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run of an untrained model."""
    model, path = small_gpt(context=31), tmp_path_factory.mktemp("runs") / "notes-gpt"
    tables = {"run": {"family": "gpt", "pencil": "0.7.0"}, "model": asdict(model.config), "train": {}}
    tables["model"] = {name: value for name, value in tables["model"].items() if value is not None}
    Run.create(path, tables, ByteTokenizer(ended=True)).write_weights(model, {})
    return path


@pytest.mark.parametrize("words, says", [
    ([], "name the folder of a run"),
    (["RUN", "--lan"], "needs --token-file"),
    (["RUN", "--rows", "0"], "--rows must be"),
    (["RUN", "--port", "65536"], "--port is a number"),
    (["nowhere"], "nowhere"),
])  # fmt: skip
def test_it_refuses_in_one_sentence(run, words, says):
    done = call("serve", *(run if word == "RUN" else word for word in words), code=2)
    assert says in done.stderr


def test_a_token_that_is_too_short_is_refused(run, tmp_path):
    (tmp_path / "token").write_text("short\n")
    assert "at least 16" in call("serve", run, "--lan", "--token-file", tmp_path / "token", code=2).stderr


def test_sigterm_ends_it_after_what_is_under_way(run):
    options = ["--port", "0", "--rows", "3", "--drain", str(HANG_SECONDS)]
    command = [sys.executable, "-m", "pencil", "serve", str(run), *options]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, env=os.environ, **pipes) as process:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", address)
        ask = OpenAI(base_url=address, api_key="none", max_retries=0, timeout=HANG_SECONDS)
        assert ask.models.list().data[0].id == "notes-gpt"
        with ask.completions.create(model="notes-gpt", prompt="line ", max_tokens=25, stream=True) as stream:
            pieces = [next(stream)]
            process.send_signal(signal.SIGTERM)
            pieces += stream
        assert pieces[-1].choices[0].finish_reason in ("length", "stop")
        assert process.wait(HANG_SECONDS) == 0
        assert "8 rows of 31 tokens" in process.stderr.read()

"""Messages as a prompt, by the run's own template, in a process of its own: a template is a program of a stranger.

It is rendered by Jinja's immutable sandbox, which reaches no attribute that leads out. What a sandbox does not limit is
time and memory, so the process is limited in both, stays for the next request, and is killed where it takes too long.
A run without a template is refused: joining messages by a guess would give a model text that it was never trained on.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import UserError
from ..files import limit_process
from .errors import RequestError

MOST_TEMPLATE = 100_000  # characters
MOST_PROMPT = 4_000_000  # bytes that are taken back
SECONDS = 5.0  # for one rendering
PROCESS_BYTES = 500_000_000  # of memory, beside what the process has when it begins
CPU_SECONDS = 3600  # of the process in its whole life
WORKER = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from pencil.serve import chat; chat.work()"


def template_of(original: Mapping[str, Any]) -> str | None:
    """The chat template that an imported run keeps of its original; None where there is none."""
    template = original.get("chat_template.jinja") or original.get("tokenizer_config.json", {}).get("chat_template")
    if isinstance(template, list):  # several, by their names
        template = next((one.get("template") for one in template if one.get("name") == "default"), None)
    return check_template(template) if isinstance(template, str) else None


def check_template(template: str) -> str:
    if len(template) > MOST_TEMPLATE:
        raise UserError(f"the chat template has {len(template):,} characters; at most {MOST_TEMPLATE:,} are read")
    return template


class Templates:
    """Renders templates by the process that is limited, one at a time."""

    def __init__(self, seconds: float = SECONDS):
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def render(self, template: str, messages: Sequence[Mapping[str, Any]], tokens: Mapping[str, str]) -> str:
        """The prompt of these messages; `tokens` are the special tokens that templates write by their names."""
        asked = json.dumps({"template": template, "messages": messages, "tokens": tokens}).encode()
        async with self._lock:
            try:
                async with asyncio.timeout(self._seconds):
                    good, answer = await self._ask(asked)
            except TimeoutError:
                await self.close()
                raise RequestError(f"the chat template took longer than {self._seconds:g} seconds", 400) from None
            except (OSError, EOFError, ValueError):  # the process ended, or wrote what it should not
                await self.close()
                raise RequestError("the chat template needs too much memory or time for these messages") from None
            except asyncio.CancelledError:  # half of an exchange is of no use to the next request
                await self.close()
                raise
        text = answer.decode(errors="replace")
        if not good:
            raise RequestError(f"the chat template refuses these messages: {text[:300]}", field="messages")
        return text

    async def _ask(self, asked: bytes) -> tuple[bool, bytes]:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", WORKER, json.dumps(sys.path), stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        questions.write(len(asked).to_bytes(4, "big") + asked)
        await questions.drain()
        good = await answers.readexactly(1) == b"+"
        length = int.from_bytes(await answers.readexactly(4), "big")
        if length > MOST_PROMPT:
            raise ValueError
        return good, await answers.readexactly(length)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


# ---- the other process


def work() -> None:
    """Render templates from standard input until it ends."""
    from jinja2 import TemplateError

    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    limit_process(PROCESS_BYTES, CPU_SECONDS, 0)
    while head := questions.read(4):
        asked = json.loads(questions.read(int.from_bytes(head, "big")))
        try:
            mark, answer = b"+", rendered(asked["template"], asked["messages"], asked["tokens"]).encode()
        except MemoryError:
            mark, answer = b"-", b"it needs too much memory"
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            mark, answer = b"-", str(error).encode(errors="replace")
        answers.write(mark + len(answer).to_bytes(4, "big") + answer)
        answers.flush()


def rendered(template: str, messages: Sequence[Mapping[str, Any]], tokens: Mapping[str, str]) -> str:
    """The prompt, as the tokenizers of transformers render it."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(sentence: str) -> None:
        raise TemplateError(sentence)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    compiled = environment.from_string(template)
    return compiled.render(messages=messages, add_generation_prompt=True, **tokens)

"""Templates of chats: rendered as transformers renders them, and without a way out, without end or beyond memory."""

import asyncio

import pytest

from pencil.config import UserError
from pencil.serve.chat import Templates, check_template, rendered, template_of
from pencil.serve.errors import RequestError

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": " hi "}]
CHATML = (
    "{%- for message in messages %}\n    {{- bos_token + message['role'] + '\\n' + message['content'] | trim }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- 'assistant\\n' }}\n{%- endif %}"
)


def test_a_template_is_rendered_as_transformers_does():
    from transformers.utils.chat_template_utils import render_jinja_template

    theirs, _ = render_jinja_template([MESSAGES], chat_template=CHATML, add_generation_prompt=True, bos_token="<s>")
    assert rendered(CHATML, MESSAGES, {"bos_token": "<s>"}) == theirs[0]


def test_hostile_templates_are_refused_and_the_next_is_rendered():
    async def all_of_them():
        templates = Templates(seconds=5)
        try:
            for hostile, says in (
                ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
                ("{{ messages.append(1) }}", "unsafe"),
                ("{{ raise_exception('only a user') }}", "only a user"),
                ("{% for", "refuses"),
                ("{{ 1 / 0 }}", "division"),
                (
                    "{% set x = namespace(t='aaaa') %}{% for i in range(60) %}{% set x.t = x.t ~ x.t %}{% endfor %}",
                    "memory",
                ),
            ):
                with pytest.raises(RequestError, match=says):
                    await templates.render(hostile, MESSAGES, {})
            assert await templates.render(CHATML, MESSAGES, {"bos_token": ""}) == "system\nbe briefuser\nhiassistant\n"
        finally:
            await templates.close()

    asyncio.run(all_of_them())


def test_a_template_without_end_is_killed():
    async def endless():
        templates = Templates(seconds=0.3)
        loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
        with pytest.raises(RequestError, match="longer than"):
            await templates.render(loop, MESSAGES, {})
        assert templates._process is None

    asyncio.run(endless())


def test_the_template_of_an_imported_run():
    assert template_of({"chat_template.jinja": "a"}) == "a"
    assert template_of({"tokenizer_config.json": {"chat_template": "b"}}) == "b"
    named = [{"name": "tool_use", "template": "c"}, {"name": "default", "template": "d"}]
    assert template_of({"tokenizer_config.json": {"chat_template": named}}) == "d"
    assert template_of({}) is None
    with pytest.raises(UserError, match="at most"):
        check_template("x" * 100_001)

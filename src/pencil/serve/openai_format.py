"""Requests and answers in the form of OpenAI's API: every field checked once, answers, events, and the document of it.

Fields that the API does not have are ignored, as it does; those that would change the answer and are not computed here
are refused. `FIELDS` is both what is checked and what the OpenAPI document says.
"""

import json
import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import UserError
from ..families.explore_profile import Prompt
from ..inference.sampling import Sampling
from .engine import Continuation, Piece, Token, new_seed
from .errors import RequestError
from .row_sampling import Rules

MOST_PROMPTS, MOST_CHARACTERS, MOST_STOPS, MOST_BIASED = 64, 1_000_000, 4, 300
MOST_MESSAGES, MOST_SAMPLES, MOST_VALUES = 1000, 16, 200_000


@dataclass(frozen=True)
class Field:
    """A field of a request with one value: its type, its limits, and what it is unless given."""

    kind: type
    low: float = -math.inf
    high: float = math.inf
    default: Any = None

    def read(self, name: str, value: Any) -> Any:
        if value is None:
            return self.default
        number = self.kind in (int, float)
        wanted = (int, float) if self.kind is float else (self.kind,)
        if not isinstance(value, wanted) or (number and isinstance(value, bool)):
            words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
            raise RequestError(f"{name} must be {words[self.kind]}", field=name)
        if number and not self.low <= value <= self.high:
            raise RequestError(f"{name} must be from {self.low:g} to {self.high:g}, not {value:.6g}", field=name)
        return self.kind(value)

    @property
    def schema(self) -> dict[str, Any]:
        kinds = {int: "integer", float: "number", bool: "boolean", str: "string"}
        limits = {"minimum": self.low, "maximum": self.high}
        limits = {name: limit for name, limit in limits.items() if math.isfinite(limit)}
        default = {} if self.default is None else {"default": self.default}
        return {"type": [kinds[self.kind], "null"], **limits, **default}


FIELDS = {
    "temperature": Field(float, 0, 2, 1.0),
    "top_p": Field(float, 0, 1),
    "top_k": Field(int, -1, 1_000_000),
    "min_p": Field(float, 0, 1),
    "presence_penalty": Field(float, -2, 2, 0.0),
    "frequency_penalty": Field(float, -2, 2, 0.0),
    "repetition_penalty": Field(float, 0.01, 100, 1.0),
    "seed": Field(int, -(1 << 63), (1 << 63) - 1),
    "n": Field(int, 1, MOST_SAMPLES, 1),
    "max_tokens": Field(int, 1, 1 << 31),
    "stream": Field(bool, default=False),
    "user": Field(str),
}
COMPLETION_FIELDS = FIELDS | {"logprobs": Field(int, 0, 5), "echo": Field(bool, default=False)}
CHAT_FIELDS = FIELDS | {
    "max_completion_tokens": Field(int, 1, 1 << 31),
    "logprobs": Field(bool, default=False),
    "top_logprobs": Field(int, 0, 20),
}
# what would change the answer and is not computed here, with the values that ask for nothing
NOT_TAKEN: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""),
    "best_of": (None, 1),
    "tools": (None, []),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "audio": (None,),
}


@dataclass(frozen=True)
class Asked:
    """A request for generated text, checked: its prompts as tokens, and how they are continued."""

    prompts: list[list[int]]
    most: int | None
    rules: Rules
    n: int
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    top: int | None  # how many of the likeliest tokens are listed; None where no logprobs were asked for
    echo: bool = False
    given: Sequence[Mapping[str, Any]] = ()  # the picture or the source of each prompt, where the model reads one
    read: int = 0  # tokens that these are

    def continuations(self, seconds: float) -> list[Continuation]:
        """Every sample of every prompt, in the order of `index`."""
        deadline = time.monotonic() + seconds
        return [
            Continuation(prompt, self.most or 1, self.rules, lambda piece: None, sample,
                         self.given[i] if self.given else {}, self.stop, top=self.top or 0, deadline=deadline)
            for i, prompt in enumerate(self.prompts) for sample in range(self.n)
        ]  # fmt: skip


def parse(content: bytes) -> dict[str, Any]:
    """The JSON object of a request."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_VALUES:  # parsing them would hold up every other request
        raise RequestError(f"the request has more than {MOST_VALUES:,} commas and brackets; shorten it", 413)

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        data = json.loads(content, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise RequestError("the request is not valid JSON") from None
    if not isinstance(data, dict):
        raise RequestError("the request must be a JSON object")
    return data


def read_fields(data: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
    """The fields with one value each; those that are not computed here are refused."""
    for name, harmless in NOT_TAKEN.items():
        if name in data and data[name] not in harmless:
            raise RequestError(f"{name} is not computed here; leave it out", field=name)
    return {name: field.read(name, data.get(name)) for name, field in fields.items()}


def rules_of(fields: Mapping[str, Any], data: Mapping[str, Any], vocab: int) -> Rules:
    """How tokens are chosen."""
    top_k, top_p, seed = fields["top_k"], fields["top_p"], fields["seed"]
    sampling = Sampling(
        temperature=fields["temperature"],
        top_k=top_k if top_k is not None and top_k > 0 else None,
        top_p=None if top_p is None or top_p == 1 else max(top_p, 1e-9),
        min_p=fields["min_p"],
        repetition_penalty=fields["repetition_penalty"],
        seed=new_seed() if seed is None else seed % (1 << 63),
    )
    bias = data.get("logit_bias")
    if bias is None:
        bias = {}
    if not isinstance(bias, dict) or len(bias) > MOST_BIASED:
        raise RequestError(f"logit_bias must be an object of at most {MOST_BIASED} tokens", field="logit_bias")
    read = {}
    for token, value in bias.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 10 and int(token) < vocab):
            raise RequestError(f"logit_bias has ids of the {vocab} tokens as its names", field="logit_bias")
        read[int(token)] = Field(float, -100, 100, 0.0).read("logit_bias", value)
    return Rules(sampling, fields["presence_penalty"], fields["frequency_penalty"], read)


def stops_of(data: Mapping[str, Any]) -> tuple[str, ...]:
    """The strings that end a text."""
    given = data.get("stop")
    stops = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise RequestError(f"stop must be a string, or at most {MOST_STOPS} of them", field="stop")
    if not all(isinstance(one, str) and 0 < len(one) <= 1000 for one in stops):
        raise RequestError("each string of stop must have 1 to 1000 characters", field="stop")
    return tuple(stops)


def _usage_wanted(data: Mapping[str, Any]) -> bool:
    options = data.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise RequestError("stream_options must be an object", field="stream_options")
    return Field(bool, default=False).read("stream_options.include_usage", options.get("include_usage"))


def encode(text: str, tokenizer: Any, field: str, begin: bool = True) -> list[int]:
    """The ids of a prompt, begun as the run's own prompts are."""
    if len(text) > MOST_CHARACTERS:
        raise RequestError(f"{field} has more than {MOST_CHARACTERS:,} characters; shorten it", 413, field)
    try:
        ids = tokenizer.encode(text).tolist()
    except UserError as error:
        raise RequestError(str(error), field=field) from None
    ids = [*([] if tokenizer.begin is None or not begin else [tokenizer.begin]), *ids]
    if not ids and tokenizer.end is not None:  # what follows the end of a text is the beginning of one
        ids = [tokenizer.end]
    if not ids:
        raise RequestError(f"{field} is empty: give at least one character", field=field)
    return ids


def most_of(prompts: Sequence[Sequence[int]], asked: int | None, usual: int | None, context: int, field: str) -> int:
    """How many tokens are generated at most; what the context cannot hold is refused before it starts."""
    longest = max(map(len, prompts))
    room = context + 1 - longest  # the last token need not be read
    if room < 1:
        raise RequestError(
            f"the prompt has {longest} tokens and the context is {context}; shorten it", 400, field,
            "context_length_exceeded",
        )  # fmt: skip
    if asked is not None and asked > room:
        raise RequestError(
            f"the prompt has {longest} tokens, and after them the context of {context} has room for {room}, not for "
            f"{asked}; shorten the prompt or lower max_tokens",
            400, "max_tokens", "context_length_exceeded",
        )  # fmt: skip
    return asked if asked is not None else min(room, usual or room)


def prompts_of(given: Any, tokenizer: Any, field: str = "prompt") -> list[list[int]]:
    """A prompt, or several: texts, or lists of ids."""
    if isinstance(given, str):
        return [encode(given, tokenizer, field)]
    if not isinstance(given, list) or not given:
        raise RequestError(f"{field} must be a string, a list of strings, or ids of tokens", field=field)
    if all(type(one) is int for one in given):
        given = [given]
    if len(given) > MOST_PROMPTS:
        raise RequestError(f"{field} has {len(given)} entries; at most {MOST_PROMPTS} are taken", field=field)
    return [encode(one, tokenizer, field) if isinstance(one, str) else _ids(one, tokenizer, field) for one in given]


def _ids(given: Any, tokenizer: Any, field: str) -> list[int]:
    if not isinstance(given, list) or not given or len(given) > MOST_CHARACTERS:
        raise RequestError(f"{field} must be a string, a list of strings, or ids of tokens", field=field)
    if not all(type(one) is int and 0 <= one < tokenizer.vocab for one in given):
        raise RequestError(f"{field} has an id that is not one of the {tokenizer.vocab} tokens", field=field)
    return given


def completion_request(
    data: Mapping[str, Any], tokenizer: Any, context: int, read: Callable[[str], Prompt] | None = None
) -> Asked:
    """A request to /v1/completions; with `read` the prompts are sources, which it reads."""
    fields = read_fields(data, COMPLETION_FIELDS)
    if fields["echo"] and (fields["logprobs"] is not None or read is not None):
        raise RequestError("echo with logprobs, or of a source, is not computed here; leave it out", field="echo")
    sources = None if read is None else [read(one) for one in texts_of(data.get("prompt"), "prompt")]
    prompts = prompts_of(data.get("prompt"), tokenizer) if sources is None else [list(one.ids) for one in sources]
    most = most_of(prompts, fields["max_tokens"], 16, context, "prompt")
    rules = rules_of(fields, data, tokenizer.vocab)
    return Asked(prompts, most, rules, fields["n"], stops_of(data), fields["stream"], _usage_wanted(data),
                 fields["logprobs"], fields["echo"], *_beside(sources or ()))  # fmt: skip


def _beside(prompts: Sequence[Prompt]) -> tuple[Sequence[Mapping[str, Any]], int]:
    """What is read beside these prompts, and how many tokens the sources are."""
    given = [one.given for one in prompts]
    return given, sum(one["source"].numel() for one in given if "source" in one)


def texts_of(given: Any, field: str) -> list[str]:
    """A text, or several, none of them empty."""
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, list) or not several or not all(isinstance(one, str) and one for one in several):
        raise RequestError(f"{field} must be a string or a list of strings, none of them empty", field=field)
    if len(several) > MOST_PROMPTS:
        raise RequestError(f"{field} has {len(several)} entries; at most {MOST_PROMPTS} are taken", field=field)
    if any(len(one) > MOST_CHARACTERS for one in several if not one.startswith("data:")):
        raise RequestError(f"{field} has more than {MOST_CHARACTERS:,} characters; shorten it", 413, field)
    return several


def messages_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a chat; the parts of a content stay parts where one of them is not a text."""
    given = data.get("messages")
    if not isinstance(given, list) or not 0 < len(given) <= MOST_MESSAGES:
        raise RequestError(f"messages must be a list of 1 to {MOST_MESSAGES} messages", field="messages")
    messages, characters = [], 0
    for one in given:
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            raise RequestError("each message is an object with a role and a content", field="messages")
        content = one.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise RequestError("the content of a message is a string, or a list of parts", field="messages")
        for part in parts:
            if part.get("type") == "text" and not isinstance(part.get("text"), str):
                raise RequestError("a part of the type text has a text", field="messages")
        texts = [part["text"] for part in parts if part.get("type") == "text"]
        characters += sum(map(len, texts))
        whole = len(texts) == len(parts)
        messages.append({"role": one["role"], "content": "".join(texts) if whole else parts})
    if characters > MOST_CHARACTERS:
        raise RequestError(f"messages have more than {MOST_CHARACTERS:,} characters; shorten them", 413, "messages")
    return messages


def input_of(messages: Sequence[Mapping[str, Any]], takes: Collection[str]) -> dict[str, str]:
    """The picture or the source of a chat with a model that has no turns, and how its answer begins."""
    what = "picture" if "picture" in takes else "source"
    user, *rest = messages
    if user["role"] != "user" or len(rest) > 1 or any(one["role"] != "assistant" for one in rest):
        raise RequestError(
            f"this model answers one {what}: give one message of the user, and after it at most one of the "
            "assistant, with how the answer begins",
            field="messages",
        )
    if not all(isinstance(one["content"], str) for one in rest):
        raise RequestError("the message of the assistant is a text", field="messages")
    given = {"text": rest[0]["content"]} if rest else {}
    if what == "source":
        if not isinstance(user["content"], str):
            raise RequestError("this model reads a text: the message of the user has no other parts", field="messages")
        return given | {"source": user["content"]}
    parts = user["content"] if isinstance(user["content"], list) else []
    image = parts[0].get("image_url") if len(parts) == 1 and parts[0].get("type") == "image_url" else None
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url.startswith("data:"):
        raise RequestError(
            "this model describes one picture and takes no instruction: the content of the user's message is one part "
            'of the type image_url, whose url is "data:image/png;base64,…"; nothing is fetched from elsewhere',
            field="messages",
        )
    return given | {"picture": url}


def chat_request(data: Mapping[str, Any], prompt: str | Prompt, tokenizer: Any, context: int, before: int = 0) -> Asked:
    """A request to /v1/chat/completions: the prompt that its template gave, or a picture or source that was read.

    A picture is `before` tokens.
    """
    fields = read_fields(data, CHAT_FIELDS)
    if isinstance(prompt, Prompt):
        ids, read = list(prompt.ids), [prompt]
    else:
        ids, read = encode(prompt, tokenizer, "messages", begin=False), []  # a template writes the first token itself
    asked = fields["max_completion_tokens"] or fields["max_tokens"]
    most = most_of([ids], asked, None, context, "messages")
    if fields["top_logprobs"] is not None and not fields["logprobs"]:
        raise RequestError("top_logprobs needs logprobs to be true", field="top_logprobs")
    top = (fields["top_logprobs"] or 0) if fields["logprobs"] else None
    rules = rules_of(fields, data, tokenizer.vocab)
    given, count = _beside(read)
    return Asked([ids], most, rules, fields["n"], stops_of(data), fields["stream"], _usage_wanted(data), top,
                 given=given, read=before + count)  # fmt: skip


# ---- answers


def new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


class Answer:
    """The answer to one request in one of the two forms, whole or in chunks."""

    def __init__(self, asked: Asked, model: str, tokenizer: Any, chat: bool):
        self.tokenizer, self.chat = tokenizer, chat
        self.id = new_id("chatcmpl" if chat else "cmpl")
        self.head = {"id": self.id, "created": int(time.time()), "model": model}
        count = len(asked.prompts) * asked.n
        self.texts, self.reasons = [""] * count, [""] * count
        self.tokens: list[list[Token]] = [[] for _ in range(count)]
        self.reused = 0
        self._offsets = [0] * count
        for i in range(count if asked.echo else 0):
            self.texts[i] = tokenizer.decode(asked.prompts[i // asked.n])
        self.read = sum(map(len, asked.prompts)) + asked.read
        self.asked = replace(asked, prompts=[])  # what is kept for the receipt has no prompt

    @property
    def usage(self) -> dict[str, Any]:
        prompt, new = self.read, sum(map(len, self.tokens))
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new,
                "prompt_tokens_details": {"cached_tokens": self.reused}}  # fmt: skip

    def _object(self, chunk: bool) -> str:
        return f"chat.completion{'.chunk' * chunk}" if self.chat else "text_completion"

    def whole(self) -> dict[str, Any]:
        choices = []
        for i, text in enumerate(self.texts):
            body = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.chat else {"text": text}
            choices.append({"index": i, **body, "logprobs": self._logprobs(i, self.tokens[i]),
                            "finish_reason": self.reasons[i]})  # fmt: skip
        return self.head | {"object": self._object(False), "choices": choices, "usage": self.usage}

    def first_chunks(self) -> list[dict[str, Any]]:
        """What a stream begins with: the role of each choice, or the prompt that is echoed."""
        if self.chat:
            return [self._chunk(i, {"delta": {"role": "assistant", "content": ""}}) for i in range(len(self.texts))]
        return [self._chunk(i, {"text": text}) for i, text in enumerate(self.texts) if text]

    def add(self, i: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Take what is new of a choice, and give it as one chunk."""
        text, tokens = "".join(piece.text for piece in pieces), [token for piece in pieces for token in piece.tokens]
        reason = pieces[-1].reason
        self.texts[i] += text
        self.tokens[i] += tokens
        self.reasons[i] = reason or ""
        if not self.asked.stream:
            return {}
        body: dict[str, Any] = {"delta": {"content": text} if text else {}} if self.chat else {"text": text}
        return self._chunk(i, body, self._logprobs(i, tokens), reason)

    def _chunk(self, i: int, body: dict[str, Any], logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
        choice = {"index": i, **body, "logprobs": logprobs, "finish_reason": reason}
        usage = {"usage": None} if self.asked.include_usage else {}
        return self.head | {"object": self._object(True), "choices": [choice]} | usage

    def usage_chunk(self) -> dict[str, Any]:
        return self.head | {"object": self._object(True), "choices": [], "usage": self.usage}

    def _logprobs(self, i: int, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if self.asked.top is None:
            return None
        if self.chat:
            entries = [self._entry(one.id, one.logprob) for one in tokens]
            top = [{"top_logprobs": [self._entry(*pair) for pair in one.top]} for one in tokens]
            return {"content": [a | b for a, b in zip(entries, top, strict=True)], "refusal": None}
        words, offsets = [self.tokenizer.token(one.id) for one in tokens], []
        for word in words:
            offsets.append(self._offsets[i])
            self._offsets[i] += len(word)
        top = [{self.tokenizer.token(id): value for id, value in one.top} for one in tokens]
        return {"tokens": words, "token_logprobs": [one.logprob for one in tokens], "top_logprobs": top,
                "text_offset": offsets}  # fmt: skip

    def _entry(self, id: int, logprob: float) -> dict[str, Any]:
        word = self.tokenizer.token(id)
        return {"token": word, "logprob": max(logprob, -9999.0), "bytes": [*word.encode("utf-8", "replace")]}

    def receipt(self) -> dict[str, Any]:
        """How each token was chosen, with the numbers of the choice; the prompt is not kept."""
        how = self.asked.rules.sampling
        rules = {name: getattr(how, name) for name in how.__dataclass_fields__}
        rules |= {"presence_penalty": self.asked.rules.presence_penalty,
                  "frequency_penalty": self.asked.rules.frequency_penalty}  # fmt: skip
        choices = [{"index": i, "finish_reason": self.reasons[i], "tokens": [self._why(one) for one in tokens]}
                   for i, tokens in enumerate(self.tokens)]  # fmt: skip
        return {"id": self.id, "object": "receipt", "model": self.head["model"], "rules": rules, "choices": choices}

    def _why(self, one: Token) -> dict[str, Any]:
        word = self.tokenizer.token(one.id)
        if one.drawn is None:
            margin = f"{one.margin:.6g} above that of {self.tokenizer.token(one.runner)!r}"
            why = f"its logit is the largest, {margin}"
        else:
            why = f"{one.drawn:.6f} was drawn, and falls into [{one.low:.6f}, {one.high:.6f})"
        return {"id": one.id, "token": word, "logprob": one.logprob, "drawn": one.drawn,
                "interval": None if one.drawn is None else [one.low, one.high], "why": why}  # fmt: skip


def event(data: object) -> bytes:
    """One server-sent event; JSON is written on one line, so no text within it can end the event."""
    return b"data: " + to_json(data) + b"\n\n"


def to_json(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")

"""The OpenAPI document of the server: what `openai_format` checks, in the form that other tools read."""

from collections.abc import Mapping, Sequence
from typing import Any

from .openai_format import CHAT_FIELDS, COMPLETION_FIELDS, MOST_BIASED, MOST_MESSAGES, MOST_PROMPTS, MOST_STOPS, Field

TEXT = {"type": "string"}
STOP = {"oneOf": [TEXT, {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": MOST_STOPS}]}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
PROMPT = {"oneOf": [{"type": "string"}, {"type": "array", "items": TEXT, "minItems": 1, "maxItems": MOST_PROMPTS}, IDS]}
URL = {"type": "object", "required": ["url"], "properties": {"url": TEXT}}
PART = {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["text", "image_url"]}, "text": TEXT,
                                                               "image_url": URL}}  # fmt: skip
CONTENT = {"oneOf": [TEXT, {"type": "array", "items": PART}]}
MESSAGE = {"type": "object", "required": ["role", "content"], "properties": {"role": TEXT, "content": CONTENT}}
MESSAGES = {"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": MOST_MESSAGES}
BIAS = {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "maxProperties": MOST_BIASED}  # fmt: skip
USAGE = {"type": "object", "properties": {"include_usage": {"type": "boolean"}}}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "object", "required": ["message", "type"], "properties": {"message": TEXT}}},
}


NUMBER = {"type": "number", "minimum": 0, "maximum": 1}
LIKELY = {"type": "object", "required": ["label", "probability"], "properties": {"label": TEXT, "probability": NUMBER}}
CLASSES = {**LIKELY, "required": ["index", "label", "probability", "classes"], "properties": {
    **LIKELY["properties"], "index": {"type": "integer"}, "classes": {"type": "array", "items": LIKELY}}}  # fmt: skip
VECTOR = {"type": "object", "required": ["index", "embedding"], "properties": {
    "index": {"type": "integer"},
    "embedding": {"oneOf": [{"type": "array", "items": {"type": "number"}}, TEXT]}}}  # fmt: skip


def document(models: Sequence[str], version: str) -> dict[str, Any]:
    """The document of a server of these models."""
    common = {"stop": STOP, "logit_bias": BIAS, "stream_options": USAGE}
    completion = _body(models, "prompt", PROMPT, COMPLETION_FIELDS, common)
    chat = _body(models, "messages", MESSAGES, CHAT_FIELDS, common)
    texts = {"oneOf": [{"type": "string", "minLength": 1},
                       {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1,
                        "maxItems": MOST_PROMPTS}]}  # fmt: skip
    cut = {"truncate": {"type": "boolean", "description": "Of a text that is too long, read the beginning."}}
    form = {"encoding_format": {"type": "string", "enum": ["float", "base64"]}, **cut}
    paths = {
        "/v1/embeddings": {"post": _asked("The vectors of texts.", _body(models, "input", texts, {}, form), VECTOR)},
        "/v1/classify": {
            "post": _asked("The classes of texts or pictures.", _body(models, "input", texts, {}, cut), CLASSES)
        },
        "/v1/completions": {"post": _asked("Continue a text.", completion)},
        "/v1/chat/completions": {"post": _asked("Answer messages, by the run's own template.", chat)},
        "/v1/models": {"get": _given("The runs that are served.")},
        "/v1/models/{name}": {"get": _given("One of them.", "name")},
        "/receipts/{id}": {"get": _given("How each token of a recent answer was chosen.", "id")},
        "/healthz": {"get": _given("Whether the server works.")},
        "/readyz": {"get": _given("Whether it takes requests.")},
        "/metrics": {"get": _given("Counts and times, for Prometheus.", content="text/plain")},
    }
    return {"openapi": "3.1.0", "info": {"title": "pencil serve", "version": version}, "paths": paths}


def _body(models: Sequence[str], name: str, schema: Any, fields: Mapping[str, Field], more: Any) -> dict[str, Any]:
    properties = {"model": {"type": "string", "enum": list(models)}, name: schema, **more}
    properties |= {name: one.schema for name, one in fields.items()}
    required = [name] if len(models) == 1 else ["model", name]  # the only run needs no name
    return {"type": "object", "required": required, "properties": properties}


def _responses(content: str, *statuses: int) -> dict[str, Any]:
    refused = {str(status): {"description": "One sentence that says why.",
                             "content": {"application/json": {"schema": ERROR}}} for status in statuses}  # fmt: skip
    return {"200": {"description": "The answer.", "content": {content: {}}}} | refused


def _asked(about: str, schema: Any, each: Any = None) -> dict[str, Any]:
    """An address that takes a body; `each` is the answer of one input, where that is a list and is not streamed."""
    responses = _responses("application/json", 400, 401, 403, 404, 408, 413, 415, 429, 500, 503, 504)
    if each is None:
        responses["200"]["content"]["text/event-stream"] = {}
    else:
        properties = {"model": TEXT, "data": {"type": "array", "items": each}}
        answer = {"type": "object", "required": ["model", "data"], "properties": properties}
        responses["200"]["content"]["application/json"] = {"schema": answer}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"summary": about, "requestBody": body, "responses": responses}


def _given(about: str, parameter: str | None = None, content: str = "application/json") -> dict[str, Any]:
    named = {"name": parameter, "in": "path", "required": True, "schema": TEXT}
    responses = _responses(content, 401, 403, 404, 503)
    return {"summary": about, "responses": responses} | ({"parameters": [named]} if parameter else {})

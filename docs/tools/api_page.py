"""The page of the HTTP API: what `/openapi.json` says, as text and tables, with examples."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from docs.tools.markdown import code, table
from rocmforge.api.http.errors import ERROR_TABLE
from rocmforge.api.openapi import document

EXAMPLES: Final = Path(__file__).with_name("examples.toml")
_HEAD: Final = """# API

The server speaks OpenAI's API below `/v1`, Anthropic's at `/v1/messages`, and some endpoints of
other servers. Any [client](../clients.md) of these works with the address
`http://127.0.0.1:8000/v1`. A running server describes itself at `/docs`, and for programs at
`/openapi.json`, with the names of its models.

**Keys.** If the server has keys, send one as `Authorization: Bearer KEY` or `X-Api-Key: KEY`.

**Bodies** are JSON, up to `--max-body-bytes`. Fields that may be left out may also be null. A
field that the server knows and cannot honour is refused by name. A field that it does not know is
ignored, and named in the answer's header `X-Ignored-Fields` and in the log; with
`--strict-requests` it is refused.

**Streams** are server-sent events. OpenAI's end with `data: [DONE]`. While a request waits,
comments keep the connection open. An error after the first byte is the last event.

**Deadlines.** `X-Request-Timeout: 30`, or `timeout` in the body, ends a request after so many
seconds. A client that leaves ends its request at once.

**Ids.** Each answer has the header `X-Request-Id`, which the log has too.

**Errors** have a body with `error.message` for people, and `error.code` for programs. An answer
with 429 or 503 says in `Retry-After` how many seconds to wait.

<!-- errors -->

In the tables below, fields with a star are always there or must be given.

This page is made of the code by `just reference`.
"""
_REF: Final = "$ref"
_GROUPS: Final = {
    "Chat completions": "/v1/chat/completions",
    "Completions": "/v1/completions",
    "Responses": "/v1/responses",
    "Messages": "/v1/messages",
    "Embeddings": "/v1/embeddings",
    "Ranking": "/v1/rerank",
    "Models": "/v1/models",
    "Models, in llama.cpp's words": "/models/",
    "Tokens": ("/tokenize", "/detokenize", "/tokenizer_info"),
    "For operators": "/",
}
"""By title: how the paths begin that stand below it; the first that fits counts."""
_ALSO: Final = {"/rerank": "/v1/rerank", "/v2/rerank": "/v1/rerank"}
_QUALIFIED: Final = {
    "rocmforge.api.generate.schema.": " (chat)",
    "rocmforge.api.messages.schema.": " (messages)",
    "rocmforge.api.responses.events.": " (responses)",
    "rocmforge.api.http.errors.": "",
}

Schema = dict[str, Any]


def text() -> str:
    """Returns the page."""
    return _Page(document(()), tomllib.loads(EXAMPLES.read_text(encoding="utf-8"))).text()


class _Page:
    """Writes each type once, below the first operation that has it."""

    def __init__(self, document: Schema, examples: dict[str, dict[str, str]]) -> None:
        self._paths = document["paths"]
        self._components: dict[str, Schema] = document["components"]["schemas"]
        self._examples = examples
        self._shown: set[str] = set()

    def text(self) -> str:
        """Returns the page."""
        parts = [_HEAD.rstrip().replace("<!-- errors -->", _errors())]
        left = dict(self._paths)
        for title, begins in _GROUPS.items():
            paths = [path for path in left if path.startswith(begins) and path not in _ALSO]
            parts.append(f"## {title}")
            for path in paths:
                for method, operation in left.pop(path).items():
                    parts += self._operation(method, path, operation)
        return "\n\n".join(parts) + "\n"

    def _operation(self, method: str, path: str, operation: Schema) -> Iterator[str]:
        if method == "head":
            return
        yield f"### {method.upper()} {path}"
        yield _prose(operation["summary"])
        also = [other for other, same in _ALSO.items() if same == path]
        if also:
            yield f"Also at {' and '.join(map(code, also))}."
        example = self._examples.get(f"{method.upper()} {path}", {})
        yield from _shown(method, example)
        types = []
        if "requestBody" in operation:
            types += [operation["requestBody"]["content"]["application/json"]["schema"]]
        if operation.get("parameters"):
            rows = [
                (code(each["name"]), f"in the {each['in']}", *self._kind(each["schema"]))
                for each in operation["parameters"]
            ]
            yield table(("parameter", "", "type", "what it is"), rows)
        answer = operation["responses"]["200"]["content"]
        types += [content["schema"] for content in answer.values()]
        for each in types:
            yield from self._types(each)

    def _types(self, schema: Schema) -> Iterator[str]:
        """Yields the tables of all types in a schema that have not been shown yet."""
        new = [name for name in self._references(schema) if name not in self._shown]
        self._shown.update(new)
        for name in new:
            component = self._components[name]
            yield f"#### {_title(name)}"
            if component.get("description"):
                yield _prose(component["description"])
            required = component.get("required", ())
            rows = [
                (code(field) + (" *" if field in required else ""), *self._kind(each))
                for field, each in component.get("properties", {}).items()
            ]
            if rows:
                yield table(("field", "type", "what it is"), rows)

    def _references(self, schema: Any) -> list[str]:
        """Returns all types that a schema names, and those within, each once."""
        found: dict[str, None] = {}
        waiting = [schema]
        while waiting:
            each = waiting.pop(0)
            if isinstance(each, list):
                waiting = [*each, *waiting]
            elif isinstance(each, dict):
                name = _name(each)
                if name and name not in found:
                    found[name] = None
                    waiting.append(self._components[name])
                waiting = [v for k, v in each.items() if k not in ("examples", "default")] + waiting
        return list(found)

    def _kind(self, schema: Schema) -> tuple[str, str]:
        """Returns the type of a field, and what is said of it."""
        said = schema.get("description", "")
        for example in schema.get("examples", ()):
            said += f". Example: {code(json.dumps(example, ensure_ascii=False))}"
        return _type(schema), said


def _shown(method: str, example: dict[str, str]) -> Iterator[str]:
    """Yields what is asked, what is answered, and the events of an answer that is a stream."""
    if "path" in example:
        yield f"```http\n{method.upper()} {example['path']}\n```"
    if "request" in example:
        yield f"```json\n{example['request'].strip()}\n```"
    if "answer" in example:
        yield f"The answer:\n\n```json\n{example['answer'].strip()}\n```"
    if "text" in example:
        yield f"The answer, in part:\n\n```text\n{example['text'].strip()}\n```"
    if "events" in example:
        yield f'With `"stream": true`, events such as:\n\n```text\n{example["events"].strip()}\n```'


def _errors() -> str:
    found = {(row.status, row.code) for row in ERROR_TABLE.values()}
    rows = [
        (str(status), ", ".join(code(each) for each in sorted(c for s, c in found if s == status)))
        for status in sorted({status for status, _ in found})
    ]
    return table(("status", "`code`"), rows)


def _name(schema: Schema) -> str:
    reference = schema.get(_REF, "")
    return str(reference).rpartition("/")[2]


def _title(name: str) -> str:
    for prefix, mark in _QUALIFIED.items():
        if name.startswith(prefix):
            return name.removeprefix(prefix) + mark
    return name


def _type(schema: Schema) -> str:
    """Says in words which values a schema takes; null, which many take, is not named."""
    if _REF in schema:
        title = _title(_name(schema))
        slug = title.lower().replace(" ", "-").replace("(", "").replace(")", "")
        return f"[{title}](#{slug})"
    if "anyOf" in schema:
        kinds = [_type(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "const" in schema or "enum" in schema:
        values: Iterable[Any] = schema.get("enum", (schema.get("const"),))
        return ", ".join(code(str(value)) for value in values if value is not None)
    match schema.get("type"):
        case "array":
            items = _type(schema.get("items", {}))
            return f"list of {items}" if items else "list"
        case "object":
            return "object"
        case "integer" | "number" as kind:
            return ("whole number" if kind == "integer" else "number") + _range(schema)
        case "string":
            return "text"
        case "boolean":
            return "true or false"
        case "null":
            return "null"
        case _:
            return "any"


def _range(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if most == 2**31 - 1:
        most = None
    if least is not None and most is not None:
        return f", {least:g} to {most:g}"
    if least is not None:
        return f", at least {least:g}"
    above = schema.get("exclusiveMinimum")
    return "" if above is None else f", above {above:g}"


def _prose(docstring: str) -> str:
    """Returns a docstring as Markdown: names of our code are of no use to readers of the API."""
    return docstring.partition("\n\nArgs:")[0].partition("; see `")[0].strip().rstrip(".") + "."

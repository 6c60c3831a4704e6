"""An OpenAPI document as one HTML page, without scripts and without anything from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; }
code, pre { font: 14px/1.4 ui-monospace, monospace; }
pre { background: #f4f4f4; overflow: auto; padding: 1em; }
summary { cursor: pointer; }
"""


def render_page(document: dict[str, Any]) -> str:
    """Operations with links to the schemas of their bodies and answers, then the schemas."""
    info = document["info"]
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [_schema(name, schema) for name, schema in document["components"]["schemas"].items()]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(info['title'])}</h1>",
            f"<p>{escape(info['description'])} As a file, with the names of the models: "
            '<a href="openapi.json">openapi.json</a>, which takes a key if the server has any.</p>',
            *operations,
            "<h2>Schemas</h2>",
            *schemas,
            "</body></html>",
        ]
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [
        f"<h3><code>{method.upper()} {escape(path)}</code></h3>",
        f"<p>{escape(operation['summary'])}</p><ul>",
    ]
    if "requestBody" in operation:
        lines.append(f"<li>Body: {_contents(operation['requestBody'])}</li>")
    for status, response in operation["responses"].items():
        lines.append(f"<li>{escape(status)}: {_contents(response)}</li>")
    return "\n".join([*lines, "</ul>"])


def _contents(holder: dict[str, Any]) -> str:
    return ", ".join(
        f"{escape(kind)} {_links(content['schema'])}" for kind, content in holder["content"].items()
    )


def _links(schema: dict[str, Any]) -> str:
    if "properties" in schema:  # of an event
        schema = schema["properties"]["data"]["contentSchema"]
    parts = schema.get("anyOf", [schema])
    names = [part["$ref"].rpartition("/")[2] for part in parts if "$ref" in part]
    return " or ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)


def _schema(name: str, schema: dict[str, Any]) -> str:
    text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code> '
        f"{escape(schema.get('description', ''))}</summary><pre>{escape(text)}</pre></details>"
    )

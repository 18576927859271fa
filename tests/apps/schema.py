"""Checks results against the schemas in docs/schema.md: the small part of JSON Schema used there."""
import json
import pathlib
import re

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schema.md"
KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def load():
    blocks = re.findall(r"```json schema=(\S+)\n(.*?)```", DOCUMENT.read_text(), re.S)
    return {name: json.loads(text) for name, text in blocks}


def is_kind(value, kind):
    if kind in ("integer", "number"):
        return isinstance(value, (int,) if kind == "integer" else (int, float)) \
            and not isinstance(value, bool)
    return isinstance(value, KINDS[kind])


def problems(value, schema, defs, where="result"):
    """Yields what is wrong with `value`, one line each."""
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and not any(is_kind(value, kind) for kind in kinds):
        yield f"{where}: {value!r:.60} is not {' or '.join(kinds)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), defs, f"{where}[{i}]")
        return
    if "$ref" in schema and value is not None:
        yield from problems(value, defs[schema["$ref"]], defs, where)
    if not isinstance(value, dict):
        return
    for name in schema.get("required", []):
        if name not in value:
            yield f"{where}: {name} is missing"
    for name, member in value.items():
        if name in schema.get("properties", {}):
            yield from problems(member, schema["properties"][name], defs, f"{where}.{name}")
        elif schema.get("additionalProperties") is False:
            yield f"{where}: {name} is not in the schema"


def check(result):
    schemas = load()
    return list(problems(result, schemas[result["command"]], schemas["$defs"]))

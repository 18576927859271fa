"""Checks results against the schemas in docs/schema.md."""

import functools
import json
import pathlib
import re

import jsonschema

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schema.md"


@functools.cache
def load():
    blocks = re.findall(r"```json schema=(\S+)\n(.*?)```", DOCUMENT.read_text(), re.S)
    return {name: json.loads(text) for name, text in blocks}


def check(result):
    """What is wrong with a result of the tool, one line each."""
    schemas = load()
    return faults(result, {**schemas[result["command"]], "$defs": schemas["$defs"]})


def faults(value, schema):
    errors = jsonschema.Draft202012Validator(schema).iter_errors(value)
    return [f"{error.json_path}: {error.message:.200}" for error in errors]

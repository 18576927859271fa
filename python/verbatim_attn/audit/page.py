"""The certificate as one page: no script, no outside resource, every string escaped."""

from __future__ import annotations

import shlex
from typing import Any

from .. import _page
from .._page import code, escape, listed, section, table

_CLASS = {"yes": "good", "same": "good", "no": "bad", "differs": "bad"}


def _said(text: str) -> str:
    return f'<span class="{_CLASS.get(text, "none")}">{escape(text)}</span>'


def _facts(found: dict[str, Any]) -> list[list[str]]:
    """Nested members as rows."""
    rows = []
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {inner}" for key, inner in value.items())
        rows.append([escape(name), escape(value)])
    return rows


def page(audit: dict[str, Any], details: list[str]) -> str:
    """Of Audit.to_dict() and a line about each of its checks."""
    verdicts = [
        [escape(name.replace("_", "-")), _said(verdict)]
        for name, verdict in audit["verdicts"].items()
    ]
    checks = [
        [escape(f["check"]), escape(f["varies"]), str(f["runs"]), escape(", ".join(f["tensors"])),
         _said(f["status"]), escape(detail)]
        for f, detail in zip(audit["checks"], details, strict=True)
    ]  # fmt: skip
    inputs = [
        [escape(name), escape(f"{x['dtype']} {x['shape']}"), code(x["sha256"])]
        for name, x in audit["inputs"].items()
    ]
    body = table(verdicts)
    body += section(
        "The checks",
        "Each varies one thing and is compared with the first run, byte by byte.",
        table(checks, ("check", "what is varied", "runs", "tensors", "verdict", "")),
    )
    body += section(
        "What this does not prove",
        "Read the verdicts as no more than this.",
        f'<div class="panel">{listed(map(escape, audit["not_proved"]))}</div>\n',
    )
    body += section(
        "The first run",
        "SHA-256 of the elements in row-major order.",
        table([[escape(name), code(x)] for name, x in audit["sha256"].items()]),
    )
    body += section("The problem", "", table(_facts(audit["problem"])))
    body += section("The inputs", "", table(inputs))
    body += section("The environment", "", table(_facts(audit["environment"])))
    if audit["arguments"]:
        command = shlex.join(["python", "-m", "verbatim_attn.audit", *audit["arguments"]])
        body += section(
            "Again",
            "The command that made this page.",
            f'<code class="command">{escape(command)}</code>\n',
        )
    lead = f"<p>on {escape(audit['environment']['device'])}</p>"
    title = f"Audit of {escape(audit['target'])}"
    return _page.page(title, lead, body, escape(audit["version"]))

"""The certificate as one page: no script, no outside resource, every string escaped."""

from __future__ import annotations

import html
import shlex
from typing import Any

_STYLE = """
:root{color-scheme:light dark;--paper:#fdfcf9;--card:#fff;--ink:#1d2733;--muted:#68737f;
--faint:#e4e2dc;--good:#2c7a4b;--bad:#c0392b}
@media (prefers-color-scheme:dark){:root{--paper:#14181d;--card:#1b2127;--ink:#e7e9ea;
--muted:#98a3ad;--faint:#303841;--good:#6cc48c;--bad:#f0705f}}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.55 ui-sans-serif,system-ui,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:36px 24px 64px}
h1{font-size:30px;line-height:1.2;margin:6px 0 8px}h2{font-size:19px;margin:44px 0 4px}
p,footer,th{color:var(--muted)}.mark{font-size:13px;letter-spacing:.14em;text-transform:uppercase}
.panel{background:var(--card);border:1px solid var(--faint);border-radius:12px;padding:16px;
overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{padding:6px 14px 6px 0;border-bottom:1px solid var(--faint);text-align:left;
vertical-align:top;font-weight:400}tr:last-child>*{border-bottom:0}
code{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
.none{color:var(--muted)}
"""
_CLASS = {"yes": "good", "same": "good", "no": "bad", "differs": "bad"}


def escape(value: Any) -> str:
    """Text for HTML, without control characters."""
    return html.escape("".join(c for c in str(value) if c.isprintable() or c == " "))


def _said(text: str) -> str:
    return f'<span class="{_CLASS.get(text, "none")}">{escape(text)}</span>'


def _code(value: Any) -> str:
    return f"<code>{escape(value)}</code>"


def _table(rows: list[list[str]], titles: tuple[str, ...] = ()) -> str:
    """Of cells that are HTML; without titles the first cell of a row is its name."""
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    lines = []
    for first, *others in rows:
        start = f"<td>{first}</td>" if titles else f'<th scope="row">{first}</th>'
        lines.append(f"<tr>{start}{''.join(f'<td>{cell}</td>' for cell in others)}</tr>\n")
    head = f"<thead><tr>{head}</tr></thead>" if titles else ""
    return f'<div class="panel"><table>{head}<tbody>\n{"".join(lines)}</tbody></table></div>\n'


def _section(title: str, lead: str, body: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n<p>{lead}</p>\n{body}</section>\n"


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
        [escape(name), escape(f"{x['dtype']} {x['shape']}"), _code(x["sha256"])]
        for name, x in audit["inputs"].items()
    ]
    body = _table(verdicts)
    body += _section(
        "The checks",
        "Each varies one thing and is compared with the first run, byte by byte.",
        _table(checks, ("check", "what is varied", "runs", "tensors", "verdict", "")),
    )
    body += _section(
        "What this does not prove",
        "Read the verdicts as no more than this.",
        f'<ul class="panel">{"".join(f"<li>{escape(line)}</li>" for line in audit["not_proved"])}'
        "</ul>\n",
    )
    body += _section(
        "The first run",
        "SHA-256 of the elements in row-major order.",
        _table([[escape(name), _code(x)] for name, x in audit["sha256"].items()]),
    )
    body += _section("The problem", "", _table(_facts(audit["problem"])))
    body += _section("The inputs", "", _table(inputs))
    body += _section("The environment", "", _table(_facts(audit["environment"])))
    if audit["arguments"]:
        command = shlex.join(["python", "-m", "verbatim_attn.audit", *audit["arguments"]])
        body += _section("Again", "The command that made this page.", _code(command))
    title = f"Audit of {escape(audit['target'])}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<p class="mark">Verbatim</p>\n<h1>{title}</h1>\n'
        f"<p>on {escape(audit['environment']['device'])}</p>\n</header>\n{body}"
        f"<footer>verbatim {escape(audit['version'])}</footer>\n</main>\n</body>\n</html>\n"
    )

"""What an audit found: findings, verdicts, and the certificate as JSON, text and a page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from .bits import Difference
from .checks import VERDICTS
from .page import page

SCHEMA = "verbatim.audit.v1"  # docs/schema.md


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    verdict: str  # that it belongs to
    varies: str
    status: str  # "same", "differs" or "not checked"
    reason: str  # why it was not checked
    tensors: list[str]  # that were compared
    runs: int
    differing: int  # runs
    distinct: int  # results among those that differ
    difference: Difference | None  # the first

    @property
    def detail(self) -> str:
        """One line for people."""
        if self.difference is None:
            return self.reason
        d = self.difference
        if not d.worst:
            return f"{d.tensor} is {d.got}, not {d.expected}"
        size = "not finite" if d.max_abs is None else f"{d.max_abs:.3g}"
        ulps = "" if d.max_ulps is None else f" ({d.max_ulps} ulps)"
        return (
            f"{d.tensor}: {d.differing} of {d.elements} elements, at most {size}{ulps} apart, "
            f"worst at {d.worst}; {self.differing} of {self.runs} runs differ, "
            f"{self.distinct} distinct"
        )


@dataclass(frozen=True)
class Audit:
    """The answer of audit(). str() is a table, to_json() and to_html() are the certificate."""

    target: str
    version: str  # of verbatim_attn
    arguments: list[str]  # of the command line; empty: called from Python
    commit: str  # what was built, as the command line was told
    problem: dict[str, Any]
    inputs: dict[str, Any]
    environment: dict[str, Any]
    sha256: dict[str, str]  # of the first run
    findings: list[Finding]

    @property
    def verdicts(self) -> dict[str, str]:
        """ "yes", "no" or "not checked" for repeatable, batch_invariant, packing_invariant and
        isolated: no when a check differs, yes when at least one was made and none differs."""
        found = {}
        for name in VERDICTS:
            statuses = {f.status for f in self.findings if f.verdict == name}
            known = "yes" if "same" in statuses else "not checked"
            found[name] = "no" if "differs" in statuses else known
        return found

    @property
    def passed(self) -> bool:
        """Whether checks were made and none differs."""
        verdicts = self.verdicts.values()
        return "yes" in verdicts and "no" not in verdicts

    @property
    def not_proved(self) -> list[str]:
        """What nobody may read into the verdicts."""
        lines = [
            "That the results are right: equal bits can be equally wrong.",
            "Anything about other inputs, shapes, dtypes, machines, drivers or versions than these.",
        ]
        if self.verdicts["repeatable"] == "yes":
            runs = sum(f.runs for f in self.findings if f.verdict == "repeatable")
            lines.append(
                f"That all runs are equal: {runs} were. If runs are independent, fewer than "
                f"{min(1.0, 3 / max(runs, 1)):.2g} of all differ, at 95 % confidence."
            )
        if not any(f"d{name}" in self.sha256 for name in self.inputs):
            lines.append("Anything about gradients: none were computed.")
        lines += [f"{f.check}: {f.reason}" for f in self.findings if f.status == "not checked"]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain data of the schema in docs/schema.md."""
        checks = [asdict(finding) for finding in self.findings]
        known = {"command": "audit", "schema": SCHEMA, **asdict(self), "checks": checks}
        del known["findings"]
        return {**known, "verdicts": self.verdicts, "not_proved": self.not_proved}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def to_html(self) -> str:
        """One page without scripts and outside resources; every string of the result is escaped."""
        return page(self.to_dict(), [finding.detail for finding in self.findings])

    def __str__(self) -> str:
        rows = [("what is varied", "runs", "")]
        for f in self.findings:
            said = {"same": "same bits", "differs": "DIFFERS: "}.get(f.status, "not checked: ")
            rows.append((f.check, str(f.runs), said + f.detail))
        table = [f"{name:<15}{runs:>6}  {text}".rstrip() for name, runs, text in rows]
        verdicts = [
            f"{name.replace('_', '-') + ':':<19}{verdict}{self._by(name)}"
            for name, verdict in self.verdicts.items()
        ]
        title = f"{self.target} on {self.environment['device']}"
        return "\n".join([title, "", *table, "", *verdicts])

    def _by(self, name: str) -> str:
        made = [f for f in self.findings if f.verdict == name and f.status != "not checked"]
        cause = [f.check for f in made if f.status == "differs"] or [f.check for f in made]
        return f" ({', '.join(cause)})" if cause else ""

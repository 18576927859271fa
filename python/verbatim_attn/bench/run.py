"""One row: a case on a provider, checked, repeated, timed, checked again."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from typing import Any

import torch

from . import check
from .measure import Device, Timing
from .providers import Provider, deterministic_algorithms
from .workloads import Case

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    protocol: str = "rested"
    repeats: int = 10  # runs whose bits are compared before timing
    checked: bool = True  # against double precision


class Stop(Exception):
    """This row gets no time: its status, and why."""

    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class Bench:
    """Rows of one case; its tensors and reference are made once, for all providers."""

    def __init__(self, case: Case, device: Device, settings: Settings):
        self.case, self.device, self.settings = case, device, settings
        self._tensors: Any = None
        self._expected: list[check.Expected] | None = None

    def row(self, provider: Provider) -> Row:
        case = self.case
        row: Row = {
            "set": case.set, "name": case.name, "provider": provider.name, "status": "ok",
            "reason": "", "problem": case.problem._asdict(),
            "mask": {"name": case.mask.name, "params": _params(case), "area": case.area,
                     "nominal_area": case.nominal_area},
            "sampling": case.sampling, "plan": None, "forward": None, "unordered": None,
            "backward": None, "check": None, "bits": None, "workspace_bytes": None,
            "memory_bytes": None,
        }  # fmt: skip
        try:
            self._fill(row, provider)
        except Stop as stop:
            row["status"], row["reason"] = stop.status, stop.reason
        except Exception as error:  # whatever a peer raises is its row's reason
            row["status"], row["reason"] = explain(error)
        if row["status"] != "ok":
            row["forward"] = row["backward"] = None
        gc.collect()
        if self.device.kind == "cuda":
            torch.cuda.empty_cache()
        return row

    def _fill(self, row: Row, provider: Provider) -> None:
        case, device = self.case, self.device
        if reason := provider.available():
            raise Stop(reason.partition(":")[0] if "not installed" in reason else "error", reason)
        if reason := provider.supports(case, device.kind):
            raise Stop("unsupported", reason)
        if self._tensors is None:
            self._tensors = check.inputs(case, device.name)
        q, k, v, dout = self._tensors
        attend = provider.make(case, device.name)
        row["plan"] = provider.plan(case, device.name)
        row["workspace_bytes"] = provider.workspace_bytes(case, device.name)
        last: dict[str, Any] = {}

        def forward() -> None:
            with provider.mode():
                last["o"] = attend(q, k, v)

        def backward() -> None:
            with provider.mode():
                found = torch.autograd.grad(last["o"], (q, k, v), dout, retain_graph=True)
            last["dq"], last["dk"], last["dv"] = found

        if not provider.has_backward:
            q, k, v = (x.detach() for x in (q, k, v))

        def both() -> None:
            forward()
            if provider.has_backward:
                backward()

        both()
        self._compare(row, last)
        first = {name: x.detach().clone() for name, x in last.items()}
        row["bits"] = {"repeats": self.settings.repeats, "differing_words": 0,
                       "sha256": check.sha256(first)}  # fmt: skip
        for _ in range(self.settings.repeats):
            last.clear()
            _poison(first)
            if provider.deterministic:  # new memory is NaN, so that what is not written shows
                with deterministic_algorithms(fill=True):
                    both()
            else:
                both()
            self._count(row, provider, last, first)
        last.clear()
        peaks = {"forward": device.peak(forward)}
        row["forward"] = self._timed(forward, "forward")
        if provider.has_backward:
            peaks["backward"] = device.peak(backward)
            row["backward"] = self._timed(backward, "backward")
        measured = {name: peak for name, peak in peaks.items() if peak is not None}
        if measured:
            own = row["workspace_bytes"] or 0
            row["memory_bytes"] = {name: peak["above"] + own * (name == "backward")
                                   for name, peak in measured.items()}  # fmt: skip
            row["peak_bytes"] = {name: {key: peak[key] for key in ("allocated", "reserved")}
                                 for name, peak in measured.items()}  # fmt: skip
        self._count(row, provider, last, first)
        self._compare(row, last)

    def _timed(self, call: Any, which: str) -> Timing:
        found = self.device.measure(call, self.settings.protocol)
        rate = 1e-9 / found["ms"]
        found["tflops"] = self.case.flops(which, self.case.area) * rate
        found["tflops_nominal"] = self.case.flops(which, self.case.nominal_area) * rate
        return found

    def _compare(self, row: Row, found: dict[str, Any]) -> None:
        if not self.settings.checked:
            return
        if self._expected is None:
            self._expected = check.expectations(self.case, self._tensors)
        ratio = check.error_ratio(found, self._expected)
        before = row["check"]["error_ratio"] if row["check"] else 0.0
        right = ratio <= check.ALLOWED_RATIO
        row["check"] = {"correct": right, "error_ratio": max(ratio, before)}
        if not right:
            raise Stop("wrong", f"error ratio {ratio:.3g}, {check.ALLOWED_RATIO:g} allowed")

    def _count(self, row: Row, provider: Provider, found: Any, first: Any) -> None:
        words = row["bits"]["differing_words"] + check.differing_words(found, first)
        row["bits"]["differing_words"] = words
        if words and provider.ours and provider.deterministic:
            raise Stop("differs", f"{words} words differ between calls that promise equal bits")


def _poison(like: dict[str, Any]) -> None:
    """NaN into memory that the allocator is likely to hand out for the next outputs."""
    held = [torch.full_like(x, torch.nan) for x in like.values()]
    del held


def _params(case: Case) -> dict[str, Any]:
    spec = json.loads(case.mask.spec)
    return spec.get("params", spec)


def explain(error: Exception) -> tuple[str, str]:
    """A row's status and reason for an exception."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, MemoryError) or any(
        part in text.lower() for part in ("out of memory", "can't allocate memory")
    ):
        return "out of memory", text
    unsupported = ("No available kernel", "No viable backend", "does not have a deterministic")
    if isinstance(error, NotImplementedError) or any(part in text for part in unsupported):
        return "unsupported", text
    return "error", f"{type(error).__name__}: {text}"

"""One row: a case on a provider, checked, repeated, timed, checked again."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from typing import Any

import torch

from ..plan import Problem
from . import check
from .measure import Device, Timing, ratio_in_turn
from .providers import Provider, deterministic_algorithms, unordered_twin
from .registry import known
from .workloads import Case

Row = dict[str, Any]


def _described(problem: Problem) -> dict[str, Any]:
    """With the scale that is used, as the tool writes it."""
    scale = problem.head_dim**-0.5 if problem.scale is None else problem.scale
    return problem._asdict() | {"scale": scale}


class Passes:
    """Forward and backward of one provider on one case's tensors."""

    def __init__(
        self, provider: Provider, case: Case, device: str, tensors: Any, backward: bool = True
    ):
        self.provider = provider
        self.last: dict[str, Any] = {}  # what the last calls made
        self._attend = provider.make(case, device)  # after which has_backward is the case's
        differentiable = provider.has_backward and not case.selected
        self.has_backward = backward and differentiable
        if provider.heads_first:
            tensors = [_heads_first(x) for x in tensors]
        *self._inputs, self._dout = tensors
        if not differentiable:
            self._inputs = [x.detach() for x in self._inputs]

    def forward(self) -> None:
        with self.provider.mode():
            self.last["o"] = self._attend(*self._inputs)

    def backward(self) -> None:
        with self.provider.mode():
            found = torch.autograd.grad(self.last["o"], self._inputs, self._dout, retain_graph=True)
        self.last.update(zip(("dq", "dk", "dv"), found, strict=True))

    def both(self) -> None:
        self.forward()
        if self.has_backward:
            self.backward()


def _heads_first(x: Any) -> Any:
    """(batch, length, heads, dim) that lies as (batch, heads, length, dim)."""
    laid = x.detach().transpose(1, 2).contiguous().transpose(1, 2)
    return laid.requires_grad_(x.requires_grad)


@dataclass(frozen=True)
class Settings:
    protocol: str = "rested"
    repeats: int = 10  # runs whose bits are compared before timing
    checked: bool = True  # against double precision
    backward: bool = True  # both passes, or the forward alone


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
            "set": case.set, "name": case.name, "provider": provider.name,
            "provider_version": None, "status": "ok", "reason": "",
            "problem": _described(case.problem),
            "mask": {"name": case.mask.name, "params": _params(case), "area": case.area,
                     "nominal_area": case.nominal_area},
            "sampling": case.sampling, "plan": None, "forward": None, "unordered": None,
            "order_ratio": None, "backward": None, "check": None, "bits": None,
            "workspace_bytes": None, "memory_bytes": None,
        }  # fmt: skip
        try:
            self._fill(row, provider)
        except Stop as stop:
            row["status"], row["reason"] = stop.status, stop.reason
        except Exception as error:  # whatever a peer raises is its row's reason
            row["status"], row["reason"] = explain(error)
        if row["status"] != "ok":
            row["forward"] = row["backward"] = row["unordered"] = row["order_ratio"] = None
        gc.collect()
        if self.device.kind == "cuda":
            torch.cuda.empty_cache()
        return row

    def _fill(self, row: Row, provider: Provider) -> None:
        case, device = self.case, self.device
        # What its interface does not take it does not take installed, either.
        if case.selected and not provider.selects:
            raise Stop("unsupported", "takes no blocks that queries select")
        if reason := provider.supports(case, device.kind):
            raise Stop("unsupported", reason)
        if reason := provider.available():
            raise Stop(reason.partition(":")[0] if "not installed" in reason else "error", reason)
        row["provider_version"] = provider.version()
        if self._tensors is None:
            self._tensors = check.inputs(case, device.name)
        passes = Passes(provider, case, device.name, self._tensors, self.settings.backward)
        last = passes.last
        row["plan"] = provider.plan(case, device.name)
        row["workspace_bytes"] = provider.workspace_bytes(case, device.name)
        passes.both()
        self._compare(row, last)
        first = {name: x.detach().clone() for name, x in last.items()}
        row["bits"] = {"repeats": self.settings.repeats, "differing_words": 0,
                       "deviation": dict.fromkeys(first, 0.0), "sha256": check.sha256(first)}  # fmt: skip
        for _ in range(self.settings.repeats):
            last.clear()
            _poison(first)
            if provider.deterministic:  # new memory is NaN, so that what is not written shows
                with deterministic_algorithms(fill=True):
                    passes.both()
            else:
                passes.both()
            self._count(row, provider, last, first)
        last.clear()
        peaks = {"forward": device.peak(passes.forward)}
        forward = device.measure(passes.forward, self.settings.protocol)
        row["forward"] = self._rates(forward, "forward")
        if passes.has_backward:
            peaks["backward"] = device.peak(passes.backward)
            self._time_backward(row, passes)
        measured = {name: peak for name, peak in peaks.items() if peak is not None}
        if measured:
            row["memory_bytes"] = {name: peak["above"] for name, peak in measured.items()}
            held = self._held_bytes(provider, first)
            row["peak_bytes"] = {name: {key: peak[key] - held for key in ("allocated", "reserved")}
                                 for name, peak in measured.items()}  # fmt: skip
        self._count(row, provider, last, first)
        self._compare(row, last)

    def _held_bytes(self, provider: Provider, first: dict[str, Any]) -> int:
        """What this benchmark holds beside the provider's call: what is compared, and tensors in
        the layout of others."""
        held = [*first.values(), *(x for one in self._expected or () for x in one.exact.values())]
        if provider.heads_first:
            held += self._tensors
        return sum(x.nbytes for x in held)

    def _time_backward(self, row: Row, passes: Passes) -> None:
        """In turn with the same provider's backward without determinism, on a GPU: a power limit
        that sets in between two rows would split their medians."""
        device, calls = self.device, [passes.backward]
        if twin := self._twin(passes.provider):
            calls.append(twin.backward)
        times, *others = device.times_in_turn(calls, self.settings.protocol)
        row["backward"] = self._rates(device.summary(times), "backward")
        for other in others:
            row["unordered"] = self._rates(device.summary(other), "backward")
            row["order_ratio"] = ratio_in_turn(other, times)

    def _twin(self, provider: Provider) -> Passes | None:
        """The same provider without determinism, after its first calls; None where it has no such
        mode or cannot, which its own row explains, and where its results are wrong."""
        twin = known().get(unordered_twin(provider.name) or "")
        if twin is None or self.device.kind != "cuda":
            return None
        try:
            passes = Passes(twin, self.case, self.device.name, self._tensors)
            passes.both()
        except Exception:  # the row that asks has its own time all the same
            return None
        if self._expected and check.error_ratio(passes.last, self._expected) > check.ALLOWED_RATIO:
            return None
        return passes

    def _rates(self, found: Timing, which: str) -> Timing:
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
        bits, words = row["bits"], check.differing_words(found, first)
        if words:
            for name, largest in check.deviation(found, first).items():
                bits["deviation"][name] = max(bits["deviation"][name], largest)
        bits["differing_words"] = words = bits["differing_words"] + words
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

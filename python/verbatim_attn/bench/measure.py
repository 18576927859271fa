"""Devices, clocks and protocols, two of them those of `verbatim bench`; PyTorch from here on."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .workloads import LISTS

Timing = dict[str, float]

# Clock cycles (about 1 ms) for which the GPU waits before a call is timed, so that it never waits
# for Python to enqueue the next kernel: what is timed is the GPU's work, as of a queue that is full.
_HEAD_START = 2_000_000


class Device:
    """A CPU or CUDA device: its clock, its memory counters, what results say about it."""

    def __init__(self, name: str):
        self.kind = torch.device(name).type
        if self.kind not in ("cpu", "cuda"):
            raise ValueError("a benchmark runs on the CPU or on CUDA devices")
        self.name = "cuda:0" if name == "cuda" else name  # as tensors spell it
        if self.kind == "cuda":
            torch.cuda.set_device(torch.device(self.name))
            self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._nvml = _Nvml(str(torch.cuda.get_device_properties(self.name).uuid))

    def time(self, call: Callable[[], Any]) -> float:
        """Milliseconds of the work that `call` starts, to its end."""
        if self.kind == "cpu":
            start = time.perf_counter()
            call()
            return (time.perf_counter() - start) * 1e3
        torch.cuda._sleep(_HEAD_START)
        self._begin.record()
        call()
        self._end.record()
        self._end.synchronize()
        return self._begin.elapsed_time(self._end)

    def measure(self, call: Callable[[], Any], protocol: str) -> Timing:
        """The median of times_in_turn() of one call."""
        return self.summary(self.times_in_turn([call], protocol)[0])

    def times_in_turn(self, calls: Sequence[Callable[[], Any]], protocol: str) -> list[list[float]]:
        """Milliseconds of every call, called one after another again and again, so that clocks
        and limits are alike for all. rested: for each call a burst, idle, then calls to warm up
        and timed ones; brief: the same with few calls, fewer of long ones, and no idle. sustained:
        the same work for a while, then as long timed for each call. How long and how often:
        bench/workloads.json."""
        lasts = LISTS["protocols"][protocol]
        calls = list(calls)
        times: list[list[float]] = [[] for _ in calls]
        if "timed_calls" in lasts:
            for burst in range(len(calls)):  # no longer than if there were one call
                time.sleep(lasts["idle_s"])
                self._burst(calls[burst:] + calls[:burst], times[burst:] + times[:burst], lasts)
        else:
            end = time.perf_counter() + lasts["warm_up_s"]
            while time.perf_counter() < end:
                for call in calls:
                    self.time(call)
            end = time.perf_counter() + lasts["timed_s"] * len(calls)
            while not times[0] or time.perf_counter() < end:
                for taken, call in zip(times, calls, strict=True):
                    taken.append(self.time(call))
        return times

    def _burst(
        self, calls: Sequence[Callable[[], Any]], times: list[list[float]], lasts: dict[str, Any]
    ) -> None:
        """Calls in turn, of which those to warm up are not in `times`. Long ones are fewer: none
        follows `enough_s` of either kind but to make `least_calls` of each timed in all."""
        enough = lasts.get("enough_s", math.inf) * 1e3
        spent, count, timed = 0.0, 0, 0
        while count < lasts["warm_up_calls"] and spent < enough:
            spent += self.time(calls[count % len(calls)])
            count += 1
        spent = 0.0
        while timed < lasts["timed_calls"] and (
            spent < enough or min(map(len, times)) < lasts["least_calls"]
        ):
            which = (count + timed) % len(calls)
            times[which].append(self.time(calls[which]))
            spent += times[which][-1]
            timed += 1

    def summary(self, times: list[float]) -> Timing:
        """Of calls that have just ended: their median, the spread of the middle half over it, and
        the clock now."""
        clock, ascending, count = self.clock_mhz(), sorted(times), len(times)
        median = statistics.median(ascending)
        spread = (ascending[count * 3 // 4] - ascending[count // 4]) / median
        return {"ms": median, "noise": spread, "clock_mhz": clock}

    def clock_mhz(self) -> float:
        """Right now; 0: unknown."""
        return self._nvml.clock_mhz() if self.kind == "cuda" else 0.0

    def peak(self, call: Callable[[], Any]) -> dict[str, int] | None:
        """Bytes that PyTorch's allocator handed out at most during `call` (what was held before it
        counted in `peak_allocated`, not in `above`) and had reserved; None on a CPU."""
        if self.kind == "cpu":
            return None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return {"above": allocated - before, "allocated": allocated, "reserved": reserved}

    def facts(self) -> dict[str, Any]:
        """As `device` of docs/schema.md."""
        if self.kind == "cpu":
            return {
                "name": _cpu_name(), "multiprocessors": os.cpu_count() or 1, "l2_bytes": 0,
                "max_clock_mhz": 0, "driver": "",
            }  # fmt: skip
        found = torch.cuda.get_device_properties(self.name)
        return {
            "name": found.name, "multiprocessors": found.multi_processor_count,
            "l2_bytes": found.L2_cache_size, "max_clock_mhz": self._nvml.max_clock_mhz(),
            "driver": self._nvml.driver(),
        }  # fmt: skip

    def yardsticks(self, protocol: str) -> dict[str, float]:
        """10^12 a second of a large matrix product (bf16, 8192^3; on a CPU f32, 1024^3) and of a
        copy of 1 GiB (CPU: 64 MiB), bytes read and written."""
        on_cpu = self.kind == "cpu"
        size, dtype = (1024, torch.float32) if on_cpu else (8192, torch.bfloat16)
        a, b = (torch.randn(size, size, device=self.name, dtype=dtype) for _ in range(2))
        count = 2**26 if on_cpu else 2**30
        source = torch.zeros(count, dtype=torch.uint8, device=self.name)
        target = torch.empty_like(source)
        product = self.measure(lambda: torch.mm(a, b), protocol)["ms"]
        copy = self.measure(lambda: target.copy_(source), protocol)["ms"]
        return {
            "matmul_tflops": 2 * size**3 / product * 1e-9,
            "copy_tb_per_s": 2 * count / copy * 1e-9,
        }


def ratio_in_turn(a: list[float], b: list[float]) -> float:
    """The median ratio of calls that followed each other; of long ones, either may have more."""
    return statistics.median(x / y for x, y in zip(a, b, strict=False))


class _Nvml:
    """The driver's own numbers; unknown (0 or "") where its library is not there."""

    def __init__(self, uuid: str):
        self._device = ctypes.c_void_p()
        try:
            self._library: Any = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self._library = None
            return
        self._library.nvmlInit_v2()
        self._library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(self._device))

    def _clock(self, function: str) -> float:
        mhz, multiprocessors = ctypes.c_uint(0), 1  # NVML_CLOCK_SM
        if self._library is not None and self._device:
            getattr(self._library, function)(self._device, multiprocessors, ctypes.byref(mhz))
        return float(mhz.value)

    def clock_mhz(self) -> float:
        return self._clock("nvmlDeviceGetClockInfo")

    def max_clock_mhz(self) -> float:
        return self._clock("nvmlDeviceGetMaxClockInfo")

    def driver(self) -> str:
        text = ctypes.create_string_buffer(80)
        if self._library is not None:
            self._library.nvmlSystemGetDriverVersion(text, len(text))
        return text.value.decode()


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = (line.split(":", 1)[1].strip() for line in lines if "model name" in line)
            return next(names, platform.machine())
    except OSError:
        return platform.machine()

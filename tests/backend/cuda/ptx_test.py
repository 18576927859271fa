#!/usr/bin/env python3
"""The PTX of the dQ writers: no path through it hands on a turn too early, or uses one that it has
not waited for.

On sm_90 `wait_group` and `wait_group.read` become the same instruction, so no run shows a turn
that is handed on after the latter, and a missing fence may go unseen as well. Copies of the source
with a fault each must be found.
Usage: ptx_test.py NVCC SOURCE_DIR CUTLASS_INCLUDE
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

NVCC, SOURCE, CUTLASS = sys.argv[1:4]
WRITER = "backend/cuda/sm90/bwd/dq.cuh"
KERNELS = f"""
#include "{WRITER}"
using namespace verbatim::cuda;
using C = sm90::bwd::Config<cutlass::bfloat16_t, 128, sm90::Variant::plain>;
__global__ void writer(const __grid_constant__ sm90::bwd::Params p) {{
  extern __shared__ __align__(1024) char shared[];
  sm90::bwd::write_dq<C, NoRecorder>(*reinterpret_cast<C::SharedStorage*>(shared), p,
                                     threadIdx.x / 32);
}}
"""
# What matters of an instruction; the first pattern that is found names it.
EVENTS = {
    "add": r"cp\.(reduce\.)?async\.bulk\.global\.shared",  # or store: to the sum
    "fetch": r"cp\.async\.bulk\.shared::cluster\.global",  # the sum
    "complete": r"cp\.async\.bulk\.wait_group 0",
    "global fence": r"fence\.proxy\.async\.global",
    "shared fence": r"fence\.proxy\.async\.shared::cta",
    "acquire": r"ld\.acquire\.gpu\.global",
    "release": r"st\.release\.gpu\.global",
    "wait": r"mbarrier\.try_wait",
}
# What each fault does to the source.
FLAGS = "-ptx -arch=compute_90a -O3 -std=c++20 --expt-relaxed-constexpr --fmad=false".split()
FAULTS = {
    "a turn after the read alone": ("ptx::bulk_wait_complete();", "ptx::bulk_wait_read();"),
    "no fence before a turn is handed on": (
        "ptx::fence_async_global();\n    if (last)",
        "if (last)",
    ),
    "no fence behind a turn": (
        "ptx::fence_async_global();\n      recorder.note(RecordKind::wait",
        "recorder.note(RecordKind::wait",
    ),
    "no wait for a turn": ("wait_for_turn(p.common, turn_of(", "(void)(turn_of("),
    "no fence between the consumers' stores and the copy": ("ptx::fence_async_shared();", ""),
    "a turn that is not released": (
        "store_release(turn_of(row), max(addend, 0) + 1);",
        "*turn_of(row) = max(addend, 0) + 1;",
    ),
    "a slot that is free before its sum is fetched": ("wait_full(smem.sum_full, n);", ""),
}


def ptx_of(folder: str, fault: tuple[str, str] | None) -> str:
    kernels = pathlib.Path(folder, "kernels.cu")
    kernels.write_text(KERNELS)
    if fault:
        text = pathlib.Path(SOURCE, "src", WRITER).read_text()
        assert text.count(fault[0]) == 1, f"{fault[0]!r} is not there once"
        copy = pathlib.Path(folder, WRITER)
        copy.parent.mkdir(parents=True)
        copy.write_text(text.replace(*fault))
    includes = [f"-I{d}" for d in (folder, f"{SOURCE}/src", f"{SOURCE}/include", CUTLASS)]
    result = subprocess.run(
        [NVCC, *FLAGS, *includes, "-o", "-", str(kernels)], capture_output=True, text=True
    )
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return result.stdout


class Flow:
    """The events of one kernel, and which instructions may follow which."""

    def __init__(self, ptx: str, kernel: str):
        body = ptx[re.search(rf"\.entry \w*{kernel}\w*\(", ptx).end() :].split(".entry")[0]
        lines = body.splitlines()
        self.event = [
            next((e for e, p in EVENTS.items() if re.search(p, line)), None) for line in lines
        ]
        label = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"(\$\w+):", line))}
        self.next = []
        for i, line in enumerate(lines):
            branch = re.match(r"\s*(@!?%p\d+\s+)?bra(?:\.uni)?\s+(\$\w+);", line)
            ends = (branch and not branch[1]) or re.match(r"\s*ret;", line)
            follow = [] if ends or i + 1 == len(lines) else [i + 1]
            self.next.append(follow + ([label[branch[2]]] if branch else []))

    def all(self, *events: str) -> list[int]:
        return [i for i, event in enumerate(self.event) if event in events]

    def reaches(self, start: int, targets: list[int], past: list[str]) -> bool:
        """Whether a path from behind `start` meets a target before it has met `past` in order."""
        seen, todo = set(), [(i, 0) for i in self.next[start]]
        while todo:
            i, met = todo.pop()
            if (i, met) in seen:
                continue
            seen.add((i, met))
            if i in targets:
                return True
            met += self.event[i] == past[met]
            if met < len(past):
                todo += [(j, met) for j in self.next[i]]
        return False


def faults_of(ptx: str) -> list[str]:
    found = []
    writer = Flow(ptx, "writer")
    adds, copies = writer.all("add"), writer.all("add", "fetch")
    uses = writer.all("release", "fetch")
    if any(writer.reaches(a, uses, ["complete", "global fence"]) for a in adds):
        found.append("a sum is handed on or fetched before its addition is complete and fenced")
    if any(writer.reaches(a, adds, ["shared fence"]) for a in [0, *adds]):
        found.append("a copy out of shared memory without a fence")
    waits = writer.all("acquire")
    if not waits:
        found.append("nothing waits for a turn")
    if any(writer.reaches(a, copies, ["global fence"]) for a in waits):
        found.append("a copy behind a turn without a fence")
    if any(writer.reaches(f, writer.all("release"), ["wait"]) for f in writer.all("fetch")):
        found.append("a slot is given on before its sum is fetched")
    if len(writer.all("release")) < 2:  # of an addend, and of the last where slots are shared
        found.append("a turn is not released")
    return found


class Ptx(unittest.TestCase):
    def test_turns_are_waited_for_and_handed_on_in_order(self):
        with tempfile.TemporaryDirectory() as folder:
            ptx = ptx_of(folder, None)
        self.assertGreaterEqual(len(Flow(ptx, "writer").all("add")), 2)  # the first is a store
        self.assertEqual(faults_of(ptx), [])

    def test_seeded_faults_are_found(self):
        for name, fault in FAULTS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                self.assertEqual(len(faults_of(ptx_of(folder, fault))), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

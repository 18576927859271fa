#!/usr/bin/env python3
"""The PTX of the dQ writers: an addition is complete before its turn is handed on.

On sm_90 `wait_group` and `wait_group.read` become the same instruction, so no run shows a turn that
is handed on after the latter; PTX promises nothing then. A copy of the source with that fault
must be found. Usage: ptx_test.py NVCC SOURCE_DIR CUTLASS_INCLUDE
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

NVCC, SOURCE, CUTLASS = sys.argv[1:4]
WRITER = "backend/cuda/sm90/bwd/dq.cuh"
KERNEL = f"""
#include "{WRITER}"
using namespace verbatim::cuda;
using C = sm90_bwd::Config<cutlass::bfloat16_t, 128>;
__global__ void writers(const __grid_constant__ sm90_bwd::Params p) {{
  extern __shared__ __align__(1024) char shared[];
  sm90_bwd::write_dq<C, NoRecorder>(*reinterpret_cast<C::SharedStorage*>(shared), p, threadIdx.x);
}}
"""


def ptx_of(first_include: str, folder: str) -> str:
    kernel = pathlib.Path(folder, "writers.cu")
    kernel.write_text(KERNEL)
    includes = [f"-I{d}" for d in (first_include, f"{SOURCE}/src", f"{SOURCE}/include", CUTLASS)]
    result = subprocess.run(
        [NVCC, "-ptx", "-arch=compute_90a", "-O3", "-std=c++20", "--expt-relaxed-constexpr",
         *includes, "-o", "-", str(kernel)], capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return result.stdout


def early_turns(ptx: str) -> tuple[int, int]:
    """Additions to global memory, and those that a fence follows (a turn is handed on behind it)
    before they are waited for to the end."""
    additions = early = 0
    under_way = False
    for line in ptx.splitlines():
        if re.search(r"cp\.(reduce\.)?async\.bulk\.global\.shared", line):
            additions += 1
            under_way = True
        elif "cp.async.bulk.wait_group 0" in line:
            under_way = False
        elif "fence.proxy.async.global" in line and under_way:
            early += 1
            under_way = False
    return additions, early


class Ptx(unittest.TestCase):
    def test_turns_wait_for_complete_additions(self):
        with tempfile.TemporaryDirectory() as folder:
            additions, early = early_turns(ptx_of(folder, folder))
        self.assertGreaterEqual(additions, 2)  # the first addend is stored
        self.assertEqual(early, 0)

    def test_a_turn_after_the_read_alone_is_found(self):
        text = pathlib.Path(SOURCE, "src", WRITER).read_text()
        self.assertEqual(text.count("ptx::bulk_wait_complete();"), 1)
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder, WRITER)
            copy.parent.mkdir(parents=True)
            copy.write_text(text.replace("ptx::bulk_wait_complete();", "ptx::bulk_wait_read();"))
            _, early = early_turns(ptx_of(folder, folder))
        self.assertGreater(early, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

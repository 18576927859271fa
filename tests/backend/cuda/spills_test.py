#!/usr/bin/env python3
"""No kernel of the Hopper backward spills a register: what ptxas says of the bf16 instances, whose
code those of f16 share. Registers are the compiler's choice, so others than CUDA 13.0's are not held
to it.

Usage: spills_test.py NVCC SOURCE_DIR CUTLASS_INCLUDE
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

NVCC, SOURCE, CUTLASS = sys.argv[1:4]
KERNELS = """
#include "backend/cuda/sm90/bwd/edges.cuh"
#include "backend/cuda/sm90/bwd/kernel.cuh"
namespace verbatim::cuda::sm90_bwd {{
using C = Config<cutlass::bfloat16_t, {head_dim}, {extras}>;
template __global__ void prepare<C>(BackwardParams, Workspace, float);
template __global__ void backward<C, NoRecorder>(const __grid_constant__ Params);
template __global__ void convert<C>(BackwardParams, Workspace);
}}
"""


class Spills(unittest.TestCase):
    def setUp(self) -> None:
        version = subprocess.run([NVCC, "--version"], capture_output=True, text=True).stdout
        if "release 13.0" not in version:
            self.skipTest("nvcc is not of CUDA 13.0")

    def test_every_instance_keeps_its_registers(self) -> None:
        instances = [(head_dim, extras) for head_dim in (64, 128) for extras in ("false", "true")]
        with ThreadPoolExecutor(2) as pool:
            for instance, found in zip(instances, pool.map(lambda i: usage(*i), instances)):
                self.assertEqual(found, [(0, 0, 0)] * 3, instance)


def usage(head_dim: int, extras: str) -> list[tuple[int, ...]]:
    """Bytes of stack, spill stores and spill loads of the instance's three kernels."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "kernels.cu")
        source.write_text(KERNELS.format(head_dim=head_dim, extras=extras))
        done = subprocess.run(
            [NVCC, "-cubin", "-gencode", "arch=compute_90a,code=sm_90a", "-O3", "-std=c++20",
             "--expt-relaxed-constexpr", "-Xptxas", "-v", f"-I{SOURCE}/src", f"-I{SOURCE}/include",
             f"-I{CUTLASS}", "-o", str(source.with_suffix(".cubin")), str(source)],
            capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
                       done.stderr)
    return [tuple(map(int, numbers)) for numbers in found]


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

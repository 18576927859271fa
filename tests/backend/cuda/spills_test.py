#!/usr/bin/env python3
"""What ptxas says of the Hopper kernels' bf16 instances, whose code those of f16 share: no kernel
of the backward spills a register but that of MLA's head dims (a few addresses), nor do the forwards
of two warpgroups, that under blocks an address, and no kernel has its wgmma serialised. Registers
are the compiler's choice, so others than CUDA 13.0's are not held to it.

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
FLAGS = (
    "-cubin -gencode arch=compute_90a,code=sm_90a -O3 -std=c++20 --expt-relaxed-constexpr"
    " --fmad=false -Xptxas -v"
).split()
INCLUDES = [f"-I{SOURCE}/src", f"-I{SOURCE}/include", f"-I{CUTLASS}"]
VARIANTS = [f"Variant::{v}" for v in ("plain", "extras", "halves")]
BACKWARD_INSTANCES = [(head_dim, v) for head_dim in ("64", "128") for v in VARIANTS] + [
    ("192", VARIANTS[0])
]
FORWARD_INSTANCES = [(dims, v) for dims in ("64, 64", "128, 128") for v in VARIANTS] + [
    ("192, 128", v) for v in VARIANTS[:2]
]
BACKWARD = """
#include "backend/cuda/sm90/bwd/edges.cuh"
#include "backend/cuda/sm90/bwd/kernel.cuh"
namespace verbatim::cuda::sm90::bwd {{
using C = Config<cutlass::bfloat16_t, {dims}, {variant}>;
template __global__ void prepare<C>(BackwardParams, Workspace, float);
template __global__ void backward<C, NoRecorder>(const __grid_constant__ Params);
template __global__ void convert<C>(BackwardParams, Workspace);
}}
"""
FORWARD = """
#include "backend/cuda/sm90/fwd/kernel.cuh"
namespace verbatim::cuda::sm90::fwd {{
using C = Config<cutlass::bfloat16_t, {dims}, {variant}>;
template __global__ void forward<C>(const __grid_constant__ Params);
}}
"""

BLOCKS = """
#include "backend/cuda/sm90/fwd/blocks/kernel.cuh"
namespace verbatim::cuda::sm90::fwd {{
using C = BlockConfig<cutlass::bfloat16_t, {dims}, {variant}>;
template __global__ void forward_blocks<C>(const __grid_constant__ Params);
}}
"""


class Compiled(unittest.TestCase):
    def setUp(self) -> None:
        version = subprocess.run([NVCC, "--version"], capture_output=True, text=True).stdout
        if "release 13.0" not in version:
            self.skipTest("nvcc is not of CUDA 13.0")

    def test_every_instance_of_the_backward_keeps_its_registers(self) -> None:
        for instance, (spills, serialised) in of_instances(BACKWARD_INSTANCES, BACKWARD).items():
            self.assertEqual((len(spills), serialised), (3, []), instance)
            if instance[0] != "192":
                self.assertEqual(spills, [(0, 0, 0)] * 3, instance)

    def test_the_forward_issues_its_products_together(self) -> None:
        for instance, (spills, serialised) in of_instances(FORWARD_INSTANCES, FORWARD).items():
            self.assertEqual((len(spills), serialised), (1, []), instance)
            if instance[0] != "64, 64":
                self.assertEqual(spills, [(0, 0, 0)], instance)

    def test_the_forward_under_blocks_spills_an_address_at_most(self) -> None:
        instances = [("64, 64", "1"), ("128, 128", "1"), ("128, 128", "2")]  # query heads
        for instance, (spills, serialised) in of_instances(instances, BLOCKS).items():
            self.assertEqual((len(spills), serialised), (1, []), instance)
            self.assertLessEqual(max(spills[0]), 8, instance)  # of the decoder


def of_instances(
    instances: list[tuple[str, str]], kernels: str
) -> dict[tuple[str, str], tuple[list[tuple[int, ...]], list[str]]]:
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(instances, pool.map(lambda i: compiled(kernels, *i), instances)))


def compiled(kernels: str, dims: str, variant: str) -> tuple[list[tuple[int, ...]], list[str]]:
    """Bytes of stack, spill stores and spill loads of each kernel; what ptxas serialised."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "kernels.cu")
        source.write_text(kernels.format(dims=dims, variant=variant))
        done = subprocess.run(
            [NVCC, *FLAGS, *INCLUDES, "-o", str(source.with_suffix(".cubin")), str(source)],
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    spills = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr
    )
    return (
        [tuple(map(int, numbers)) for numbers in spills],
        [line for line in done.stderr.splitlines() if "serialized" in line],
    )


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

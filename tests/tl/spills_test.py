#!/usr/bin/env python3
"""The shipped sketches, translated and compiled for the real architecture of each target.

As a test: a choice of them keeps its registers. Registers are the compiler's choice, so others than
CUDA 13.0's are not held to it, and compile one kernel a target. With `all` (make test-tl): every
sketch, target, head dim 64 and 128, in bf16, or f16 where there is none, and in e4m3. A line each
says what became of it; what is refused must be what the target cannot do.

Usage: spills_test.py TOOL NVCC SOURCE_DIR CUTLASS_INCLUDE [all]
"""

import concurrent.futures
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from typing import NamedTuple

TOOL, NVCC, SOURCE, CUTLASS = sys.argv[1:5]
FLAGS = "-cubin -O3 -std=c++20 --expt-relaxed-constexpr --fmad=false -Xptxas -v".split()
INCLUDES = [f"-I{SOURCE}/src", f"-I{SOURCE}/include", "-isystem", CUTLASS]
WORKERS = min(os.cpu_count() or 1, 4)  # a compiler takes up to 4 GB
# The widest head dim has the most in registers, but where the tile is larger at head dim 64: in a
# backward for an h200, and in a forward for an a100; an rtx8000 gets what a t4 gets, so one has the
# forward, the other the backward.
KERNELS = [
    ("forward", "a100", "bf16", 64),
    ("forward", "a100", "bf16", 128),
    ("backward", "a100", "bf16", 128),
    ("selected", "a100", "bf16", 128),
    ("forward", "l40s", "bf16", 128),
    ("forward", "l40s", "e4m3", 64),
    ("forward", "l40s", "e4m3", 128),
    ("forward", "t4", "f16", 128),
    ("backward", "rtx8000", "f16", 128),
    ("forward", "h200", "bf16", 128),
    ("forward", "h200", "e4m3", 64),
    ("forward", "h200", "e4m3", 128),
    ("selected", "h200", "bf16", 128),
    ("backward", "h200", "bf16", 64),
    ("backward", "h200", "f16", 128),
]
ONE_A_TARGET = list({kernel[1]: kernel for kernel in reversed(KERNELS)}.values())
DTYPES = {"t4": "f16", "rtx8000": "f16", "a100": "bf16", "l40s": "bf16", "h200": "bf16"}
TAKES_E4M3 = ("l40s", "h200")  # and forwards alone
# wgmma of each dtype.
GMMA = {"bf16": "HGMMA", "f16": "HGMMA", "e4m3": "QGMMA"}
# Bytes of each kernel.
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


class Refusal(AssertionError):
    """What is said where the tool refuses a program (exit code 2)."""


class Compiled(NamedTuple):
    said: str  # by ptxas
    code: str | None  # the instructions, where cuobjdump is
    seconds: float

    def spills(self) -> set[tuple[str, str]]:
        return set(SPILLS.findall(self.said))


class Sketches(unittest.TestCase):
    def test_one_a_target_compiles(self) -> None:
        for kernel, found in every(ONE_A_TARGET):
            with self.subTest(kernel):
                self.assertTrue(found().spills())

    def test_translated_sketches_keep_their_registers(self) -> None:
        version = subprocess.run([NVCC, "--version"], capture_output=True, text=True).stdout
        if "release 13.0" not in version:
            self.skipTest("nvcc is not of CUDA 13.0")
        for kernel, found in every(KERNELS):
            with self.subTest(kernel):
                said, code, _ = found()
                self.assertEqual(found().spills(), {("0", "0")})
                if kernel[1] == "h200":
                    self.assertNotIn("serialized", said)  # products run in the background
                    for instruction in (GMMA[kernel[2]], "UTMALDG"):
                        self.assertTrue(code is None or instruction in code, instruction)


def every(kernels):
    """(kernel, a function that gives what became of it), several compiled at once."""
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        begun = [(kernel, pool.submit(compiled, *kernel)) for kernel in kernels]
        for kernel, future in begun:
            yield kernel, future.result


@functools.cache
def compiled(sketch: str, target: str, dtype: str, head_dim: int) -> Compiled:
    """Raises Refusal where nothing is translated, AssertionError where nvcc finds a fault."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        program = folder / "program.tl"
        for_target = f"--target {target} --dtype {dtype} --head-dim {head_dim} --output".split()
        output(TOOL, "tl", "reason", f"{SOURCE}/kernels/tl/{sketch}.tl", *for_target, program)
        output(TOOL, "tl", "emit", program, "--output", folder)
        (source,) = folder.glob("*.cu")
        flags = [f"-arch={architecture(source)}", *FLAGS, *INCLUDES]
        said = output(NVCC, *flags, "-o", folder / "kernel.cubin", source)
        disassembler = shutil.which("cuobjdump")
        code = disassembler and output(disassembler, "-sass", folder / "kernel.cubin")
    return Compiled(said, code, time.monotonic() - begun)


def architecture(source: pathlib.Path) -> str:
    """The one that the file says it is for: sm_80."""
    return re.search(r"sm_\d+a?", source.read_text())[0]


def output(*words: object) -> str:
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if words[0] == TOOL and done.returncode == 2:
        raise Refusal(done.stderr)
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.stderr}")
    return done.stdout + done.stderr


def compile_all() -> int:
    """The number of kernels that are not as they should be."""
    kernels = [
        (sketch.stem, target, dtype, head_dim)
        for sketch in sorted(pathlib.Path(SOURCE, "kernels", "tl").glob("*.tl"))
        for target, usual in DTYPES.items()
        for dtype in (usual, "e4m3")
        for head_dim in (64, 128)
    ]
    wrong = 0
    for kernel, found in every(kernels):
        sketch, target, dtype, _ = kernel
        refused = dtype == "e4m3" and (target not in TAKES_E4M3 or sketch == "backward")
        try:
            spilled = ", ".join(sorted(f"{a} and {b}" for a, b in found().spills()))
            right, what = not refused, f"{spilled} bytes spilled, {found().seconds:.0f} s"
        except Refusal as fault:
            right, what = refused and dtype in str(fault), f"refused: {fault}"
        except AssertionError as fault:
            right, what = False, str(fault)
        wrong += not right
        print(*kernel, "" if right else "WRONG:", what.strip(), flush=True)
    print(f"{len(kernels)} kernels, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    if sys.argv[5:] == ["all"]:
        sys.exit(compile_all() != 0)
    unittest.main(argv=sys.argv[:1])

#!/usr/bin/env python3
"""What ptxas says of translated programs: the shipped sketches, each for the architecture of its
target, keep their registers. Registers are the compiler's choice, so others than CUDA 13.0's are
not held to it; a program that nothing can be made of yet is refused by name.

Usage: spills_test.py TOOL NVCC SOURCE_DIR CUTLASS_INCLUDE
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL, NVCC, SOURCE, CUTLASS = sys.argv[1:5]
FLAGS = "-cubin -O3 -std=c++20 --expt-relaxed-constexpr --fmad=false -Xptxas -v".split()
INCLUDES = [f"-I{SOURCE}/src", f"-I{SOURCE}/include", "-isystem", CUTLASS]
# The widest head dim has the most in registers, but in a backward for an h200, whose tile is larger
# at head dim 64; an rtx8000 gets what a t4 gets.
KERNELS = [
    ("forward", "a100", "bf16", 128),
    ("backward", "a100", "bf16", 128),
    ("selected", "a100", "bf16", 128),
    ("forward", "l40s", "bf16", 128),
    ("forward", "l40s", "e4m3", 64),
    ("forward", "l40s", "e4m3", 128),
    ("forward", "t4", "f16", 128),
    ("backward", "t4", "f16", 128),
    ("forward", "h200", "bf16", 128),
    ("forward", "h200", "e4m3", 64),
    ("forward", "h200", "e4m3", 128),
    ("selected", "h200", "bf16", 128),
    ("backward", "h200", "bf16", 64),
    ("backward", "h200", "f16", 128),
]
# Bytes that are stored and loaded, mostly where a row moves its base.
KNOWN = {
    ("forward", "a100", "bf16", 128): ("8", "4"),
    ("forward", "l40s", "bf16", 128): ("32", "16"),
}


class Compiled(unittest.TestCase):
    def setUp(self) -> None:
        version = subprocess.run([NVCC, "--version"], capture_output=True, text=True).stdout
        if "release 13.0" not in version:
            self.skipTest("nvcc is not of CUDA 13.0")

    def test_translated_sketches_keep_their_registers(self) -> None:
        for kernel in KERNELS:
            with self.subTest(kernel):
                said, code = compiled(*kernel)
                self.assertEqual(set(SPILLS.findall(said)), {KNOWN.get(kernel, ("0", "0"))})
                if kernel[1] == "h200":
                    self.assertNotIn("serialized", said)  # products run in the background
                    for instruction in (GMMA[kernel[2]], "UTMALDG"):
                        self.assertTrue(code is None or instruction in code, instruction)


# wgmma of each dtype.
GMMA = {"bf16": "HGMMA", "f16": "HGMMA", "e4m3": "QGMMA"}
# Bytes of each kernel.
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def compiled(sketch: str, target: str, dtype: str, head_dim: int) -> tuple[str, str | None]:
    """What ptxas says, and the instructions where cuobjdump is."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        program = folder / "program.tl"
        for_target = f"--target {target} --dtype {dtype} --head-dim {head_dim} --output".split()
        output(TOOL, "tl", "reason", f"{SOURCE}/kernels/tl/{sketch}.tl", *for_target, program)
        output(TOOL, "tl", "emit", program, "--output", folder)
        source = folder / f"{sketch}_{target}.cu"
        flags = [f"-arch={architecture(source)}", *FLAGS, *INCLUDES]
        said = output(NVCC, *flags, "-o", folder / "kernel.cubin", source)
        disassembler = shutil.which("cuobjdump")
        code = disassembler and output(disassembler, "-sass", folder / "kernel.cubin")
    return said, code


def architecture(source: pathlib.Path) -> str:
    """The one that the file says it is for: sm_80."""
    return re.search(r"sm_\d+a?", source.read_text())[0]


def output(*words: object) -> str:
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.stderr}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

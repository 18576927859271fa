#!/usr/bin/env python3
"""Audits libraries that `verbatim tl build` made, on a GPU: python3 cli_tl_gpu_test.py TOOL [CLASS].
Their results are what tests/backend/cuda/library_test.cpp is about.

VERBATIM_TL_LIBRARIES: PASS:DTYPE:HEAD_DIM:FILE,.. of kernels/tl's sketches, "backward:bf16:64:b.so";
PASS is "selected" where an index tensor names the blocks
VERBATIM_TL_FIRST, VERBATIM_TL_CASES: random problems of each of these (0, 20)
VERBATIM_TL_REPEATS: runs whose bits are compared (100)
"""

import os
import random
import unittest

from cli_tool import Tool

LIBRARIES = [
    entry.split(":", 3) for entry in os.environ.get("VERBATIM_TL_LIBRARIES", "").split(",") if entry
]


class TlGpu(Tool):
    def setUp(self):
        super().setUp()
        if not LIBRARIES:
            self.skipTest("VERBATIM_TL_LIBRARIES names none")
        state = {d["name"]: d["state"] for d in self.result("info")["devices"]}["cuda"]
        if state != "ready":
            self.skipTest(state)

    def test_bits_keep_the_level(self):
        for which, dtype, head_dim, file in LIBRARIES:
            if which == "selected":
                continue
            for mask in (["causal"], ["full"], ["causal_document", "--doc-lengths", "300,1,700"]):
                self.call(
                    f"verify --device cuda --pass {which} --dtype {dtype} --head-dim {head_dim}",
                    "--mask",
                    *mask,
                    f"--seqlen 1001 --q-heads 4 --kv-heads 2 --repeats 20 --kernel {file}",
                )

    def test_selected_blocks(self):
        first = int(os.environ.get("VERBATIM_TL_FIRST", "0"))
        for which, dtype, head_dim, file in LIBRARIES:
            if which != "selected":
                continue
            run = f"run --device cuda --pass forward --dtype {dtype} --head-dim {head_dim}"
            kernel = f"--kernel {file}"
            for seed in range(first, first + int(os.environ.get("VERBATIM_TL_CASES", "20"))):
                self.result(run, drawn(seed), "--repeats 2 --check full", kernel)
            repeats = os.environ.get("VERBATIM_TL_REPEATS", "100")
            sizes = "--seqlen 1001 --q-heads 8 --kv-heads 2 --batch 2 --selected 5"
            self.result(run, sizes, f"--repeats {repeats} --check full", kernel)
            # Lists that are wrong never reach the GPU.
            refused = self.call(run, sizes, kernel, "--pass both", code=2).stderr
            self.assertIn("--pass", refused)


def drawn(seed):
    """The options of a problem."""
    draw = random.Random(seed)
    kv_heads, kv_len = draw.randint(1, 3), draw.randint(1, 1200)
    q_len = kv_len if draw.random() < 0.5 else draw.randint(1, kv_len)
    return (
        f"--seed {seed} --batch {draw.randint(1, 3)} --kv-heads {kv_heads}"
        f" --q-heads {kv_heads * draw.randint(1, 4)} --q-len {q_len} --kv-len {kv_len}"
        f" --selected {draw.choice([0, 1, 2, 5, 40])}"
    )


if __name__ == "__main__":
    unittest.main(verbosity=2)

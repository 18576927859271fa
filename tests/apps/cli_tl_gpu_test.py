#!/usr/bin/env python3
"""Audits libraries that `verbatim tl build` made, on a GPU: python3 cli_tl_gpu_test.py TOOL [CLASS].
Their results are what tests/backend/cuda/library_test.cpp is about.

VERBATIM_TL_LIBRARIES: PASS:DTYPE:HEAD_DIM:FILE,.. of kernels/tl's sketches, "backward:bf16:64:b.so"
"""

import os
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
            for mask in (["causal"], ["full"], ["causal_document", "--doc-lengths", "300,1,700"]):
                self.call(
                    f"verify --device cuda --pass {which} --dtype {dtype} --head-dim {head_dim}",
                    "--mask",
                    *mask,
                    f"--seqlen 1001 --q-heads 4 --kv-heads 2 --repeats 20 --kernel {file}",
                )


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""Libraries that `verbatim tl build` made, on a GPU: python3 cli_tl_gpu_test.py TOOL [CLASS].

VERBATIM_TL_LIBRARIES: PASS:DTYPE:HEAD_DIM:FILE,.. of kernels/tl's sketches, "backward:bf16:64:b.so"
VERBATIM_TL_SEED, VERBATIM_TL_CASES: of the random problems (by the clock, 10 a library)
"""
import os
import random
import time
import unittest

from cli_tool import Tool

LIBRARIES = [entry.split(":", 3) for entry in os.environ.get("VERBATIM_TL_LIBRARIES", "").split(",")
             if entry]


class TlGpu(Tool):
    def setUp(self):
        super().setUp()
        if not LIBRARIES:
            self.skipTest("VERBATIM_TL_LIBRARIES names none")
        state = {d["name"]: d["state"] for d in self.result("info")["devices"]}["cuda"]
        if state != "ready":
            self.skipTest(state)

    def test_random_problems_are_right_and_repeat(self):
        seed = int(os.environ.get("VERBATIM_TL_SEED", time.time_ns() % 10**6))
        for case in range(seed, seed + int(os.environ.get("VERBATIM_TL_CASES", 10))):
            print(f"VERBATIM_TL_SEED={case} VERBATIM_TL_CASES=1", flush=True)
            problem = random_problem(random.Random(case))
            for which, dtype, head_dim, file in LIBRARIES:
                result = self.result("run", "--device", "cuda", "--dtype", dtype, "--head-dim",
                                     head_dim, *problem, "--repeats", 3, "--kernel", file)
                self.assertEqual(result["check"]["mode"], "full")
                self.assertLessEqual(max(result["check"]["error_ratio"].values()), 2,
                                     (which, problem))

    def test_bits_keep_the_level(self):
        for which, dtype, head_dim, file in LIBRARIES:
            for mask in (["causal"], ["full"], ["causal_document", "--doc-lengths", "300,1,700"]):
                self.call("verify", "--device", "cuda", "--pass", which, "--dtype", dtype,
                          "--head-dim", head_dim, "--mask", *mask, "--seqlen", 1001, "--q-heads", 4,
                          "--kv-heads", 2, "--repeats", 20, "--kernel", file)


def random_problem(draw):
    """Options of a problem: a mask, lengths that tiles do not divide, groups."""
    length = draw.randint(1, 900)
    first = draw.randint(0, length - 1)
    mask = draw.choice([
        ["full"], ["causal"], ["causal_sliding_window", "--window", draw.randint(1, length)],
        ["full_sliding_window", "--window", draw.randint(1, length)],
        ["causal_document", "--doc-lengths", f"{first},{length - first}" if first else length],
        ["prefix_lm_causal", "--prefix", draw.randint(1, length)]])
    kv_heads = draw.randint(1, 3)
    return ["--mask", *mask, "--seqlen", length, "--batch", draw.randint(1, 2), "--q-heads",
            kv_heads * draw.randint(1, 3), "--kv-heads", kv_heads,
            "--scale", draw.choice([0.125, 0.05, -0.1])]


if __name__ == "__main__":
    unittest.main(verbosity=2)

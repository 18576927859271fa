#!/usr/bin/env python3
"""Plans from files: --plan of plan, run, trace and bench."""

import json
import unittest

from cli_tool import Tool

SIZES = "--seqlen 500 --q-heads 4 --kv-heads 2 --head-dim 32"


def bottom_up(plan):
    """Each chain makes the visits of `plan`, of order "ascending", in the opposite sequence."""
    for order in plan["orders"]:
        order["name"] = "bottom up"
        for run in order["runs"]:
            run[1], run[3] = run[1] + (run[2] - 1) * run[3], -run[3]
        for _, begin, end, *_ in order["chains"]:
            order["runs"][begin:end] = order["runs"][begin:end][::-1]
    del plan["fingerprint"], plan["residency"]
    return plan


class OwnPlans(Tool):
    def setUp(self):
        super().setUp()
        self.rule, self.mine = self.path / "rule.json", self.path / "mine.json"
        self.call("plan", SIZES, "--order ascending --dump", self.rule)
        self.mine.write_text(json.dumps(bottom_up(json.loads(self.rule.read_text()))))

    def test_runs_in_its_order_on_any_world(self):
        hashes = {}
        for name, words in {
            "mine": ["--plan", self.mine],
            "ranks": ["--plan", self.mine, "--world replay:2 --strategy ring"],
            "rule": [SIZES, "--order ascending"],
        }.items():
            result = self.result("run", *words)
            self.assertTrue(result["check"]["correct"] and result["bits"]["identical"])
            hashes[name] = result["bits"]["sha256"]
            own = name != "rule"
            self.assertEqual(result["plan"]["order"], "bottom up" if own else "ascending")
            self.assertEqual(result["level"], "gpu_to_gpu" if own else "invariant")
        self.assertEqual(hashes["mine"], hashes["ranks"])
        differ = [k for k in hashes["rule"] if hashes["rule"][k] != hashes["mine"][k]]
        self.assertEqual(sorted(differ), ["dk", "dv"])

    def test_is_timed_as_it_is(self):
        words = "--repeats 1 --check none --device cpu"
        (row,) = self.result("bench", words, "--plan", self.mine, "--batch 1")["results"]
        self.assertEqual(row["plan"]["order"], "bottom up")
        self.assertNotIn("cached_us", row["plan"])  # such plans are in no cache
        run = self.result("run --plan", self.mine)
        self.assertEqual(row["plan"]["fingerprint"], run["plan"]["fingerprint"])
        self.assertEqual(row["problem"], run["problem"])
        self.assertIn(f"--plan {self.mine}", row["repro"])
        forward = self.path / "forward.json"
        self.call("plan --pass forward", SIZES, "--forward-order ascending --dump", forward)
        (both,) = self.result("bench", words, "--plan", self.mine, forward)["results"]
        self.assertEqual(both["plan"], both["plan"] | {"order": "bottom up"})
        self.assertNotEqual(both["bits"]["sha256"], row["bits"]["sha256"])  # of O and LSE

    def test_is_simulated_drawn_and_dumped_as_it_is(self):
        again, drawn = self.path / "again.json", self.path / "mine.svg"
        result = self.result("plan --plan", self.mine, "--gantt", drawn, "--dump", again)
        self.assertEqual(result["plan"]["order"], "bottom up")
        self.assertGreater(result["plan"]["makespan"], 0)
        self.assertIn("bottom up", drawn.read_text())
        mine, dumped = json.loads(self.mine.read_text()), json.loads(again.read_text())
        del dumped["fingerprint"], dumped["residency"]
        self.assertEqual(dumped, mine | {"level": "gpu_to_gpu"})
        words = ["--forward-order descending --tile-q 16 --plan", self.mine]  # of the forward
        for command in ("plan", "run"):
            told = self.result(command, *words)
            self.assertEqual(told["mask"]["tiles"]["q"], told["plan"]["tile"]["q"])
        traced = self.result("trace --plan", self.mine)
        self.assertEqual(traced["plan"]["fingerprint"], result["plan"]["fingerprint"])

    def test_what_does_not_fit_is_refused(self):
        broken = self.path / "broken.json"
        plan = json.loads(self.mine.read_text())
        plan["orders"][0]["row_addends"][0] += 1
        broken.write_text(json.dumps(plan))
        ranks = self.path / "ranks.json"
        self.call("plan", SIZES, "--world replay:2 --dump", ranks)
        (self.path / "whole.json").write_text(json.dumps(json.loads(ranks.read_text())["whole"]))
        self.call("plan --plan", self.path / "whole.json")
        for words, message in (
            (["run --plan", ranks], f"{ranks}] this is a distributed plan"),
            (["run --plan", self.mine, "--mask full"], "another mask"),
            (["run --plan", self.mine, "--seqlen 400"], "another q_len; got 500, expected 400"),
            (["run --plan", self.mine, "--order shift"], "an order of its own; got shift"),
            (["run --plan", self.mine, self.mine], "a pass has one plan"),
            (["plan --plan", self.mine, self.mine], "a pass has one plan"),
            (["plan --plan", self.mine, "--order all"], "an order of its own; got all"),
            (["plan --pass forward --plan", self.mine], "nearest: --pass backward"),
            (["bench --plan", self.mine, "--order shift"], "an order of its own; got shift"),
            (["bench --set dense --plan", self.mine], "a problem without --set"),
            (["bench --mask full --plan", self.mine], "another mask"),
            (["bench --providers cudnn --plan", self.mine], "others have no plans"),
            (["run --softcap 2 --plan", self.mine], "another softcap; got 0, expected 2"),
            (["run --plan", broken], "broken.json"),
            (["run --plan", self.path / "none.json"], "none.json"),
        ):
            self.assertIn(message, self.refused(*words))


if __name__ == "__main__":
    unittest.main()

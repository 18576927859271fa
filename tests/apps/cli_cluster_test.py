#!/usr/bin/env python3
"""Ranks in simulated time: python3 cli_cluster_test.py TOOL [CLASS]."""

import json
import unittest

import schema
from cli_tool import DOCUMENTS, Tool


class Cluster(Tool):
    words = ["plan", "--mask", "causal", "--seqlen", 1024, "--q-heads", 4, "--head-dim", 64]

    def test_ranks_on_a_cluster(self):
        cluster = self.path / "cluster.json"
        cluster.write_text(
            json.dumps(
                {
                    "name": "desks",
                    "machine": "paper:3,1",
                    "between": {"gb_per_s": 1, "latency_us": 2},
                }
            )
        )
        svg, trace = self.path / "ranks.svg", self.path / "ranks.json"
        result = self.result(
            *self.words,
            f"--world replay:3 --strategy ring --cluster @{cluster} --gantt {svg}",
            f"--perfetto {trace}",
        )
        dealt = result["dist"]["passes"][0]
        found = dealt["simulated"]
        self.assertEqual((found["cluster"], found["launches"]), ("desks", "predicted"))
        self.assertLessEqual(found["overlapped_ms"], found["in_turn_ms"])
        for rank in (rank["simulated"] for rank in dealt["ranks"]):
            self.assertAlmostEqual(
                rank["compute_ms"] + rank["in_turn_exposed_ms"], found["in_turn_ms"]
            )
            self.assertAlmostEqual(
                rank["compute_ms"] + rank["overlapped_exposed_ms"], found["overlapped_ms"]
            )
        names = [f"rank {r}{of}" for r in range(3) for of in ("", " sends")]
        for timeline, way in zip(result["timelines"], ("in turn", "overlapped"), strict=True):
            self.assertEqual(timeline["source"], f"simulated desks, {way}")
            self.assertEqual(timeline["names"], names)
            self.assertEqual({event[1] for event in timeline["events"]}, set(range(6)))
        tracks = [
            event["args"]["name"]
            for event in json.loads(trace.read_text())["traceEvents"]
            if event["name"] == "thread_name"
        ]
        self.assertEqual(tracks, 2 * names)
        for name in names:
            self.assertEqual(svg.read_text().count(f">{name}<"), 2)

    def test_the_steps_of_every_rank(self):
        file = self.path / "steps.json"
        words = ["--kv-heads 2 --world replay:3 --strategy ring --dump", file]
        for name, width in (("forward", 0), ("backward", 4 * 2 * 64)):  # bytes of a sum's row
            dealt = self.result(*self.words, *words, "--pass", name)["dist"]["passes"][0]
            plan = json.loads(file.read_text())
            self.assertEqual(schema.faults(plan, schema.load()["dist_plan"]), [])
            self.assertEqual((plan["world"], plan["whole"]["pass"]), (3, name))
            edges = plan["whole"]["orders"][0]["kv_edges"]
            ends = {"send": set(), "receive": set()}
            for r, (rank, told) in enumerate(zip(plan["ranks"], dealt["ranks"], strict=True)):
                self.assertEqual(len(rank["steps"]), told["steps"])
                sent = 0
                for step in rank["steps"]:
                    if step["step"] in ends:
                        other = step.get("to", step.get("from"))
                        ends[step["step"]].add((step["message"], frozenset((r, other))))
                    if step["step"] == "send":
                        for tensor, _, begin, end, head, head_end in step["boxes"]:
                            row = 4 if tensor == "lse" else 4 * 64  # f32
                            sent += (end - begin) * (head_end - head) * row
                        for _, tile, _, count in step["sums"]:
                            sent += (edges[tile + count] - edges[tile]) * width
                self.assertEqual(sent, told["predicted_bytes"])
            self.assertEqual(ends["send"], ends["receive"])

    def test_auto_takes_the_fastest_strategy(self):
        words = [*self.words, "--world", "replay:3", "--strategy"]
        auto = self.result(*words, "auto")["dist"]
        ran = [one for one in auto["tried"] if "refused" not in one]
        refused = [one for one in auto["tried"] if "refused" in one]
        self.assertEqual([one["strategy"] for one in refused], ["ulysses"])
        best = min(ran, key=lambda one: sum(one[p]["in_turn_ms"] for p in ("forward", "backward")))
        self.assertEqual((auto["strategy"], auto["shard"]), (best["strategy"], best["shard"]))
        for one in ran:
            alone = self.result(*words, one["strategy"])["dist"]["passes"][0]["simulated"]
            for way in ("in_turn_ms", "overlapped_ms"):
                self.assertAlmostEqual(alone[way], one["backward"][way])
        self.assertIn("taken", self.call(*words, "auto").stdout)

    def test_orders_for_ranks(self):
        words = ["plan", "--mask", "causal_sliding_window", "--window", 512, "--seqlen", 16384]
        words += ["--q-heads", 8, "--kv-heads", 2, "--head-dim", 128, "--world", "replay:4"]
        result = self.result(*words, "--order", "all", "--strategy", "usp")
        plans = result["plan"]
        self.assertEqual(schema.check(result), [])
        (own,) = (plan for plan in plans if "auto" in plan)
        alone = self.result(*words, "--strategy", "usp")["plan"]
        self.assertEqual(own["fingerprint"], alone["fingerprint"])
        self.assertEqual(len({plan["fingerprint"] for plan in plans}), len(plans))
        names = {plan["order"] for plan in plans}
        self.assertGreaterEqual(
            names, {f"right_to_left/rows:{rows}" for rows in (2048, 4096, 8192)} | {"shift"}
        )
        self.assertNotIn("right_to_left/rows:16384", names)
        ranks = [plan["ranks"] for plan in plans]
        both = [sum(each[name]["in_turn_ms"] for name in ("forward", "backward")) for each in ranks]
        self.assertEqual(both, sorted(both))
        self.assertLess(both[0], both[plans.index(own)])  # chunks end chains between ranks
        self.assertIn("/rows:", plans[0]["order"])
        dealt = result["dist"]["passes"][0]["simulated"]
        self.assertEqual(dealt["in_turn_ms"], ranks[0]["backward"]["in_turn_ms"])
        named = self.result(*words, "--order", plans[0]["order"], "--strategy", "usp")
        self.assertEqual(named["dist"]["passes"][0]["simulated"], dealt)
        told = "--order all plays orders in chunks of rows"
        self.assertIn(told, self.call(*words, "--strategy", "usp").stdout)
        self.assertNotIn(told, self.call(*words, "--order", plans[0]["order"]).stdout)
        full = ["plan --mask full --seqlen 65536 --q-heads 8 --head-dim 128 --world replay:4"]
        self.assertNotIn(told, self.call(*full, "--strategy ulysses").stdout)
        forward = self.result(*words, "--order", "all", "--pass", "forward", "--strategy", "auto")
        best = min(
            (tried for tried in forward["dist"]["tried"] if "refused" not in tried),
            key=lambda tried: tried["forward"]["in_turn_ms"] + tried["backward"]["in_turn_ms"],
        )
        self.assertEqual(forward["plan"][0]["ranks"], best)
        error = self.refused(*words[:-1], "replay:3", "--order", "all", "--strategy", "ulysses")
        self.assertIn("cannot be dealt to so many ranks", error)

    def test_measured_launches(self):
        world = ["--world", "replay:2", "--strategy", "usp", "--ulysses-size", 2]
        ran = self.result("run", *DOCUMENTS, *world)["dist"]["passes"]
        measured = self.path / "ran.json"
        (self.path / "result.json").rename(measured)
        for one in ran:
            found = self.result(
                "plan", *DOCUMENTS, "--pass", one["pass"], *world, "--measured", measured
            )["dist"]["passes"][0]
            self.assertEqual(found["simulated"]["launches"], "measured")
            for rank, before in zip(found["ranks"], one["ranks"], strict=True):
                self.assertGreaterEqual(
                    rank["simulated"]["compute_ms"], sum(before["launch_ms"]) * (1 - 1e-9)
                )
        words = [*DOCUMENTS, "--world replay:2 --strategy auto"]
        self.result("run", *words)
        text = self.call("plan", *words, "--order all --measured", self.path / "result.json").stdout
        for line in (
            "simulated on h200x8 with predicted launches; one device",
            "Strategies, simulated on h200x8 with predicted launches, transfers in turn:",
            "Simulated on h200x8, measured times of launches:",
        ):
            self.assertIn(line, text)
        for words, part in (
            (["--world", "replay:3"], "world"),
            (["--world", "replay:2", "--strategy", "ring"], "strategy"),
            ([*world, "--order", "descending/split"], "fingerprint"),
        ):
            error = self.refused("plan", *DOCUMENTS, *words, "--measured", measured)
            self.assertIn(f"its {part} is another", error)
        broken = self.path / "broken.json"
        for time in (-1, 1e308):  # a run took none of these
            result = json.loads(measured.read_text())
            rank = result["dist"]["passes"][-1]["ranks"][0]
            rank["launch_ms"] = [time for _ in rank["launch_ms"]]
            broken.write_text(json.dumps(result))
            error = self.refused("plan", *DOCUMENTS, *world, "--measured", broken)
            self.assertIn("a launch takes no such time", error)
        result = json.loads(measured.read_text())
        result["dist"]["passes"][-1]["ranks"].pop()
        broken.write_text(json.dumps(result))
        error = self.refused("plan", *DOCUMENTS, *world, "--measured", broken)
        self.assertIn("its list of ranks is another", error)
        for text in (
            "{",
            "[]",
            '{"command": "run", "dist": 5}',
            '{"command": "run", "dist": {}}',
            '{"command": "run", "dist": {"world": 2, "passes": 1}}',
        ):
            broken.write_text(text)
            self.refused("plan", *DOCUMENTS, *world, "--measured", broken)
        broken.write_text('{"command": "plan", "dist": {}}')
        self.assertIn("its command", self.refused("plan", *DOCUMENTS, *world, "--measured", broken))


if __name__ == "__main__":
    unittest.main(verbosity=2)

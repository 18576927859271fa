#!/usr/bin/env python3
"""The commands that measure, and the GPU, as cli_test.py has the others."""

import json
import shlex
import unittest

import schema
from cli_tool import DOCUMENTS, Tool, Word


class Bench(Tool):
    def test_a_given_problem(self):
        csv, markdown = self.path / "b.csv", self.path / "b.md"
        result = self.result("bench", *DOCUMENTS, "--repeats 3 --csv", csv, "--markdown", markdown)
        (row,) = result["results"]
        self.assertEqual(row["bits"]["differing_words"], 0)
        self.assertTrue(row["check"]["correct"])
        self.assertGreater(row["check"]["error_ratio"], 0)
        self.assertGreater(row["backward"]["tflops"], 0)
        # Outputs of the backward: dQ of four heads, dK and dV of two, in two bytes.
        outputs = 193 * 32 * 2 * (4 + 2 + 2)
        self.assertEqual(row["memory_bytes"]["backward"], row["workspace_bytes"] + outputs)
        header, line = csv.read_text().splitlines()
        self.assertEqual(len(header.split(",")), len(line.split(",")))
        self.assertTrue(line.startswith("causal_document,"))
        self.assertIn("| causal_document |", markdown.read_text())
        # The row's own line names the same problem and settings.
        words = row["repro"].split()[1:]
        (again,) = self.result(*words)["results"]
        self.assertEqual(again["bits"], row["bits"])
        self.assertEqual(again["repro"], row["repro"])

    def test_the_line_of_a_row_quotes_names_of_files(self):
        for name in ("two words", """it's "a\\ b""", "'", "a'  'b"):
            file = self.path / f"{name}.json"
            self.call("mask --mask causal --seqlen 8 --to json --to-file", Word(file))
            words = ["bench --repeats 1 --mask", Word(f"@{file}")]
            (row,) = self.result(*words)["results"]
            (again,) = self.result(*map(Word, shlex.split(row["repro"])[1:]))["results"]
            self.assertEqual(again["repro"], row["repro"])
            self.assertEqual(again["bits"], row["bits"])

    def test_ranks_beside_one_device(self):
        words = ["--repeats", 2, "--world", "replay:3", "--strategy", "ring"]
        (row,) = self.result("bench", *DOCUMENTS, *words)["results"]
        (dist,) = row["dist"]
        self.assertEqual(dist["differing_words"], 0)
        self.assertEqual([each["pass"] for each in dist["passes"]], ["forward", "backward"])
        for each in dist["passes"]:
            times = [rank["compute_ms"] for rank in each["ranks"]]
            self.assertEqual(sum(times), each["compute_ms"])
            self.assertEqual(max(times), each["largest_ms"])
            self.assertGreaterEqual(each["ms"], each["compute_ms"] / 2)  # medians of other runs
            one = row[each["pass"]]["ms"]
            self.assertEqual(each["of_one_device"], each["compute_ms"] / one)
        self.assertIn("--world replay:3 --strategy ring", row["repro"])

    def test_several_worlds_and_strategies(self):
        words = [*DOCUMENTS, "--repeats", 1, "--cluster", "h200x8", "--world"]
        (row,) = self.result("bench", *words, "replay:2,3", "--strategy", "ulysses,ring")["results"]
        deals = {(dist["world"], dist["strategy"]): dist for dist in row["dist"]}
        self.assertEqual(list(deals), [(2, "ulysses"), (2, "ring"), (3, "ulysses"), (3, "ring")])
        self.assertIn("got 3, expected a divisor", deals.pop((3, "ulysses"))["refused"])
        for dist in deals.values():
            self.assertEqual(dist["differing_words"], 0)
            for each in dist["passes"]:
                simulated = each["simulated"]
                self.assertEqual(simulated["launches"], "measured")
                self.assertAlmostEqual(simulated["device_ms"], row[each["pass"]]["ms"])
                share = simulated["device_ms"] / simulated["in_turn_ms"] / dist["world"]
                self.assertAlmostEqual(simulated["in_turn_rate"], share)
        # The launches of one of them again, from the file.
        measured = self.path / "measured.json"
        (self.path / "result.json").rename(measured)
        again = [*DOCUMENTS, "--cluster", "h200x8", "--measured", measured, "--world"]
        for each in deals[3, "ring"]["passes"]:
            words = ["replay:3", "--strategy", "ring", "--pass", each["pass"]]
            (found,) = self.result("plan", *again, *words)["dist"]["passes"]
            for name in ("in_turn_ms", "overlapped_ms", "device_ms", "overlapped_rate"):
                self.assertAlmostEqual(found["simulated"][name], each["simulated"][name])
        for wrong, part in (
            (["replay:4", "--strategy", "ring"], "its world"),
            (["replay:3", "--strategy", "usp"], "its strategy"),
            (["replay:3", "--strategy", "ring", "--order", "descending/split"], "its fingerprint"),
        ):
            self.assertIn(part, self.refused("plan", *again, *wrong))
        # Who fits no world, or asks for what there is not, is refused whole.
        for wrong, part in (
            (["replay:3,5", "--strategy", "ulysses"], "got 3, expected a divisor"),
            (["replay:2,", "--strategy", "ring"], "got 'replay:'"),
            (["replay:2,0", "--strategy", "ring"], "got 'replay:0'"),
            (["replay:2,3", "--strategy", "ring,"], "got ''"),
            (["replay:2,3", "--shard", "bogus"], "got bogus"),
            (["replay:2,3", "--cluster", "bogus"], "bogus"),
        ):
            self.assertIn(part, self.refused("bench", *DOCUMENTS, "--repeats 1 --world", *wrong))
        two = self.refused("run", *DOCUMENTS, "--world replay:2 --strategy ring,usp")
        self.assertIn("--strategy: there is no such name; got ring,usp", two)

    def test_the_fastest_strategy(self):
        words = [*DOCUMENTS, "--repeats 1 --world replay:2 --strategy auto"]
        ((dist,),) = (row["dist"] for row in self.result("bench", *words)["results"])
        self.assertIn(dist["strategy"], [one["strategy"] for one in dist["tried"]])

    def test_a_peer_that_cannot_run_has_a_row_that_says_why(self):
        providers = ("cudnn", "verbatim", "cudnn:deterministic")
        markdown = self.path / "b.md"
        rows = self.result(
            "bench",
            *DOCUMENTS,
            "--repeats 1 --providers",
            ",".join(providers),
            f"--markdown {markdown}",
        )["results"]
        self.assertEqual([row.get("provider", "verbatim") for row in rows], list(providers))
        for row in (rows[0], rows[2]):
            self.assertIn(row["status"], ("not installed", "unsupported"))
            self.assertTrue(row["reason"])
            self.assertIsNone(row["backward"])
            self.assertEqual(row["mask"], rows[1]["mask"])
            self.assertIn(f"| causal_document, {row['provider']} | - |", markdown.read_text())
        self.assertGreater(rows[1]["backward"]["ms"], 0)

    def test_bad_input(self):
        for words, part in (
            (["--set", "desne"], "(nearest: dense)"),
            (["--set", "gqa", "--seqlen", 4], "no problem beside it"),
            (["--set", "gqa", "--match", "("], "--match"),
            (["--set", "gqa", "--match", "nothing"], "no case"),
            (["--protocol", "tired"], "(nearest: rested)"),
            (["--providers", "verbatim,cudn"], "(nearest: cudnn)"),
            (["--order", "all"], "--order"),
        ):
            self.assertIn(part, self.refused("bench", *words), words)


class Trace(Tool):
    def test_predicted_and_measured_side_by_side(self):
        gantt, trace = self.path / "t.svg", self.path / "t.json"
        for name in ("forward", "backward"):
            result = self.result(
                "trace",
                *DOCUMENTS,
                f"--pass {name} --gantt {gantt} --perfetto {trace} --report",
                self.path / "t.html",
            )
            self.assertEqual(
                [s["source"] for s in result["summary"]], ["simulated cpu", "measured cpu"]
            )
            for summary in result["summary"]:
                self.assertGreater(summary["shares"]["compute"], 0)
                self.assertLessEqual(sum(summary["shares"].values()), 1.001)
            events = json.loads(trace.read_text())["traceEvents"]
            self.assertEqual({event["pid"] for event in events}, {0, 1})
            for source in ("simulated cpu", "measured cpu"):
                self.assertIn(source, gantt.read_text())


class Calibrate(Tool):
    def test_writes_a_machine_that_plans_are_made_for(self):
        file = self.path / "machine.json"
        saved = self.path / "result.json"
        self.call_until_calm(
            "calibrate --head-dim 16 --dtype f32 --name here --machine", file, "--json", saved
        )
        result = json.loads(saved.read_text())
        self.assertEqual(schema.check(result), [])
        machine = json.loads(file.read_text())
        self.assertEqual(machine, result["machine"])
        self.assertEqual((machine["name"], machine["reference_dim"]), ("here", 16))
        for field in ("compute", "reduce", "forward"):
            self.assertIn(field, result["measured"])
            self.assertGreater(machine[field], 0, field)
        self.assertGreaterEqual(machine["compute_partial"], 1)
        plan = self.result("plan", *DOCUMENTS, "--machine", f"@{file}")["plan"]
        self.assertEqual(plan["machine"], "here")

    def test_bad_input(self):
        for words, part in (
            (["--dtype", "f8"], "(nearest: f32)"),
            (["--head-dim", 0], "1 to 256"),
            (["--base", "abacus"], "abacus"),
        ):
            self.assertIn(part, self.refused("calibrate", *words), words)


class Tune(Tool):
    def test_a_memo_decides_the_placement_and_no_bit(self):
        memo = self.path / "memo.json"
        result = self.result("tune", *DOCUMENTS, "--memo", memo, "--order", "descending")
        self.assertEqual([row["pass"] for row in result["results"]], ["forward", "backward"])
        self.assertEqual(result["commit"], "")
        for row in result["results"]:
            self.assertIn(row["best"], row["ms"])
            self.assertIn("head_swizzled:2", row["ms"])
            self.assertIn("staggered:2", row["ms"])
        # A memo is followed: whatever it says for this problem is what plans get.
        saved = json.loads(memo.read_text())
        self.assertEqual(len(saved["placements"]), 2)
        saved["placements"] = {key: "longest_first" for key in saved["placements"]}
        memo.write_text(json.dumps(saved))
        words = ["run", *DOCUMENTS, "--order", "descending"]
        free, told = self.result(*words), self.result(*words, "--memo", memo)
        self.assertEqual(
            (free["plan"]["placement"], told["plan"]["placement"]), ("queue", "longest_first")
        )
        self.assertEqual(told["bits"]["sha256"], free["bits"]["sha256"])
        other = self.result("run", "--seqlen", 64, "--memo", memo)  # a problem it does not know
        self.assertEqual(other["plan"]["placement"], "queue")

    def test_placements_that_are_one_list_have_one_time(self):
        words = ["tune --mask causal --seqlen 256 --memo", self.path / "memo.json"]
        for row in self.result(*words)["results"]:
            self.assertEqual({row["ms"][row["auto"]]}, set(row["ms"].values()))
            self.assertGreater(len(row["ms"]), 2)
            self.assertEqual(row["best"], row["auto"])
        self.assertIn(" 1 of 4", self.call(*words).stdout)

    def test_the_commit_is_recorded(self):
        words = ["tune --seqlen 16 --memo", self.path / "memo.json", "--commit", "1234567"]
        self.assertEqual(self.result(*words)["commit"], "1234567")

    def test_bad_input(self):
        memo = self.path / "bad.json"
        for text in (
            "[]",
            "{}",
            '{"device": "a", "placements": []}',
            '{"device": "a", "placements": {"k": 1}}',
            '{"device": "a", "placements": {"k": "fastest"}}',
        ):
            memo.write_text(text)
            self.refused("run", "--seqlen", 64, "--memo", memo)
            self.refused("tune", "--seqlen", 64, "--memo", memo)
        self.assertIn("--memo", self.refused("tune", "--seqlen", 64))


class Gpu(Tool):
    """What only a GPU can show; skipped where there is none."""

    def setUp(self):
        super().setUp()
        state = {d["name"]: d["state"] for d in self.result("info")["devices"]}["cuda"]
        if state != "ready":
            self.skipTest(state)

    words = ["--device cuda --mask full --seqlen 4096 --q-heads 8 --head-dim 128 --dtype bf16"]

    def test_verify_sees_bits_that_differ(self):
        words = ["verify", *self.words, "--repeats", 5]
        result = self.result(*words, "--order", "none", code=1)
        repeats = [row for row in result["audit"] if row["check"] == "repeats"][0]
        self.assertFalse(repeats["identical"])
        self.assertTrue(self.result(*words)["identical"])

    def test_bench_sees_bits_that_differ(self):
        for order, code in (("auto", 0), ("none", 1)):
            (row,) = self.result("bench", *self.words, "--order", order, code=code)["results"]
            self.assertTrue(row["check"]["correct"])
            self.assertEqual(row["bits"]["differing_words"] > 0, order == "none")
            self.assertEqual(row["unordered"] is None, order == "none")

    def test_cudnn_computes_the_same(self):
        words = [
            "bench --device cuda --seqlen 1024 --q-heads 8 --kv-heads 2 --head-dim 128",
            "--dtype bf16 --repeats 3",
        ]
        providers = "verbatim,cudnn,cudnn:deterministic"
        for mask in ("full", "causal"):
            ours, *rows = self.result(*words, "--mask", mask, "--providers", providers)["results"]
            if rows[0]["status"] == "not installed":
                self.skipTest(rows[0]["reason"])
            for row in rows:
                self.assertEqual(row["status"], "ok", row["reason"])
                self.assertTrue(row["check"]["correct"])
                self.assertGreater(row["backward"]["ms"], 0)
            self.assertEqual(rows[1]["bits"]["differing_words"], 0)
            self.assertNotEqual(rows[1]["bits"]["sha256"]["dq"], ours["bits"]["sha256"]["dq"])
        (row,) = self.result(*words, "--mask causal --dropout", 0.1, "--providers cudnn")["results"]
        self.assertEqual(row["status"], "unsupported")

    def test_trace_tells_of_every_visit(self):
        trace = self.path / "t.json"
        self.result("trace", *self.words, "--perfetto", trace)
        events = json.loads(trace.read_text())["traceEvents"]
        visits = {
            (e["args"]["head"], e["args"]["q_tile"], e["args"]["kv_tile"])
            for e in events
            if e["pid"] == 1 and e["ph"] == "X" and e["name"] == "compute"
        }
        self.assertEqual(len(visits), 8 * (4096 // 64) * (4096 // 128))


if __name__ == "__main__":
    unittest.main()

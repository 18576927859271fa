#!/usr/bin/env python3
"""Drives the built tool as a script would: python3 cli_test.py TOOL [CLASS]."""

import json
import os
import pathlib
import re
import struct
import sys
import unittest

from cli_tool import DOCUMENTS, ROOT, TOOL, Tool

sys.path.insert(1, str(ROOT / "tools"))
import write_cli_docs  # noqa: E402

COMMANDS = "info mask plan run verify trace bench calibrate tune report".split()


class Help(Tool):
    def test_document_is_the_help(self):
        self.assertEqual(write_cli_docs.page(TOOL), (ROOT / "docs" / "cli.md").read_text())

    def test_every_command_has_an_example_that_works(self):
        for command in COMMANDS:
            text = self.call(command, "--help").stdout
            example = re.search(r"Example: verbatim ((?:.*\\\n)*.*)", text).group(1)
            self.assertTrue(example.startswith(command))
            if command not in ("report", "plan"):
                words = example.replace("\\\n", " ").split()
                run = self.call_until_calm if command == "calibrate" else self.call
                run(*[str(self.path / w) if w.endswith((".html", ".json")) else w for w in words])

    def test_version(self):
        self.assertRegex(self.call("--version").stdout, r"^verbatim \d+\.\d+\.\d+\n$")


class Info(Tool):
    def test_lists_what_is_here(self):
        result = self.result("info")
        self.assertEqual(len(result["masks"]), 15)
        self.assertIn("ascending", [o["name"] for o in result["orders"]])
        self.assertEqual(result["devices"][0], {"name": "cpu", "state": "ready"})
        taken = {
            row["dtype"]: row["head_dims"] for row in result["support"] if row["device"] == "cpu"
        }
        self.assertEqual(taken["bf16"], [64, 96, 128, 192, 256])

    def test_threads_are_those_of_cores_that_it_may_use(self):
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})  # the tool inherits it
        self.addCleanup(os.sched_setaffinity, 0, cores)
        self.assertEqual(self.result("info")["cpu"]["threads"], 1)
        self.assertEqual(self.result("run", "--seqlen", 8)["threads"], 1)


class Mask(Tool):
    def test_area_and_tiles(self):
        mask = self.result("mask", "--mask", "causal", "--seqlen", 1000)["mask"]
        self.assertEqual(mask["area"], 1000 * 1001 // 2)
        tiles = mask["tiles"]
        rows = -(-1000 // tiles["q"]) * -(-1000 // tiles["kv"])
        self.assertEqual(tiles["full"] + tiles["partial"] + tiles["empty"], rows)

    def test_every_mask_by_its_parameters(self):
        documents = ["--doc-lengths", "20,0,44"]
        parameters = {
            "full": [],
            "causal": [],
            "full_sliding_window": ["--window", 9],
            "causal_sliding_window": ["--window", 9],
            "full_document": documents,
            "causal_document": documents,
            "share_question": documents,
            "causal_blockwise": documents,
            "global_sliding": ["--global", 3, "--window", 5],
            "prefix_lm_causal": ["--prefix", 7],
            "prefix_lm_document": [*documents, "--prefix", "3,0,9"],
            "block_causal_document": [*documents, "--block", 8],
            "uniform_block_sparse": ["--block-q", 8, "--block-k", 16, "--density", 0.5],
            "variable_block_sparse": ["--block-q 30,34 --block-k 10,54 --density", 0.5],
            "windows": ["--window", "5,2"],
        }
        self.assertEqual(list(parameters), self.result("info")["masks"])
        for name, words in parameters.items():
            mask = self.result("mask", "--mask", name, "--seqlen", 64, *words)["mask"]
            dense = self.call("mask --mask", name, "--seqlen 64", *words, "--to dense").stdout
            self.assertEqual(mask["name"], name)
            self.assertEqual(mask["area"], dense.count("1"), name)

    def test_windows_by_cumulative_lengths(self):
        """The parameters, breaks and positions of masks::windows()."""
        starts = {"cu_seqlens_q": [0, 3, 3, 10], "cu_seqlens_k": [0, 5, 6, 11]}
        lengths = ["--cu-seqlens-q", "0,3,3,10", "--cu-seqlens-k", "0,5,6,11"]
        for left in (-1, 0, 2):
            for right in (-1, 0, 4):
                sides = {k: v for k, v in (("left", left), ("right", right)) if v >= 0}
                made = json.loads(
                    self.call(
                        "mask --mask windows", *lengths, "--window", f"{left},{right}", "--to json"
                    ).stdout
                )
                self.assertEqual(made["params"], {**starts, **sides})
                self.assertEqual((made["q_len"], made["kv_len"]), (10, 11))
                variant = made["variants"][0]
                self.assertEqual((variant["q_breaks"], variant["k_breaks"]), ([3, 3], [5, 6]))
                seen = [
                    (q, k)
                    for b, e, kb, ke in ((0, 3, 0, 5), (3, 10, 6, 11))
                    for q in range(b, e)
                    for k in range(kb, ke)
                    if (left < 0 or k >= q + ke - e - left)
                    and (right < 0 or k <= q + ke - e + right)
                ]
                dense = self.call(
                    "mask --mask windows", *lengths, "--window", f"{left},{right}", "--to dense"
                ).stdout
                self.assertEqual(
                    [
                        (q, k)
                        for q, row in enumerate(dense.split("\n"))
                        for k, one in enumerate(row.replace(" ", ""))
                        if one == "1"
                    ],
                    seen,
                )

    def test_windows_of_one_sequence_and_of_equal_lengths(self):
        one = self.result("mask --mask windows --window -1,0 --q-len 7 --kv-len 9")["mask"]
        causal = self.result("mask", "--mask", "causal", "--q-len", 7, "--kv-len", 9)["mask"]
        self.assertEqual((one["area"], one["tiles"]), (causal["area"], causal["tiles"]))
        packed = self.result("mask --mask windows --cu-seqlens-q 0,70,70,193 --window -1,0")["mask"]
        documents = self.result("mask --mask causal_document --doc-lengths 70,0,123")["mask"]
        self.assertEqual((packed["area"], packed["tiles"]), (documents["area"], documents["tiles"]))

    def test_round_trip_through_a_file(self):
        file = self.path / "mask.json"
        self.call("mask", *DOCUMENTS, "--to", "json", "--to-file", file)
        sizes = ["--seqlen", 193, "--q-heads", 4, "--kv-heads", 2]
        again = self.result("mask", "--mask", f"@{file}", *sizes)["mask"]
        self.assertEqual(again["area"], self.result("mask", *DOCUMENTS)["mask"]["area"])

    def test_lists_from_files(self):
        lengths = self.path / "lengths.json"
        lengths.write_text("[70, 0, 90, 33]")
        a = self.result("mask", "--mask", "full_document", "--doc-lengths", f"@{lengths}")
        b = self.result("mask", "--mask", "full_document", "--doc-lengths", "70,0,90,33")
        self.assertEqual(a["mask"], b["mask"])
        blocks = self.path / "blocks.json"
        blocks.write_text("[[0, 0], [1, 1], [1, 0]]")
        mask = self.result(
            "mask --mask uniform_block_sparse --seqlen 32 --block-q 16 --block-k 16 --block-list",
            f"@{blocks}",
        )["mask"]
        self.assertEqual(mask["area"], 3 * 256)

    def test_key_lengths(self):
        mask = self.result("mask --mask full --seqlen 10 --batch 2 --key-lengths 4,10")["mask"]
        self.assertEqual(mask["total_area"], 10 * 4 + 10 * 10)

    def test_padding_of_queries_and_keys(self):
        padded = ["mask", "--mask", "causal", "--seqlen", 10, "--batch", 2]
        for side in ("right", "left"):
            mask = self.result(*padded, "--key-lengths", "4,10", "--padding", side)["mask"]
            self.assertEqual(mask["total_area"], 10 + 55)
        mask = self.result(*padded, "--key-lengths", 4, "--q-lengths", "3,5")["mask"]
        self.assertEqual(mask["total_area"], 6 + 14)

    def test_a_scale_of_zero_is_zero(self):
        sizes = ["run", "--seqlen", 64, "--head-dim", 16]
        self.assertEqual(self.result(*sizes, "--scale", 0)["problem"]["scale"], 0)
        self.assertEqual(self.result(*sizes)["problem"]["scale"], 0.25)

    def test_a_file_brings_its_lengths(self):
        file = self.path / "mask.json"
        self.call("mask --mask causal --q-len 20 --kv-len 30 --to json --to-file", file)
        problem = self.result("run", "--mask", f"@{file}")["problem"]
        self.assertEqual((problem["q_len"], problem["kv_len"]), (20, 30))

    def test_other_forms(self):
        form = json.loads(self.call("mask", *DOCUMENTS, "--to", "cu_seqlens").stdout)
        self.assertEqual(form["cu_seqlens_q"][-1], 193)
        self.assertIn(
            "def mask_mod(b, h, q_idx, kv_idx)",
            self.call("mask", *DOCUMENTS, "--to", "mask_mod").stdout,
        )
        picture = self.path / "mask.svg"
        self.call("mask", *DOCUMENTS, "--svg", picture)
        self.assertTrue(picture.read_text().startswith("<svg xmlns"))


class Plan(Tool):
    words = ["plan", "--mask", "causal", "--seqlen", 1024, "--q-heads", 4, "--head-dim", 64]

    def test_one_order(self):
        plan = self.result(*self.words, "--order", "descending")["plan"]
        self.assertEqual(plan["order"], "descending")
        self.assertGreaterEqual(plan["makespan"], plan["lower_bound"])
        self.assertRegex(plan["fingerprint"], r"^[0-9a-f]{16}$")

    def test_all_orders_are_sorted_and_described_alike(self):
        plans = self.result(*self.words, "--order", "all")["plan"]
        self.assertGreater(len(plans), 2)
        times = [plan["makespan"] for plan in plans]
        self.assertEqual(times, sorted(times))
        one = self.result(*self.words, "--order", plans[0]["order"])["plan"]
        self.assertEqual(one["fingerprint"], plans[0]["fingerprint"])

    def test_among_all_orders_that_of_auto_is_marked(self):
        mixed = "plan --mask full_document --doc-lengths 2000,40 --q-heads 8 --kv-heads 2".split()
        for words, order in ((self.words, "descending"), (mixed, "auto")):
            own = self.result(*words)["plan"]
            self.assertEqual(own["order"], order)
            plans = self.result(*words, "--order", "all")["plan"]
            marked = [plan["fingerprint"] for plan in plans if plan.get("auto")]
            self.assertEqual(marked, [own["fingerprint"]])
            self.assertEqual(plans, sorted(plans, key=lambda plan: plan["makespan"]))

    def test_the_papers_numbers(self):
        # DASH, full mask, shift: m heads of n tiles take m * n * (c + r) on n workers.
        plan = self.result(
            "plan --mask full --seqlen 512 --tile-q 64 --tile-kv 64 --q-heads 2 --order shift",
            "--placement static --workers 8 --machine paper:3,1 --level run_to_run",
        )["plan"]
        self.assertEqual(plan["makespan"], 2 * 8 * (3 + 1))

    def test_few_workers_with_a_list_each(self):
        """Where they would wait for each other in a circle, chains are cut, as on any list."""
        words = "--mask full --seqlen 600 --q-heads 2 --order shift --placement"
        free = self.result("run", words, "queue")
        for workers in (1, 2, 4):
            own = self.result("run", words, f"static --workers {workers}")
            self.assertEqual(own["plan"]["workers"], workers)
            for same in ("bits", "check"):
                self.assertEqual(own[same], free[same])
            self.assertEqual(own["plan"]["fingerprint"], free["plan"]["fingerprint"])

    def test_files(self):
        gantt, trace, dump = (self.path / n for n in ("g.svg", "t.json", "p.json"))
        self.call(
            *self.words,
            f"--gantt {gantt} --perfetto {trace} --dump {dump} --report",
            self.path / "plan.html",
        )
        self.assertTrue(gantt.read_text().startswith("<svg xmlns"))
        events = json.loads(trace.read_text())["traceEvents"]
        self.assertTrue(any(event["ph"] == "X" for event in events))
        json.loads(dump.read_text())

    def test_forward(self):
        plan = self.result(*self.words, "--pass", "forward")["plan"]
        self.assertEqual(plan["pass"], "forward")

    def test_without_order_nothing_waits_and_nothing_is_promised(self):
        words = ["plan", "--mask", "full", "--seqlen", 2048, "--head-dim", 128]
        ordered, free = (self.result(*words, "--order", name)["plan"] for name in ("auto", "none"))
        self.assertEqual((ordered["level"], free["level"]), ("invariant", "not_guaranteed"))
        self.assertEqual(free["fingerprint"], ordered["fingerprint"])
        self.assertLess(free["stall"], ordered["stall"])
        self.assertIn(
            "at most level not_guaranteed",
            self.refused(*words, "--order", "none", "--level", "run_to_run"),
        )

    def test_dealt_to_ranks(self):
        dist = self.result(*self.words, "--world", "replay:2", "--strategy", "allgather")["dist"]
        self.assertEqual([p["pass"] for p in dist["passes"]], ["backward"])
        ranks = dist["passes"][0]["ranks"]
        self.assertEqual(sum(rank["keys"] for rank in ranks), 1024)
        self.assertNotIn("sent_bytes", ranks[0])

    def test_equal_fingerprints_for_other_placements(self):
        plans = [
            self.result(*self.words, "--order", "ascending", "--placement", name)["plan"]
            for name in ("queue", "longest_first")
        ]
        self.assertEqual(plans[0]["fingerprint"], plans[1]["fingerprint"])


class Run(Tool):
    def test_result(self):
        result = self.result("run", *DOCUMENTS, "--repeats", 4, "--check", "full")
        self.assertTrue(result["bits"]["identical"])
        self.assertEqual(result["bits"]["repeats"], 4)
        self.assertEqual(set(result["bits"]["sha256"]), {"o", "lse", "dq", "dk", "dv"})
        for name, ratio in result["check"]["error_ratio"].items():
            self.assertLessEqual(ratio, 2, name)
        self.assertEqual(result["plan"]["level"], "invariant")
        self.assertGreater(result["time_ms"]["backward"], 0)
        plan = self.result("plan", *DOCUMENTS, "--machine", "cpu")["plan"]
        self.assertEqual(plan["fingerprint"], result["plan"]["fingerprint"])

    def test_the_readme_shows_what_make_run_prints(self):
        makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
        example = re.search(r"^EXAMPLE := (.*)$", makefile, re.M).group(1).split()
        readme = (ROOT / "README.md").read_text()
        said = self.call("run", *example).stdout
        for line in re.findall(r"^(?:o|lse|dq|dk|dv|level) .*$", said, re.M):
            self.assertIn(f"\n{line.rstrip()}\n", readme)

    def test_bits_do_not_depend_on_threads_placement_or_workers(self):
        hashes = [
            self.result("run", *DOCUMENTS, *words)["bits"]["sha256"]
            for words in (
                [],
                ["--threads", 1],
                ["--threads", 5],
                ["--workers", 7],
                ["--placement", "longest_first"],
            )
        ]
        self.assertEqual(len({json.dumps(h, sort_keys=True) for h in hashes}), 1)

    def test_worlds_have_the_bits_of_one_device(self):
        alone = self.result("run", *DOCUMENTS)
        for words in (
            ["--strategy", "balanced"],
            ["--strategy", "auto"],
            ["--strategy loongtrain --shard zigzag --ulysses-size 2 --ring-window 1"],
        ):
            result = self.result("run", *DOCUMENTS, "--world", "replay:4", *words)
            self.assertEqual(result["bits"], alone["bits"])
            self.assertEqual(result["plan"]["fingerprint"], alone["plan"]["fingerprint"])
            dist = result["dist"]
            self.assertEqual((dist["engine"], dist["world"]), ("replay", 4))
            self.assertEqual([p["pass"] for p in dist["passes"]], ["forward", "backward"])
            for ranks in (p["ranks"] for p in dist["passes"]):
                self.assertEqual(sum(rank["rows"] for rank in ranks), 193)
                for rank in ranks:
                    self.assertEqual(rank["sent_bytes"], rank["predicted_bytes"])

    def test_the_free_order_follows_the_world(self):
        words = ["--seqlen", 1200, "--head-dim", 32, "--dtype", "f32", "--order", "none"]
        alone = self.result("run", *words)["bits"]["sha256"]
        seen = set()
        for world in (1, 2, 4):
            result = self.result(
                "run", *words, "--world", f"replay:{world}", "--shard", "contiguous"
            )
            bits = result["bits"]["sha256"]
            self.assertEqual(
                [bits[o] for o in ("o", "lse", "dq")], [alone[o] for o in ("o", "lse", "dq")]
            )
            self.assertEqual(result["level"], "not_guaranteed")
            seen.add(bits["dk"])
            self.assertEqual(bits["dk"] == alone["dk"], world == 1)
        self.assertEqual(len(seen), 3)
        rows = self.result("verify", *words, "--repeats", 1)["audit"]
        (world,) = [row for row in rows if row["check"] == "world"]
        self.assertEqual((world["identical"], world["promised"]), (False, False))

    def test_seed_changes_bits(self):
        a, b = (self.result("run", *DOCUMENTS, "--seed", s)["bits"]["sha256"] for s in (1, 2))
        self.assertNotEqual(a["dq"], b["dq"])

    def test_passes(self):
        forward = self.result("run", *DOCUMENTS, "--pass", "forward")
        self.assertEqual(set(forward["bits"]["sha256"]), {"o", "lse"})
        self.assertEqual(forward["plan"]["pass"], "forward")
        backward = self.result("run", *DOCUMENTS, "--pass", "backward")
        self.assertEqual(backward["forward_plan"]["pass"], "forward")  # of its O and LSE
        self.assertEqual(set(backward["bits"]["sha256"]), {"dq", "dk", "dv"})
        self.assertNotIn("forward", backward["time_ms"])

    def test_tensors_from_and_to_files(self):
        """What one run reads, another makes from its own output: o is not among the inputs."""
        sizes = ["--seqlen", 20, "--head-dim", 8, "--mask", "causal"]
        values = struct.pack("<160f", *[((7 * i) % 23 - 11) / 8 for i in range(160)])
        header = (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 20, 1, 8), }".ljust(117) + "\n"
        ).encode()
        for name in ("q", "k", "v", "do"):
            (self.path / f"{name}.npy").write_bytes(
                b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + values
            )
        inputs = [str(self.path / f"{name}.npy") for name in ("q", "k", "v", "do")]
        a = self.result(
            "run --mask causal --input",
            *inputs,
            "--output",
            self.path / "out.safetensors",
            "--check full",
        )
        self.assertEqual(a["problem"]["q_len"], 20)
        self.assertEqual(a["problem"]["head_dim"], 8)
        self.result("run", *sizes, "--input", *inputs, "--output", self.path / "out.npy")
        raw = (self.path / "out.safetensors").read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        entries = json.loads(raw[8 : 8 + size])
        begin, end = entries["dq"]["data_offsets"]
        self.assertEqual(
            (self.path / "out.dq.npy").read_bytes()[-(end - begin) :],
            raw[8 + size + begin : 8 + size + end],
        )
        # The first row of a causal mask sees one key: its output is that value row.
        begin, _ = entries["o"]["data_offsets"]
        self.assertEqual(raw[8 + size + begin :][:32], values[:32])

    def test_empty_and_tiny(self):
        for length in (0, 1):
            result = self.result("run", "--seqlen", length, "--mask", "full", "--head-dim", 16)
            self.assertTrue(result["bits"]["identical"])

    def test_quiet_when_nobody_watches(self):
        self.assertEqual(self.call("run", *DOCUMENTS).stderr, "")

    def test_report(self):
        page, saved = self.path / "a.html", self.path / "run.json"
        words = ["run", *DOCUMENTS, "--report", page, "--json", saved]
        self.call(*words)
        text = page.read_text()
        self.assertIn("default-src 'none'", text)
        self.assertNotRegex(text, r"<script|\ssrc=|https?://(?!www\.w3\.org/2000/svg)")
        self.assertEqual(text.count("<svg"), 2)
        self.assertIn("measured cpu", text)
        # The page follows from the saved result alone.
        again = self.result("report", saved, "--output", self.path / "b.html")
        self.assertEqual(pathlib.Path(again["page"]).read_text(), text)


if __name__ == "__main__":
    unittest.main()

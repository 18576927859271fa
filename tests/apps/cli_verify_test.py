#!/usr/bin/env python3
"""What `verify` finds, as cli_test.py has the other commands."""

import json
import unittest

from cli_tool import DOCUMENTS, Tool


class Verify(Tool):
    def test_audit(self):
        result = self.result("verify", *DOCUMENTS, "--repeats", 3)
        self.assertTrue(result["identical"])
        checks = [row["check"] for row in result["audit"]]
        self.assertEqual(
            set(checks),
            {
                "repeats",
                "threads",
                "load",
                "workers",
                "batch",
                "heads",
                "packing",
                "neighbours",
                "padding",
                "world",
            },
        )
        self.assertEqual(checks.count("threads"), 4)
        packing = [row for row in result["audit"] if row["check"] == "packing"][0]
        self.assertEqual(packing["runs"], 3)  # the empty document has no bits
        # An entry before and one behind; then every other document: each of the three once.
        runs = [row["runs"] for row in result["audit"] if row["check"] == "neighbours"]
        self.assertEqual(runs, [1, 3])
        self.assertEqual(checks.count("padding"), 4)
        world = [row for row in result["audit"] if row["check"] == "world"]
        self.assertEqual([row["runs"] for row in world], [12])  # six strategies on 2 and 4 ranks
        self.assertTrue(all(row["identical"] for row in result["audit"]))

    def test_one_world(self):
        result = self.result(
            "verify", *DOCUMENTS, "--repeats 1 --world replay:3 --strategy ring --shard document"
        )
        world = [row for row in result["audit"] if row["check"] == "world"]
        self.assertEqual(
            [(row["runs"], row["identical"], row["detail"]) for row in world],
            [(1, True, "3 ranks, strategy ring, shard document")],
        )

    def padding(self, *words):
        rows = self.result("verify", *words, "--repeats", 1)["audit"]
        self.assertTrue(all(row["identical"] for row in rows if row["promised"]))
        return [
            (row["detail"].split()[-1], row["promised"])
            for row in rows
            if row["check"] == "padding"
        ]

    def test_padding_on_the_left(self):
        right, left = [("right", True)] * 2, [("left", True)] * 2
        # Entries of unequal lengths, padded already; rows that continue a cache, and rows that do not
        # see the first key or see nothing before others do: what a window could do as well.
        mask = {
            "name": "late",
            "params": {},
            "q_len": 90,
            "kv_len": 90,
            "batch": 1,
            "kv_heads": 1,
            "variant_of": [0],
            "variants": [{"slices": [[50, 90, 0, 90, None, None]], "q_breaks": [], "k_breaks": []}],
        }
        saved = self.path / "late.json"
        saved.write_text(json.dumps(mask))
        for words in (
            ["--seqlen", 90, "--batch", 2, "--key-lengths", "61,90"],
            ["--q-len", 40, "--kv-len", 90],
            ["--q-len", 40, "--kv-len", 500, "--mask", "causal_sliding_window", "--window", 30],
            ["--mask", f"@{saved}"],
        ):
            self.assertEqual(self.padding(*words), right + left)

    def test_dropout_counts_in_documents(self):
        result = self.result("verify", *DOCUMENTS, "--dropout", 0.3, "--repeats", 1)
        checks = [row["check"] for row in result["audit"]]
        self.assertIn("packing", checks)
        self.assertNotIn("batch", checks)  # another slot is another key
        details = [row["detail"] for row in result["audit"] if row["check"] == "neighbours"]
        self.assertIn("NaN and Inf in two entries behind", details)  # the slots stay
        self.assertEqual(checks.count("padding"), 4)
        self.assertTrue(all(row["identical"] for row in result["audit"]))

    def test_against_saved_bits(self):
        saved = self.path / "saved.json"
        words = ["verify", *DOCUMENTS, "--tile-q", 16, "--tile-kv", 32, "--repeats", 1]
        self.call(*words, "--json", saved)
        result = self.result(*words, "--against", saved)
        self.assertEqual(result["audit"][-1]["check"], "saved")
        self.assertTrue(result["identical"])
        # Another order has other bits by right.
        error = self.refused(*words, "--order", "ascending", "--against", saved)
        self.assertIn("the saved fingerprint is another", error)
        mask = self.path / "mask.json"
        for area, text in ((10, "[[0,4,0,4,null,0]]"), (16, "[[0,4,0,4,null,null]]")):
            mask.write_text(
                '{"name":"own","params":{},"q_len":4,"kv_len":4,"batch":1,"kv_heads":1,'
                f'"variant_of":[0],"variants":[{{"slices":{text},"q_breaks":[],"k_breaks":[]}}]}}'
            )
            own = ["verify", "--mask", f"@{mask}", "--repeats", 1]
            if area == 10:
                self.call(*own, "--json", self.path / "own.json")
        error = self.refused(*own, "--against", self.path / "own.json")
        self.assertIn("the saved mask is another; got 10, expected 16", error)
        # One digit of one hash.
        text = json.loads(saved.read_text())
        digit = text["sha256"]["dk"][0]
        text["sha256"]["dk"] = ("1" if digit == "0" else "0") + text["sha256"]["dk"][1:]
        saved.write_text(json.dumps(text))
        done = self.call(*words, "--against", saved, code=1)
        self.assertIn("DIFFERS", done.stdout)
        self.assertIn("NOT identical", done.stdout)
        self.refused("verify", "--seqlen", 64, "--repeats", 1, "--against", saved)

    def test_on_a_cpu_even_no_order_repeats(self):
        result = self.result("verify", *DOCUMENTS, "--order", "none", "--repeats", 2)
        self.assertEqual((result["level"], result["identical"]), ("not_guaranteed", True))

    def test_report(self):
        self.result("verify", *DOCUMENTS, "--repeats", 1, "--report", self.path / "v.html")
        self.assertIn("audit passed", (self.path / "v.html").read_text())


if __name__ == "__main__":
    unittest.main()

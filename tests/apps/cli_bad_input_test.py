#!/usr/bin/env python3
"""What the tool refuses, as cli_test.py has what it does."""

import json
import struct
import unittest

from cli_tool import ROOT, Tool, Word

SKETCH = ROOT / "kernels" / "tl" / "forward.tl"


class BadInput(Tool):
    def test_nearest_names(self):
        for words, nearest in (
            (["--mask", "casual"], "causal"),
            (["--mask", "CAUSAL"], "causal"),
            (["--mask", "mask.json"], "@mask.json"),
            (["--order", "ascendng"], "ascending"),
            (["--placement", "que"], "queue"),
            (["--dtype", "bf61"], "bf16"),
            (["--level", "invarient"], "invariant"),
            (["--seqlem", "7"], "--seqlen"),
        ):
            message = self.refused("run", "--seqlen", 64, *words)
            self.assertIn(f"(nearest: {nearest})", message)

    def test_refused(self):
        documents, windows = ["--mask", "causal_document"], ["--mask", "windows"]
        for words, part in (
            (["run", "--q-heads", 3, "--kv-heads", 2], "q_heads"),
            (["run", "--head-dim", 257], "head_dim"),
            (["run", "--seqlen", -1], "-1"),
            (
                ["run", "--seqlen", "many"],
                "--seqlen: the value does not fit; got 'many', expected a decimal",
            ),
            (["run", "--seqlen", 8, "--q-len", 8], "--q-len"),
            (["run", *documents], "--doc-lengths"),
            (["bench", "--set", "dense", "--dtype", "bf16"], "(nearest: --set dense alone)"),
            (["run", *documents, "--doc-lengths", "3,4", "--seqlen", 8], "sum of 7"),
            (["run", *documents, "--doc-lengths", "3,x"], "'3,x'"),
            (["run", *documents, "--doc-lengths", "3,-4"], "-"),
            (["run", *documents, "--doc-lengths", f"{2**63 - 1},1"], str(2**63 - 1)),
            (["run", *documents, "--doc-lengths", "@/nowhere.json"], "/nowhere.json"),
            (["run", "--mask", "causal", "--window", 3], "--window"),
            (["run", "--mask", "causal_sliding_window", "--window", -3], "-3"),
            (["run", *windows], "mask windows needs --window"),
            (["run", *windows, "--window", 4], "nearest: -1,0"),
            (["run", *windows, "--window", "-2,0"], "LEFT,RIGHT"),
            (["run", *windows, "--window", "1,0", "--doc-lengths", "8"], "--doc-lengths"),
            (["run", *windows, "--window", "1,0", "--cu-seqlens-k", "0,4"], "--cu-seqlens-q"),
            (
                ["run", *windows, "--window 1,0 --cu-seqlens-q 0,4 --cu-seqlens-k 0,2,4"],
                "cu_seqlens_k",
            ),
            (["run", *windows, "--window", "1,0", "--cu-seqlens-q", "0,5,4"], "cu_seqlens_q[2]"),
            (["run", *windows, "--window", "1,0", "--cu-seqlens-q", "0,4", "--seqlen", 5], "4 x 4"),
            (["run", "--mask", "causal", "--cu-seqlens-q", "0,4"], "--cu-seqlens-q"),
            (["tune", "--memo", self.path / "memo", "--match", "causal"], "--set"),
            (["run", "--key-lengths", "5,6"], "got 2 lengths, expected 1 (nearest: --batch 2)"),
            (["run", "--key-lengths", "5,6", "--batch", 3], "expected 3, or 1 for all"),
            (["run", "--q-lengths", "5"], "--key-lengths"),
            (["run", "--key-lengths", "5", "--padding", "top"], "--padding"),
            (["run", "--scale", "nan"], "scale"),
            (["run", "--scale", "-1e39"], "scale is out of range; got -1e+39"),
            (["run", "--softcap", "1e39"], "softcap is out of range; got 1e+39"),
            (["run", "--softcap", "1e-46"], "softcap is out of range; got 1e-46"),
            (["run", "--order", "all"], "all"),
            (["verify", "--order", "all"], "all"),
            (["plan", "--pass", "forward", "--forward-order", "all"], "all"),
            (["plan", "--forward-order", "shift"], "got shift"),
            (
                ["plan", "--pass", "forward", "--forward-order", "ascending", "--order", "shft"],
                "nearest: shift",
            ),
            (["run", "--check", "some"], "--check"),
            (["run", "--repeats", 0], "--repeats"),
            (["run", "--device", "tpu"], "tpu"),
            (["run", "--pass", "sideways"], "--pass"),
            (["run", "--output", "out.txt"], "--output"),
            (["run", "--output", ".safetensors"], "--output"),  # a name without an extension
            (["run", "--input", "/nowhere.npy"], "/nowhere.npy"),
            (["plan", "--machine", "abacus"], "abacus"),
            (["plan", "--machine", "paper:1e308,1e308"], "'compute' is too large; got 1e+308"),
            (["plan", "--machine", "h200:132,1e308"], "'clock_ghz' is too large; got 1e+308"),
            (["plan", "--workers", -1], "--workers"),
            (["plan", "--workers", 2**31 - 1], str(2**31 - 1)),
            (["mask", "--mask", "full", "--seqlen", 4, "--to", "words"], "--to"),
            (["mask", "--to", "json", "--svg", "m.svg"], "--svg excludes --to"),
            (
                ["mask", "--tile-q", -1],
                "--tile-q: a number is negative; got -1, expected 0 or more",
            ),
            (["trace", "--threads", -1], "--threads: a number is negative; got -1"),
            (["trace", "--seqlen", 0], "--seqlen: there is nothing to trace; got 0 queries"),
            (["verify", "--repeats", 0], "--repeats"),
            (["run", "--world", "4"], "replay:2"),
            (["run", "--world", "replay:0"], "nearest: replay:1"),
            (["run", "--world", "replay:4294967297"], "nearest: replay:4096"),
            (["run", "--world", "replay:4097"], "nearest: replay:4096"),
            (["run", "--world", "worlds:4294967297"], "nearest: replay:2"),
            (["run", "--world", "replay:2", "--cluster", "h200x8"], "nothing is simulated"),
            (["run", "--padding", "right", "--key-lengths", 80, "--seqlen", 64], "key_lengths[0]"),
            (
                ["run", "--padding", "right", "--key-lengths", 80, "--q-len", 64, "--kv-len", 96],
                "nearest: --q-lengths 64",
            ),
            (
                ["plan", "--q-heads", 65536, "--kv-heads", 1, "--seqlen", 4194304],
                "nearest: 2097088",
            ),
            (["run", "--strategy", "ring"], "--strategy requires --world"),
            (["run", "--world", "replay:2", "--strategy", "rign"], "nearest: ring"),
            (["run", "--world", "replay:2", "--shard", "zag"], "nearest: zigzag"),
            (["plan", "--world", "replay:2", "--cluster", "h200x9"], "nearest: h200x8"),
            (["run", "--world", "replay:2", "--cluster", "h200x9"], "nearest: h200x8"),
            (["plan", "--cluster", "h200x8"], "--cluster requires --world"),
            (["run", "--world", "replay:3", "--strategy", "ulysses", "--q-heads", 4], "nearest: 2"),
            (
                ["run", "--world", "replay:4", "--strategy", "usp", "--ulysses-size", 3],
                "nearest: 1",
            ),
            (["nonsense"], "nonsense"),
        ):
            self.assertIn(part, self.refused(*words), words)

    def test_tensors_beyond_the_memory_are_refused_before_they_are_touched(self):
        words = ["--seqlen", 100_000_000, "--q-heads", 512, "--head-dim", 256]  # 373 TiB
        for command in ("run", "verify", "trace", "bench"):
            message = self.refused(command, *words)
            self.assertRegex(message, r"has not the memory .* got [\d.]+ TiB, expected .* at most")

    def test_processes_of_a_machine_share_its_memory(self):
        ranks = {"SIZE": 2**30, "LOCAL_SIZE": 2**30, "RANK": 0, "LOCAL_RANK": 0}
        env = {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in ranks.items()}
        done = self.call("run --seqlen 1024 --head-dim 64", code=2, env=env)  # 2.5 MiB each
        self.assertRegex(
            done.stderr, r"got [\d.]+ TiB in 1073741824 processes, expected .* at most"
        )

    def test_numbers_are_decimal_and_in_range(self):
        for option, word in (
            ("--seed", 2**64),
            ("--seed", -1),
            ("--batch", 2**63),
            ("--workers", 2**31),
            ("--seqlen", "0x40"),
            ("--seqlen", "+64"),
            ("--softcap", "0x1p3"),
            ("--softcap", "1e999"),
        ):
            message = self.refused("run", option, word)
            self.assertIn(option, message)
            self.assertIn(f"{word}", message)
        largest = self.result("plan", "--seqlen", "0100", "--seed", 2**64 - 1)["problem"]
        self.assertEqual((largest["q_len"], largest["seed"]), (100, 2**64 - 1))

    def test_nothing_is_no_value(self):
        for option in (
            "--cu-seqlens-q",
            "--key-lengths",
            "--mask",
            "--level",
            "--commit",
            "--seed",
        ):
            self.assertIn(f"{option}: ", self.refused("bench", option, Word()))
        self.assertIn("--cu-seqlens-q: ", self.refused("run --cu-seqlens-q="))
        self.assertIn("--commit: ", self.refused("bench --commit= --repro"))

    def test_arguments_are_text(self):
        for words, part in (
            (["run", "--commit", "\udcff"], "--commit: not UTF-8"),
            (["run", "--json=\udcff.json"], "argument 2: not UTF-8"),
            (["\udcff"], "argument 1: not UTF-8"),
        ):
            self.assertIn(part, self.refused(*words))

    def test_patterns(self):
        for pattern, part in (
            ("(", "--match: "),
            ("(" * 50000 + "a" + ")" * 50000, "got 100001 characters, expected at most 1000"),
            ("(" * 450 + "a" + ")" * 450 + "_none", "no case has such a name"),
            ("(.*)*none", "no case has such a name"),
            (r"(a)\1", "--match: "),
        ):
            self.assertIn(
                part, self.refused("tune --memo", self.path / "m", "--set dense --match", pattern)
            )

    def test_a_mask_of_a_file_has_no_parameters(self):
        file = self.path / "mask.json"
        self.call("mask --mask causal --seqlen 64 --to json --to-file", file)
        for words in ("--window 3", "--doc-lengths 60,4", "--cu-seqlens-q 0,64"):
            for sizes in ("", "--seqlen 64"):
                message = self.refused("mask --mask", f"@{file}", words, sizes)
                self.assertIn(f"has no parameter {words.split()[0]}", message)
        self.call("mask --mask", f"@{file}", "--key-lengths 60")  # of any mask

    def test_files_are_not_trusted(self):
        for name, text in (
            ("deep.json", "[" * 100000),
            ("cut.json", '{"a": '),
            ("wrong.json", '{"slices": 3}'),
            ("text.json", "hello"),
        ):
            file = self.path / name
            file.write_text(text)
            self.refused("mask", "--mask", f"@{file}", "--seqlen", 8)
            self.refused("mask", "--mask", "full_document", "--doc-lengths", f"@{file}")
            self.refused("plan", "--machine", f"@{file}", "--seqlen", 64)
            done = self.call("report", file, "--output", self.path / "x.html", code=2)
            self.assertTrue(done.stderr.startswith("verbatim: "))
            self.assertFalse((self.path / "x.html").exists())
        half = self.path / "half.json"  # costs are divided by both sides of a tile
        half.write_text('{"reference_tile_q": 64}')
        message = self.refused("plan", "--machine", f"@{half}", "--seqlen", 64)
        self.assertIn("'reference_tile_kv' is too small; got 0, expected 1", message)
        safetensors = self.path / "t.safetensors"
        safetensors.write_bytes(struct.pack("<Q", 2**40) + b"{}")
        self.assertIn(f"[--input {safetensors}]", self.refused("run", "--input", safetensors))

    def test_one_file_that_cannot_be_written_keeps_all_from_being_written(self):
        new = self.path / "new"
        for words in (
            ["run", "--seqlen", 8, "--output", f"{new}.npy", "--report", "/nowhere/x"],
            ["plan", "--gantt", new, "--perfetto", new, "--dump", "/nowhere/x"],
            ["trace", "--seqlen", 8, "--gantt", new, "--perfetto", "/nowhere/x"],
            ["mask", "--svg", new, "--report", self.path],
            ["plan", "--gantt", new, "--dump", self.path / "old.json" / "x"],
        ):
            self.assertRegex(self.refused(*words), "No such file|is a directory|Not a directory")
        words = ["run", "--seqlen", 8, "--dtype", "bf16", "--output", f"{new}.npy"]
        error = self.refused(*words)
        self.assertIn("--output: NumPy has no bf16", error)
        self.assertIn(f"nearest: {new}.safetensors", error)
        self.assertEqual(list(self.path.glob("new*")), [])

    def test_outputs_have_a_file_each(self):
        new, link, other = (self.path / name for name in ("new", "link", "other"))
        link.symlink_to(self.path)
        other.symlink_to("new")  # which is not there
        for words in (
            ["run", "--seqlen", 8, "--json", new, "--report", new],
            ["plan", "--gantt", new, "--dump", self.path / "." / "new"],
            [
                "trace",
                "--seqlen",
                8,
                "--json",
                new,
                "--perfetto",
                f"{self.path}/../{self.path.name}/new",
            ],
            ["mask", "--svg", new, "--json", link / "new"],
            ["tune", "--seqlen", 8, "--memo", new, "--json", new],
            ["mask", "--svg", new, "--json", other],
            ["mask", "--svg", other, "--json", new],
        ):
            error = self.call(*words, code=2).stderr
            self.assertIn("two outputs have one file", error)
            self.assertIn(words[-2], error)
            self.assertFalse(new.exists())
        tensors, of_one = self.path / "x.npy", self.path / "x.dq.npy"
        for option in ("--json", "--report"):
            words = ["run --seqlen 8 --output", tensors, option, of_one]
            self.assertIn(f"{option}, --output: two outputs", self.call(*words, code=2).stderr)
            self.assertEqual(sorted(self.path.iterdir()), [link, other])
        saved, page = self.path / "r.json", self.path / "r.html"
        self.call("run --seqlen 8 --json", saved)
        self.assertIn("two outputs", self.call("report", saved, "--json", page, code=2).stderr)
        self.assertFalse(page.exists())
        self.call("run --seqlen 8 --json /dev/null --report /dev/null")  # takes both

    def test_files_of_json_are_named(self):
        file = self.path / "bad.json"
        for text, part in (("{", "not JSON"), ('{"a": 3}', "a")):
            file.write_text(text)
            for words in (
                ["run --mask", f"@{file}"],
                ["run --seqlen 8 --memo", file],
                ["plan --seqlen 8 --machine", f"@{file}"],
                ["plan --seqlen 8 --world replay:2 --cluster", f"@{file}"],
                ["tl reason", SKETCH, "--target sm90 --output", self.path / "x.tl", "--memo", file],
            ):
                message = self.call(*words, code=2).stderr
                self.assertRegex(message, rf"\[[a-z_.]+ of {file}\] .*{part}")

    def test_outputs_replace_no_input(self):
        mask, bits, x, link = (self.path / name for name in ("m.json", "v.json", "x.npy", "link"))
        memo, of_one = self.path / "memo", self.path / "x.dq.npy"
        self.call("mask --seqlen 8 --to json --to-file", mask)
        self.call("verify --seqlen 8 --repeats 1 --json", bits)
        self.call("tune --seqlen 8 --memo", memo)
        self.call("run --seqlen 8 --output", x)
        link.symlink_to(mask)
        before = {p: p.read_bytes() for p in self.path.iterdir()}
        for words in (
            ["run --mask", f"@{mask}", "--json", mask],
            ["plan --mask", f"@{mask}", "--dump", self.path / "." / "m.json"],
            ["mask --mask", f"@{link}", "--to json --to-file", mask],
            ["mask --mask", f"@{mask}", "--svg", link],
            ["verify --seqlen 8 --against", bits, "--json", bits],
            ["run --seqlen 8 --memo", memo, "--report", memo],
            ["run --input", f"q={of_one}", "--output", x],
            ["report", bits, "--json", bits],
        ):
            self.assertIn("would replace what is read", self.call(*words, code=2).stderr)
            self.assertEqual({p: p.read_bytes() for p in self.path.iterdir()}, before)

    def test_nothing_is_written_before_the_last_refusal(self):
        """Of tensors, one of whose files is in the way; of a set, in which one case is refused."""
        in_the_way = self.path / "x.dv.npy"
        in_the_way.mkdir()
        words = ["run", "--seqlen", 8, "--output", self.path / "x.npy"]
        self.assertIn("x.dv.npy': is a directory", self.call(*words, code=2).stderr)
        self.assertEqual(list(self.path.iterdir()), [in_the_way])
        in_the_way.rmdir()
        program = self.path / "f.tl"
        reason = f"tl reason {SKETCH} --target a100 --dtype bf16 --head-dim 128 --output"
        self.call(reason, program)
        words = ["bench --set dense --match full.512$ --kernel", program]  # of 128, then of 64
        self.assertIn("got 64, expected 128", self.refused(*words))
        words = ["bench --set dense,mqa --repeats 1 --world replay:32 --strategy ulysses --match"]
        words.append(Word("hd64 full 512$|16:1 full 1024$"))  # of 32 query heads, then of 16
        self.assertIn("a divisor of 16 query heads", self.refused(*words))

    def test_names_that_are_too_long(self):
        for words in (["plan", "--seqlen", 256, "--dump"], ["run", "--seqlen", 8, "--report"]):
            self.assertIn("File name too long", self.refused(*words, self.path / ("a" * 300)))
        self.refused("plan", "--seqlen", 64, "--machine", "@" + "a" * 300)
        longest = self.path / ("a" * 250 + ".json")
        self.call("plan", "--seqlen", 256, "--json", longest)
        self.assertEqual(list(self.path.iterdir()), [self.path / "old.json", longest])

    def test_report_refuses_results_without_a_picture(self):
        saved = self.path / "r.json"
        self.call("info", "--json", saved)
        self.assertIn("what info wrote", self.refused("report", saved))
        for text in ('{"command": "bench"}', '{"command": 3}', "[]"):
            saved.write_text(text)
            error = self.refused("report", saved, "--output", self.path / "r.html")
            self.assertIn("what run, plan, trace, mask, verify wrote", error)
            self.assertEqual("python -m verbatim_attn.bench --from" in error, "bench" in text)
        for text, part in (
            ('{"command": "run"}', "key 'version' not found"),
            ('{"command": "run"', "expected '}'"),
            ("", "unexpected end of input"),
        ):
            saved.write_text(text)
            error = self.refused("report", saved)
            self.assertIn(str(saved), error)
            self.assertIn(part, error)
        self.assertFalse((self.path / "r.html").exists())
        page = self.path / "p.html"
        self.call("mask --seqlen 8 --json", page)
        before = page.read_text()
        self.assertIn("would replace the result", self.refused("report", page))
        self.assertEqual(page.read_text(), before)

    def test_results_cannot_smuggle_markup(self):
        saved = self.path / "r.json"
        self.call("mask", "--mask", "causal", "--seqlen", 8, "--json", saved)
        result = json.loads(saved.read_text())
        evil = "<script>alert('x')</script>"
        result["arguments"] = [evil]
        result["version"] = evil
        result["mask"]["name"] = evil
        result["mask"]["params"] = {evil: evil}
        saved.write_text(json.dumps(result))
        self.call("report", saved, "--output", self.path / "r.html")
        self.assertNotIn("<script", (self.path / "r.html").read_text())


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Drives the nested commands of tl: python3 cli_tl_test.py TOOL [CLASS]."""

import json
import shutil
import struct
import subprocess
import unittest

from cli_tool import ROOT, Tool

SKETCHES = ROOT / "kernels" / "tl"
SIZES = ["--dtype", "bf16", "--head-dim", 64]
E4M3 = ["--dtype", "e4m3", "--head-dim", 64]
# How every library begins.
VERSION = "const struct { int number; unsigned long sizes[4]; char rest[200]; } %s = {1, {1}, {0}};"
PROBLEM = [*SIZES, "--mask", "causal", "--seqlen", 150, "--q-heads", 2]


def write_safetensors(path, **rows):
    """Rows of f32."""
    header, data = {}, b""
    for name, values in rows.items():
        begin = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_integers(path, shape, values, code="i"):
    """A .npy file of int32 ("i") or int64 ("q")."""
    kind = {"i": "<i4", "q": "<i8"}[code]
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {tuple(shape)}, }}\n".encode()
    data = struct.pack(f"<{len(values)}{code}", *values)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)


class Tl(Tool):
    def refusal(self, *words, **how):
        """Exit code 2, a message, and every file as it was."""
        before = {p: p.read_bytes() for p in self.path.iterdir()}
        done = self.call(*words, code=2, **how)
        self.assertEqual(done.stdout, "")
        self.assertTrue(done.stderr.startswith("verbatim: "), done.stderr)
        self.assertEqual({p: p.read_bytes() for p in self.path.iterdir()}, before)
        return done.stderr

    def reason(self, name, *words, target="a100"):
        program = self.path / f"{name}.tl"
        self.call(
            "tl reason",
            SKETCHES / f"{name}.tl",
            f"--target {target} --output {program}",
            *SIZES,
            *words,
        )
        return program

    def test_sketches_are_checked_and_formatted(self):
        for name in ("forward", "backward", "selected"):
            sketch = SKETCHES / f"{name}.tl"
            self.call("tl", "check", "--sketch", sketch)
            self.assertEqual(self.call("tl", "fmt", sketch).stdout, sketch.read_text())

    def test_fmt_writes_in_place(self):
        file = self.path / "a.tl"
        file.write_text("copy Q   from global to shared memory")
        self.assertEqual(self.call("tl", "fmt", "--write", file).stdout, "")
        self.assertEqual(file.read_text(), "Copy Q from global to shared\n")

    def test_reason_is_the_same_twice_and_passes(self):
        program = self.reason("backward")
        self.call("tl", "check", program)
        first = program.read_text()
        self.assertEqual(self.reason("backward").read_text(), first)
        self.assertIn("param BM = 128  // queries of a tile: the contract's\n", first)

    def test_emit_is_the_same_twice_and_names_its_file_itself(self):
        for name in ("forward", "backward", "selected"):
            program, file = self.reason(name), f"{name}_a100.cu"
            for folder in (f"{name}1", f"{name}2"):
                self.call("tl", "emit", program, "--output", self.path / folder)
            first, second = (self.path / f"{name}{i}" / file for i in (1, 2))
            self.assertEqual(first.read_bytes(), second.read_bytes())
            self.assertEqual([p.name for p in first.parent.iterdir()], [file])

    def test_fix_repairs_and_is_all_or_nothing(self):
        program = self.reason("forward")
        right = program.read_text()
        program.write_text(right.replace("K^T", "K"))
        message = self.refusal("tl", "check", program)
        self.assertIn("transpose: ", message)
        self.assertIn("right would be: K^T", message)
        self.call("tl", "check", "--fix", program)
        self.assertEqual(program.read_text(), right)
        program.write_text(right.replace("K^T", "K").replace("Compute Mask S", "Compute Mask X"))
        self.assertIn("left by all edits", self.refusal("tl", "check", "--fix", program))

    def test_what_emit_would_declare_twice_is_refused_with_its_line(self):
        copy = "  Copy K (BN, HeadDim) in coordinate [L = i] from global to shared\n"
        for name, line in (("forward", copy), ("forward", "  Wait V"), ("backward", "  Wait dO")):
            program = self.reason(name)
            text = program.read_text().replace(line, line.rstrip() + "\n" + line)
            program.write_text(text)
            place = f"{program}:{1 + text[: text.index(line)].count(chr(10)) + 1}:3: twice: "
            for words in (["check"], ["emit", "--output", self.path / "none"]):
                self.assertIn(place, self.refusal("tl", *words, program))

    def test_an_unknown_target_is_said_before_any_fault(self):
        program = self.path / "bad.tl"
        program.write_text("no program")
        message = self.refusal("tl", "check", program, "--target", "h20")
        self.assertIn("nearest: h200", message)
        self.assertNotIn("syntax", message)

    def test_run_and_verify_take_programs(self):
        forward, backward = self.reason("forward"), self.reason("backward")
        both = self.result("run", *PROBLEM, "--repeats", 2, "--kernel", forward, backward)
        ours = self.result("run", *PROBLEM, "--repeats", 2)
        self.assertEqual(both["check"]["mode"], "full")
        self.assertNotEqual(both["plan"]["fingerprint"], ours["plan"]["fingerprint"])
        self.assertNotEqual(both["bits"]["sha256"]["dk"], ours["bits"]["sha256"]["dk"])
        one = self.result("run", *PROBLEM, "--repeats 1 --threads 1 --kernel", forward, backward)
        self.assertEqual(one["bits"]["sha256"], both["bits"]["sha256"])
        self.call("verify", *PROBLEM, "--repeats", 2, "--kernel", forward, backward)

    def test_a_result_that_is_no_number_is_wrong_wherever_it_is_shown(self):
        program, page = self.reason("forward"), self.path / "report.html"
        program.write_text(program.read_text().replace("Fill O with 0", "Fill O with -inf"))
        words = [*PROBLEM, "--pass", "forward", "--repeats", 1, "--kernel", program]
        check = self.result("run", *words, "--report", page, code=1)["check"]
        self.assertFalse(check["correct"])
        self.assertLess(check["error_ratio"]["o"], 2)
        wrong = check["outputs"]["o"]["nonfinite_mismatches"]
        self.assertGreater(wrong, 0)
        self.assertRegex(self.call("run", *words, code=1).stdout, r"o +0.000, [\d,]+ NaN or inf")
        self.assertIn('<span class="verdict bad">WRONG</span>', page.read_text())
        self.assertRegex(page.read_text(), r"bad[^<]*>0.000, [\d,]+ NaN or inf")

    def test_faults_of_a_program_name_its_file(self):
        program = self.reason("forward")
        program.write_text(program.read_text().replace("K^T", "K"))
        self.assertIn(f"refused\n{program}:", self.refusal("run", *PROBLEM, "--kernel", program))

    def test_a_pass_without_a_program_runs_as_ever(self):
        ours = self.result("run", *PROBLEM, "--repeats", 1)
        mixed = self.result("run", *PROBLEM, "--repeats", 1, "--kernel", self.reason("backward"))
        self.assertEqual(mixed["bits"]["sha256"]["o"], ours["bits"]["sha256"]["o"])
        self.assertNotEqual(mixed["bits"]["sha256"]["dq"], ours["bits"]["sha256"]["dq"])

    def test_e4m3_takes_scales_from_files(self):
        program = self.path / "e4m3.tl"
        self.call(
            "tl", "reason", SKETCHES / "forward.tl", "--target", "l40s", "--output", program, *E4M3
        )
        run = ["run", *E4M3, "--seqlen", 40, "--q-heads", 2, "--pass", "forward"]
        plain = self.result(*run, "--kernel", program)
        self.assertEqual(plain["problem"]["dtype"], "e4m3")
        self.assertLess(plain["check"]["error_ratio"]["o"], 2)
        scales = self.path / "scales.safetensors"
        write_safetensors(scales, q_scale=[1, 1], k_scale=[1, 2], v_scale=[4, 1])
        scaled = self.result(*run, "--kernel", program, "--input", scales)
        self.assertLess(scaled["check"]["error_ratio"]["o"], 2)
        self.assertNotEqual(scaled["bits"]["sha256"], plain["bits"]["sha256"])
        for words, parts in [
            (run, ["got e4m3", "nearest: bf16"]),
            ([*run[:-1], "both", "--kernel", program], ["--pass", "--dtype bf16"]),
            (["run", "--seqlen", 40, "--input", scales], ["q_scale", "nearest: --dtype e4m3"]),
            (
                [*run, "--kv-heads", 1, "--kernel", program, "--input", scales],
                ["--kv-heads", "got 1, expected 2"],
            ),
            (["bench", *E4M3, "--seqlen", 40, "--kernel", program], ["--pass"]),
            (
                [
                    "tl",
                    "reason",
                    SKETCHES / "forward.tl",
                    "--target",
                    "a100",
                    "--output",
                    self.path / "none.tl",
                    *E4M3,
                ],
                ["got e4m3", "nearest: bf16"],
            ),
        ]:
            message = self.refusal(*words)
            for part in parts:
                self.assertIn(part, message, words)

    def test_an_index_tensor_names_blocks(self):
        program = self.reason("selected")  # tiles of 64 x 64: three on each axis
        run = ["run", *PROBLEM, "--pass", "forward", "--kernel", program]
        drawn = self.result(*run, "--selected", 2, "--repeats", 2)
        self.assertEqual((drawn["check"]["mode"], drawn["bits"]["identical"]), ("full", True))
        self.assertLess(drawn["check"]["error_ratio"]["o"], 2)
        self.assertEqual(drawn["selection"]["source"], "random")
        self.assertEqual(drawn["selection"]["blocks"], 2 * (1 + 2 + 2))
        one = self.result(*run, "--selected", 2, "--threads", 1)
        self.assertEqual(one["bits"]["sha256"], drawn["bits"]["sha256"])
        lists, shape = [0, -1, -1, 1, 0, -1, 2, 0, 1] * 2, (1, 2, 3, 3)
        narrow, wide = self.path / "sel.npy", self.path / "wide.npy"
        write_integers(narrow, shape, lists)
        write_integers(wide, shape, lists, "q")
        given = self.result(*run, "--input", narrow)
        self.assertEqual(given["selection"]["source"], "file")
        self.assertLess(given["check"]["error_ratio"]["o"], 2)
        again = self.result(*run, "--input", f"sel={wide}")
        self.assertEqual(again["bits"]["sha256"], given["bits"]["sha256"])
        self.assertNotEqual(again["bits"]["sha256"], drawn["bits"]["sha256"])

    def test_an_index_tensor_has_no_plan(self):
        program, backward = self.reason("selected"), self.reason("backward")
        run = ["run", *PROBLEM, "--pass", "forward", "--kernel", program]
        future, floats = self.path / "future.npy", self.path / "floats.safetensors"
        write_integers(future, (1, 2, 3, 1), [0, 2, 2, 0, 1, 2])
        write_safetensors(floats, sel=[0, 1])
        for words, parts in [
            (["run", *PROBLEM, "--kernel", program], ["--pass", "got both, expected forward"]),
            ([*run, backward], ["--kernel", "got 2 programs"]),
            ([*run, "--world", "replay:2"], ["--world", "got replay:2"]),
            ([*run, "--forward-order", "ascending"], ["--forward-order", "without a plan"]),
            ([*run, "--workers", 2], ["--workers", "got 2"]),
            ([*run, "--tile-kv", 32], ["--tile-kv", "got 32, expected 64"]),
            (
                ["run", *SIZES, "--mask", "full", "--pass", "forward", "--kernel", program],
                ["got full, expected causal"],
            ),
            ([*run, "--selected", -1], ["--selected", "got -1"]),
            ([*run, "--input", f"sel={future}"], ["sel[0, 0, 1, 0] = 2, expected 0 to 1"]),
            ([*run, "--input", f"sel={future}", "--selected", 1], ["--selected", "one of both"]),
            ([*run, "--input", floats], ["--input", "integers of 32 or 64 bits"]),
            ([*run, "--input", f"q={future}"], ["--input", "f32, bf16, f16 or e4m3"]),
            (["run", *PROBLEM, "--selected", 1], ["--selected", "param sel = index"]),
            (["verify", *PROBLEM, "--kernel", program], ["param sel = index", "verbatim run"]),
            (
                ["bench", *PROBLEM, "--device", "cuda", "--kernel", program],
                ["param sel = index", "without a plan"],
            ),
        ]:
            message = self.refused(*words)
            for part in parts:
                self.assertIn(part, message, words)
        report = self.refusal(*run, "--report", self.path / "none.html")
        self.assertIn("--report", report)

    def test_a_memo_says_what_is_left_open(self):
        memo, words = (
            self.path / "memo.json",
            ["tl", "reason", SKETCHES / "forward.tl", "--target", "a100", *SIZES, "--output"],
        )
        self.call(*words, self.path / "usual.tl")
        usual = (self.path / "usual.tl").read_text()
        memo.write_text('{"device": "some GPU", "choices": {}}')
        said = self.call(*words, self.path / "same.tl", "--memo", memo).stdout
        self.assertEqual((self.path / "same.tl").read_text(), usual)
        key, verdict = said.strip().split(": ")
        self.assertEqual(verdict, "not measured")
        memo.write_text(
            json.dumps(
                {
                    "device": "some GPU",
                    "choices": {key: {"tile_q": 64, "tile_kv": 32, "stages": 1, "warps": 4}},
                }
            )
        )
        said = self.call(*words, self.path / "measured.tl", "--memo", memo).stdout
        self.assertEqual(said, f"{key}: measured on some GPU\n")
        text = (self.path / "measured.tl").read_text()
        self.assertIn("param BN = 32  // keys of a tile: measured on some GPU", text)
        self.call(*words, self.path / "asked.tl", "--memo", memo, "--tile-kv", 128)
        self.assertIn("param BN = 128", (self.path / "asked.tl").read_text())

    def test_a_folder_that_cannot_be_made(self):
        program, file = self.reason("forward"), self.path / "file"
        file.write_text("mine")
        for command in ("emit", "build"):
            for folder in (file, file / "below"):
                message = self.refusal("tl", command, program, "--output", folder)
                for part in ("--output", f"'{folder}' cannot be made", f"got '{file}': no folder"):
                    self.assertIn(part, message)
                self.assertIn(f"expected a folder, or a path in one where files may be made (nearest: "
                              f"{self.path})", message)  # fmt: skip

    def test_no_compiler(self):
        program = self.reason("forward")
        message = self.refusal(
            "tl", "build", program, "--output", self.path / "out", env={"PATH": "/nowhere"}
        )
        for part in ("no nvcc on the PATH", "got /nowhere", "expected a CUDA toolkit's bin folder"):
            self.assertIn(part, message)
        self.assertIn("nearest: /usr/local/cuda/bin", message)

    def test_an_architecture_that_is_none(self):
        program, compiler = self.reason("forward"), self.path / "nvcc"
        compiler.write_text("#!/bin/sh\nexit 1\n")
        compiler.chmod(0o755)
        words = ["tl", "build", program, "--output", self.path / "out", "--arch"]
        for arch in ("sm80", "sm_", "sm_a", "sm_9a0", "sm_90aa"):
            message = self.refusal(*words, arch, env={"PATH": str(self.path)})
            self.assertIn(f"got {arch}, expected sm_N", message)

    def test_libraries_that_are_none(self):
        run = ["run", *PROBLEM, "--pass", "forward", "--device", "cuda", "--kernel"]
        if "no CUDA backend" in self.call("info").stdout:
            self.skipTest("this build loads no libraries")
        text, empty = self.path / "text.so", self.path / "empty.so"
        text.write_text("Copy Q from global to shared\n")
        for library, parts in [
            (text, ["it is no library; got " + str(text)]),
            (self.path / "missing.so", ["it is no library", "missing.so", "No such file"]),
            (self.library("empty", "int verbatim_other;"), ["holds no kernel; got " + str(empty)]),
            (self.library("old", VERSION % "verbatim_library"), ["another version; got"]),
            (self.library("selected", VERSION % "verbatim_selected"), ["another version; got"]),
        ]:
            message = self.refusal(*run, library)
            for part in [*parts, "--kernel: ", "expected ", "`verbatim tl build`", "(nearest: "]:
                self.assertIn(part, message, library)

    def library(self, name, source):
        library = self.path / f"{name}.so"
        (self.path / f"{name}.c").write_text(source + "\n")
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", library, self.path / f"{name}.c"], check=True
        )
        return library

    def test_bad_input(self):
        sketch, output = SKETCHES / "forward.tl", self.path / "none.tl"
        program = self.reason("forward")
        shutil.copy(program, self.path / "two.tl")
        for words, parts in [
            (
                ["tl", "reason", sketch, "--target", "a200", "--output", output, *SIZES],
                ["got 'a200'", "nearest: a100"],
            ),
            (
                ["tl", "reason", sketch, "--target", "a100", "--output", output],
                ["got f32", "nearest: bf16"],
            ),
            (
                ["tl", "reason", sketch, "--target", "t4", "--output", output, *SIZES],
                ["nearest: f16"],
            ),
            (
                [
                    "tl reason",
                    sketch,
                    "--target t4 --output",
                    output,
                    "--dtype f16 --head-dim 128 --tile-kv 64",
                ],
                ["shared memory", "nearest: --tile-q"],
            ),
            (
                ["tl reason", sketch, "--target a100 --output", output, *SIZES, "--tile-q -1"],
                ["--tile-q"],
            ),
            (
                [
                    "tl reason",
                    sketch,
                    "--target a100 --output",
                    output,
                    *SIZES,
                    "--tune --device cpu",
                ],
                ["--device", "nearest: cuda"],
            ),
            (
                ["tl reason", sketch, "--target a100 --output", output, *SIZES, "--memo", program],
                ["JSON"],
            ),
            (
                ["tl reason", sketch, "--target a100 --output", output, *SIZES, "--stages -1"],
                ["--stages"],
            ),
            (
                ["tl reason", sketch, "--target a100 --output", output, *SIZES]
                + ["--tile-q", 10**12],
                ["tile_q is out of range; got 1000000000000, expected 1 to 1024", "nearest: 1024"],
            ),
            (
                ["tl reason", sketch, "--target a100 --output", output, *SIZES]
                + ["--warps", 10**12],
                ["warps is out of range; got 1000000000000, expected 1 to 32", "nearest: 32"],
            ),
            (
                ["tl reason", sketch, "--target a100 --output", output, *SIZES]
                + ["--device cuda:1"],
                ["--device", "--tune"],
            ),
            (
                ["tl reason", SKETCHES / "backward.tl", "--target l40s --output", output, *E4M3],
                ["e4m3 is of forwards", "got e4m3, expected f16, bf16 (nearest: bf16)"],
            ),
            (["tl", "check", sketch], ["parameter: ", "right would be: "]),
            (["tl", "check", "--level", "most", sketch], ["most"]),
            (["tl", "check", self.path / "missing.tl"], ["missing.tl"]),
            (["tl", "chekc", sketch], ["chekc"]),
            (["run", *PROBLEM, "--kernel", sketch], ["got a sketch", "tl reason"]),
            (["run", *PROBLEM, "--tile-q", 64, "--kernel", program], ["got 64, expected 128"]),
            (["run", *PROBLEM, "--dtype", "f16", "--kernel", program], ["dtype"]),
            (
                ["run", *PROBLEM, "--kernel", program, self.path / "two.tl"],
                ["two programs are for one pass"],
            ),
            (
                ["run", *PROBLEM, "--kernel", self.path / "two.so"],
                ["--kernel", "TL code, or --device cuda"],
            ),
            (
                ["run", *PROBLEM, "--arithmetic", "sm80", "--kernel", program],
                ["--arithmetic", "got sm80"],
            ),
            (["tl", "emit", sketch, "--output", self.path / "out"], ["got a sketch"]),
            (
                ["tl", "emit", program, "--target", "t4", "--output", self.path / "out"],
                ["take no bf16", "right would be: f16"],
            ),
            (
                ["tl", "emit", program, "--target", "h20", "--output", self.path / "out"],
                ["nearest: h200"],
            ),
        ]:
            message = self.refusal(*words)
            for part in parts:
                self.assertIn(part, message, words)


if __name__ == "__main__":
    unittest.main(verbosity=2)

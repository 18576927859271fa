#!/usr/bin/env python3
"""What becomes of output that has no place: on stdout, in files."""

import json
import resource
import subprocess
import unittest

from cli_tool import ROOT, TOOL, Tool

SKETCH = ROOT / "kernels" / "tl" / "forward.tl"


class Output(Tool):
    def lost(self, redirection, *words):
        """The exit code and the message where the shell sends stdout as `redirection` says."""
        done = subprocess.run(
            ["sh", "-c", f'"$0" "$@" {redirection}', TOOL, *map(str, words)],
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.stderr.count("verbatim: "), done.returncode != 0, done.stderr)
        return done.returncode, done.stderr

    def test_what_is_lost_on_stdout_is_a_failure(self):
        for words in (
            "mask --mask causal --seqlen 64 --to json",
            "mask --mask causal --seqlen 300 --to dense",  # more than a buffer holds
            "run --seqlen 8 --head-dim 8",
            f"tl fmt {SKETCH}",
            "run --help",
            "--version",
        ):
            for redirection in (">/dev/full", ">&-"):
                code, message = self.lost(redirection, *words.split())
                self.assertEqual(code, 3, words)
                self.assertRegex(message, "No space left on device|Bad file descriptor")

    def test_exit_codes_need_no_stderr(self):
        file = self.path / "result.json"
        for redirection in ("2>&-", "2>/dev/full"):
            for words, code in (("run --seqlen -1", 2), ("run --no", 2), ("mask", 0)):
                line = f'"$0" {words} --json {file} {redirection}'
                done = subprocess.run(["sh", "-c", line, TOOL], stdout=subprocess.DEVNULL)
                self.assertEqual(done.returncode, code, line)
                self.assertEqual(file.exists(), code == 0)
            file.unlink()

    def test_a_full_disk_is_a_failure(self):
        saved = self.path / "r.json"
        self.call("run --seqlen 8 --json", saved)
        for words in (
            ["run --seqlen 8 --json /dev/full"],
            ["run --seqlen 8 --report /dev/full"],
            ["mask --svg /dev/full"],
            ["mask --to json --to-file /dev/full"],
            ["plan --seqlen 8 --dump /dev/full"],
            ["report", saved, "--output /dev/full"],
            [f"tl reason {SKETCH} --target a100 --dtype bf16 --output /dev/full"],
        ):
            message = self.call(*words, code=3).stderr
            self.assertIn("'/dev/full': could not write all of it: No space left", message)

    def test_files_are_whole_or_not_there(self):
        program, sketch = self.path / "program.tl", self.path / "sketch.tl"
        self.call(f"tl reason {SKETCH} --target a100 --dtype bf16 --output", program)
        sketch.write_text("\n\n" + SKETCH.read_text())
        saved = self.path / "r.json"
        self.call("run --seqlen 8 --json", saved)
        for words, name in (
            ("run --seqlen 64 --json", "result.json"),
            ("run --seqlen 64 --report", "page.html"),
            ("run --seqlen 64 --output", "x.safetensors"),
            ("run --seqlen 64 --output", "x.npy"),
            ("mask --seqlen 4096 --svg", "mask.svg"),
            ("mask --seqlen 256 --to dense --to-file", "dense.txt"),
            ("plan --seqlen 1024 --dump", "plan.json"),
            ("plan --seqlen 1024 --gantt", "chart.svg"),
            ("plan --seqlen 1024 --perfetto", "trace.json"),
            ("trace --seqlen 256 --gantt", "chart.svg"),
            ("trace --seqlen 256 --perfetto", "trace.json"),
            ("tune --seqlen 256 --memo", "memo.json"),
            (f"report {saved} --output", "page.html"),
            (f"tl reason {SKETCH} --target a100 --dtype bf16 --output", "new.tl"),
            (f"tl emit {program} --output", ""),
            ("tl fmt --write", "sketch.tl"),
        ):
            self.full(words.split(), self.path / name)

    def full(self, words, file):
        """Where a file holds 100 bytes: nothing but an error, of which one is told."""
        before = {p: p.read_bytes() for p in self.path.iterdir()}
        done = subprocess.run(
            [TOOL, *words, file],
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        )
        self.assertEqual(done.returncode, 3, (words, done.stderr))
        self.assertEqual(done.stdout, "")
        written = file.with_name("x.o.npy") if file.suffix == ".npy" else file
        self.assertIn(f"'{written}", done.stderr)
        self.assertIn("could not write all of it: File too large", done.stderr)
        self.assertEqual({p: p.read_bytes() for p in self.path.iterdir()}, before, words)

    def test_files_are_none_of_a_closed_stdout(self):
        file = self.path / "result.json"
        words = ["run", "--seqlen", 8, "--head-dim", 8, "--json", file]
        self.assertEqual(self.lost(">&-", *words)[0], 3)
        self.assertEqual(json.loads(file.read_text())["command"], "run")
        words = ["mask", "--seqlen", 8, "--to", "json", "--to-file", file]
        self.assertEqual(self.lost(">&-", *words), (0, ""))  # nothing was to be printed


if __name__ == "__main__":
    unittest.main()

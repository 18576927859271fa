"""What the tests of the built tool share: python3 FILE_test.py TOOL [CLASS]."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import schema

ROOT = pathlib.Path(__file__).resolve().parents[2]

DOCUMENTS = (
    "--mask causal_document --doc-lengths 70,0,90,33 --q-heads 4 --kv-heads 2 --head-dim 32"
    " --dtype bf16"
).split()
TOOL = os.path.abspath(sys.argv.pop(1))


class Word(str):
    """One argument as it is: nothing, or with spaces."""


class Tool(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def call(self, *words, code=0, env=None):
        """Runs the tool, with `env` beside the environment. A text may hold several words."""
        words = [w for each in words for w in (each.split() if type(each) is str else [str(each)])]
        done = subprocess.run(
            [TOOL, *words],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **(env or {})},
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def call_until_calm(self, *words):
        """A command that measures may find the machine too busy: then it says so, and again."""
        for attempt in range(5):
            try:
                return self.call(*words)
            except AssertionError as failure:
                self.assertIn("the measurements contradict each other", str(failure))
                self.assertLess(attempt, 4)

    def result(self, *words, code=0):
        file = self.path / "result.json"
        self.call(*words, "--json", file, code=code)
        result = json.loads(file.read_text())
        self.assertEqual(schema.check(result), [])
        return result

    def refused(self, *words, code=2):
        """Bad input: exit code 2, a message on stderr, nothing on stdout, no file touched."""
        (self.path / "old.json").write_text("kept")
        before = {p: p.read_bytes() for p in self.path.iterdir()}
        done = self.call(*words, "--json", self.path / "old.json", code=code)
        self.assertEqual(done.stdout, "")
        self.assertTrue(done.stderr.startswith("verbatim: "), done.stderr)
        self.assertEqual({p: p.read_bytes() for p in self.path.iterdir()}, before)
        return done.stderr

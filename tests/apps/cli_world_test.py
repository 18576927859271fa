#!/usr/bin/env python3
"""Ranks as processes: python3 cli_world_test.py TOOL [CLASS]."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import unittest

from cli_tool import DOCUMENTS, TOOL, Tool

LIBRARY = pathlib.Path(TOOL).with_name("libverbatim_mpi.so")
SMALL = ["run", "--seqlen", "300", "--q-heads", "4", "--head-dim", "16", "--repeats", "1"]


def processes_with(*variables):
    """Numbers of the processes that have all of these in their environments."""
    found = []
    for each in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            environment = (each / "environ").read_bytes()
        except OSError:  # it has ended, or is another user's
            continue
        if all(variable.encode() in environment for variable in variables):
            found.append(int(each.name))
    return found


def kill_all(mark):
    for process in processes_with(mark):
        os.kill(process, signal.SIGKILL)


def until(seconds, found):
    """What found() returns once it is true, or after so long."""
    end = time.monotonic() + seconds
    while not (result := found()) and time.monotonic() < end:
        time.sleep(0.1)
    return result


@unittest.skipUnless(LIBRARY.exists() and shutil.which("mpirun"), "built without MPI")
class World(Tool):
    def mpirun(self, *programs, tool=TOOL):
        """The ranks of each program: a number of them, then its words."""
        words = ["mpirun"]
        for count, *program in programs:
            words += [
                *([":"] if len(words) > 1 else []),
                "-n",
                str(count),
                str(tool),
                *map(str, program),
            ]
        environment = dict(
            os.environ,
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
            OMPI_MCA_plm="isolated",
            OMPI_MCA_rmaps_base_oversubscribe="1",
            OMPI_MCA_hwloc_base_binding_policy="none",
            OMPI_MCA_btl="self,vader",
            OMPI_MCA_btl_vader_single_copy_mechanism="none",
        )
        return subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)

    def messages(self, done, code=2):
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        return [line for line in done.stderr.splitlines() if line.startswith("verbatim: ")]

    def test_processes_have_the_bits_of_one(self):
        alone = self.result("run", *DOCUMENTS, "--repeats", 1)
        ranks = ["--strategy", "loongtrain", "--shard", "zigzag", "--ulysses-size", 2]
        ranks += ["--repeats", 1]
        result = self.result("run", *DOCUMENTS, "--world", "local:4", *ranks)
        self.assertEqual(result["bits"], alone["bits"])
        self.assertEqual(result["plan"]["fingerprint"], alone["plan"]["fingerprint"])
        self.assertEqual((result["dist"]["engine"], result["dist"]["world"]), ("mpi", 4))
        replayed = self.result("run", *DOCUMENTS, "--world", "replay:4", *ranks)["dist"]
        for ours, theirs in zip(result["dist"]["passes"], replayed["passes"], strict=True):
            for rank, other in zip(ours["ranks"], theirs["ranks"], strict=True):
                self.assertEqual(rank["sent_bytes"], rank["predicted_bytes"])
                self.assertGreater(rank.pop("exposed_ms"), 0)
                for each in (rank, other):
                    self.assertLessEqual(
                        sum(each.pop("launch_ms")),  # the rest are additions
                        each.pop("compute_ms") * (1 + 1e-9),
                    )
                self.assertEqual(rank, other)

    def test_heads_that_move(self):
        """Of a sequence without chunks ranks visit whole heads."""
        words = ["run", "--seqlen", 2304, "--q-heads", 4, "--kv-heads", 4, "--head-dim", 16]
        words += ["--repeats", 1]
        alone = self.result(*words)
        result = self.result(*words, "--world", "local:3", "--strategy", "balanced")
        self.assertEqual(result["bits"], alone["bits"])
        for each in result["dist"]["passes"]:
            for rank in each["ranks"]:
                self.assertEqual(rank["sent_bytes"], rank["predicted_bytes"])
        dumped = self.path / "dist.json"
        self.call("plan", *words[1:-2], "--world", "replay:3", "--dump", dumped)
        rooms = [len(rank["rooms"]) for rank in json.loads(dumped.read_text())["ranks"]]
        self.assertEqual(max(rooms), 2)

    def test_under_mpirun(self):
        file = self.path / "result.json"
        words = [*SMALL, "--world", "mpi", "--json", file]
        done = self.mpirun([3, *words])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("3 ranks"), 1)
        alone = self.result(*SMALL)["bits"]
        self.assertEqual(json.loads(file.read_text())["bits"], alone)

    def test_bench(self):
        (row,) = self.result("bench", *DOCUMENTS, "--repeats", 2, "--world", "local:2")["results"]
        (dist,) = row["dist"]
        self.assertEqual((dist["engine"], dist["differing_words"]), ("mpi", 0))
        for each in dist["passes"]:
            self.assertGreaterEqual(each["ms"], each["largest_ms"] / 2)

    def test_verify(self):
        result = self.result("verify", *DOCUMENTS, "--repeats 1 --world local:2 --strategy usp")
        world = [row for row in result["audit"] if row["check"] == "world"]
        self.assertEqual([(row["runs"], row["identical"]) for row in world], [(1, True)])

    def test_bad_input_is_told_once(self):
        for words, part in (
            (["--world", "local:3", "--strategy", "ulysses"], "nearest: 2"),
            (["--world", "local:4", "--strategy", "usp", "--ulysses-size", 3], "nearest: 2"),
            (["--world", "local:2", "--mask", "@{file}"], "nearest: --q-len 200"),
            (["--world", "local:2", "--softcap", -1], "softcap"),
            (["--world", "local:0"], "nearest: local:1"),
            (["--world", "local:2", "--timeout", 0], "--timeout"),
            (["--world", "replay:2", "--timeout", 9], "local:N"),
            (["--world", "mpi"], "local:2"),
            (["--world", "replay:2", "--strategy", "all"], "--strategy: there is no such name"),
            (["--world", "local:2", "--strategy", "ring,usp"], "--strategy: there is no such name"),
        ):
            file = self.path / "mask.json"
            self.call("mask", "--seqlen", 200, "--to", "json", "--to-file", file)
            words = [str(word).format(file=file) for word in words]
            error = self.refused(*SMALL, *words)
            self.assertIn(part, error)
            self.assertEqual(error.count("verbatim: "), 1, error)

    def test_on_a_gpu(self):
        """Ranks take turns over the GPUs that there are; that there is none is told once, with the
        exit code of one process."""
        words = [*DOCUMENTS, "--device", "cuda"]
        ranks = ["--world", "local:2", "--strategy", "usp"]
        devices = {one["name"]: one["state"] for one in self.result("info")["devices"]}
        if devices["cuda"] == "ready":
            result, alone = self.result("run", *words, *ranks), self.result("run", *words)
            self.assertEqual(result["bits"], alone["bits"])
            return
        code = 2 if "backend" in devices["cuda"] else 3  # not compiled, or not there
        for asked in ([], ranks):
            error = self.refused("run", *words, *asked, code=code)
            self.assertIn("cuda:0", error)
            self.assertEqual(error.count("verbatim: "), 1, error)

    def test_bad_input_of_one_rank(self):
        for words, part in (
            (["--softcap", 20], "problem.softcap of rank 2"),
            (["--scale", 0.3], "problem.scale of rank 2"),
            (["--seed", 5], "problem.seed of rank 2"),  # of inputs, too
            (["--dropout", 0.5], "problem.dropout of rank 2"),
            (["--order", "ascending"], "backward.order of rank 2"),
            (["--forward-order", "ascending"], "forward.order of rank 2"),
            (["--level", "run_to_run"], "level of rank 2"),
            (["--mask", "full"], "mask.name of rank 2"),
            (["--strategy", "ring"], "dist.strategy of rank 2"),
            (["--kv-heads", 3], "rank 2: kv_heads"),
            (["--kv-head", 2], "rank 2: The following"),
            (["--seed", -1], "rank 2: --seed"),
            (["--json", "\udcff"], "rank 2: --json: not UTF-8"),
        ):
            for world in (["--world", "mpi"], ["--world=mpi"]):
                ranks = [2, *SMALL, *world], [1, *SMALL, *world, *words]
                errors = self.messages(self.mpirun(*ranks))
                self.assertEqual(len(errors), 1, errors)
                self.assertIn(part, errors[0])

    def test_every_rank_ends_with_the_code_of_bad_input(self):
        codes, file = self.path / "codes", self.path / "result.json"
        wrapper = self.path / "wrapper.sh"  # else mpirun ends the others when one has failed
        wrapper.write_text(f'#!/bin/sh\n"{TOOL}" "$@"\necho $? >> "{codes}"\n')
        wrapper.chmod(0o755)
        for words, part in (
            (["--strategy", "ulysses"], "nearest: 2"),
            (["--strategy", "usp", "--ulysses-size", 2], "the Ulysses group"),
            (["--mask", "causal_document", "--doc-lengths", "100,100"], "doc-lengths"),
            (["--softcap", -1], "softcap"),
        ):
            codes.unlink(missing_ok=True)
            done = self.mpirun([3, *SMALL, "--world", "mpi", "--json", file, *words], tool=wrapper)
            errors = [line for line in done.stderr.splitlines() if line.startswith("verbatim: ")]
            self.assertEqual(len(errors), 1, done.stderr)
            self.assertIn(part, errors[0])
            self.assertEqual(codes.read_text().split(), ["2", "2", "2"], words)
            self.assertFalse(file.exists())

    def test_other_tensors_of_one_rank(self):
        self.call(*SMALL, "--output", self.path / "x.npy")  # o and dq have the shape of q
        ranks = (
            [n, *SMALL, "--world", "mpi", "--input", f"q={self.path}/x.{name}.npy"]
            for n, name in ((2, "o"), (1, "dq"))
        )
        (error,) = self.messages(self.mpirun(*ranks))
        self.assertIn("inputs.q of rank 2", error)

    def test_what_fails_at_one_rank_names_it(self):
        told = self.call(*SMALL, "--world local:2 --json /dev/full", code=3).stderr
        self.assertTrue(told.startswith("verbatim: rank 0: [file.write] '/dev/full'"), told)

    def test_without_a_world_each_process_tells_its_error(self):
        done = self.mpirun([1, *SMALL], [1, *SMALL, "--softcap", -1])
        self.assertIn("verbatim: [problem] softcap", done.stderr)

    def test_what_ranks_print_and_is_lost_is_a_failure(self):
        for ranks in (2, 16):  # of these the tables are more than a buffer holds
            for redirection in (">/dev/full", ">&-"):
                words = [*SMALL, "--world", f"local:{ranks}", "--check", "none"]
                done = subprocess.run(
                    ["sh", "-c", f'"$0" "$@" {redirection}', TOOL, *words],
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=60,
                )
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertRegex(done.stderr, "No space left on device|Bad file descriptor")

    def test_a_killed_rank_ends_all(self):
        for rank in (0, 3):
            mark, file = f"{self.path}/{rank}", self.path / "killed.json"
            words = ["run --seqlen 4096 --q-heads 16 --head-dim 64 --repeats 1000 --check none",
                     "--world local:4 --timeout 20 --json", file]  # fmt: skip
            done = subprocess.Popen(
                [TOOL, *(w for each in words for w in str(each).split())],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "VERBATIM_TEST_MARK": mark},
            )
            self.addCleanup(kill_all, mark)
            ranks = until(60, lambda: processes_with(mark, f"OMPI_COMM_WORLD_RANK={rank}"))  # noqa: B023
            self.assertTrue(ranks and done.poll() is None)
            time.sleep(1)  # it plans, or is among its messages
            for process in ranks:
                os.kill(process, signal.SIGKILL)
            killed = time.monotonic()
            out, message = done.communicate(timeout=60)
            self.assertLess(time.monotonic(), killed + 20 + 10)  # --timeout
            self.assertEqual((done.returncode, out), (3, ""), message)
            told = [line for line in message.splitlines() if line.startswith("verbatim: ")]
            self.assertEqual(len(told), 1, message)
            self.assertRegex(told[0], rf"rank {rank}\b")
            self.assertTrue(until(10, lambda: not processes_with(mark)))  # noqa: B023
            self.assertFalse(file.exists())

    def test_a_message_is_written_at_once(self):
        """Else its end comes behind what another rank writes."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a packet a write
        subprocess.run([TOOL, *SMALL, "--world", "local:0"], stderr=theirs, timeout=60)
        self.assertRegex(ours.recv(4096).decode(), r"^verbatim: .*local:1\)\n$")
        ours.close()
        theirs.close()

    def test_a_launcher_that_starts_no_ranks(self):
        (self.path / "mpirun").touch(mode=0o755)
        path = f"{self.path}:{os.environ['PATH']}"
        for script, code, got in (
            ("exit 0", 3, "with code 0"),
            ("echo Use another launcher >&2", 3, "with code 0"),
            ("while [ $1 != run ]; do tool=$1; shift; done; exec $tool $@", 2, "is no rank"),
        ):
            (self.path / "mpirun").write_text(f"#!/bin/sh\n{script}\n")
            words = [*SMALL, "--world", "local:2", "--json", self.path / "result.json"]
            (told,) = self.messages(self.call(*words, code=code, env={"PATH": path}), code)
            self.assertIn(f"{self.path}/mpirun starts no ranks of Open MPI; got ", told)
            self.assertIn(got, told)
            self.assertFalse((self.path / "result.json").exists())

    def test_a_library_of_another_mpi_than_the_launcher(self):
        """Each process is then alone, and told that it is one of several."""
        alone = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
        for world in ("local:2", "mpi"):
            (told,) = self.messages(self.call(*SMALL, "--world", world, code=2, env=alone))
            self.assertIn("got rank 0 of 1 by the library, expected rank 0 of 2", told)

    def test_without_library_or_launcher(self):
        def refused(**changed):
            done = subprocess.run(
                [TOOL, *SMALL, "--world", "local:2"],
                capture_output=True,
                text=True,
                env={**os.environ, **changed},
                timeout=60,
            )
            return self.messages(done)

        (library,) = refused(VERBATIM_MPI="/nowhere/lib.so")
        self.assertIn("library for MPI", library)
        (launcher,) = refused(PATH="/nowhere")
        self.assertIn("no mpirun on PATH", launcher)


if __name__ == "__main__":
    unittest.main()

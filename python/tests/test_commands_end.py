"""How python -m verbatim_attn.bench, audit and papers end: their exit codes, and what they leave."""

import os
import signal
import stat
import subprocess
import sys
import threading

import pytest
from benching import bench

TINY = ["--seqlen", "48", "--heads", "4:2", "--head-dim", "16", "--dtype", "f32", "--repeats", "2",
        "--protocol", "brief"]  # fmt: skip
CAUSAL = ["--mask", "causal", *TINY]

MASKS = {
    '{"name": "causal_sliding_window", "params": {"window": -3}}': "window is out of range; got -3",
    '{"name": "causal_sliding_window", "params": {"window": "x"}}': "'window' has the wrong type",
    '{"name": "causal_sliding_window", "params": [1]}': "params is no object",
    '{"name": "causal_document", "params": {"doc_lengths": [1, 2]}}': "the mask has other lengths",
    '{"name": "explicit", "params": {"json": "x"}}': "",
    '{"name": "intersection", "params": {"masks": [1, 2]}}': "no object to hold the members; got 1",
    "_text": "expected full, causal",
}


@pytest.mark.parametrize("mask", MASKS)
def test_bad_masks_are_one_line(mask):
    (line,) = bench("--mask", mask, *TINY, "--dry-run", code=2).stderr.splitlines()
    assert line.startswith("verbatim_attn.bench: ") and MASKS[mask] in line
    assert "--mask got " in line and "__text" not in line


def test_a_run_of_errors_alone_fails(tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "wrong.tl"
    program.write_text("nothing that is TL")
    alone = ["--providers", f"verbatim:{program}"]
    said = bench(*CAUSAL, *alone, "--json", tmp_path / "r.json", code=3).stdout
    assert "error" in said and (tmp_path / "r.json").exists()
    bench("--from", tmp_path / "r.json", code=3)
    bench(*CAUSAL, "--providers", f"verbatim,verbatim:{program}")


@pytest.mark.parametrize("option", ["--json", "--csv", "--markdown", "--html", "--resume"])
@pytest.mark.parametrize("where", ["no/such/folder/x", "folder"])
def test_files_are_tried_before_anything_is_measured(option, where, tmp_path):
    (tmp_path / "folder").mkdir()
    (line,) = bench(*CAUSAL, option, tmp_path / where, code=2).stderr.splitlines()
    assert f"{option} got {tmp_path / where}, expected a file that can be written" in line
    assert os.listdir(tmp_path) == ["folder"] and not os.listdir(tmp_path / "folder")


def test_a_pipe_is_written_and_stays_one(tmp_path):
    """As root a file in its place, or in that of /dev/null, would be everybody's."""
    pytest.importorskip("torch")
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    bench(*CAUSAL, "--json", pipe)
    reader.join(10)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and '"command": "bench"' in read[0]
    assert os.listdir(tmp_path) == ["pipe"]


def command(module, *words, **how):
    words = [sys.executable, "-m", f"verbatim_attn.{module}", *map(str, words)]
    return subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=80, **how)


def test_the_other_commands_try_theirs(tmp_path):
    (tmp_path / "folder").mkdir()
    for module, *words in (
        ("audit", "--target", "verbatim", "--device", "cpu", "--json"),
        ("papers", "--markdown"),
    ):
        done = command(module, *words, tmp_path / "folder", stdout=subprocess.PIPE)
        assert done.returncode == 2 and done.stdout == "", done.stderr
        assert "Is a directory" in done.stderr and len(done.stderr.splitlines()) == 1
        assert os.listdir(tmp_path) == ["folder"]


def test_links_stay(tmp_path):
    """What they lead to is replaced; to what is open, as /dev/stdout may be, is added."""
    (tmp_path / "link").symlink_to("page")
    (tmp_path / "open").symlink_to("/proc/self/fd/1")
    for _ in "made", "replaced":
        with (tmp_path / "printed").open("w") as printed:
            command("papers", "--markdown", tmp_path / "link", stdout=subprocess.DEVNULL)
            command("papers", "dash:fig1", "--markdown", tmp_path / "open", stdout=printed)
    page = (tmp_path / "page").read_text()
    assert page.startswith("# The four papers")
    assert (tmp_path / "printed").read_text().startswith(page) and (tmp_path / "link").is_symlink()
    assert (tmp_path / "printed").stat().st_size > len(page.encode())  # dash:fig1 comes behind it
    assert sorted(os.listdir(tmp_path)) == ["link", "open", "page", "printed"]
    (tmp_path / "circle").symlink_to("circle")
    done = command("papers", "--markdown", tmp_path / "circle", stdout=subprocess.PIPE)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [("bench", "--list"), ("audit", "--list", "--device", "cpu"), ("papers",)]
)
def test_who_stops_reading_ends_them(words):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = command(*words, stdout=writing)
    finally:
        os.close(writing)
    assert done.returncode == -signal.SIGPIPE and done.stderr == ""

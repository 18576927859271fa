"""The four papers' list: complete, made through the other commands, resumed, and its page current.
Needs neither PyTorch nor a GPU."""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import verbatim_attn as va
from verbatim_attn._errors import Refused
from verbatim_attn.bench import __main__ as bench
from verbatim_attn.bench import page as bench_page
from verbatim_attn.papers import document, evidence, registry, run, views

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
# Figures and tables, as the texts name them.
COUNTS = {"dash": (10, 1), "longca": (31, 11), "re": (9, 1), "qimeng": (4, 9)}
TEXTS = {"dash": "dash.txt", "longca": "longca-bench.txt", "re": "re-flashattention.txt",
         "qimeng": "qimeng-attention-llm-tl.txt"}  # fmt: skip


def papers(*words, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "verbatim_attn.papers", *map(str, words)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def tool():
    if not os.environ.get("VERBATIM_TOOL"):
        pytest.skip("VERBATIM_TOOL does not name the command-line tool")


def test_every_table_and_figure_has_a_row():
    listed = {name for name in registry.ENTRIES if not name.endswith(":tuner")}
    assert listed == {
        f"{paper}:{kind}{number}" for paper, counts in COUNTS.items()
        for kind, count in zip(("fig", "table"), counts, strict=True)
        for number in range(1, count + 1)
    }  # fmt: skip


if "VERBATIM_PAPERS" in os.environ:  # the folder of the texts, which are not ours to ship

    def test_every_table_and_figure_of_the_texts_has_a_row():
        for paper, name in TEXTS.items():
            text = pathlib.Path(os.environ["VERBATIM_PAPERS"], name).read_text(errors="replace")
            named = {("fig" if kind == "F" else "table") + number
                     for kind, number in re.findall(r"\b([FT])(?:igure|ig\.|able) (\d+)", text)
                     }  # fmt: skip
            assert len(named) == sum(COUNTS[paper])
            assert all(f"{paper}:{item}" in registry.ENTRIES for item in named)


def test_entries_can_be_made_where_they_say_so():
    for entry in registry.ENTRIES.values():
        makes = entry.needs in ("cpu", "gpu") or bool(entry.commands)
        assert makes == bool(entry.commands) == bool(entry.view), entry.name
        assert entry.needs in registry.NEEDS and entry.axis in views.AXES
        if entry.view:
            assert entry.view in views.VIEWS


def test_every_benchmark_has_cases():
    for entry in registry.ENTRIES.values():
        for kind, *words in entry.commands:
            if kind != "bench.py":
                continue
            a = bench.parser().parse_args(words[:-1])  # without DEVICE
            assert bench.chosen_cases(a), (entry.name, words)


def test_the_page_of_all_is_current():
    assert (ROOT / "docs" / "papers.md").read_text() == document.markdown(RESULTS)


def test_plans_are_made_resumed_and_drawn(tool, tmp_path):
    made, page = tmp_path / "fig3.json", tmp_path / "fig3.html"
    first = papers("dash:fig3", "--json", made, "--page", page)
    whole = json.loads(made.read_text())
    assert len(whole["parts"]) == 2 and page.read_text().count("<svg") == 2
    assert str(tmp_path) not in made.read_text()
    made.write_text(json.dumps({**whole, "parts": whole["parts"][:1]}))  # as if it had been cut
    again = papers("dash:fig3", "--json", made)
    assert again.stdout == first.stdout
    assert again.stderr.count("2 of 2") == 1 and "1 of 2" not in again.stderr
    refused = papers("dash:fig4", "--json", made, code=2)
    assert "another run" in refused.stderr and json.loads(made.read_text())["entry"] == "dash:fig3"


def test_every_page_has_one_style_and_policy(tool, tmp_path):
    """The tool's, an audit's, the benchmark's and an entry's."""
    of_tool = tmp_path / "tool.html"
    words = ("plan", "--mask", "causal", "--seqlen", "64", "--report", of_tool)
    subprocess.run([os.environ["VERBATIM_TOOL"], *words], check=True, capture_output=True)
    audit = va.audit(lambda x: {"y": x}, {"x": np.zeros(3, np.float32)}, checks=["repeats"])
    entry = registry.ENTRIES["dash:fig4"]
    pages = [
        of_tool.read_text(),
        audit.to_html(),
        bench_page.html([json.loads((RESULTS / "h200_rested.json").read_text())]),
        document.html(entry, evidence.parts(entry, RESULTS)),
    ]
    heads = {page.partition("</title>")[2].partition("<main>")[0] for page in pages}
    assert len(heads) == 1 and "--paper:" in heads.pop()


def test_results_of_one_run_are_compared_and_those_of_two_are_not(tmp_path):
    def saved(name, commit, words=(), **times):
        problem = {"batch": 1, "q_heads": 2, "kv_heads": 1, "q_len": 64, "head_dim": 16}
        rows = [{"set": "dense", "name": "case", "provider": provider, "status": "ok", "reason": "",
                 "problem": problem, "mask": {"name": "full", "params": {}},
                 "forward": None, "backward": {"ms": ms, "tflops": 1 / ms}}
                for provider, ms in times.items()]  # fmt: skip
        result = {"command": "bench", "device": {"name": "card"}, "commit": commit,
                  "arguments": list(words), "results": rows}  # fmt: skip
        (tmp_path / "papers" / name).write_text(json.dumps(result))

    (tmp_path / "papers").mkdir()
    entry = registry.Entry("dash:fig1", "", "", "gpu", view="lines", over=(("verbatim", "flex"),))
    saved("dash_fig1.json", "a", verbatim=2.0, flex=3.0)
    saved("dash_fig1.later.json", "b", flex=100.0)
    of = evidence.parts(entry, tmp_path)
    assert views.compared(entry, of) == (
        "backward rate of verbatim over flex 1.50 to 1.50, mean 1.50, 1 case"
    )
    assert "1.50" in document.line_of(entry, of) and "card, a, b" in document.line_of(entry, of)
    failed = json.loads((tmp_path / "papers" / "dash_fig1.json").read_text())
    failed["results"][0] |= {"status": "error", "backward": None}
    (tmp_path / "papers" / "dash_fig1.again.json").write_text(json.dumps(failed))
    assert "1.50" in views.compared(entry, evidence.parts(entry, tmp_path))
    (tmp_path / "papers" / "dash_fig1.json").rename(tmp_path / "papers" / "dash_fig1.z.json")
    assert "1.50" in views.compared(entry, evidence.parts(entry, tmp_path))
    saved("dash_fig1.tl.json", "a", ["bench", "--kernel", "f.so"], verbatim=8.0)
    saved("dash_fig1.shift.json", "a", ["bench", "--order", "shift"], verbatim=4.0)
    names = [row["provider"] for row in evidence.rows(evidence.parts(entry, tmp_path))]
    assert sorted(names) == ["flex", "flex", "verbatim", "verbatim TL", "verbatim shift"]


def test_an_entry_is_made_with_others_that_hold_its_cases(tmp_path):
    def saved(name, *q_lens):
        rows = [{"set": "dense", "name": "case", "provider": "verbatim", "status": "ok",
                 "reason": "", "problem": {"batch": 1, "q_heads": 2, "kv_heads": 1, "head_dim": 16,
                                           "q_len": q_len}, "mask": {"name": "full", "params": {}},
                 "forward": None, "backward": {"ms": 1.0, "tflops": q_len}} for q_len in q_lens]  # fmt: skip
        part = {"command": "bench", "device": {"name": "card"}, "commit": "", "results": rows}
        made = {"command": "papers", "parts": [{"words": ["bench.py"], "result": part}]}
        (tmp_path / name).write_text(json.dumps(made if "papers" in name else part))

    (tmp_path / "papers").mkdir()
    entry = registry.Entry("re:fig3", "", "", "gpu", (("bench.py",),), ("papers/a.json", "b.json"),
                           lambda row: row["problem"]["q_len"] > 1, "lines")  # fmt: skip
    assert document.state(entry, tmp_path) == "to be run"
    saved("papers/a.json", 1, 2)
    assert document.state(entry, tmp_path) == "made"
    assert "2 to 2 TFLOP/s, 1 case" in views.compared(entry, evidence.parts(entry, tmp_path))
    saved("b.json", 8)
    assert document.state(entry, tmp_path) == "made in part"
    assert "2 to 8 TFLOP/s, 2 cases" in views.compared(entry, evidence.parts(entry, tmp_path))


def test_libraries_lie_where_the_command_is_given(tmp_path, monkeypatch):
    library = tmp_path / "f.so"
    library.write_text("kernels")
    tool = tmp_path / "verbatim"
    tool.write_text("#!/bin/sh\n[ $(cat f.so) = kernels ] && echo '{}' > result.json\n")
    tool.chmod(0o755)
    monkeypatch.setenv("VERBATIM_TOOL", str(tool))
    monkeypatch.chdir(tmp_path)
    entry = registry.Entry("dash:fig1", "", "", "gpu", (("bench", "--kernel", "f.so"),))
    made = run.make(entry, str(tmp_path / "made.json"), "cpu", "", [])
    assert made["parts"] == [{"words": ["bench", "--kernel", "f.so"], "result": {}}]


def test_bad_input_is_refused(tmp_path):
    assert "nearest: dash:fig8" in papers("dash:fi8", code=2).stderr
    assert (
        "longca:table10, selection"
        in papers("longca:table10", "--json", tmp_path / "x", code=2).stderr
    )
    assert not (tmp_path / "x").exists()
    papers("--results", tmp_path / "nowhere", code=2)
    with pytest.raises(Refused, match="no result to draw"):
        document.html(registry.ENTRIES["dash:table1"], [])
    assert "dash:fig8" in papers().stdout
    assert run.shown(("plan", "--mask", "full")) == ["verbatim", "plan", "--mask", "full"]

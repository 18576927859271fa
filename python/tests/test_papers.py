"""The four papers' list: complete, made through the other commands, resumed, and its page current.
Needs neither PyTorch nor a GPU."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import verbatim_attn as va
from paper_files import saved_cases, told
from verbatim_attn._errors import Refused
from verbatim_attn.bench import __main__ as bench
from verbatim_attn.bench import page as bench_page
from verbatim_attn.papers import document, evidence, generated, lines, rates, registry, run, views

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import write_orders  # noqa: E402

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


@pytest.mark.parametrize("paper", TEXTS)
def test_every_table_and_figure_of_the_texts_has_a_row(paper):
    # Not ours to ship: a developer may have them beside the repository.
    folder = pathlib.Path(os.environ.get("VERBATIM_PAPERS") or ROOT.parent / "shared" / "papers")
    if not folder.is_dir():
        pytest.skip(f"VERBATIM_PAPERS names no folder of the papers' texts, nor is there {folder}")
    text = (folder / TEXTS[paper]).read_text(errors="replace")
    named = {("fig" if kind == "F" else "table") + number
             for kind, number in re.findall(r"\b([FT])(?:igure|ig\.|able) (\d+)", text)
             }  # fmt: skip
    assert len(named) == sum(COUNTS[paper])
    assert all(f"{paper}:{item}" in registry.ENTRIES for item in named)


def test_entries_can_be_made_where_they_say_so():
    for entry in registry.ENTRIES.values():
        makes = entry.needs in ("cpu", "gpu") or bool(entry.commands)
        assert makes == bool(entry.commands) == bool(entry.view), entry.name
        assert entry.needs in registry.NEEDS and set(entry.axes) <= set(rates.AXES)
        if entry.view:
            assert entry.view in views.VIEWS


def test_every_benchmark_has_cases():
    for entry in registry.ENTRIES.values():
        for kind, *words in entry.commands:
            if kind != "bench.py":
                continue
            a = bench.parser().parse_args(words[:-1])  # without DEVICE
            assert bench.chosen_cases(a), (entry.name, words)


def test_cases_that_are_asked_for_are_the_entrys_own():
    asked = {}
    for entry in registry.ENTRIES.values():
        for kind, *words in entry.commands:
            if kind == "bench.py" and entry.files:
                cases = bench.chosen_cases(bench.parser().parse_args(words[:-1]))
                rows = [{"set": case.set, "problem": case.problem._asdict(),
                         "mask": evidence._described(case)} for case in cases]  # fmt: skip
                assert all(map(entry.cases, rows)), entry.name
                asked.setdefault(entry.name, []).extend(case.name for case in cases)
    for number in range(4, 10):  # the paper's sizes, and unequal ones
        names = asked[f"longca:table{number}"]
        assert {"128", "variable"} <= {name.split()[1] for name in names}
        lengths = {int(name.split()[-1]) for name in names}
        assert lengths == ({16384} if number in (6, 9) else {8192, *range(16384, 131073, 16384)})


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


def test_options_of_a_trial_stand_in_place_of_the_commands_own(tool, tmp_path):
    tools = (("bench", "--set", "dense", "--match", "full", "--repeats", "3", "DEVICE"),
             ("tune", "--set", "gqa", "DEVICE"))  # fmt: skip
    trial = "--match hd64.full.512$ --seqlen 64 --batch 1 --repeats=1".split()
    words = [run._words(command, "cpu", trial) for command in tools]
    device = ["--device", "cpu"]
    assert words == [["bench", "--set", "dense", *device, *trial],
                     ["tune", "--set", "gqa", *device, *trial]]  # fmt: skip
    assert run._words(("plan", "--mask", "full"), "cpu", trial) == ["plan", "--mask", "full"]
    # The tool itself, which takes each of its options once.
    one = ("bench", "--seqlen", "128", "--q-heads", "2", "--repeats", "3", "DEVICE")
    entry = dataclasses.replace(registry.ENTRIES["dash:fig8"], commands=(one,))
    made = run.make(entry, str(tmp_path / "x.json"), "cpu", "", "--repeats 1 --seqlen 64".split())
    (row,) = made["parts"][0]["result"]["results"]
    assert row["problem"]["q_len"] == 64 and row["bits"]["repeats"] == 1


def test_a_file_goes_on_with_its_own_card_and_commit(tool, tmp_path):
    commands = tuple(("bench", "--repeats", n, "DEVICE") for n in "123")
    entry = dataclasses.replace(registry.ENTRIES["re:tuner"], commands=commands[:1])
    path, small = str(tmp_path / "x.json"), ["--seqlen", "16"]
    run.make(entry, path, "cpu", "1234567", small)
    assert run.make(entry, path, "cpu", "", small)["parts"]  # nothing is left to run
    more = dataclasses.replace(entry, commands=commands[:2])
    with pytest.raises(Refused, match="another commit.* of '1234567', expected .* '7654321'"):
        run.make(more, path, "cpu", "7654321", small)
    assert len(run.make(more, path, "cpu", "1234567", small)["parts"]) == 2
    made = json.loads(pathlib.Path(path).read_text())
    made["parts"][0]["result"]["device"]["name"] = "another"
    pathlib.Path(path).write_text(json.dumps(made))
    all_of_it = dataclasses.replace(entry, commands=commands)
    with pytest.raises(Refused, match="another card.* of 'another'"):
        run.make(all_of_it, path, "cpu", "1234567", small)
    assert json.loads(pathlib.Path(path).read_text()) == made


def test_the_options_that_are_named_for_a_trial_work(tmp_path):
    for entry in (entry for entry in registry.ENTRIES.values() if entry.needs == "gpu"):
        with pytest.raises(Refused) as refused:
            run.make(entry, str(tmp_path / "x.json"), "cpu", "", [])
        (option,) = re.findall(r"--also '(--\w+) ", str(refused.value))
        trial = [option, {"--match": ".", "--seqlen": "64"}[option]]
        for kind, *words in (run._words(command, "cpu", trial) for command in entry.commands):
            if kind == "bench.py":
                assert bench.chosen_cases(bench.parser().parse_args(words)), (entry.name, words)
            else:  # the tool refuses sizes beside a set
                assert option == "--match" and "--set" in words, entry.name


def test_the_lines_that_make_libraries_come_first_and_work(tool, tmp_path):
    lines = [line for entry in registry.ENTRIES.values() for line in run.lines(entry)]
    libraries = {name.removeprefix("verbatim:") for name in generated.GENERATED}
    for line in lines:
        for name in re.findall(r"verbatim:(\w+\.so)", line):
            assert lines.index(line) > next(
                i for i, of in enumerate(lines) if of.endswith(" " + name)
            )
    assert papers("longca:table10", "--commands").stdout.startswith("sed ")
    # Without nvcc: emit stops before it.
    (tmp_path / "kernels").symlink_to(ROOT / "kernels")
    made = set()
    for line in dict.fromkeys(line for line in lines if re.match("sed |verbatim tl |mv ", line)):
        line = re.sub(r"tl build (\S+)( --arch \w+)?", r"tl emit \1", line)
        line = re.sub(r"^verbatim ", os.environ["VERBATIM_TOOL"] + " ", line)
        if line.startswith("mv "):
            made.add(line.split()[2])
            line = line.replace(".so ", ".cu ")
        done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, line + done.stderr
    assert made == libraries
    text = (tmp_path / "selected.tl").read_text()
    assert all(f"param {of}" in text for of in ("sel = query_index", "BM = 16", "BN = 64"))


def test_results_of_the_tool_say_the_commit(tool, tmp_path):
    commands = (("bench", "--repeats", "1", "DEVICE"), ("tune", "DEVICE"))
    entry = dataclasses.replace(registry.ENTRIES["re:tuner"], commands=commands)
    made = run.make(entry, str(tmp_path / "x.json"), "cpu", "1234567", ["--seqlen", "16"])
    assert [part["result"]["commit"] for part in made["parts"]] == ["1234567"] * 2
    assert evidence.cards(made["parts"]).endswith(", 1234567")


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
    assert (
        lines.line(entry, of) == document.line(entry, of) == "backward rate over FlexAttention 1.50"
    )
    assert told(entry, tmp_path) == ["ours over FlexAttention | 1.50, 1 case"]
    assert evidence.cards(of) == "card, a, b"
    saved("dash_fig1.same.json", "a", flex=100.0)  # of the commit, in another file
    assert told(entry, tmp_path) == ["ours over FlexAttention | 1.50, 1 case"]
    both = json.loads((tmp_path / "papers" / "dash_fig1.json").read_text())
    failed = [{**both["results"][0], "status": "error", "backward": None}, *both["results"]]
    again = tmp_path / "papers" / "dash_fig1.again.json"  # failed, then made
    again.write_text(json.dumps({**both, "results": failed}))
    assert told(entry, tmp_path) == ["ours over FlexAttention | 1.50, 2 cases"]
    again.unlink()
    saved("dash_fig1.tl.json", "a", **{"verbatim:forward_hd64.so": 8.0, "verbatim:f.so": 9.0})
    saved("dash_fig1.shift.json", "a", ["bench", "--order", "shift"], verbatim=4.0)
    names = [row["provider"] for row in evidence.rows(evidence.parts(entry, tmp_path))]
    assert sorted(names) == [
        "flex", "flex", "flex", "verbatim", "verbatim TL", "verbatim shift", "verbatim:f.so"
    ]  # fmt: skip
    saved("dash_fig1.none.json", "a", ["bench", "--order", "none"], verbatim=1.0)
    orders = dataclasses.replace(entry, over=(("verbatim none", "verbatim shift"),))
    assert told(orders, tmp_path)[0] == "none over shift | 4.00, 1 case"
    of = evidence.parts(orders, tmp_path)
    assert document.line(orders, of) == "backward rate of none over shift 4.00"


def test_an_entry_is_made_when_all_of_its_rows_are_there_whatever_file_holds_them(tmp_path):
    words = "--set dense --match hd128.full.(512|1024)$ --providers verbatim,flex"
    entry = registry.Entry(
        "re:fig3", "", "", "gpu", (("bench.py", *words.split(), "DEVICE"),),
        ("papers/a.json", "b.json"), lambda row: row["mask"]["name"] == "full", "lines",
    )  # fmt: skip
    assert document.state(entry, tmp_path) == "to be run"
    both = "--set dense --match hd128.(full|causal).(512|1024)$"  # causal first, not the entry's
    saved_cases(tmp_path / "papers" / "a.json", both, (0, "flex"), (2, "flex"), (2, "verbatim"))
    assert document.state(entry, tmp_path) == "2 of 4"
    other = dataclasses.replace(entry, over=(("verbatim", "magi"),))
    assert told(other, tmp_path) == ["ours alone | 512 TFLOP/s, 1 case"]
    saved_cases(tmp_path / "papers" / "re_fig3.cut0.json", both, (3, "flex"), status="unsupported")
    assert document.state(entry, tmp_path) == "3 of 4"
    path = tmp_path / "papers" / "re_fig3.cut1.json"
    for status in ("error", "not installed"):  # neither was tried
        saved_cases(path, both, (3, "verbatim"), status=status)
        assert document.state(entry, tmp_path) == "3 of 4"
    said = document.summary(entry, evidence.parts(entry, tmp_path))
    assert said == "backward rate of ours 512 TFLOP/s, 1 case; 3 of 4 tried"
    more = (("bench.py", *words.replace("flex", "flex,flashmask").split(), "DEVICE"),)
    said = document.summary(
        dataclasses.replace(entry, commands=more), evidence.parts(entry, tmp_path)
    )
    assert said.endswith("; 3 of 6 tried")
    saved_cases(tmp_path / "b.json", both, (3, "verbatim"))
    assert document.state(entry, tmp_path) == "made"


def test_orders_kernels_and_numbers_of_passes_are_told_apart(tmp_path):
    commands = ("bench --set dense --match hd64.full.512 --order shift DEVICE",
                "bench.py --set dense --match hd64.full.512 --providers verbatim:forward_hd64.so DEVICE",
                "bench --set dense --match hd64.full.512 --order auto DEVICE",
                "tune --set gqa DEVICE")  # fmt: skip
    entry = registry.Entry(
        "re:fig4", "", "", "gpu", tuple(tuple(line.split()) for line in commands), view="lines"
    )
    plain = "--set dense --match hd64.full.512"
    saved_cases(tmp_path / "papers" / "re_fig4.a.json", plain, (0, "verbatim"))
    assert evidence.counts(entry, evidence.parts(entry, tmp_path)) == (1, 4)
    path = tmp_path / "papers" / "re_fig4.b.json"
    saved_cases(path, plain, (0, "verbatim"))
    made = json.loads(path.read_text())
    words = ["bench", *plain.split(), "--order", "shift"]
    path.write_text(json.dumps({**made, "arguments": words}))
    saved_cases(tmp_path / "papers" / "re_fig4.c.json", plain, (0, "verbatim:forward_hd64.so"))
    assert evidence.counts(entry, evidence.parts(entry, tmp_path)) == (3, 4)
    tuned = {"command": "tune", "arguments": ["tune", "--set", "gqa", "--device", "cuda"],
             "results": []}  # fmt: skip
    (tmp_path / "papers" / "re_fig4.d.json").write_text(json.dumps(tuned))
    assert document.state(entry, tmp_path) == "made"


def test_deviation_is_of_gradients_and_by_the_number_of_passes(tmp_path):
    words = "--set dense --match hd64.full.512 --batch 1 --repeats"
    entry = registry.Entry(
        "re:fig6", "", "", "gpu", view="deviation",
        commands=tuple(("bench.py", *words.split(), n, "DEVICE") for n in ("10", "1000")),
    )  # fmt: skip
    deviation = {"o": 9.0, "dq": 0.5, "dk": 0.25, "dv": 0.0}
    saved_cases(tmp_path / "papers" / "re_fig6.10.json", words + " 10", (0, "verbatim"),
                bits={"repeats": 10, "deviation": deviation})  # fmt: skip
    assert document.state(entry, tmp_path) == "1 of 2"
    saved_cases(tmp_path / "papers" / "re_fig6.1000.json", words + " 1000", (0, "verbatim"),
                bits={"repeats": 1000, "deviation": {**deviation, "dk": 0.75}})  # fmt: skip
    assert document.state(entry, tmp_path) == "made"
    saved_cases(tmp_path / "papers" / "re_fig6.again.json", words + " 10", (0, "verbatim"),
                bits={"repeats": 10, "deviation": {**deviation, "dq": 0.25, "dv": 0.125}})  # fmt: skip
    of = evidence.parts(entry, tmp_path)
    assert document.line(entry, of).endswith("any of 1,000 passes: 0.75 of ours")
    assert told(entry, tmp_path) == ["ours | 0.5, 0.25, 0.12 | 0.5, 0.75, 0"]


def test_both_passes_and_both_counts_are_shown(tmp_path):
    entry = dataclasses.replace(
        registry.ENTRIES["longca:fig11"], files=(), over=(("verbatim", "flex"),)
    )
    words = "--set longca --match ^(full|causal)_sliding_window --heads 64:8 --seqlen 1024,2048"
    for name, times in (("verbatim", 1), ("flex", 2)):
        passes = {which: {"ms": times, "tflops": factor / times, "tflops_nominal": half / times}
                  for which, factor, half in (("forward", 512, 256), ("backward", 300, 300))}  # fmt: skip
        path = tmp_path / "papers" / f"longca_fig11.{name}.json"
        saved_cases(path, words, *((number, name) for number in range(4)), **passes)
    assert told(entry, tmp_path) == [
        "FlexAttention alone | 256 TFLOP/s, 4 cases | 150 TFLOP/s, 4 cases",
        "ours alone | 512 TFLOP/s, 4 cases | 300 TFLOP/s, 4 cases",
    ]
    drawn = views.VIEWS["lines"].pictures(entry, evidence.parts(entry, tmp_path))
    forward, backward = drawn.split("<h2>")[1:3]
    assert forward.startswith("forward") and backward.startswith("backward")
    assert (
        forward.count("<svg") == 4 and forward.count("by the paper&#x27;s count</figcaption>") == 2
    )
    assert backward.count("<svg") == 2 and backward.count("by either count</figcaption>") == 2
    assert "<td>512 (256)</td>" in forward and "<td>300</td>" in backward
    assert forward.count(">553</text>") == 2  # the tops of two axes of four
    assert ">1K</text>" in forward and ">1024</text>" not in forward


def test_tables_of_blocks_have_a_line_a_size_length_and_share(tmp_path):
    entry = registry.ENTRIES["longca:table7"]
    peak = {
        which: {"allocated": gib * 2**30, "reserved": 0}
        for which, gib in (("forward", 2), ("backward", 3))
    }
    words = "--set sparse --heads 64:8 --seqlen 16384 --match (64|variable)\\s0.[25]\\s"
    saved_cases(tmp_path / "papers" / "longca_table7.json", words,
                *((number, "flex") for number in range(4)), peak_bytes=peak)  # fmt: skip
    drawn = views.VIEWS["sizes"].pictures(entry, evidence.parts(entry, tmp_path))
    forward, backward = drawn.split("<h2>")[1:3]
    assert forward.startswith("forward, peak GiB allocated, 64:8 heads, card")
    firsts = re.findall(r"<tr><td>(\w+)</td><td>16384</td><td>(0\.\d)</td>", forward)
    assert firsts == [("64", "0.2"), ("64", "0.5"), ("variable", "0.2"), ("variable", "0.5")]
    assert forward.count("<td>2</td>") == 4 and backward.count("<td>3</td>") == 4


def test_what_was_timed_under_an_earlier_order_is_not_shown_as_todays(tmp_path):
    entry = registry.Entry("re:fig7", "", "", "gpu", view="lines", over=(("verbatim", "flex"),),
                           axes=("forward", "backward"))  # fmt: skip

    def made(name, order, ms, card="card"):
        path = tmp_path / "papers" / f"re_fig7.{name}.json"
        plan = {"plan": {"order": order}}
        times = {which: {"ms": ms, "tflops": 1 / ms} for which in ("forward", "backward")}
        saved_cases(path, "--set dense --match hd64.full.512$", (0, "verbatim"), **plan, **times)
        peer = {which: {"ms": 1.0, "tflops": 1.0} for which in ("forward", "backward")}
        found = json.loads(path.read_text())
        row = {**found["results"][0], "provider": "flex", "plan": None, **peer}
        found["results"].append(row)
        path.write_text(json.dumps({**found, "device": {"name": card}}))
        return evidence.problem_key(row)

    key = made("a", "shift", 0.5)
    once = ["ours over FlexAttention | 2.00, 1 case | 2.00, 1 case"]
    assert told(entry, tmp_path) == once
    orders = {"contract": 1, "orders": {key: "descending"}}
    (tmp_path / "papers" / "orders.json").write_text(json.dumps(orders))
    assert told(entry, tmp_path) == [
        "ours over FlexAttention | 2.00, 1 case | -",  # a forward has no such order
        "ours † over FlexAttention | - | 2.00, 1 case",
    ]
    of = evidence.parts(entry, tmp_path)
    assert "verbatim †" in views.VIEWS["lines"].pictures(entry, of)
    assert lines.line(entry, of) == "forward rate over FlexAttention 2.00"
    backward = dataclasses.replace(entry, axes=("backward",))
    assert lines.line(backward, of) == "backward rate of ours † over FlexAttention 2.00"
    made("b", "descending", 0.25, "another card")
    assert told(entry, tmp_path) == [
        "ours over FlexAttention | 2.00, 1 case | 4.00, 1 case | - | 4.00, 1 case",
        "ours † over FlexAttention | - | - | 2.00, 1 case | -",
    ]
    made("c", "descending", 0.125)
    assert told(entry, tmp_path) == [
        "ours over FlexAttention | 2.00 to 8.00, mean 4.00, 2 cases | 4.00, 1 case | 8.00, 1 case"
        " | 4.00, 1 case"
    ]


def test_orders_of_what_was_timed_are_those_of_today(tool):
    written = json.loads((RESULTS / "papers" / "orders.json").read_text())
    problems = write_orders.problems()
    again = "VERBATIM_TOOL=... python3 tools/write_orders.py"
    assert written["contract"] == write_orders.CONTRACT, again
    assert sorted(problems) == list(written["orders"]), again
    for key in (key for key, row in problems.items() if row["problem"]["q_len"] <= 2048):
        planned = write_orders.planned(problems[key])
        assert planned == written["orders"][key], again


def test_activations_are_those_of_the_papers_formula(tmp_path):
    entry = dataclasses.replace(
        registry.ENTRIES["longca:fig16"], commands=(("activations", "2", "4", "8,16"),)
    )
    of = run.make(entry, str(tmp_path / "x.json"), "cpu", "", [])["parts"]
    kept = of[0]["result"]["bytes"]["8"]
    b, s, h, d = 1, 8, 2, 4
    assert sum(kept.values()) == 11 * b * s * h * d + 5 * b * h * s**2 + 2 * b * s * h * d == 1472
    assert kept["scores"] == 640
    said = document.summary(entry, of)
    assert "2 heads of 4" in said and f"{1472 / 2**30:.3g} ({832 / 2**30:.3g}) at 8, " in said
    (table,) = document.tables(entry, of)
    assert table.lines[0] == ["8", f"{1472 / 2**30:.3g}", f"{832 / 2**30:.3g}"]
    assert document.html(entry, of).count("<circle") == 4


def test_cases_of_one_length_share_a_picture_and_lengths_make_curves(tmp_path):
    entry = registry.Entry("re:fig7", "", "", "gpu", view="lines")
    drawn = {}
    for lengths in ("512", "(512|1024)"):
        words = f"--set dense --match hd.*{lengths}$"
        rows = [(number, "flex") for number in range(8 if "|" in lengths else 4)]
        saved_cases(tmp_path / "papers" / "re_fig7.json", words, *rows)
        drawn[lengths] = views.VIEWS["lines"].pictures(entry, evidence.parts(entry, tmp_path))
    one, two = drawn.values()
    assert one.count("<svg") == 1 and "polyline" not in one and one.count("<circle") == 4
    assert two.count("<svg") == 4 and two.count("polyline") == 4 and two.count("<circle") == 8


def test_a_picture_and_a_line_of_numbers_are_of_one_card(tmp_path):
    entry = registry.Entry("re:fig7", "", "", "gpu", view="lines")
    path = tmp_path / "papers" / "re_fig7.json"
    saved_cases(path, "--set dense --match hd.*512$", *((number, "flex") for number in range(4)))
    other = json.loads(path.read_text())
    other["device"]["name"] = "NVIDIA H100 80GB HBM3"
    (tmp_path / "papers" / "re_fig7.h100.json").write_text(json.dumps(other))
    drawn = views.VIEWS["lines"].pictures(entry, evidence.parts(entry, tmp_path))
    assert drawn.count("<svg") == 2 and "H100, by either count" in drawn
    assert drawn.count("<td>H100, ") == 4


def test_every_figure_that_was_made_has_a_picture():
    for entry in registry.ENTRIES.values():
        of = evidence.parts(entry, RESULTS)
        if of:
            page = document.html(entry, of)
            assert "<svg" in page or ":fig" not in entry.name, entry.name
            assert ("no longer takes" in page) == (
                "<td>verbatim †" in page or ">verbatim †<" in page
            )


def test_bad_input_is_refused(tmp_path):
    assert "nearest: dash:fig8" in papers("dash:fi8", code=2).stderr
    assert (
        "longca:table11, tokens"
        in papers("longca:table11", "--json", tmp_path / "x", code=2).stderr
    )
    refused = papers("dash:fig8", "--json", tmp_path / "x", code=2).stderr
    assert "dash:fig8 needs a GPU" in refused and "nearest: --device cuda" in refused
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "x").exists()
    papers("--results", tmp_path / "nowhere", code=2)
    with pytest.raises(Refused, match="no result to draw"):
        document.html(registry.ENTRIES["dash:table1"], [])
    assert "dash:fig8" in papers().stdout
    assert run.shown(("plan", "--mask", "full")) == ["verbatim", "plan", "--mask", "full"]
    assert run.shown(("lengths", "pile", "64")) == ["lengths", "pile", "64"]

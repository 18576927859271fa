"""What a line of the four papers' list says: ratios of steady times, a line a card, cases of one
provider beside each other, verdicts without measured numbers. Needs neither PyTorch nor a GPU."""

import dataclasses
import json
import pathlib
import re

from paper_files import saved_cases
from verbatim_attn.papers import document, evidence, floors, pairs, ratios, registry, views

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "results"
FULL = "--set dense --match hd64.full.512$"


def entry(**of):
    return registry.Entry("re:fig7", "", "", "gpu", **{"view": "lines", "over": pairs.FLEX, **of})


def said(entry, folder):
    return ratios.compared(entry, evidence.parts(entry, folder))


def saved(folder, name, words, *rows, card="card", **of_row):
    path = folder / "papers" / f"re_fig7.{name}.json"
    saved_cases(path, words, *rows, **of_row)
    made = json.loads(path.read_text())
    made["device"]["name"] = card
    path.write_text(json.dumps(made))
    return path


def timed(rate, noise=0.0):
    return {"ms": 1.0, "tflops": rate, "noise": noise}


def with_rates(path, **rates):
    """Of every provider its rate."""
    made = json.loads(path.read_text())
    for row in made["results"]:
        row["backward"] = timed(rates[row["provider"]])
    path.write_text(json.dumps(made))


def test_a_row_that_was_disturbed_is_in_no_ratio(tmp_path):
    both = (0, "verbatim"), (0, "flex")
    saved(tmp_path, "steady", FULL, *both, backward=timed(100, 0.2))
    assert said(entry(), tmp_path) == "backward rate of verbatim over flex 1.00, 1 case"
    saved(tmp_path, "noisy", FULL, *both, backward=timed(100, 0.21))
    assert said(entry(), tmp_path).endswith("1.00, 1 case")
    saved(tmp_path, "noisy", FULL, *both, backward=timed(100), forward=timed(9, 0.3))
    assert said(entry(), tmp_path).endswith("1.00, 1 case")  # the other pass was
    memory = {which: {"allocated": 2**30, "reserved": 0} for which in ("forward", "backward")}
    saved(tmp_path, "noisy", FULL, *both, backward=timed(100, 0.3), peak_bytes=memory)
    held = said(entry(axes=("memory backward",)), tmp_path)
    assert held == "backward memory of verbatim over flex 1.00, 1 case"


def test_each_card_has_its_line_that_with_most_rows_first(tmp_path):
    both = (0, "verbatim"), (0, "flex")
    with_rates(saved(tmp_path, "a", FULL, *both, card="NVIDIA A"), verbatim=2, flex=1)
    assert said(entry(), tmp_path) == "backward rate of verbatim over flex 2.00, 1 case"
    two = (*both, (1, "verbatim"), (1, "flex"))
    words = "--set dense --match hd(64|128).full.512$"
    with_rates(saved(tmp_path, "b", words, *two, card="NVIDIA B"), verbatim=3, flex=1)
    assert said(entry(), tmp_path).splitlines() == [
        "B: backward rate of verbatim over flex 3.00, 2 cases",
        "A: backward rate of verbatim over flex 2.00, 1 case",
    ]
    assert said(entry(split="dim"), tmp_path).splitlines() == [
        "B, head dim 64: backward rate of verbatim over flex 3.00, 1 case",
        "B, head dim 128: backward rate of verbatim over flex 3.00, 1 case",
        "A, head dim 64: backward rate of verbatim over flex 2.00, 1 case",
    ]


def test_cases_of_one_provider_are_beside_each_other_by_one_size(tmp_path):
    words = "--set sparse --heads 64:8 --seqlen 16384 --match (64|128)\\s0.[28]\\s"
    path = saved(
        tmp_path, "a", words, *((n, name) for n in range(4) for name in ("verbatim", "vsa"))
    )
    made = json.loads(path.read_text())
    for row in made["results"]:
        of = registry.sizes(row)
        row["backward"] = timed(of["block"] * of["density"] * (1 + (row["provider"] == "vsa")))
    path.write_text(json.dumps(made))
    of = entry(over=pairs.over("vsa"), contrasts=(pairs.LARGER_BLOCKS, pairs.MORE_SHOWN))
    assert said(of, tmp_path).split("; ")[1:] == [
        "backward rate, blocks of 128 over 64: verbatim 2.00, 2 cases", "vsa 2.00, 2 cases",
        "backward rate, a share of 0.8 over 0.2: verbatim 4.00, 2 cases", "vsa 4.00, 2 cases",
    ]  # fmt: skip
    lines = said(dataclasses.replace(of, split="block"), tmp_path).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "blocks of 64", "blocks of 128", "backward rate, blocks of 128 over 64"
    ]  # fmt: skip
    assert "0.8 over 0.2: verbatim 4.00, 1 case" in lines[0] and "0.8" not in lines[2]


def test_an_entry_shows_its_own_cases_of_its_own_files(tmp_path):
    two = (0, "verbatim"), (1, "verbatim")
    saved(tmp_path, "a", "--set dense --match hd(64|128).full.512$", *two)
    assert said(entry(over=()), tmp_path).endswith("2 cases")
    of = entry(over=(), cases=registry._where(dim=64))
    assert said(of, tmp_path).endswith("512 TFLOP/s, 1 case")


def test_verdicts_say_agrees_or_differs_and_type_no_measured_number():
    judged = json.loads((RESULTS / "papers" / "judged.json").read_text())
    for name, verdict in judged["entries"].items():
        assert re.match(r"(agrees|differs|neither agrees nor differs)\b", verdict), name
        shares = {"0.2", "0.5", "0.8"}  # the paper's
        assert set(re.findall(r"\d+\.\d+", verdict)) <= shares and "%" not in verdict, name


def test_what_an_adapter_of_ours_refused_was_not_tried(tmp_path):
    words = "--set dense --match hd64.full.512$ --providers flashmask,torch:cudnn"
    of = entry(commands=(("bench.py", *words.split(), "DEVICE"),))
    reason = "its mask of 32768 x 32768 positions cannot be made dense"
    rows = (0, "flashmask"), (0, "torch:cudnn")
    saved(tmp_path, "a", FULL, *rows, status="unsupported", reason=reason)
    assert document.state(of, tmp_path) == "1 of 2"  # PyTorch itself takes masks dense alone
    assert evidence.untried(of, evidence.parts(of, tmp_path)) == ["flashmask"]
    saved(tmp_path, "a", FULL, *rows, status="unsupported", reason="takes no mask but causal")
    assert document.state(of, tmp_path) == "made"


def test_a_support_matrix_has_the_best_of_all_runs_and_says_what_was_not_tried(tmp_path):
    words = "--set dense --match hd64.(full|causal).512$"
    of = entry(view="support")
    saved(tmp_path, "a", words, (0, "flex"), (1, "flex"), (1, "verbatim"))
    saved(tmp_path, "b", words, (0, "flex"), status="error", reason="a buffer is too small")
    saved(tmp_path, "c", words, (0, "vsa"), (1, "vsa"), status="unsupported", reason="blocks")
    saved(tmp_path, "d", words, (0, "slow"), status="not installed", reason="not installed")
    found = evidence.parts(of, tmp_path)
    assert views.VIEWS["support"].line(of, found) == (
        "of 2 masks: flex 2, verbatim 1 (1 not tried), vsa 0, slow 0 (2 not tried)"
    )
    drawn = views.VIEWS["support"].html(of, found)
    assert drawn.count("<td>not tried</td>") == 3 and drawn.count("<td>unsupported</td>") == 2


def test_columns_of_the_list_stand_apart(tmp_path):
    (tmp_path / "papers").mkdir()
    lines = [line for line in document.listing(tmp_path).splitlines() if line.startswith("  ")]
    assert len(lines) == len(registry.ENTRIES)
    entries = [registry.ENTRIES[line.split()[0]] for line in lines]
    places = {line.index(registry.NEEDS[of.needs]) for line, of in zip(lines, entries, strict=True)}
    titles = {line.rindex("  " + of.title) for line, of in zip(lines, entries, strict=True)}
    assert len(places) == len(titles) == 1


def test_floors_are_met_where_every_case_of_both_passes_reaches_them(tmp_path):
    def table(*times):
        """With ours of so many times the others' forward and backward rates."""
        words = "--set sparse --heads 64:64 --seqlen 16384 --match \\s64\\s0.[25]\\s"
        rows = [(n, name) for n in range(2) for name in ("verbatim", "flex", "vsa:sm90")]
        path = tmp_path / "papers" / "longca_table4.json"
        saved_cases(path, words, *rows)
        made = json.loads(path.read_text())
        made["device"]["name"] = "NVIDIA H200"
        for row in made["results"]:
            ours = row["provider"] == "verbatim"
            for which, rate in zip(("forward", "backward"), times, strict=True):
                first = row["mask"]["params"]["density"] == 0.2
                row[which] = timed((rate if first else 2.0) if ours else 1.0)
        path.write_text(json.dumps(made))
        lines = floors.table(tmp_path).splitlines()
        flex, *_, vsa, dense = (line.strip("| ").split(" | ")[1:] for line in lines[2:])
        assert dense == ["-", "-", "not met"]
        return flex, vsa

    both = "1.50 to 2.00, mean 1.73, 2 cases"
    assert table(1.5, 1.5) == ([both, both, "met"],) * 2
    flex, vsa = table(1.5, 1.2)
    assert flex == [both, "1.20 to 2.00, mean 1.55, 2 cases, 1 below", "not met"]
    assert vsa[2] == "met"


def test_the_dense_rate_is_of_the_same_commit_heads_and_length(tmp_path):
    def saved_rate(name, words, rate, commit):
        path = tmp_path / "papers" / f"{name}.json"
        saved_cases(path, words, (0, "verbatim"), forward=timed(rate), backward=timed(rate))
        made = json.loads(path.read_text())
        made["device"]["name"], made["commit"] = "NVIDIA H200", commit
        path.write_text(json.dumps(made))

    sparse = "--set sparse --heads 64:8 --seqlen {} --match \\s128\\s0.5\\s"
    full = "--set longca --heads 64:{} --seqlen 16384 --match ^full\\s"
    saved_rate("longca_table4", sparse.format(16384), 9, "a")
    saved_rate("longca_table4.long", sparse.format(32768), 1, "a")
    saved_rate("longca_fig9", full.format(8), 10, "a")
    saved_rate("longca_lengths.again", full.format(8), 5, "a")
    saved_rate("longca_lengths.heads", full.format(64), 90, "a")
    saved_rate("longca_lengths.later", full.format(8), 90, "b")
    dense = floors.table(tmp_path).splitlines()[-1]
    assert dense.endswith(" | 0.90, 1 case | 0.90, 1 case | met |")


def test_rows_that_nobody_tried_are_named_by_whose_they_are(tmp_path):
    words = "--set sparse --heads 4:1,4:4 --seqlen 16384"
    one = registry.ENTRIES["longca:table6"]
    asked = evidence.missing(one, [])
    saved_cases(tmp_path / "papers" / "longca_table6.json", words, (0, "flex"), (1, "flex"))
    missing = evidence.missing(one, evidence.parts(one, tmp_path))
    assert {name: len(sizes) for name, sizes in missing.items()} == {
        name: len(sizes) - 2 * (name == "flex") for name, sizes in asked.items()
    }
    assert document._extent(asked["vsa:sm90"]) == "18 (4:1, 4:4 heads, 16,384 tokens)"
    for entry in registry.ENTRIES.values():
        of = evidence.parts(entry, RESULTS)
        has, wants = evidence.counts(entry, of)
        rows = sum(map(len, evidence.missing(entry, of).values()))
        assert rows == wants - has or not rows, entry.name  # commands that are whole have no rows

"""What the four papers' list says of ratios: of steady times, by card, cases of one provider beside
each other, the first pairs and those that lead ours in a line. Needs neither PyTorch nor a GPU."""

import dataclasses
import json
import pathlib
import re

from paper_files import saved_cases, told
from verbatim_attn.papers import (
    document,
    evidence,
    floors,
    lines,
    pages,
    pairs,
    registry,
    tables,
    views,
)

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "results"
FULL = "--set dense --match hd64.full.512$"


def entry(**of):
    return registry.Entry("re:fig7", "", "", "gpu", **{"view": "lines", "over": pairs.FLEX, **of})


def said(entry, folder):
    return lines.line(entry, evidence.parts(entry, folder))


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


ONE = ["ours over FlexAttention | 1.00, 1 case"]


def test_a_row_that_was_disturbed_is_in_no_ratio(tmp_path):
    both = (0, "verbatim"), (0, "flex")
    saved(tmp_path, "steady", FULL, *both, backward=timed(100, 0.2))
    assert told(entry(), tmp_path) == ONE
    saved(tmp_path, "noisy", FULL, *both, backward=timed(100, 0.21))
    assert told(entry(), tmp_path) == ONE
    saved(tmp_path, "noisy", FULL, *both, backward=timed(100), forward=timed(9, 0.3))
    assert told(entry(), tmp_path) == ONE  # the other pass was
    memory = {which: {"allocated": 2**30, "reserved": 0} for which in ("forward", "backward")}
    saved(tmp_path, "noisy", FULL, *both, backward=timed(100, 0.3), peak_bytes=memory)
    of = entry(axes=("memory backward",))
    assert told(of, tmp_path) == ONE
    assert said(of, tmp_path) == "backward memory over FlexAttention 1.00"


def test_tables_tell_cards_apart_and_lines_do_not(tmp_path):
    both = (0, "verbatim"), (0, "flex")
    with_rates(saved(tmp_path, "a", FULL, *both, card="NVIDIA A"), verbatim=2, flex=1)
    two = (*both, (1, "verbatim"), (1, "flex"))
    words = "--set dense --match hd(64|128).full.512$"
    with_rates(saved(tmp_path, "b", words, *two, card="NVIDIA B"), verbatim=4, flex=1)
    of = evidence.parts(entry(), tmp_path)
    (table,) = document.tables(entry(), of)
    assert table.titles == ["", "backward rate, B", "backward rate, A"]  # most rows first
    assert table.lines == [["ours over FlexAttention", "4.00, 2 cases", "2.00, 1 case"]]
    assert said(entry(), tmp_path) == "backward rate over FlexAttention 3.17 (2.00 to 4.00)"
    (table,) = document.tables(entry(split="dim"), of)
    assert table.titles[1:] == [
        "backward rate, B, head dim 64", "backward rate, B, head dim 128",
        "backward rate, A, head dim 64",
    ]  # fmt: skip
    assert said(entry(split="dim"), tmp_path) == (
        "backward rate, head dim 64 / 128: over FlexAttention 2.83 / 4.00 (2.00 to 4.00)"
    )


def test_a_table_has_four_columns_and_more_of_a_kind_in_lines(tmp_path):
    words = "--set sparse --heads 64:8 --seqlen 16384 --match (64|128|variable)\\s0.5\\s"
    rows = [(n, name) for n in range(3) for name in ("verbatim", "flex")]
    of = entry(split="block", axes=("forward", "backward"), over=pairs.over("flex", "vsa"))
    for card, more in (("A", [(0, "vsa")]), ("B", [(0, "magi"), (1, "magi")])):
        saved(tmp_path, card, words, *rows, *more, card=card, forward=timed(1))
    (table,) = document.tables(of, evidence.parts(of, tmp_path))
    assert table.titles == ["cases", "", "forward rate, B", "forward rate, A", "backward rate, B",
                            "backward rate, A"]  # fmt: skip
    assert [line[0] for line in table.lines] == [
        "blocks of 64", "blocks of 64", "blocks of 128", "unequal blocks"
    ]  # fmt: skip
    assert table.markdown().splitlines()[2:4] == [
        "| blocks of 64 | ours over FlexAttention |" + " 1.00, 1 case |" * 4,
        "| blocks of 64 | ours over vsa | - | 1.00, 1 case | - | 1.00, 1 case |",
    ]
    of = entry(split="block", over=pairs.over("flex", "vsa"))
    assert said(of, tmp_path) == (
        "backward rate, blocks of 64 / 128 / variable: over FlexAttention 1.00 / 1.00 / 1.00,"
        " vsa 1.00 / - / -"
    )
    assert tables.line(["a|b", "c\nd"]) == "| a\\|b | c<br>d |"


def rated(folder, memory=False, **rates):
    """Cases of these rates, or of so many GiB, of ours and of peers, by their names' first word."""
    words = "--set dense --match hd(64|128).full.512$"
    peers = {"fa3": "flash_attn_3", "fa2": "flash_attn_2"}
    path = saved(
        folder, "a", words, *((n, name) for n in range(2) for name in ("verbatim", *rates))
    )
    made = json.loads(path.read_text())
    for number, row in enumerate(made["results"]):
        y = {"verbatim": (1.0, 1.0), **rates}[row["provider"]][number // (1 + len(rates))]
        row["provider"] = peers.get(row["provider"], row["provider"])
        row["backward"] = timed(y)
        row["peak_bytes"] = {"backward": {"allocated": y * 2**30, "reserved": 0}}
    path.write_text(json.dumps(made))
    over = pairs.over(*(peers.get(name, name) for name in rates))
    return entry(over=over, axes=("memory backward",) if memory else ("backward",))


def test_a_line_names_the_first_pairs_and_whoever_leads_ours(tmp_path):
    slow = dict.fromkeys(("flex", "vsa", "fa3", "fa2"), (0.5, 0.5))
    of = rated(tmp_path, **slow, flashmask=(0.5, 0.5), magi=(1.25, 1.0))
    assert said(of, tmp_path) == (
        "backward rate over FlexAttention 2.00, vsa 2.00, FA3 2.00, FA2 2.00,"
        " magi 0.89 (0.80 to 1.00)"
    )
    of = rated(tmp_path, **slow, flashmask=(1.25, 0.5), magi=(1.2, 0.5))  # neither in the mean
    assert said(of, tmp_path).endswith("FA2 2.00, at worst FlashMask 0.80")
    of = rated(tmp_path, **{**slow, "flex": (2.0, 0.25)}, flashmask=(1.25, 0.5))
    assert said(of, tmp_path).endswith("FA2 2.00")  # one that is named leads by more
    unordered = {"verbatim:unordered": (2.0, 0.25)}  # no peer
    of = rated(tmp_path, **unordered, **slow, flashmask=(1.25, 0.5))
    assert said(of, tmp_path).endswith("FA3 2.00, at worst FlashMask 0.80")
    of = rated(tmp_path, **slow, flashmask=(1.04, 0.5))  # hardly
    assert said(of, tmp_path).endswith("FA2 2.00")


def test_memory_is_better_below_one(tmp_path):
    more = dict.fromkeys(("flex", "vsa", "fa3", "fa2"), (2.0, 2.0))
    of = rated(tmp_path, memory=True, **more, flashmask=(0.8, 0.8), magi=(2.0, 2.0))
    assert said(of, tmp_path) == (
        "backward memory over FlexAttention 0.50, vsa 0.50, FA3 0.50, FA2 0.50, FlashMask 1.25"
    )
    of = rated(tmp_path, memory=True, **more, flashmask=(0.8, 4.0))
    assert said(of, tmp_path).endswith("FA2 0.50, at worst FlashMask 1.25")


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
    pair, *contrasts = document.tables(of, evidence.parts(of, tmp_path))
    assert pair.lines == [["ours over vsa", "0.50, 4 cases"]]
    assert [table.titles[0] for table in contrasts] == [
        "blocks of 128 over 64", "a share of 0.8 over 0.2"
    ]  # fmt: skip
    assert [table.lines for table in contrasts] == [
        [["ours", f"{ratio}, 2 cases"], ["vsa", f"{ratio}, 2 cases"]] for ratio in ("2.00", "4.00")
    ]
    assert said(of, tmp_path) == (
        "backward rate, blocks of 128 over 64: ours 2.00, vsa 2.00;"
        " backward rate, a share of 0.8 over 0.2: ours 4.00, vsa 4.00; over vsa 0.50"
    )
    of = dataclasses.replace(of, split="block")
    pair, larger, shown = document.tables(of, evidence.parts(of, tmp_path))
    assert pair.titles[1:] == [f"backward rate, card, blocks of {n}" for n in (64, 128)]
    assert shown.titles[1:] == pair.titles[1:] and larger.titles[1:] == ["backward rate, card"]
    assert shown.lines[0] == ["ours", "4.00, 1 case", "4.00, 1 case"]
    assert "128 over 64" in said(of, tmp_path) and "0.8" not in said(of, tmp_path)


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
        for text in (verdict, judged["why"].get(name, "")):
            assert set(re.findall(r"\d+\.\d+", text)) <= shares and "%" not in text, name


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
        "of 2 masks, 2 by FlexAttention; 1 (1 not tried) by ours; 0 by vsa; 0 (2 not tried) by slow"
    )
    counts, matrix = views.VIEWS["support"].tables(of, found)
    assert counts.lines[1] == ["ours", "1", "1"]
    cells = [cell for line in matrix.lines for cell in line]
    assert cells.count("not tried") == 3 and cells.count("unsupported") == 2


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
    assert pages._extent(asked["vsa:sm90"]) == "18 (4:1, 4:4 heads, 16,384 tokens)"
    for entry in registry.ENTRIES.values():
        of = evidence.parts(entry, RESULTS)
        has, wants = evidence.counts(entry, of)
        rows = sum(map(len, evidence.missing(entry, of).values()))
        assert rows == wants - has or not rows, entry.name  # commands that are whole have no rows

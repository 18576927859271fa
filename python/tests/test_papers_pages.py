"""docs/papers.md and the papers' pages: current, short, complete, and linked. Needs neither PyTorch
nor a GPU."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
from paper_files import saved_cases
from verbatim_attn._errors import Refused
from verbatim_attn.papers import document, evidence, pages, pairs, registry

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
LIST = ROOT / "docs" / "papers.md"
LONGEST = 250  # characters of a line, and of a verdict


@pytest.fixture(scope="module")
def made():
    return pages.pages(RESULTS, LIST)


@pytest.fixture(scope="module")
def parts():
    return {entry: evidence.parts(entry, RESULTS) for entry in registry.ENTRIES.values()}


def section(text, entry):
    """Of a paper's page."""
    return text.partition(f"\n## {entry.name}\n")[2].partition("\n## ")[0]


def test_the_pages_are_current(made):
    assert {path for path in made if path != LIST} == set((ROOT / "docs" / "papers").iterdir())
    for path, text in made.items():
        assert text == path.read_text(), f"{path}: python -m verbatim_attn.papers --markdown {LIST}"


def test_lines_and_verdicts_are_short_and_say_no_commit(made):
    rows = [line.strip("| ").split(" | ") for line in made[LIST].splitlines()
            if re.match(r"\| `\w+:\w+` \w", line)]  # fmt: skip
    assert len(rows) == len(registry.ENTRIES)
    for name, *_, ours, verdict in (row for row in rows if len(row) == 5):
        said = re.sub(r" \(\[details\]\(.*?\)\)$", "", ours)
        verdict = re.sub(r"\]\([^)]*\)", "]", verdict)
        assert max(len(said), len(verdict)) <= LONGEST, name
        assert "<br>" not in ours and not re.search(r"\b[0-9a-f]{7,8}\b", said), name


def test_what_was_made_has_its_numbers_on_the_papers_page(made, parts):
    judged = json.loads((RESULTS / "papers" / "judged.json").read_text())
    for entry, of in parts.items():
        text = section(made[ROOT / "docs" / "papers" / f"{entry.paper}.md"], entry)
        link = f"([details](papers/{entry.paper}.md#{entry.name.replace(':', '')}))"
        assert bool(of) == bool(text) == (link in made[LIST]), entry.name
        assert all(table.markdown() in text for table in document.tables(entry, of))
        assert all(name in text for name in evidence.read_from(of)), entry.name
        assert evidence.cards(of) in text and judged["why"].get(entry.name, "") in text
        for name, sizes in evidence.missing(entry, of).items() if of else ():
            assert f"{pairs.named(name)} {pages._extent(sizes)}" in text, entry.name


def test_everybody_that_is_compared_has_a_name():
    for entry in registry.ENTRIES.values():
        for name in {name for pair in entry.over for name in pair}:
            assert ":" not in pairs.named(name) and "_attn" not in pairs.named(name), name
    assert pairs.named("flash_attn_3:deterministic") == "FA3 deterministic"
    assert pairs.named("verbatim shift") == "shift" and pairs.named("magi") == "magi"
    assert pairs.named(evidence.EARLIER) == "ours \N{DAGGER}"
    assert len(set(pairs.NAMES.values())) == len(pairs.NAMES)


def test_the_command_writes_all_pages_beside_each_other(tmp_path):
    path = tmp_path / "all.md"
    words = [sys.executable, "-m", "verbatim_attn.papers", "--markdown", path]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stdout, done.stderr
    assert {page.name for page in (tmp_path / "all").iterdir()} == {
        f"{paper}.md" for paper in registry.PAPERS
    }
    assert "(all/dash.md#dashfig8)" in path.read_text()
    done = subprocess.run([*words[:3], "dash:fig9"], capture_output=True, text=True, check=False)
    entry = registry.ENTRIES["dash:fig9"]
    of = evidence.parts(entry, RESULTS)
    first, *table = done.stdout.split("\n\n")
    assert first == f"dash:fig9: {entry.title}. {document.summary(entry, of)}"
    assert [text.strip() for text in table] == [t.markdown() for t in document.tables(entry, of)]


def test_a_file_is_named_by_the_first_pattern_that_has_it(tmp_path):
    words = "--set dense --match hd64.full.512$"
    for name in ("re_fig7.json", "re_fig7.more.json", "re_fig71.json", "shared.1.json"):
        saved_cases(tmp_path / "papers" / name, words, (0, "flex"))
    files = ("papers/shared.*.json", "papers/*.more.json", "papers/none.json")
    entry = registry.Entry("re:fig7", "", "", "gpu", files=files, view="lines")
    of = evidence.parts(entry, tmp_path)
    assert evidence.read_from(of) == ["papers/re_fig7.*json", "papers/shared.*.json"]
    assert [part["source"] for part in of] == ["re_fig7.json", "re_fig7.more.json", "shared.1.json"]
    of_others = registry.Entry("re:fig7", "", "", "gpu", cases=lambda row: False, view="lines")
    assert evidence.read_from(evidence.parts(of_others, tmp_path)) == []


def test_entries_that_lack_the_same_share_a_line(made):
    missing = made[LIST].partition("## What was not tried")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in missing.splitlines() if "`" in line]
    assert len({said for _, said in rows}) == len(rows)
    assert ["`longca:table4`", "`longca:table7`"] in [names.split(", ") for names, _ in rows]


def test_a_judgement_is_of_an_entry(tmp_path):
    (tmp_path / "papers").mkdir()
    judged = {"entries": {}, "why": {"re:fig77": ""}, "objections": [], "code": {}}
    (tmp_path / "papers" / "judged.json").write_text(json.dumps(judged))
    with pytest.raises(Refused, match="a judgement of no entry"):
        pages.pages(tmp_path, tmp_path / "x.md")

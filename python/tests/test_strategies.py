"""docs/strategies.md: its formulas and its numbers, beside the bytes that plans of ranks send."""

import json
import math
import os
import pathlib
import re
import subprocess

import pytest
from verbatim_attn.papers import parallel, registry

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "strategies.md"
STRATEGIES = ("ulysses", "ring", "allgather", "usp", "loongtrain", "balanced")
PASSES = ("forward", "backward")
DIM, SIZE = 128, 2  # bytes an element

if not os.environ.get("VERBATIM_TOOL"):
    pytest.skip("VERBATIM_TOOL does not name the command-line tool", allow_module_level=True)


def counted(folder, which, strategy, world, *words):
    """Bytes that a rank sends on average."""
    file = folder / "plan.json"
    subprocess.run(
        [os.environ["VERBATIM_TOOL"], "plan", "--pass", which, "--world", f"replay:{world}",
         "--strategy", strategy, "--head-dim", str(DIM), "--dtype", "bf16", "--json", file,
         *map(str, words)],
        check=True, capture_output=True, timeout=100,
    )  # fmt: skip
    dist = json.loads(file.read_text())["dist"]
    (one,) = dist["passes"]
    return sum(rank["predicted_bytes"] for rank in one["ranks"]) / world


def sized(strategy, inner, window):
    """The words that say so."""
    words = ["--ulysses-size", inner] if strategy in ("usp", "loongtrain") else []
    return [*words, "--ring-window", window] if strategy == "loongtrain" else words


def all_to_all(tokens, heads, inner, groups, published):
    """Bytes of a forward, LSE apart. Table 3 has `published` where the page has (Na - 1) / Na."""
    q_heads, kv_heads = heads
    return 2 * (q_heads + kv_heads) * published * tokens * DIM / (inner * groups) * SIZE


@pytest.mark.parametrize("heads", [(16, 16), (32, 16)], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_formulas_are_what_plans_send(strategy, heads, tmp_path):
    """Chunks of a rank's rows: a key's sums travel once from each rank but the one it ends on."""
    tokens, world, window = 16384, 16, 2
    inner = {"ulysses": world, "usp": 4, "loongtrain": 4}.get(strategy, 1)
    groups = world // inner
    q_heads, kv_heads = heads
    x = tokens * DIM / world * SIZE
    lse = 4 * q_heads * (inner - 1) / inner * tokens / world
    shared = all_to_all(tokens, heads, inner, groups, (inner - 1) / inner)
    between = 2 * kv_heads * (groups - 1) * x
    mask = ["--mask", "full", "--seqlen", tokens, "--q-heads", q_heads, "--kv-heads", kv_heads]
    words = [*mask, "--shard", "contiguous", *sized(strategy, inner, window)]
    assert counted(tmp_path, "forward", strategy, world, *words) == shared + lse + between
    chunked = [*words, "--order", f"descending/rows:{tokens // groups}"]
    sent = counted(tmp_path, "backward", strategy, world, *chunked)
    rest = sent - (2 * shared + lse + between)  # sums of keys, in four bytes, and their results
    if groups == 1:
        assert rest == 0
    else:
        assert 0 <= rest - 2 * between <= 2 * kv_heads * x


@pytest.mark.parametrize("strategy", ["ulysses", "usp", "loongtrain"])
def test_the_published_all_to_all_is_what_the_page_says(strategy, tmp_path):
    tokens, world, heads = 32768, 32, (32, 32)
    inner = world if strategy == "ulysses" else 8
    groups = world // inner
    words = ["--mask", "full", "--seqlen", tokens, "--q-heads", 32, "--kv-heads", 32]
    words += ["--shard", "contiguous", *sized(strategy, inner, 2)]
    ring = 2 * 32 * (groups - 1) * tokens * DIM / world * SIZE
    sent = counted(tmp_path, "forward", strategy, world, *words) - ring
    table3 = all_to_all(
        tokens, heads, inner, groups, groups - 1 if strategy == "usp" else inner - 1
    )
    appendix = all_to_all(tokens, heads, inner, groups, (inner - 1) / inner)
    row = f"| `{strategy}` | {table3 / 2**20:.0f} | {appendix / 2**20:.1f} | {sent / 2**20:.1f} |"
    assert row in PAGE.read_text().splitlines()


def test_appendix_a8_is_what_the_page_says():
    """Its terms are those of papers/parallel.py, for 64:8 heads and the registry's tokens."""
    world, inner, window = 96, 8, 3
    groups = world // inner
    x = world * registry.RANK_TOKENS * DIM / world * SIZE
    shared = 2 * (64 + 8) * (inner - 1) / inner * x
    hops = 2 * 8 * (groups - 1) * x
    for strategy, back in (("usp", hops), ("loongtrain", 2 * 8 * (groups + groups // window) * x)):
        told = [parallel.published(strategy, which, world, inner, window) for which in PASSES]
        assert math.isclose(told[0], shared + hops) and math.isclose(told[1], shared + hops + back)


MASKS = {
    "full": [],
    "causal": [],
    "causal_document": ["--doc-lengths", "9000,3000,2384,1000,1000"],
}


@pytest.mark.parametrize("mask", MASKS)
def test_the_table_of_bytes_is_what_plans_send(mask, tmp_path):
    page = PAGE.read_text()
    table = page[page.index("| | full | causal | causal_document |") :]
    said = {
        name: cells.split(" | ")[list(MASKS).index(mask)]
        for names, cells in re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.M)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert list(said) == list(STRATEGIES)
    words = ["--mask", mask, *MASKS[mask], "--seqlen", 16384, "--q-heads", 64, "--kv-heads", 8]
    for strategy in STRATEGIES:
        sent = [
            counted(tmp_path, which, strategy, 8, *words, *sized(strategy, 4, 0)[:2])
            for which in PASSES
        ]
        assert said[strategy] == ", ".join(f"{one / 2**20:.0f}" for one in sent), strategy

#!/usr/bin/env python3
"""Writes docs/results/ from bench/results/, a page a question:

    VERBATIM_LIBRARY=build/libverbatim_c.so PYTHONPATH=python python3 tools/write_results.py
"""
import json
import math
import pathlib
import shlex
import statistics

from verbatim_attn.bench import report

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
SHORT = {"torch:flash": "FlashAttention-2 (PyTorch)", "torch:varlen": "FlashAttention-2 (varlen_attn)",
         "torch:cudnn": "cuDNN (PyTorch)", "torch:math": "plain formulas (PyTorch)",
         "flex": "FlexAttention", "flash_attn_3": "FlashAttention-3"}


def load(name):
    return json.loads((RESULTS / name).read_text())


def lines_of(name):
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def table(columns, rows):
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns),
            *("| " + " | ".join(row) + " |" for row in rows)]


def command(program, arguments, providers=()):
    """What makes a run again, in a code block. A run that was gone on with had several."""
    own = ("--providers", "--commit", "--resume", "--json")
    kept = [word for word, before in zip(arguments, ["", *arguments], strict=False)
            if word not in own and before not in own]
    if providers:
        kept += ["--providers", ",".join(providers)]
    return ["", "```", shlex.join([*program, *kept]), "```"]


def peer_name(provider):
    base, colon, mode = provider.rpartition(":")
    if mode == "deterministic":
        return f"{SHORT.get(base, base)}, deterministic"
    return SHORT.get(provider, provider)


def summary(rows, providers):
    """Our speed-up over each peer: least to most and geometric mean, and the least one's case."""
    ours = {row["name"]: row for row in rows if row["provider"] == "verbatim"}
    blocks = any(row.get("block") for row in rows)
    passes = ["backward", "forward", *(["block"] if blocks else [])]
    lines = []
    for provider in providers:
        cells = [peer_name(provider)]
        for which in passes:
            known = {row["name"]: ratio for row in rows if row["provider"] == provider
                     if not math.isnan(ratio := report.speed_up(ours[row["name"]], row, which))}
            least = min(known, key=known.get)
            cells.append(f"{min(known.values()):.2f} to {max(known.values()):.2f}, mean "
                         f"{statistics.geometric_mean(known.values()):.2f}")
            if which == "backward":
                cells += [str(len(known)), least]
        lines.append([cells[0], cells[2], *(cells[1:2]), cells[3], *cells[4:]])
    return table(["speed-up over", "cases", "backward", "weakest case", *passes[1:]], lines)


def peers(name, providers, of_set=None):
    """The tables of a run of `python -m verbatim_attn.bench`, of `providers` beside ours, of one set
    of cases or all."""
    result = load(name)
    shown = ("verbatim", *providers)
    result["results"] = [row for row in result["results"]
                         if row["provider"] in shown and of_set in (None, row["set"])]
    lines = [*summary(report.rows_of([result]), providers), "",
             f"`bench/results/{name}`: {report.provenance(result)}. To make it again:",
             *command(["python", "-m", "verbatim_attn.bench"], result["arguments"], shown)]
    for title, columns, rows in report.tables([result]):
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", *table(columns, rows)]
    return lines


def order(name):
    """Every case of `verbatim bench` beside the same kernel without order."""
    run = load(name)
    matmul = run["matmul_tflops"]
    yardstick = statistics.mean((matmul["before"], matmul["after"]))
    rows = []
    for r in run["results"]:
        back, none = r["backward"], r["unordered"]
        ratio = r.get("order_ratio") or none["ms"] / back["ms"]  # not in turn
        rows.append([r["name"], f"{r['forward']['tflops']:.0f}", f"{back['ms']:.3f}",
                     f"{back['tflops']:.0f}", f"{back['tflops'] / yardstick:.2f}",
                     f"{none['ms']:.3f}", f"{ratio:.2f}", r["plan"]["order"],
                     f"{back['noise']:.1%}"])
    return ["", f"## {run['protocol'].capitalize()}", "",
            f"`bench/results/{name}`: {run['device']['name']}, commit {run['commit']}, 8192^3 bf16"
            f" matmul {matmul['before']:.0f} TFLOP/s before and {matmul['after']:.0f} after. To make it again:",
            *command(["verbatim"], run["arguments"]), "",
            *table(["case", "forward TFLOP/s", "backward ms", "backward TFLOP/s", "of the matmul",
                    "without order ms", "speed-up over it", "order", "noise"], rows)]


def cpu(name):
    result = load(name)
    rows = []
    for r in result["results"]:
        of = r["cpu" if r["threads"] == 1 else "wall"]
        rows.append([str(r["threads"]), r["dtype"], r["mask"], str(r["length"]), str(r["head_dim"]),
                     *(f"{of[x]:.0f}" for x in ("ours", "torch", "gemm")),
                     f"{of['over_torch']:.2f}", f"{of['over_gemm']:.2f}", r.get("commit") or "-"])
    return [f"`bench/results/{name}`: {result['cpu']}, {result['cores']} cores, PyTorch"
            f" {result['torch']}, batch {result['batch']}, {result['heads']} heads.", "",
            *table(["threads", "dtype", "mask", "length", "head dim", "ours", "PyTorch", "sgemm",
                    "speed-up over PyTorch", "of sgemm", "commit"], rows)]


def calls(name):
    result = load(name)
    base = {(r["tensors"], r["pass"]): r["us"] for r in result["results"] if r["row"] == "C call"}
    rows = []
    for r in result["results"]:
        us = [a - b for a, b in zip(r["us"], base[r["tensors"], r["pass"]], strict=True)]
        rows.append([r["tensors"], r["pass"], r["row"], f"{statistics.median(r['us']):.1f}",
                     f"{statistics.median(us):.1f}"])
    env = result["environment"]
    where = env.get("gpu", {}).get("name") or env["cpu"]
    return ["", f"`bench/results/{name}`: {where}, Python {env['python']}, PyTorch"
            f" {env['packages']['torch']}, {result['calls']} calls, median of"
            f" {len(result['results'][0]['us'])} runs.", "",
            *table(["tensors", "pass", "call", "us", "us above the C call"], rows)]


def training(name):
    names = {"naive": "plain formulas", "sdpa": "SDPA, PyTorch's choice",
             "sdpa_flash": "SDPA, FlashAttention", "verbatim": "Verbatim"}
    rows = []
    for attention, runs in load(name).items():
        first = [run["losses"] for run in runs]
        steps = len(first[0])
        same = len({run["sha256"] for run in runs}) == 1
        fork = next((i for i in range(steps) if len({losses[i] for losses in first}) > 1), steps)
        rows.append([names[attention], ", ".join(f"{losses[-1]:.4f}" for losses in first),
                     "yes" if same else f"no, from step {fork}" if fork < steps else "no",
                     f"{max(run['tokens_per_second'] for run in runs):,.0f}",
                     f"{max(run['peak_bytes'] for run in runs) / 2**20:,.0f}"])
    return ["", f"`bench/results/{name}`, {len(first)} runs of {steps} steps each:", "",
            *table(["attention", "last losses", "same bits", "tokens/s, best run", "peak MiB"], rows)]


def audits(name):
    verdicts = ("repeatable", "batch_invariant", "packing_invariant")
    rows = []
    for found in lines_of(name):
        target = found["target"]
        if found["environment"]["settings"].get("deterministic_debug_mode"):
            target += ", deterministic"
        differs = [f"`{c['check']}`: {c['difference']['tensor']}, {c['differing']} of {c['runs']} runs"
                   for c in found["checks"] if c["status"] == "differs"]
        rows.append([target, str(found["problem"]["repeats"]),
                     *(found["verdicts"][verdict] for verdict in verdicts),
                     "; ".join(differs) or "-"])
    return [f"`bench/results/{name}`, the certificates:", "",
            *table(["target", "repeats", *(v.replace("_", "-") for v in verdicts), "what differs"],
                   rows)]


FA3 = ("flash_attn_3", "flash_attn_3:deterministic")
FA2 = ("torch:flash", "torch:flash:deterministic")

# File: question, answer in words, tables.
PAGES = {
    "dense": ("How fast are dense shapes beside FlashAttention-3 and FlexAttention?", """\
Causal and full masks, 16,384 tokens of hidden size 2,048: the batch shrinks as the length grows. \
FlexAttention has one backward, which repeats its bits. FlashAttention-3 is built \
from the `hopper` folder of its repository at 0251105, for bf16.""",
              lambda: peers("h200_peers.json", (*FA3, "flex"))),
    "pytorch": ("How fast are dense shapes beside PyTorch's own attention?", """\
The same shapes. PyTorch does not reach cuDNN's deterministic mode. The plain formulas need \
quadratic memory.""",
                lambda: peers("h200_peers_sdpa.json", (*FA2, "torch:cudnn", "torch:math"), "dense")),
    "grouped-heads": ("How fast are few KV heads?", """\
One causal sequence, head dim 128; 64:8 is 64 query heads and 8 KV heads. Sequences of 4,096 tokens \
are the weakest shapes of ours that we know: `auto` may not see that they are alone, and assumes \
more work beside them.""",
                      lambda: peers("h200_peers_gqa.json", FA3)),
    "masks": ("How fast is my mask?", """\
Twelve masks, one sequence of 8,192 tokens, 64:8 heads of 128. `s0` is the seed of what is drawn. A \
peer without a number does not take that mask.""",
              lambda: peers("h200_peers_masks.json",
                            ("flex", *FA3, "torch:varlen", "torch:varlen:deterministic", *FA2,
                             "torch:cudnn"))),
    "blocks": ("How much faster is a transformer block?", """\
Forward and backward of one block, with PyTorch's FlashAttention-2 in the place of ours.""",
               lambda: peers("h200_blocks.json", FA2)),
    "order": ("What does a fixed order cost?", """\
Every case is timed in turn with the same kernel without order, which adds to dQ as it comes, zeroes \
its sum first and converts it last: above 1, the order costs nothing. Rested is 0.5 s idle before ten \
calls, sustained 0.6 s of the same kernels. Rows of much noise throttle inside their ten calls.""",
              lambda: [*order("h200_rested.json"), *order("h200_sustained.json")]),
    "cpu": ("How fast is the CPU beside PyTorch?", """\
Forward plus backward in GFLOP/s by exact area, ours, PyTorch's attention and oneDNN's sgemm in turns \
in one process. One thread by CPU time, two by wall time.""",
            lambda: cpu("cpu_compare_torch.json")),
    "python-calls": ("What does a call from Python cost?", """\
One tiny problem (16 tokens, one head), CPU time of the calling thread, the lowest tenth of many \
calls. Rows with "native" take the way in C++ ([python.md](../python.md#what-a-call-costs)).""",
                     lambda: [*calls("cpu_python_overhead.json"),
                              *calls("h200_python_overhead.json")]),
    "training": ("Does training repeat, and how fast is it?", """\
`python/examples/train_lm.py`: a byte-level decoder of 12 layers, 8 heads of 64, 16 x 1,024 tokens a \
step, bf16, H200, every run from one seed. The second table is of another host and the way in C++.

![Losses, and the difference between runs from one seed](../training.svg)""",
                 lambda: [*training("h200_training.json"), *training("h200_training_native.json")]),
    "audit": ("What does the auditor find?", """\
H200, PyTorch 2.11 (CUDA 13.0, cuDNN 9.19), bf16, causal, batch 2, 8 heads of 128, 2,048 tokens, \
documents of 877, 585 and 586, all audits side by side on one GPU. `neighbours` and `padding` were \
not asked of them. What it means: [audit.md](../audit.md).""",
              lambda: audits("h200_audits.jsonl")),
}


NOTE = "Generated by `tools/write_results.py`; [benchmarks.md](../benchmarks.md) says how it was measured."
SPEED_UP = "Speed-up is the other's time over ours: above 1, ours is faster. "
PROVIDERS = ("In the tables, `verbatim:unordered` is ours without order, and `:deterministic` is a peer with its"
             " switch for determinism on.")


def pages():
    """Name and text of every page."""
    found = {}
    for name, (question, answer, tables) in PAGES.items():
        lines = tables()
        note = SPEED_UP + NOTE if any("speed-up" in line for line in lines) else NOTE
        if any("verbatim:unordered" in line for line in lines):
            answer += " " + PROVIDERS
        head = [f"# {question}", "", answer, "", note, *([""] if lines[0] else [])]
        found[name] = "\n".join([*head, *lines, ""])
    return found


if __name__ == "__main__":
    for name, text in pages().items():
        (ROOT / "docs" / "results" / f"{name}.md").write_text(text)

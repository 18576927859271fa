#!/usr/bin/env python3
"""Writes docs/results/ from bench/results/, a page a question:

VERBATIM_LIBRARY=build/libverbatim_c.so PYTHONPATH=python python3 tools/write_results.py
"""

import json
import math
import pathlib
import shlex
import statistics

from result_files import RESULTS, ROOT, load, table
from results_of_ranks import (
    bits,
    clusters,
    free_order,
    ranks,
    replayed_masks,
    replays,
    simulated_replays,
    timed_aims,
    work_aims,
)
from verbatim_attn.bench import report

FA3 = ("flash_attn_3", "flash_attn_3:deterministic")
FA2 = ("torch:flash", "torch:flash:deterministic")
VARLEN = ("torch:varlen", "torch:varlen:deterministic")
PEERS = {
    "torch:flash": "FlashAttention-2 (PyTorch)",
    "torch:varlen": "FlashAttention-2 (varlen_attn)",
    "torch:cudnn": "cuDNN (PyTorch)",
    "torch:math": "plain formulas (PyTorch)",
    "flex": "FlexAttention",
    "flash_attn_3": "FlashAttention-3",
    "cudnn:flex": "cuDNN's flex_attention",
}


def command(program, arguments, own):
    """What makes a run again, and its result. `own`: options that are not those of the run."""
    kept = [*program]
    for before, word in zip(["", *arguments], arguments, strict=False):
        if word not in own and before not in own:
            kept.append(word)
    return shlex.join([*kept, *(word for option in own.items() for word in option)])


def again(*lines):
    text = "\n".join(lines)
    return f"To make it again, where COMMIT is what was built:\n\n```\n{text}\n```"


def peer_name(provider):
    base, _, mode = provider.rpartition(":")
    if mode == "deterministic":
        return f"{PEERS[base]}, deterministic"
    return PEERS[provider]


def summary(rows, providers):
    """Our speed-up over each peer: least to most and geometric mean, and the least one's case."""
    ours = {row["name"]: row for row in rows if row["provider"] == "verbatim"}

    def speed_ups(provider, which):
        of = {row["name"]: row for row in rows if row["provider"] == provider}
        found = {name: report.speed_up(ours[name], row, which) for name, row in of.items()}
        return {name: ratio for name, ratio in found.items() if not math.isnan(ratio)}

    def extent(ratios):
        if not ratios:
            return "-"
        mean = statistics.geometric_mean(ratios.values())
        return f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f}, mean {mean:.2f}"

    lines = []
    for provider in providers:
        backward = speed_ups(provider, "backward")
        line = {
            "speed-up over": peer_name(provider),
            "cases": str(len(backward)),
            "backward": extent(backward),
            "weakest case": min(backward, key=backward.get, default="-"),
            "forward": extent(speed_ups(provider, "forward")),
        }
        if block := speed_ups(provider, "block"):
            line["block"] = extent(block)
        lines.append(line)
    return table(lines)


def peers(name, providers, of_set=None, script=None):
    """A run of `python -m verbatim_attn.bench`: `providers` beside ours, of one set or all. `script`:
    what called it, several times."""
    result = load(name)
    shown = ("verbatim", *providers)
    result["results"] = [
        row
        for row in result["results"]
        if row["provider"] in shown and of_set in (None, row["set"])
    ]
    own = {
        "--providers": ",".join(shown),
        "--commit": "COMMIT",
        "--resume": pathlib.Path(name).stem + ".jsonl",
        "--json": f"bench/results/{name}",
    }
    run = again(
        "export VERBATIM_LIBRARY=build/libverbatim_c.so PYTHONPATH=python",
        script or command(["python", "-m", "verbatim_attn.bench"], result["arguments"], own),
    )
    parts = [
        summary(report.rows_of([result]), providers),
        f"`bench/results/{name}`: {report.provenance(result)}. {run}",
        "Its providers are those in the tables. There `verbatim:unordered` is ours without order, which"
        " is timed with `verbatim`, and `:deterministic` a peer with its switch for determinism on.",
    ]
    for title, columns, rows in report.tables([result]):
        parts.append(f"## {title[0].upper()}{title[1:]}")
        parts.append(table([dict(zip(columns, row, strict=True)) for row in rows]))
    return parts


def order(name):
    """Every case of `verbatim bench` beside the same kernel without order."""
    run = load(name)
    matmul = run["matmul_tflops"]
    yardstick = statistics.mean((matmul["before"], matmul["after"]))
    own = {"--commit": "COMMIT", "--json": f"bench/results/{name}"}
    rows = []
    for r in run["results"]:
        back, none = r["backward"], r["unordered"]
        ratio = r.get("order_ratio") or none["ms"] / back["ms"]  # not in turn
        row = {
            "case": r["name"],
            "forward TFLOP/s": f"{r['forward']['tflops']:.0f}",
            "backward ms": f"{back['ms']:.3f}",
            "backward TFLOP/s": f"{back['tflops']:.0f}",
            "of the matmul": f"{back['tflops'] / yardstick:.2f}",
            "without order ms": f"{none['ms']:.3f}",
            "speed-up over it": f"{ratio:.2f}",
            "order": r["plan"]["order"],
            "noise": f"{back['noise']:.1%}",
        }
        rows.append(row)
    return [
        f"## {run['protocol'].capitalize()}",
        f"`bench/results/{name}`: {run['device']['name']}, commit {run['commit']}, 8192^3 bf16"
        f" matmul {matmul['before']:.0f} TFLOP/s before and {matmul['after']:.0f} after. "
        + again(command(["build/verbatim"], run["arguments"], own)),
        table(rows),
    ]


def cpu(name):
    result = load(name)
    rows = []
    for r in result["results"]:
        of = r["cpu" if r["threads"] == 1 else "wall"]
        row = {
            "threads": str(r["threads"]),
            "dtype": r["dtype"],
            "mask": r["mask"],
            "length": str(r["length"]),
            "head dim": str(r["head_dim"]),
            "ours": f"{of['ours']:.0f}",
            "PyTorch": f"{of['torch']:.0f}",
            "sgemm": f"{of['gemm']:.0f}",
            "speed-up over PyTorch": f"{of['over_torch']:.2f}",
            "of sgemm": f"{of['over_gemm']:.2f}",
            "commit": r.get("commit") or "-",
        }
        rows.append(row)
    return [
        f"`bench/results/{name}`: {result['cpu']}, {result['cores']} cores, PyTorch"
        f" {result['torch']}, batch {result['batch']}, {result['heads']} heads.",
        table(rows),
    ]


def calls(name):
    result = load(name)
    base = {(r["tensors"], r["pass"]): r["us"] for r in result["results"] if r["row"] == "C call"}
    rows = []
    for r in result["results"]:
        above = [a - b for a, b in zip(r["us"], base[r["tensors"], r["pass"]], strict=True)]
        row = {
            "tensors": r["tensors"],
            "pass": r["pass"],
            "call": r["row"],
            "us": f"{statistics.median(r['us']):.1f}",
            "us above the C call": f"{statistics.median(above):.1f}",
        }
        rows.append(row)
    env = result["environment"]
    where = env.get("gpu", {}).get("name") or env["cpu"]
    return [
        f"`bench/results/{name}`: {where}, Python {env['python']}, PyTorch"
        f" {env['packages']['torch']}, {result['calls']} calls, median of"
        f" {len(result['results'][0]['us'])} runs.",
        table(rows),
    ]


def training(name):
    names = {
        "naive": "plain formulas",
        "sdpa": "SDPA, PyTorch's choice",
        "sdpa_flash": "SDPA, FlashAttention",
        "verbatim": "Verbatim",
    }
    rows = []
    for attention, runs in load(name).items():
        losses = [run["losses"] for run in runs]
        same = len({run["sha256"] for run in runs}) == 1
        fork = next((step for step, of in enumerate(zip(*losses)) if len(set(of)) > 1), None)
        row = {
            "attention": names[attention],
            "last losses": ", ".join(f"{of[-1]:.4f}" for of in losses),
            "same bits": "yes" if same else f"no, losses from step {fork}",
            "tokens/s, best run": f"{max(run['tokens_per_second'] for run in runs):,.0f}",
            "peak MiB": f"{max(run['peak_bytes'] for run in runs) / 2**20:,.0f}",
        }
        rows.append(row)
    return [
        f"`bench/results/{name}`, {len(losses)} runs of {len(losses[0])} steps each:",
        table(rows),
    ]


def audits(name):
    """A row a target: some were audited in several parts, each with certificates of its checks."""
    targets = {}
    for line in (RESULTS / name).read_text().splitlines():
        found = json.loads(line)
        asked = found["environment"]["settings"].get("deterministic_debug_mode")
        target = found["target"] + (", deterministic" if asked else "")
        targets.setdefault((target, found.get("commit", "-")), []).append(found)
    rows = []
    for (target, commit), parts in targets.items():
        checks = {c["check"]: c for found in parts for c in found["checks"]}.values()

        def verdict(name, parts=parts):
            said = {found["verdicts"].get(name, "not checked") for found in parts}
            return next(v for v in ("no", "yes", "not checked") if v in said)

        row = {
            "target": target,
            "commit": commit,
            "repeats": str(min(found["problem"]["repeats"] for found in parts)),
            "repeatable": verdict("repeatable"),
            "batch-invariant": verdict("batch_invariant"),
            "packing-invariant": verdict("packing_invariant"),
            "isolated": verdict("isolated"),
            "what differs": "; ".join(
                f"`{c['check']}`: {c['difference']['tensor']}, {c['differing']} of {c['runs']} runs"
                for c in checks
                if c["status"] == "differs"
            )
            or "-",
        }
        rows.append(row)
    return [f"`bench/results/{name}`, the certificates:", table(rows)]


def replayed(*cases):
    return [f"h200_replay_64k.{case}.json" for case in cases]


# 65,536 tokens: 64:8 heads of 128, and 32:32 of 64.
GROUPS = ("full", "causal", "documents", "window")
REPLAYED_GROUPS = replayed(*GROUPS, *(f"{case}_named" for case in GROUPS))
REPLAYED_HEADS = replayed(
    *(f"hd64{mask}{rows}" for mask in ("full", "", "documents", "window") for rows in ("", "_rows"))
)
# File: question, answer in words, and what follows it.
PAGES = {
    "dense": (
        "How fast are dense shapes beside FlashAttention-3 and FlexAttention?",
        "Causal and full masks, 16,384 tokens of hidden size 2,048: the batch shrinks as the length"
        " grows. FlexAttention has one backward, which repeats its bits; it was timed in a call of"
        " its own, on another such card. FlashAttention-3 is built from the `hopper` folder of its"
        " repository at 0251105, for bf16, without windows, packing and split rows.",
        lambda: peers("h200_peers.json", (*FA3, "flex")),
    ),
    "pytorch": (
        "How fast are dense shapes beside PyTorch's own attention?",
        "The same shapes. PyTorch does not reach cuDNN's deterministic mode. The plain formulas"
        " need quadratic memory.",
        lambda: peers("h200_peers_sdpa.json", (*FA2, "torch:cudnn", "torch:math"), "dense"),
    ),
    "grouped-heads": (
        "How fast are few KV heads?",
        "One causal sequence, head dim 128; 64:8 is 64 query heads and 8 KV heads. 28:4 heads at"
        " 4,096 tokens are the weakest: by the model, workers wait 9 % of the time and idle 7 %.",
        lambda: peers("h200_peers_gqa.json", FA3),
    ),
    "masks": (
        "How fast is my mask?",
        "Twelve masks, one sequence of 8,192 tokens, 64:8 heads of 128. `s0` is the seed of what is"
        " drawn. A peer without a number does not take that mask.",
        lambda: peers("h200_peers_masks.json", ("flex", *FA3, *VARLEN, *FA2, "torch:cudnn")),
    ),
    "cudnn-flex": (
        "How fast is cuDNN's flex_attention?",
        "nvidia-cudnn-frontend 1.32.0, the nearest relative of ours: masks as intervals of keys, with"
        " a switch for determinism. The shapes of [dense](dense.md) and [masks](masks.md). Three"
        " repeats have equal bits with the switch in all 36 cases, without it in 2.",
        lambda: peers(
            "h200_cudnn_flex.json",
            ("cudnn:flex", "cudnn:flex:deterministic"),
            script="COMMIT=COMMIT LIB=build OUT=results bash bench/peers.sh cudnn",
        ),
    ),
    "blocks": (
        "How much faster is a transformer block?",
        "Forward and backward of one block, with PyTorch's FlashAttention-2 in the place of ours.",
        lambda: peers("h200_blocks.json", FA2),
    ),
    "order": (
        "What does a fixed order cost?",
        "Calls of every case alternate with those of the same kernel without order, which adds to dQ as it"
        " comes, zeroes its sum first and converts it last: above 1, the order costs nothing."
        " Rested is 0.5 s idle before ten calls, sustained 0.6 s of the same kernels. Rows of much"
        " noise throttle inside their ten calls.",
        lambda: [*order("h200_rested.json"), *order("h200_sustained.json")],
    ),
    "two-gpus": (
        "How fast are two GPUs?",
        "One attention and its gradients over two H100 of one host, a process each, bf16, by"
        " `torchrun --nproc-per-node 2 bench/ranks.py --device cuda`, without NVLink multicast. A"
        " step is wall time of the slower rank, the median of five calls in turn; the rate is one"
        " GPU's time, by the row's order or by `auto`, whichever is faster, over twice the step's."
        " Simulated is what `verbatim plan` says of that rate on the cluster h200x8"
        " ([clusters.md](../clusters.md), `bench/simulated_ranks.py`). The last columns say where"
        " rank 0's recorded step goes (waits for the other rank are transfers; host: nothing had"
        " been asked for). What was found: [lab](../lab/two-gpus.md).",
        lambda: [
            part
            for name in ("32k", "16k", "rows2k", "windows", "hd64")
            for part in ranks(f"h100x2_ranks_{name}.json", "h100x2_simulated.json")
        ],
    ),
    "four-gpus": (
        "How fast are four GPUs?",
        "As [two-gpus.md](two-gpus.md), over four H100 or four H200 of one host (`torchrun"
        " --nproc-per-node 4`). 4a640be is before launches came behind the sends before them: where"
        " a step is far longer there than without transfers, sends that waited held multiprocessors"
        " during a backward. Messages of `peers` come beside launches, those of `group` in turn, and so"
        " they are simulated. What was found: [lab](../lab/four-gpus.md).",
        lambda: [
            part
            for name in (
                "h100x4_ranks_peers",
                "h100x4_ranks_peers_heads",
                "h100x4_ranks_64k",
                "h100x4_ranks_32k",
                "h200x4_ranks_64k",
                "h200x4_ranks_32k",
            )
            for part in ranks(f"{name}.json", "h200x4_simulated.json")
        ],
    ),
    "replay": (
        "What do ranks compute, and what would a cluster make of it?",
        "One GPU plays all ranks of context parallelism (`verbatim bench --device cuda --world"
        " replay:1,2,4,8 --strategy all --cluster h200x8 --protocol sustained --repeats 1 --check"
        " none`). Work is what all ranks' launches took in one pass, over one device: its timed"
        " call, or the median of six passes of one rank, whichever is faster. These six differ by"
        " up to 15 %, so the second decimal says little. Shares are no measurement: the launches"
        " that were timed, played on the cluster h200x8 ([clusters.md](../clusters.md)) with"
        " transfers in turn, as parts of that one device's rate; where launches were quicker than"
        " its, at another clock, they can be above 100 %. An order is named where it is not `auto`."
        " Overlapped, those timed before b21dda98 had the host of NCCL's calls, 38 us for 15."
        " The tables behind it deal the cases anew (`bench/simulated_replays.py`) and play them with"
        " predicted launches, which leave out waits between chains. What was found:"
        " [lab](../lab/replay.md).",
        lambda: [
            bits([*REPLAYED_GROUPS, *REPLAYED_HEADS, "h200_replay_masks.json"]),
            *timed_aims(GROUPS, 8),
            *work_aims([*REPLAYED_GROUPS, *REPLAYED_HEADS], 8),
            "Since then launches of one or two KV heads are spaced: documents' backwards of 64:8 heads"
            " have 0.98 to 1.17 by `auto` ([lab](../lab/replay.md#launches-of-one-or-two-kv-heads)).",
            *replays(REPLAYED_GROUPS, 8),
            *replays(REPLAYED_HEADS, 8),
            *simulated_replays("h200_replay_simulated.json"),
            *replayed_masks("h200_replay_masks.json"),
        ],
    ),
    "clusters": (
        "What is a device's rate on 8 to 96 of them, simulated?",
        "LongCA-bench's figures of context parallelism: 8,192 tokens a device, 64:8 heads of 128, on"
        " the cluster h200x8 ([clusters.md](../clusters.md)), with predicted launches. TFLOP/s of a"
        " device by exact area, transfers in turn, then overlapped where that differs, each by the"
        " order that suits the strategy best of `descending` and its chunks of 4,096 and 32,768 rows."
        " Nothing of it is measured. Today only ranks of one host overlap: from 16 on, the second"
        " number is what they would have if nodes did, too.",
        lambda: clusters(*(f"longca:fig{number}" for number in (6, 21, 22, 23, 24))),
    ),
    "free-order": (
        "What is the error of gradients over ranks, with an order and without?",
        "With `--order none` ranks start sums of their own, which are added rank by rank. Errors are"
        " the largest of any element against double precision; bytes are what all ranks send in the"
        " backward. `VERBATIM_TOOL=build/verbatim python3 bench/free_order.py --json FILE` makes the"
        " table again. What was found: [lab](../lab/free-order.md).",
        lambda: free_order("cpu_free_order.json"),
    ),
    "cpu": (
        "How fast is the CPU beside PyTorch?",
        "Forward plus backward in GFLOP/s by exact area, ours, PyTorch's attention and oneDNN's"
        " sgemm alternately in one process. One thread by CPU time, two by wall time.",
        lambda: cpu("cpu_compare_torch.json"),
    ),
    "python-calls": (
        "What does a call from Python cost?",
        "One tiny problem (16 tokens, one head), CPU time of the calling thread, the lowest tenth"
        ' of many calls. Rows with "native" take the way in C++'
        " ([python.md](../python.md#what-a-call-costs)).\n\n"
        "`bench/python_overhead.py --calls 3000 --runs 5 --json FILE` makes a table again, with"
        " `--device cuda` a GPU's. For the rows of the way in C++ build that first.",
        lambda: [*calls("cpu_python_overhead.json"), *calls("h200_python_overhead.json")],
    ),
    "training": (
        "Does training repeat, and how fast is it?",
        "`python/examples/train_lm.py`: a byte-level decoder of 12 layers, 8 heads of 64, 16 x"
        " 1,024 tokens a step, bf16, H200, every run from one seed. The second table is of another"
        " host and the way in C++.\n\n"
        "![Losses, and the difference between runs from one seed](../training.svg)",
        lambda: [*training("h200_training.json"), *training("h200_training_native.json")],
    ),
    "audit": (
        "What does the auditor find?",
        "H200, PyTorch 2.11 (CUDA 13.0, cuDNN 9.19), bf16, causal, batch 2, 8 heads of 128, 2,048"
        " tokens, documents of 877, 585 and 586, audits side by side on one GPU. Rows without a commit are"
        " of November 21, ahead of the checks `neighbours` and `padding`. cudnn:flex is of"
        " nvidia-cudnn-frontend 1.32.0, audited in parts. What it means: [audit.md](../audit.md).",
        lambda: audits("h200_audits.jsonl"),
    ),
}

SPEED_UP = "Speed-up is the other's time over ours: above 1, ours is faster. "
NOTE = (
    "Generated by `tools/write_results.py`; [benchmarks.md](../benchmarks.md) says how it was"
    " measured."
)


def pages():
    """Name and text of every page."""
    found = {}
    for name, (question, answer, contents) in PAGES.items():
        parts = contents()
        note = SPEED_UP + NOTE if any("speed-up" in part for part in parts) else NOTE
        found[name] = "\n\n".join([f"# {question}", answer, note, *parts]) + "\n"
    return found


if __name__ == "__main__":
    for name, text in pages().items():
        (ROOT / "docs" / "results" / f"{name}.md").write_text(text)

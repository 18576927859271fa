#!/usr/bin/env python3
"""Draws the pictures of README.md and docs/glossary.md: python3 tools/draw_docs.py.

docs/chains.svg explains the words of a plan; docs/speed.svg is drawn from bench/results."""

import json
import pathlib
from html import escape

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"

STYLE = """
text{font:13px ui-sans-serif,system-ui,"Segoe UI",Roboto,Helvetica,Arial,sans-serif;fill:#68737f}
.word{fill:#1d2733;font-weight:600}.on{fill:#fff;font-size:12px}.small{font-size:12px}
.tiny{font-size:11px}
.paper{fill:#fdfcf9}.empty{fill:#f1efe9}.full{fill:#2a7f9e}.partial{fill:#67a9bc}
.second{fill:#7a5ea8}.sum{fill-opacity:.5}.wait{fill:#d9483b;fill-opacity:.6}
.grid{stroke:#e4e2dc}.mark{fill:none;stroke:#1d2733;stroke-width:2}
.line{fill:none}.arrow{fill:none;stroke:#d9483b;stroke-width:2.5}.head{fill:#d9483b}
@media (prefers-color-scheme:dark){text{fill:#98a3ad}.word{fill:#e7e9ea}.on{fill:#fff}
.paper{fill:#14181d}.empty{fill:#1f262d}.grid{stroke:#303841}.mark{stroke:#e7e9ea}}
"""


class Svg:
    """A picture as SVG text; `css` names classes of STYLE."""

    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            f'<rect class="paper" width="{width}" height="{height}"/>',
        ]

    def rect(self, x, y, width, height, css):
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.parts.append(f'<rect class="{css}" {place}/>')

    def path(self, d, css, style=""):
        self.parts.append(f'<path class="{css}" d="{d}" style="{style}"/>')

    def text(self, x, y, content, css="", anchor="start"):
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self.parts.append(f'<text class="{css}" {place}>{escape(content)}</text>')

    def words(self, x, y, *lines):
        """Lines of text, the first of which begins with the word that is explained and a colon."""
        word, colon, rest = lines[0].partition(":")
        rest = escape(colon + rest)
        self.parts.append(f'<text x="{x}" y="{y}"><tspan class="word">{word}</tspan>{rest}</text>')
        for i, line in enumerate(lines[1:], 1):
            self.text(x, y + 17 * i, line)

    def document(self):
        return "\n".join([*self.parts, "</svg>\n"])


TILES = 4  # of a side of the example
HEADS = ("full", "second")  # colours of its heads


def draw_order(svg, left, top):
    """The tiles of one causal head, and what a chain does."""
    cell = 58
    title = "One head, causal, four tiles a side. A number is the addend of its visit."
    svg.text(left, top - 38, title, "word")
    svg.text(left + TILES * cell / 2, top - 14, "KV tiles 0 to 3", anchor="middle")
    for q in range(TILES):
        svg.text(left - 10, top + q * cell + 34, str(q) if q else "query 0", anchor="end")
        for kv in range(TILES):
            x, y = left + kv * cell, top + q * cell
            css = "empty" if kv > q else "partial" if kv == q else "full"
            svg.rect(x + 1, y + 1, cell - 2, cell - 2, css)
            if kv <= q:
                svg.text(x + 20, y + 35, str(kv), "on", "middle")
    svg.rect(left + cell, top + cell, cell, 3 * cell, "mark")
    x, tip = left + 1.68 * cell, top + 1.2 * cell
    svg.path(f"M{x} {top + 3.8 * cell}V{tip + 7}", "arrow")
    svg.path(f"M{x - 5} {tip + 7}h10l-5 -7z", "head")
    row = f"M{left - 4} {top + 3 * cell - 2}h{TILES * cell + 8}v{cell + 4}h-{TILES * cell + 8}z"
    svg.path(row, "mark", "stroke-dasharray:5 4")

    y = top + 14
    for lines in (
        ["visit: one square, a query tile times a KV tile."],
        [
            "chain: the visits of one KV tile (solid frame). Its dK and dV stay in registers",
            "while it walks past query tiles 3, 2, 1. The forward turns this round: a query",
            "tile stays, KV tiles pass.",
        ],
        [
            "run: consecutive visits that the mask cuts alike. This chain has two: the full",
            "tiles 3, 2, then the partial tile 1.",
        ],
        [
            "addend: a visit's number in the sum of its dQ tile. The dashed sum is visit",
            "0 + 1 + 2 + 3, in this sequence, on every device.",
        ],
        [
            "turn: the addend that may enter a dQ tile next. It starts at 0; who has added",
            "says so by raising it by one.",
        ],
        ["order: all of this for one head. It fixes the bits."],
    ):
        svg.words(left + 280, y, *lines)
        y += 9 + 17 * len(lines)


def schedule(heads, compute, reduce):
    """The backward of causal heads in descending order, on as many workers as a head has KV tiles,
    in the paper's model: [(worker, head, [(q_tile, begin, computed, adds, end)])]."""
    free = [0] * TILES
    done = {}  # (head, q_tile): when its last addend so far was complete
    tasks = []
    for head in range(heads):
        for kv in range(TILES):  # a free worker takes the next task
            worker = min(range(TILES), key=lambda w: free[w])
            visits = []
            for q in range(TILES - 1, kv - 1, -1):
                begin = free[worker]
                adds = max(begin + compute, done.get((head, q), 0))
                done[head, q] = free[worker] = adds + reduce
                visits.append((q, begin, begin + compute, adds, adds + reduce))
            tasks.append((worker, head, visits))
    return tasks


def draw_placement(svg, left, top):
    """Two such heads on four workers in time."""
    lane, unit, high = 34, 17.5, 28
    title = (
        "Two heads (colours) on four workers in time. A number is the query tile of a visit; its"
        " light end is the addition."
    )
    svg.text(left, top - 14, title, "word")
    for worker in range(TILES):
        svg.text(left - 10, top + worker * lane + 19, f"worker {worker}", "small", "end")
    for worker, head, visits in schedule(heads=2, compute=6, reduce=1.5):
        y = top + worker * lane
        for q, begin, computed, adds, end in visits:
            svg.rect(left + begin * unit, y, (computed - begin) * unit - 1, high, HEADS[head])
            if adds > computed:
                svg.rect(left + computed * unit, y, (adds - computed) * unit - 1, high, "wait")
            svg.rect(left + adds * unit, y, (end - adds) * unit - 1, high, f"{HEADS[head]} sum")
            svg.text(left + (begin + computed) / 2 * unit, y + 19, str(q), "on", "middle")
        svg.path(f"M{left + end * unit:g} {y - 2}v{lane - 2}", "mark")
    lines = (
        "placement: this dealing of tasks to workers. It fixes the time, and no bit.",
        "task: chains that one worker does back to back, between two black lines; here one each.",
        "wait (red): the visit is computed, but its turn has not come. All chains start at tile 3.",
        "wave: the tasks that run at once, here four.",
        "residency: how many must run at once for no wait to last forever; here one, for no task"
        " waits for a later one.",
    )
    for i, line in enumerate(lines):
        svg.words(left, top + TILES * lane + 24 + 23 * i, line)


def draw_group(svg, left, top):
    """The chains of KV tile 1 where two query heads share a KV head."""
    box = 27
    title = "The chains of KV tile 1 where two query heads (colours) share a KV head"
    svg.text(left, top - 14, title, "word")
    walk = [(q, css) for css in HEADS for q in (3, 2, 1)]
    for begin, lengths, lines in (
        (0, [6], ["chain: walks both query heads."]),
        (
            260,
            [3, 3],
            ["part: one share of the query heads. Their", "dK and dV are added in order."],
        ),
        (
            560,
            [2, 4],
            ["piece: cut so that fewer workers suffice.", "The next goes on from dK, dV."],
        ),
    ):
        x, visits = left + begin, iter(walk)
        for length in lengths:
            svg.rect(x - 1, top - 1, length * box + 1, box + 1, "mark")
            for i in range(length):
                q, css = next(visits)
                svg.rect(x + i * box, top, box - 1, box - 1, css)
                svg.text(x + (i + 0.5) * box, top + 18, str(q), "on", "middle")
            x += length * box + 12
        svg.words(left + begin, top + 48, *lines)


def draw_chains():
    svg = Svg(960, 750, "A chain walks query tiles past a KV tile: the words of a plan")
    draw_order(svg, 70, 64)
    draw_placement(svg, 70, 352)
    draw_group(svg, 70, 663)
    return svg.document()


# The runs of the chart.
FIRST, SECOND, THIRD = "h200_peers.json", "h200_peers_sdpa.json", "h200_cudnn_flex.json"
LINES = (  # provider, name, run, colour
    ("verbatim", "Verbatim, deterministic", FIRST, "#0b6e4f"),
    ("flash_attn_3", "FlashAttention-3", FIRST, "#2e86ab"),
    ("flash_attn_3:deterministic", "FlashAttention-3, deterministic", FIRST, "#7d5ba6"),
    ("torch:cudnn", "cuDNN", SECOND, "#c26d27"),
    ("cudnn:flex:deterministic", "cuDNN flex_attention, deterministic", THIRD, "#a3a300"),
    ("flex", "FlexAttention", FIRST, "#d1495b"),
    ("torch:flash", "FlashAttention-2", SECOND, "#66797f"),
)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def stroke(provider, run, colour):
    width = 3.5 if provider == "verbatim" else 2
    return f"stroke:{colour};stroke-width:{width}" + (";stroke-dasharray:6 4" * (run != FIRST))


def draw_rates(svg, left, top, dim, runs):
    """TFLOP/s of every line over the length."""
    width, height, highest = 372, 252, 700
    across = [left + i * width / (len(LENGTHS) - 1) for i in range(len(LENGTHS))]
    svg.text(left, top - 24, f"Backward, causal, head dim {dim}: TFLOP/s", "word")
    for rate in range(0, highest + 1, 100):
        y = top + height * (1 - rate / highest)
        svg.path(f"M{left} {y:g}h{width}", "grid")
        svg.text(left - 8, y + 4, str(rate), "small", "end")
    for x, length in zip(across, LENGTHS, strict=True):
        svg.text(x, top + height + 20, f"{length:,}", "small", "middle")
    for provider, _, run, colour in reversed(LINES):  # ours on top
        rates = {row["name"]: row["backward"] for row in runs[run]["results"]
                 if row["provider"] == provider}  # fmt: skip
        points = []
        for x, length in zip(across, LENGTHS, strict=True):
            rate = rates[f"hd{dim} causal {length}"]["tflops"]
            points.append(f"{x:.1f} {top + height * (1 - rate / highest):.1f}")
        svg.path("M" + "L".join(points), "line", stroke(provider, run, colour))


def draw_speed():
    runs = {run: json.loads((RESULTS / run).read_text()) for run in (FIRST, SECOND, THIRD)}
    svg = Svg(960, 430, "Backward TFLOP/s by length: Verbatim and its peers, causal, H200")
    draw_rates(svg, 62, 52, 128, runs)
    draw_rates(svg, 532, 52, 64, runs)
    for i, (provider, name, run, colour) in enumerate(LINES):
        x, y = 62 + i % 3 * 300, 352 + i // 3 * 22
        svg.path(f"M{x} {y - 4}h28", "line", stroke(provider, run, colour))
        svg.text(x + 36, y, name)
    note = (
        "NVIDIA H200, bf16, 16,384 tokens of hidden size 2,048. Commit"
        f" {runs[FIRST]['commit']}; dashed: other runs ({runs[SECOND]['commit']},"
        f" {runs[THIRD]['commit']})."
    )
    svg.text(62, 418, note, "small")
    return svg.document()


PICTURES = {"chains": draw_chains, "speed": draw_speed}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (ROOT / "docs" / f"{name}.svg").write_text(draw())

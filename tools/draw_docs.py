#!/usr/bin/env python3
"""Draws the pictures of README.md and docs/glossary.md: python3 tools/draw_docs.py.

docs/chains.svg explains the words of a plan; docs/speed.svg is drawn from bench/results."""
import json
import pathlib
from html import escape

ROOT = pathlib.Path(__file__).resolve().parents[1]

STYLE = """
text{font:13px ui-sans-serif,system-ui,"Segoe UI",Roboto,Helvetica,Arial,sans-serif;fill:#68737f}
.word{fill:#1d2733;font-weight:600}.on{fill:#fff;font-size:12px}.small{font-size:12px}
.paper{fill:#fdfcf9}.empty{fill:#f1efe9}.full{fill:#2a7f9e}.partial{fill:#67a9bc}
.second{fill:#7a5ea8}.sum{fill-opacity:.5}.wait{fill:#d9483b;fill-opacity:.6}
.grid{stroke:#e4e2dc}.mark{fill:none;stroke:#1d2733;stroke-width:2}
.line{fill:none}.arrow{fill:none;stroke:#d9483b;stroke-width:2.5}.head{fill:#d9483b}
@media (prefers-color-scheme:dark){text{fill:#98a3ad}.word{fill:#e7e9ea}.on{fill:#fff}
.paper{fill:#14181d}.empty{fill:#1f262d}.grid{stroke:#303841}.mark{stroke:#e7e9ea}}
"""


class Svg:
    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            f'<rect class="paper" width="{width}" height="{height}"/>']

    def rect(self, x, y, width, height, css):
        self.parts.append(f'<rect class="{css}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>')

    def path(self, d, css, style=""):
        self.parts.append(f'<path class="{css}" d="{d}"{f" style={chr(34)}{style}{chr(34)}" if style else ""}/>')

    def text(self, x, y, content, css="", anchor="start"):
        self.parts.append(f'<text class="{css}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(content)}</text>')

    def words(self, x, y, *lines):
        """Lines of text, the first of which begins with the word that is explained, before a colon."""
        word, colon, rest = lines[0].partition(":")
        self.parts.append(f'<text x="{x}" y="{y}"><tspan class="word">{word}</tspan>{escape(colon + rest)}</text>')
        for i, line in enumerate(lines[1:], 1):
            self.text(x, y + 17 * i, line)

    def arrow(self, x, y, to_y):
        tip = 7 if to_y > y else -7
        self.path(f"M{x} {y}V{to_y - tip}", "arrow")
        self.path(f"M{x - 5} {to_y - tip}h10l-5 {tip}z", "head")

    def document(self):
        return "\n".join([*self.parts, "</svg>\n"])


def schedule(tiles, heads, compute, reduce):
    """The backward of causal heads of `tiles` x `tiles` in descending order on `tiles` workers, in
    the paper's model: [(worker, head, kv_tile, [(q_tile, begin, waits, adds, end)])]."""
    free = [0] * tiles
    done = {}  # (head, q_tile): when its last addend so far was complete
    tasks = []
    for head in range(heads):
        for kv in range(tiles):  # a free worker takes the next task
            worker = min(range(tiles), key=lambda w: free[w])
            visits = []
            for q in range(tiles - 1, kv - 1, -1):
                begin = free[worker]
                waits = begin + compute
                adds = max(waits, done.get((head, q), 0))
                done[head, q] = free[worker] = adds + reduce
                visits.append((q, begin, waits, adds, adds + reduce))
            tasks.append((worker, head, kv, visits))
    return tasks


def draw_chains():
    svg = Svg(960, 750, "A chain walks query tiles past a KV tile: the words of a plan")
    n, cell, left, top = 4, 58, 70, 64
    svg.text(left, 26, "One head, causal, four tiles a side. A number is the addend of its visit.", "word")
    svg.text(left + n * cell / 2, 50, "KV tiles 0 to 3", anchor="middle")
    for q in range(n):
        svg.text(left - 10, top + q * cell + 34, f"query {q}" if q == 0 else str(q), anchor="end")
        for kv in range(n):
            x, y = left + kv * cell, top + q * cell
            css = "empty" if kv > q else "partial" if kv == q else "full"
            svg.rect(x + 1, y + 1, cell - 2, cell - 2, css)
            if kv <= q:
                svg.text(x + 20, y + 35, str(kv), "on", "middle")
    svg.rect(left + cell, top + cell, cell, 3 * cell, "mark")
    svg.arrow(left + 1.68 * cell, top + 3.8 * cell, top + 1.2 * cell)
    svg.path(f"M{left - 4} {top + 3 * cell - 2}h{n * cell + 8}v{cell + 4}h-{n * cell + 8}z", "mark",
             "stroke-dasharray:5 4")

    x = 350
    svg.words(x, 78, "visit: one square, a query tile times a KV tile.")
    svg.words(x, 104, "chain: the visits of one KV tile (solid frame). Its dK and dV stay in registers",
              "while it walks past query tiles 3, 2, 1. The forward turns this round: a query tile",
              "stays, KV tiles pass.")
    svg.words(x, 164, "run: consecutive visits that the mask cuts alike. This chain has two: the full tiles 3, 2,",
              "then the partial tile 1.")
    svg.words(x, 207, "addend: a visit's place in the sum of its dQ tile. The dashed sum is visit 0 + 1 + 2 + 3,",
              "in this sequence, on every device.")
    svg.words(x, 250, "turn: the addend that may enter a dQ tile next. It starts at 0; who has added says",
              "so by raising it by one.")
    svg.words(x, 293, "order: all of this for one head. It fixes the bits.")

    # The placement.
    left, top, lane, unit = 70, 352, 34, 17.5
    svg.text(left, top - 14, "Two heads (colours) on four workers in time. A number is the query tile of a visit; its"
             " light end is the addition.", "word")
    tasks = schedule(n, 2, 6, 1.5)
    for worker, head, kv, visits in tasks:
        y = top + worker * lane
        css = "second" if head else "full"
        for q, begin, waits, adds, end in visits:
            svg.rect(left + begin * unit, y, (waits - begin) * unit - 1, lane - 6, css)
            if adds > waits:
                svg.rect(left + waits * unit, y, (adds - waits) * unit - 1, lane - 6, "wait")
            svg.rect(left + adds * unit, y, (end - adds) * unit - 1, lane - 6, f"{css} sum")
            svg.text(left + (begin + waits) / 2 * unit, y + 19, str(q), "on", "middle")
        last = visits[-1]
        svg.path(f"M{left + last[4] * unit:g} {y - 2}v{lane - 2}", "mark")
    for worker in range(n):
        svg.text(left - 10, top + worker * lane + 19, f"worker {worker}", "small", "end")

    y = top + n * lane + 24
    for i, line in enumerate((
            "placement: this dealing of tasks to workers. It fixes the time, and no bit.",
            "task: chains that one worker does back to back, between two black lines; here one chain each.",
            "wait (red): the visit is computed, but its turn has not come. All chains start at query tile 3.",
            "wave: the tasks that run at once, here four.",
            "residency: how many must run at once for no wait to last forever; here one, for no task waits for"
            " a later one.")):
        svg.words(left, y + 23 * i, line)

    # A group: the chains of KV tile 1 with two query heads.
    y += 5 * 23 + 26
    svg.text(left, y - 4, "The chains of KV tile 1 where two query heads (colours) share a KV head", "word")
    box = 27
    walk = [(3, "full"), (2, "full"), (1, "full"), (3, "second"), (2, "second"), (1, "second")]
    for x, cuts, lines in (
            (left, [6], ("chain: walks both query heads.",)),
            (left + 260, [3, 6], ("part: one share of the query heads. Their", "dK and dV are added, head after head.")),
            (left + 560, [2, 6], ("piece: cut so that fewer workers suffice.", "The next goes on from its dK and dV."))):
        begin = 0
        for cut in cuts:
            for q, css in walk[begin:cut]:
                svg.rect(x, y + 10, box - 1, box - 1, css)
                svg.text(x + box / 2, y + 28, str(q), "on", "middle")
                x += box
            svg.path(f"M{x - (cut - begin) * box - 1:g} {y + 9}h{(cut - begin) * box + 1}v{box + 1}"
                     f"h-{(cut - begin) * box + 1}z", "mark")
            x += 12
            begin = cut
        svg.words(x - len(cuts) * 12 - 6 * box, y + 58, *lines)
    return svg.document()


LINES = [  # provider, name, results file, colour
    ("verbatim", "Verbatim, deterministic", "h200_peers.json", "#0b6e4f"),
    ("flash_attn_3", "FlashAttention-3", "h200_peers.json", "#2e86ab"),
    ("flash_attn_3:deterministic", "FlashAttention-3, deterministic", "h200_peers.json", "#7d5ba6"),
    ("torch:cudnn", "cuDNN", "h200_peers_sdpa.json", "#c26d27"),
    ("flex", "FlexAttention", "h200_peers.json", "#d1495b"),
    ("torch:flash", "FlashAttention-2", "h200_peers_sdpa.json", "#66797f"),
]
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def draw_speed():
    results = {file: json.loads((ROOT / "bench" / "results" / file).read_text())
               for file in dict.fromkeys(line[2] for line in LINES)}
    rates = {(file, row["provider"], row["name"]): row["backward"]["tflops"]
             for file, result in results.items() for row in result["results"] if row["backward"]}
    commits = [result["commit"] for result in results.values()]
    svg = Svg(960, 408, "Backward TFLOP/s by length: Verbatim and its peers, causal, H200")
    top, height, width, highest = 52, 252, 372, 700
    for panel, dim in enumerate((128, 64)):
        left = 62 + panel * 470

        def x_of(i):
            return left + i * width / (len(LENGTHS) - 1)

        def y_of(rate):
            return top + height * (1 - rate / highest)

        svg.text(left, 28, f"Backward, causal, head dim {dim}: TFLOP/s", "word")
        for rate in range(0, highest + 1, 100):
            svg.path(f"M{left} {y_of(rate):g}h{width}", "grid")
            svg.text(left - 8, y_of(rate) + 4, str(rate), "small", "end")
        for i, length in enumerate(LENGTHS):
            svg.text(x_of(i), top + height + 20, f"{length:,}", "small", "middle")
        for provider, _, file, colour in reversed(LINES):  # ours on top
            points = [(x_of(i), y_of(rates[file, provider, f"hd{dim} causal {length}"]))
                      for i, length in enumerate(LENGTHS)]
            dashes = "" if file == LINES[0][2] else ";stroke-dasharray:6 4"
            weight = 3.5 if provider == "verbatim" else 2
            svg.path("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), "line",
                     f"stroke:{colour};stroke-width:{weight}{dashes}")
    for i, (_, name, file, colour) in enumerate(LINES):
        x, y = 62 + i % 3 * 300, top + height + 48 + i // 3 * 22
        dashes = "" if file == LINES[0][2] else ";stroke-dasharray:6 4"
        svg.path(f"M{x} {y - 4}h28", "line", f"stroke:{colour};stroke-width:3{dashes}")
        svg.text(x + 36, y, name)
    svg.text(62, 394, f"NVIDIA H200, bf16, 16,384 tokens of hidden size 2,048. Dashed: another run (commit"
             f" {commits[1]}; the others {commits[0]}).", "small")
    return svg.document()


PICTURES = {"chains": draw_chains, "speed": draw_speed}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (ROOT / "docs" / f"{name}.svg").write_text(draw())

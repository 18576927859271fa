"""Trains a byte-level decoder with naive, PyTorch's and Verbatim's attention, each several times
from one seed, and says which runs end with the same bits.

    python train_lm.py                       # a generated corpus; small on a CPU, larger on a GPU
    python train_lm.py --text book.txt --steps 2000 --svg loss.svg --json runs.json
    python train_lm.py --epochs 5           # and the perplexity of a held-out tenth after each

Everything but the attention is the same bits in every run, on GPUs too, so that a difference can
only come from the attention. That is why the embedding is a product with one-hot rows: the gradient
of a lookup adds with atomics. torch.use_deterministic_algorithms is off: it would change SDPA.
"""

import argparse
import hashlib
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
import verbatim_attn as va
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

BYTES = 256


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by its formula; tensors are (batch, length, heads, dim)."""
    length, dim = q.shape[1], q.shape[3]
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / dim**0.5
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).to(v.dtype)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """On the kernel that PyTorch prefers; sdpa_flash on its FlashAttention."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def sdpa_flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa(q, k, v)


def verbatim(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return va.attention(q, k, v, mask=va.masks.Causal())


ATTENTIONS = {"naive": naive, "sdpa": sdpa, "sdpa_flash": sdpa_flash, "verbatim": verbatim}


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, attention) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm_attention, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:  # (batch, length, dim)
        qkv = self.qkv(self.norm_attention(x)).unflatten(-1, (3, self.heads, -1))
        x = x + self.out(self.attention(*qkv.unbind(2)).flatten(2))
        return x + self.mlp(self.norm_mlp(x))


class Decoder(nn.Module):
    def __init__(self, args: argparse.Namespace, attention) -> None:
        super().__init__()
        self.embedding = nn.Parameter(0.02 * torch.randn(BYTES, args.dim))
        self.position = nn.Parameter(0.02 * torch.randn(args.context, args.dim))
        blocks = [Block(args.dim, args.heads, attention) for _ in range(args.layers)]
        self.blocks = nn.Sequential(*blocks, nn.LayerNorm(args.dim))

    def forward(self, tokens: Tensor) -> Tensor:  # (batch, length) to (batch, length, BYTES)
        one_hot = F.one_hot(tokens, BYTES).to(self.embedding.dtype)
        x = self.blocks(one_hot @ self.embedding + self.position)
        return x @ self.embedding.T


def generated_corpus(seed: int, sentences: int = 4000) -> str:
    """Sentences of a small grammar: subjects and verbs agree in number, and sums are right."""
    rng = random.Random(seed)
    nouns = ["fox", "river", "stone", "lamp", "sailor", "letter", "garden", "clock"]
    adjectives = ["old", "quiet", "red", "distant", "small", "bright"]
    verbs = ["see", "follow", "remember", "draw", "want"]

    def thing(plural: bool) -> str:
        words = rng.sample(adjectives, rng.randrange(3)) + [rng.choice(nouns) + "s" * plural]
        return " ".join([rng.choice(["the", "some" if plural else "a"]), *words])

    def sentence() -> str:
        if rng.random() < 0.2:
            a, b = rng.randrange(50), rng.randrange(50)
            return f"{a} and {b} make {a + b}."
        plural = rng.random() < 0.5
        return f"{thing(plural)} {rng.choice(verbs)}{'' if plural else 's'} {thing(False)}."

    return "\n".join(sentence() for _ in range(sentences))


@torch.no_grad()
def perplexity(model: nn.Module, text: Tensor, args: argparse.Namespace, autocast) -> float:
    """Per byte of `text`, whose windows begin where the one before ended."""
    total, windows = 0.0, text[: len(text) - len(text) % args.context].view(-1, args.context)
    for batch in windows.split(args.batch):
        batch = batch.to(args.device)  # (batch, context)
        with autocast:
            logits = model(batch)
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), batch[:, 1:].flatten())
        total += loss.item() * len(batch)
    return math.exp(total / len(windows))


def train(attention: str, corpus: Tensor, args: argparse.Namespace) -> dict:
    """One run from args.seed: the loss of every step, a hash of the last parameters, the cost; with
    --epochs the perplexity of the last tenth of the text, which is not learnt, after each."""
    torch.manual_seed(args.seed)
    is_cuda = args.device.type == "cuda"
    model = Decoder(args, ATTENTIONS[attention]).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    autocast = torch.autocast(args.device.type, args.dtype, enabled=args.dtype != torch.float32)
    window = torch.arange(args.context + 1)
    losses, perplexities = [], []
    epoch = args.steps // args.epochs if args.epochs else 0
    held_out = corpus[len(corpus) - len(corpus) // 10 :]
    if epoch:
        corpus = corpus[: len(corpus) - len(held_out)]
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(args.device)
    for step in range(args.steps):
        starts = torch.randint(len(corpus) - args.context, (args.batch, 1))
        batch = corpus[starts + window].to(args.device)  # (batch, context + 1)
        with autocast:
            logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 0:  # which also makes the plans and chooses kernels
            begin = time.perf_counter()
        if epoch and (step + 1) % epoch == 0:
            pause = time.perf_counter()
            perplexities.append(perplexity(model, held_out, args, autocast))
            begin += time.perf_counter() - pause
    if is_cuda:
        torch.cuda.synchronize(args.device)
    seconds = time.perf_counter() - begin
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().cpu().numpy().tobytes())
    return {
        "losses": losses,
        "sha256": bits.hexdigest(),
        "tokens_per_second": (args.steps - 1) * args.batch * args.context / seconds,
        "peak_bytes": torch.cuda.max_memory_allocated(args.device) if is_cuda else None,
        "perplexities": perplexities,
    }


def first_difference(runs: list[dict]) -> int | None:
    """The first step whose loss is not the same in all runs; the number of steps if only the last
    parameters differ; None if nothing does."""
    for step, losses in enumerate(zip(*(run["losses"] for run in runs), strict=True)):
        if len(set(losses)) > 1:
            return step
    return None if len({run["sha256"] for run in runs}) == 1 else len(runs[0]["losses"])


def largest_difference(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def table(runs: dict[str, list[dict]]) -> str:
    same = "the same bits in all runs"
    lines = [
        f"{'attention':<10} {'last loss':>9} {'from naive':>10}  {same:<26}{'tokens/s':>9} "
        + f"{'peak MiB':>8}  parameters"
    ]
    for name, of_name in runs.items():
        first, step = of_name[0], first_difference(of_name)
        if len(of_name) == 1:
            same = "one run"
        else:
            same = "yes" if step is None else f"no, from step {step}"
        distance = "-"
        if "naive" in runs:
            distance = f"{largest_difference(first['losses'], runs['naive'][0]['losses']):.2g}"
        speed = max(run["tokens_per_second"] for run in of_name)
        peak = "-" if first["peak_bytes"] is None else f"{first['peak_bytes'] / 2**20:.0f}"
        lines.append(
            f"{name:<10} {first['losses'][-1]:>9.4f} {distance:>10}  {same:<26}"
            f"{speed:>9.0f} {peak:>8}  {first['sha256'][:16]}"
        )
    return "\n".join(lines)


COLORS = {"naive": "#666666", "sdpa": "#d9730d", "sdpa_flash": "#b3261e", "verbatim": "#0b6bcb"}
WIDTH, HEIGHT, LEFT, TOP = 640, 220, 70, 40  # of one panel's axes, and around them


def panel(title: str, curves: dict[str, list[float]], top: int) -> list[str]:
    """SVG of one picture: values from 0 up over steps, a legend beside it."""
    most = max(max(curve) for curve in curves.values()) or 1.0
    steps = max(len(next(iter(curves.values()))) - 1, 1)
    svg = [f'<text x="{LEFT}" y="{top - 12}" font-weight="bold">{title}</text>']
    for part in range(5):
        y, value = top + HEIGHT * (1 - part / 4), most * part / 4
        svg.append(f'<path d="M{LEFT} {y}h{WIDTH}" stroke="#ddd"/>')
        svg.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:.3g}</text>')
    for row, (name, curve) in enumerate(curves.items()):
        points = " ".join(
            f"{LEFT + WIDTH * step / steps:.1f},{top + HEIGHT * (1 - value / most):.1f}"
            for step, value in enumerate(curve)
        )
        svg.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[name]}"/>')
        note = "" if any(curve) else ": 0 at every step"
        x, y = LEFT + WIDTH + 12, top + 16 * (row + 1)
        svg.append(f'<text x="{x}" y="{y}" fill="{COLORS[name]}">{name}{note}</text>')
    bottom = top + HEIGHT + 18
    svg.append(f'<text x="{LEFT + WIDTH}" y="{bottom}" text-anchor="end">step {steps}</text>')
    return svg


def plot(runs: dict[str, list[dict]]) -> str:
    """The first run's losses, and under them how far the runs of one attention are apart."""
    losses = {name: of_name[0]["losses"] for name, of_name in runs.items()}
    spread = {
        name: [max(x) - min(x) for x in zip(*(run["losses"] for run in of_name), strict=True)]
        for name, of_name in runs.items()
    }
    second = 2 * TOP + HEIGHT + 30
    size = f'width="{LEFT + WIDTH + 180}" height="{second + HEIGHT + 30}"'
    font = 'font-family="sans-serif" font-size="12"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
            '<rect width="100%" height="100%" fill="white"/>',
            *panel("loss (nats per byte)", losses, TOP),
            *panel("difference between runs from the same seed", spread, second),
            "</svg>\n",
        ]
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    has_gpu = torch.cuda.is_available()
    parser.add_argument("--device", type=torch.device, default="cuda" if has_gpu else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"],
                        help="of activations; default: bfloat16 on a GPU, float32 on a CPU")  # fmt: skip
    parser.add_argument("--attention", default="naive,sdpa,verbatim", help="which, with commas")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each from the same seed")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dim", type=int, help="default: 512 on a GPU, 64 on a CPU")
    parser.add_argument("--context", type=int, help="default: 1024 on a GPU, 64 on a CPU")
    parser.add_argument("--batch", type=int, help="default: 16 on a GPU, 4 on a CPU")
    parser.add_argument("--steps", type=int, help="default: 500 on a GPU, 25 on a CPU")
    parser.add_argument("--epochs", type=int, default=0, help="instead of steps: times the text")
    parser.add_argument("--learning-rate", type=float, help="default: 3e-4 on a GPU, 1e-3 on a CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, help="what to learn; default: a generated grammar")
    parser.add_argument("--json", type=Path, help="write every loss here")
    parser.add_argument("--svg", type=Path, help="draw the curves here")
    args = parser.parse_args()
    sizes = {"dim": (512, 64), "context": (1024, 64), "batch": (16, 4), "steps": (500, 25),
             "dtype": ("bfloat16", "float32"), "learning_rate": (3e-4, 1e-3)}  # fmt: skip
    for name, (gpu, cpu) in sizes.items():
        if getattr(args, name) is None:
            setattr(args, name, cpu if args.device.type == "cpu" else gpu)
    args.dtype = getattr(torch, args.dtype)
    args.attention = args.attention.split(",")
    if unknown := set(args.attention) - set(ATTENTIONS):
        parser.error(f"--attention: no {min(unknown)}; expected some of {', '.join(ATTENTIONS)}")
    if args.epochs < 0:
        parser.error(f"--epochs: got {args.epochs}, expected 1 or more")
    if args.dim % args.heads:
        parser.error(f"--dim: got {args.dim}, expected a multiple of --heads {args.heads}")
    if args.steps < 2 or args.repeats < 1:
        parser.error("expected --steps 2 or more and --repeats 1 or more")
    return args


def main() -> None:
    args = parse()
    text = args.text.read_bytes() if args.text else generated_corpus(args.seed).encode()
    if len(text) <= args.context:
        raise SystemExit(f"--text: got {len(text)} bytes, expected more than --context")
    corpus = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    if args.epochs:
        if len(corpus) // 10 < args.context:
            raise SystemExit(f"--text: got {len(text)} bytes, expected ten times --context or more")
        learnt = len(corpus) - len(corpus) // 10
        args.steps = args.epochs * max(learnt // (args.batch * args.context), 2)
    print(
        f"{args.layers} layers, {args.heads} heads, dim {args.dim}, {args.batch} x {args.context} "
        f"tokens a step, {args.steps} steps, {args.dtype} on {args.device}, {len(text)} bytes"
    )
    runs = {name: [train(name, corpus, args) for _ in range(args.repeats)]
            for name in args.attention}  # fmt: skip
    print(table(runs))
    if args.epochs:
        for name, of_name in runs.items():
            found = "  ".join(f"{value:.4f}" for value in of_name[0]["perplexities"])
            print(f"{name}: perplexity of the held-out tenth by epoch {found}")
    if args.repeats > 1:
        for name, of_name in runs.items():
            if name != "verbatim" and first_difference(of_name) is None:
                print(f"{name}: no run differed on {args.device}, which promises nothing")
    if args.json:
        args.json.write_text(json.dumps(runs) + "\n")
    if args.svg:
        args.svg.write_text(plot(runs))


if __name__ == "__main__":
    main()

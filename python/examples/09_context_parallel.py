"""A model over the ranks of torchrun: the same loss, bit by bit, on 1, 2 and 4 processes.

torchrun --nproc-per-node 4 python/examples/09_context_parallel.py

Only attention is spread. PyTorch's matrix products and sums may add in another order when they see
fewer rows, and gradients of weights are sums over rows: so every rank computes all else on all rows,
with one thread, and gradients of shards are gathered by dispatch() and undispatch(). Rotary
embeddings treat each row by itself and may run on shards.
"""

import hashlib
from datetime import timedelta

import torch
import torch.distributed as dist
import verbatim_attn as va

LENGTH, HEADS, KV_HEADS, DIM = 1200, 4, 2, 16
DOCUMENTS = (700, 200, 300)
STEPS = 4

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(minutes=5))
problem = va.Problem(1, HEADS, KV_HEADS, LENGTH, LENGTH, DIM, DIM, "f32")
parallel = va.ContextParallel(None, problem, va.masks.CausalDocument(DOCUMENTS))

frequencies = 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
angles = torch.arange(LENGTH)[:, None] * frequencies
cosines, sines = angles.cos(), angles.sin()


def rotated(x):  # (1, rows here, heads, DIM)
    a, b = x.chunk(2, -1)
    at = parallel.positions()
    cos, sin = cosines[at][:, None], sines[at][:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(torch.nn.Module):
    def __init__(self, width=HEADS * DIM):
        super().__init__()
        self.q = torch.nn.Linear(width, width)
        self.kv = torch.nn.Linear(width, 2 * KV_HEADS * DIM)
        self.out = torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
        )

    def forward(self, x):  # (1, LENGTH, width)
        k, v = self.kv(x).unflatten(-1, (2, KV_HEADS, DIM)).unbind(2)
        q, k, v = (parallel.dispatch(y) for y in (self.q(x).unflatten(-1, (HEADS, DIM)), k, v))
        o = parallel.undispatch(parallel.attention(rotated(q), rotated(k), v))
        x = x + self.out(o.flatten(2))
        return x + self.mlp(x)


tokens = torch.randint(50, (1, LENGTH + 1))
model = torch.nn.Sequential(torch.nn.Embedding(50, HEADS * DIM), Block(), Block())
head = torch.nn.Linear(HEADS * DIM, 50)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for _ in range(STEPS):
    logits = head(model(tokens[:, :-1]))
    loss = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if parallel.rank == 0:
    weights = hashlib.sha256(head.weight.detach().numpy().tobytes())
    for each in model.parameters():
        weights.update(each.detach().numpy().tobytes())
    print(f"loss {loss.item().hex()}, weights {weights.hexdigest()[:16]}")
dist.destroy_process_group()

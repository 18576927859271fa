"""A training step on JAX arrays: eager, jit, vmap, checkpoint and devices that share a batch and
heads give the bits of NumPy."""

import sys

import numpy as np
import verbatim_attn as va

try:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec
    from verbatim_attn import jax as vj
except ModuleNotFoundError:
    print("skipped: no JAX")
    sys.exit(77)

jax.config.update("jax_platforms", "cpu")  # whose bits NumPy arrays have
jax.config.update("jax_num_cpu_devices", 4)
vj.build()  # once: as `python -m verbatim_attn.jax build`
rng = np.random.default_rng(0)
q = rng.standard_normal((2, 128, 8, 64), np.float32)  # (batch, length, heads, dim)
k, v = rng.standard_normal((2, 2, 128, 2, 64), np.float32)  # 4 query heads share a KV head
mask = va.masks.CausalSlidingWindow(32)


def step(q, k, v):
    return (vj.attention(q, k, v, mask=mask) ** 2).sum() / 2  # the gradient of o is o


o, lse = va.attention(q, k, v, mask=mask, return_lse=True)
expected = va.attention_backward(o, q, k, v, o, lse, mask=mask)
gradients = jax.grad(step, (0, 1, 2))
alone = jax.vmap(gradients)(q[:, None], k[:, None], v[:, None])  # each entry a batch of its own
mesh = jax.make_mesh((2, 2), ("batch", "heads"))
shared = NamedSharding(mesh, PartitionSpec("batch", None, "heads"))
with jax.set_mesh(mesh):  # each of four devices computes one entry's half of the heads
    dealt = jax.jit(gradients)(*jax.device_put((q, k, v), shared))
assert all(x.sharding.is_equivalent_to(shared, 4) for x in dealt)
for found in (
    gradients(q, k, v),
    jax.jit(gradients)(q, k, v),
    jax.jit(jax.grad(jax.checkpoint(step), (0, 1, 2)))(q, k, v),
    tuple(x[:, 0] for x in alone),
    dealt,
):
    for mine, theirs in zip(found, expected, strict=True):
        assert np.asarray(mine).tobytes() == theirs.tobytes()
print("eager, compiled, mapped, recomputed, dealt: the gradients of NumPy arrays, bit by bit")

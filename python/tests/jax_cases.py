"""What tests of verbatim_attn.jax share: four devices of a CPU, arrays, and comparisons."""

import os
import shutil

import numpy as np
import pytest
from test_numpy import inputs

jax = pytest.importorskip("jax")
jax.config.update("jax_num_cpu_devices", 4)
CPUS = np.array(jax.devices("cpu"))
jax.config.update("jax_default_device", CPUS[0])
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402, F401
from verbatim_attn import jax as vj  # noqa: E402

if shutil.which(os.environ.get("CXX", "c++").split()[0]) is None:
    pytest.skip("no compiler", allow_module_level=True)
vj.build()


def example(seed=0, dtype="float32", **sizes):
    """q, k, v and dout, NumPy arrays."""
    drawn = inputs(np.random.default_rng(seed), **sizes)
    return tuple(x.astype(jnp.dtype(dtype)) for x in drawn)


def attended(q, k, v, dout, **how):
    """(o, lse, dq, dk, dv)."""
    o, gradients, lse = jax.vjp(
        lambda *x: vj.attention(*x, return_lse=True, **how), q, k, v, has_aux=True
    )
    return o, lse, *gradients(dout)


def arrays(made):
    return [np.asarray(x) for x in made]


def check(got, expected):
    for name, x, y in zip(("o", "lse", "dq", "dk", "dv"), arrays(got), expected, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape, name
        assert x.tobytes() == y.tobytes(), name

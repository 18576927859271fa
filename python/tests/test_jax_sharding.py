"""verbatim_attn.jax where devices share arrays, under shard_map and under jit."""

import functools

import numpy as np
import pytest
from jax_cases import (
    CPUS,
    Mesh,
    NamedSharding,
    PartitionSpec,
    arrays,
    attended,
    check,
    example,
    jax,
    vj,
)
from test_numpy import run, same_bits
from verbatim_attn import masks


def test_devices_share_a_batch_or_heads():
    tensors = example(4, batch=4)
    expected = run(*tensors, mask=masks.Causal())
    function = functools.partial(attended, mask=masks.Causal())
    mesh = Mesh(CPUS[:2], "x")
    batch, heads = PartitionSpec("x"), PartitionSpec(None, None, "x")
    for spec, of_lse in ((batch, batch), (heads, PartitionSpec(None, "x"))):
        out_specs = (spec, of_lse, spec, spec, spec)
        for check_vma in (True, False):
            shared = jax.shard_map(
                function, mesh=mesh, in_specs=spec, out_specs=out_specs, check_vma=check_vma
            )
            check(jax.jit(shared)(*tensors), expected)


def sharded(function, tensors, mesh, *specs):
    """What jit's devices make of arrays that they share, and how many arrays they gather for it."""
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(x, NamedSharding(mesh, specs[i % len(specs)]))
            for i, x in enumerate(tensors)
        ]
        program = jax.jit(function).lower(*placed).compile()
        made = program(*placed)
        assert same_bits(arrays(function(*placed)), arrays(made))
    return made, program.as_text().count("all-gather(")


BATCH, HEADS = PartitionSpec("x"), PartitionSpec(None, None, "y")
BOTH, ROWS = PartitionSpec("x", None, "y"), PartitionSpec(None, "x")
MESHES = {
    "auto": Mesh(CPUS.reshape(2, 2), ("x", "y")),
    "explicit": jax.make_mesh((2, 2), ("x", "y"), devices=list(CPUS)),
}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("heads", [(8, 4), (4, 4)], ids=str)
def test_jit_shares_a_batch_and_heads(heads, mesh):
    tensors = example(16, batch=4, q_heads=heads[0], kv_heads=heads[1])
    function = functools.partial(attended, mask=masks.Causal())
    expected = run(*tensors, mask=masks.Causal())
    for spec in (BATCH, HEADS, BOTH, PartitionSpec(None, None, ("x", "y")), ROWS):
        made, gathered = sharded(function, tensors, MESHES[mesh], spec)
        check(made, expected)
        assert (gathered > 0) == (spec == ROWS), spec


@pytest.mark.parametrize("heads", [(6, 3), (4, 1), (2, 1)], ids=str)
def test_jit_leaves_groups_whole(heads):
    q, k, v, dout = example(21, q_heads=heads[0], kv_heads=heads[1])
    whole = PartitionSpec()
    made, gathered = sharded(attended, (q, k, v, dout), MESHES["auto"], HEADS, whole, whole, HEADS)
    check(made, run(q, k, v, dout))
    assert gathered > 0


@pytest.mark.parametrize("heads", [(8, 2), (4, 2), (12, 6)], ids=str)
def test_jit_of_more_devices_than_heads_divide(heads):
    q, k, v, dout = example(24, q_heads=heads[0], kv_heads=heads[1])
    whole, cut = PartitionSpec(), PartitionSpec(None, None, "x")
    meshes = [Mesh(CPUS, "x"), jax.make_mesh((4,), ("x",), devices=list(CPUS))]
    for mesh in meshes:
        made, _ = sharded(attended, (q, k, v, dout), mesh, cut, whole, whole, cut)
        check(made, run(q, k, v, dout))


def test_axes_that_cut_heads_in_part_one_after_another():
    in_part = vj._xla._is_cut_in_part
    assert in_part(2, (4,)) and in_part(6, (4,)) and not in_part(8, (4,)) and not in_part(3, (4,))
    assert in_part(4, (2, 4)) and not in_part(8, (2, 4)) and not in_part(2, (2, 3))


LENGTHS = masks.Causal().padded((70, 50, 60, 10), (90, 80, 70, 20))
DRAWN = masks.UniformBlockSparse(32, 32, density=0.4, seed=3)


@pytest.mark.parametrize(
    "how, free, told_apart",
    [
        ({"mask": LENGTHS}, HEADS, BATCH),
        ({"mask": DRAWN}, BATCH, HEADS),
        ({"mask": masks.Causal() & DRAWN}, BATCH, BOTH),
        ({"dropout": 0.2, "seed": 5}, None, BATCH),
        ({"dropout": 0.2, "seed": 5}, None, HEADS),
        ({"level": "gpu_to_gpu"}, None, BATCH),
        ({"level": "run_to_run"}, None, HEADS),
    ],
    ids=lambda x: str(x)[:30],
)
def test_jit_gathers_what_is_told_apart(how, free, told_apart):
    tensors = example(17, batch=4, q_heads=4, kv_heads=4)
    expected = run(*tensors, **how)
    function = functools.partial(attended, **how)
    for spec in filter(None, (free, told_apart)):
        made, gathered = sharded(function, tensors, MESHES["auto"], spec)
        check(made, expected)
        assert (gathered > 0) == (spec == told_apart)


def test_jit_shares_a_mapped_axis():
    each = [example(seed, batch=2) for seed in (18, 19)]
    stacked = [np.stack(x) for x in zip(*each, strict=True)]
    made, gathered = sharded(jax.vmap(attended), stacked, MESHES["auto"], PartitionSpec("x", "y"))
    check(made, [np.stack(x) for x in zip(*(run(*x) for x in each), strict=True)])
    assert gathered == 0


def test_a_level_that_counts_heads_counts_mapped_ones_alone():
    how = {"level": "gpu_to_gpu", "mask": masks.Causal()}
    function = functools.partial(attended, **how)
    sizes = {"batch": 1, "q_heads": 16, "kv_heads": 4, "q_len": 384, "kv_len": 384}
    each = [example(seed, dim=64, dim_v=64, **sizes) for seed in (25, 26, 27, 28)]
    made = jax.vmap(function)(*[np.stack(x) for x in zip(*each, strict=True)])
    check(made, [np.stack(x) for x in zip(*(run(*x, **how) for x in each), strict=True)])


def test_jit_shares_by_xlas_older_partitioner():
    tensors = example(20, batch=4)
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        made, gathered = sharded(attended, tensors, MESHES["auto"], BOTH)
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    check(made, run(*tensors))
    assert gathered == 0


@pytest.mark.parametrize("how", [{}, {"mask": DRAWN}, {"dropout": 0.2, "seed": 5}], ids=str)
def test_two_gpus_have_the_bits_of_one(how):
    gpus = np.array([one for one in jax.devices() if one.platform == "gpu"][:2])
    if len(gpus) < 2:
        pytest.skip("fewer than two CUDA devices")
    tensors = example(23, "bfloat16", batch=2, q_heads=8, kv_heads=4, dim=64, dim_v=64)
    function, mesh = functools.partial(attended, **how), Mesh(gpus, "x")
    expected = arrays(jax.jit(function)(*jax.device_put(tensors, gpus[0])))
    for spec in (PartitionSpec("x"), PartitionSpec(None, None, "x")):
        check(sharded(function, tensors, mesh, spec)[0], expected)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_of_one_axis_of_two(check_vma):
    tensors = example(22, batch=4, q_heads=8, kv_heads=4)
    mapped = jax.shard_map(
        attended, mesh=MESHES["auto"], in_specs=BATCH, out_specs=BATCH, axis_names={"x"},
        check_vma=check_vma,
    )  # fmt: skip
    made, _ = sharded(jax.jit(mapped), tensors, MESHES["auto"], BOTH)
    check(made, run(*tensors))


def test_gradients_of_what_devices_share():
    """Keys that every device has are gathered over entries that are not."""
    q, k, v, dout = example(5, q_heads=2)
    mesh = Mesh(CPUS[:2], "x")

    def loss(k, v, q, dout):
        return (vj.attention(q, k, v) * dout).sum()

    split, whole = PartitionSpec("x"), PartitionSpec()
    shared = jax.shard_map(
        jax.grad(loss, (0, 1)), mesh=mesh, in_specs=(whole, whole, split, split), out_specs=whole
    )
    got = jax.jit(shared)(k[:1], v[:1], q, dout)
    entries = [run(q[i : i + 1], k[:1], v[:1], dout[i : i + 1])[3:] for i in range(2)]
    assert same_bits(arrays(got), [a + b for a, b in zip(*entries, strict=True)])

"""Block-sparse masks as the benchmark hands them to its check and to peers."""

import itertools
import sys
import types

import pytest
from verbatim_attn import masks
from verbatim_attn.bench import providers, registry, workloads
from verbatim_attn.plan import Problem


def _block_case(mask, heads, kv_heads, length=200):
    problem = Problem(1, heads, kv_heads, length, length, 16, 16, "f32")
    return workloads.Case("given", mask.name, problem, mask)


def test_blocks_are_the_mask_s():
    edges = (0, 70, 130, 200), (0, 3, 100, 160, 200)
    for mask in (masks.UniformBlockSparse(64, 48, density=0.5, seed=3),
                 masks.UniformBlockSparse(64, 48, blocks=[[(0, 4), (3, 1)]]),
                 masks.VariableBlockSparse(*edges, density=0.6, seed=1)):  # fmt: skip
        kv_heads = 1 if mask.blocks else 2
        blocks = _block_case(mask, 4, kv_heads).blocks
        rows = blocks.shown.repeat(blocks.q_sizes, axis=1).repeat(blocks.k_sizes, axis=2)
        assert (rows == mask.dense(200, kv_heads=kv_heads)[0]).all(), mask
    assert _block_case(masks.Causal(), 4, 2).blocks is None


def test_peers_get_the_blocks(monkeypatch):
    """With VSA's interface in the place of its kernels; FlexAttention's lists as its own mask."""
    torch = pytest.importorskip("torch")

    def attend(q, k, v, columns, counts, sizes):
        assert q.is_contiguous() and k.is_contiguous() and sizes.tolist() == [64] * 4
        assert columns.dtype == counts.dtype == sizes.dtype == torch.int32
        shown = torch.zeros(columns.shape, dtype=torch.bool)
        for row in itertools.product(*map(range, counts.shape)):
            shown[row][columns[row][: counts[row]].long()] = True
        rows = shown.repeat_interleave(64, 2).repeat_interleave(64, 3)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, rows), counts

    package = types.ModuleType("fastvideo_kernel")
    package.block_sparse_attn = lambda: "a function of the module's name"
    module = types.ModuleType("fastvideo_kernel.block_sparse_attn")
    module.block_sparse_attn_sm90 = attend
    for made in (package, module):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    from verbatim_attn.bench import check, run

    case = _block_case(masks.UniformBlockSparse(64, 64, density=0.5, seed=2), 2, 2, 256)
    provider = registry.known()["vsa:sm90"]
    assert provider.supports(case, "cuda") is None
    tensors = check.inputs(case, "cpu")
    passes = run.Passes(provider, case, "cpu", tensors)
    passes.both()
    assert check.error_ratio(passes.last, check.expectations(case, tensors)) <= 2
    block_mask = providers.Flex._block_mask(case, "cpu", 1)
    assert (block_mask.to_dense()[0] == torch.from_numpy(case.blocks.shown)).all()
    grouped = _block_case(case.mask, 4, 2, 256)
    assert "as many KV heads" in provider.supports(grouped, "cuda")
    assert providers.Flex._block_mask(grouped, "cpu", 2).shape == (1, 4, 256, 256)
    wide = _block_case(masks.UniformBlockSparse(128, 128, density=0.5), 2, 2)
    assert "blocks of 64" in provider.supports(wide, "cuda")


def test_flashinfer_gets_the_blocks_of_every_kv_head(monkeypatch):
    """With its wrapper's interface in the place of its kernels: the forward of unequal blocks."""
    torch = pytest.importorskip("torch")

    class Wrapper:
        def __init__(self, workspace):
            assert workspace.dtype == torch.uint8

        def reset_workspace_buffer(self, workspace, integers, vector_sparse_indices_buffer):
            assert (workspace.dtype, integers.dtype) == (torch.uint8, torch.uint8)
            self.room = len(vector_sparse_indices_buffer)

        def plan(self, shown, q_sizes, k_sizes, q_heads, kv_heads, head_dim, q_data_type):
            assert (shown.shape[0], q_sizes.shape[0], k_sizes.shape[0], head_dim) == (2, 2, 2, 16)
            assert (q_heads, kv_heads, q_data_type) == (4, 2, torch.bfloat16)
            assert self.room > (shown.sum(1) * k_sizes).sum()  # it lists every key of every block
            rows = [one.repeat_interleave(a, 0).repeat_interleave(b, 1)
                    for one, a, b in zip(shown, q_sizes, k_sizes, strict=True)]  # fmt: skip
            self.rows = torch.stack(rows).repeat_interleave(q_heads // kv_heads, 0)

        def run(self, q, k, v):  # (heads, length, dim)
            return torch.nn.functional.scaled_dot_product_attention(
                q[None], k[None], v[None], self.rows[None], enable_gqa=True
            )[0]

    module = types.ModuleType("flashinfer.sparse")
    module.VariableBlockSparseAttentionWrapper = Wrapper
    for made in (types.ModuleType("flashinfer"), module):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    from verbatim_attn.bench import check, run

    mask = masks.VariableBlockSparse((0, 70, 130, 200), (0, 3, 100, 160, 200), density=0.6, seed=1)
    case = workloads.Case("given", mask.name, Problem(1, 4, 2, 200, 200, 16, 16, "bf16"), mask)
    provider = registry.known()["flashinfer:sparse"]
    assert provider.available() is None and provider.supports(case, "cuda") is None
    tensors = check.inputs(case, "cpu")
    passes = run.Passes(provider, case, "cpu", tensors)
    passes.both()
    assert set(passes.last) == {"o"}
    assert check.error_ratio(passes.last, check.expectations(case, tensors)) <= 2
    assert "no mask but blocks" in provider.supports(_block_case(masks.Causal(), 4, 2), "cuda")

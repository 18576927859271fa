"""Block-sparse masks as the benchmark hands them to its check and to peers."""

import itertools
import sys
import types

import pytest
from benching import right_passes
from verbatim_attn import masks
from verbatim_attn.bench import providers, registry, workloads
from verbatim_attn.plan import Problem

BLOCKS_OF_64 = masks.UniformBlockSparse(64, 64, density=0.5, seed=2)


def _block_case(mask, heads, kv_heads, length=200, dim=16, dtype="f32", batch=1):
    problem = Problem(batch, heads, kv_heads, length, length, dim, dim, dtype)
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
        assert columns.is_contiguous() and columns.shape[-1] == counts.max()
        shown = torch.zeros(*counts.shape, len(sizes), dtype=torch.bool)
        for row in itertools.product(*map(range, counts.shape)):
            shown[row][columns[row][: counts[row]].long()] = True
        rows = shown.repeat_interleave(64, 2).repeat_interleave(64, 3)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, rows), counts

    package = types.ModuleType("fastvideo_kernel")
    package.block_sparse_attn = lambda: "a function of the module's name"
    module = types.ModuleType("fastvideo_kernel.block_sparse_attn")
    module.block_sparse_attn_sm90 = attend
    folder = types.ModuleType("fastvideo_kernel._C")
    compiled = types.ModuleType("fastvideo_kernel._C.fastvideo_kernel_ops")
    for made in (package, module):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    provider = registry.known()["vsa:sm90"]
    assert provider.available() == "not installed: fastvideo_kernel._C"
    assert registry.known()["vsa:triton"].available() is None
    for made in (folder, compiled):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    assert provider.available() == "not installed: the kernels for Hopper"
    compiled.block_sparse_bwd = attend
    assert provider.available() is None

    case = _block_case(BLOCKS_OF_64, 2, 2, 256, 64, "bf16")
    assert provider.supports(case, "cuda") is None
    right_passes(provider, case)
    block_mask = providers.Flex._block_mask(case, "cpu", 1)
    assert (block_mask.to_dense()[0] == torch.from_numpy(case.blocks.shown)).all()
    grouped = _block_case(case.mask, 4, 2, 256)
    assert providers.Flex._block_mask(grouped, "cpu", 2).shape == (1, 4, 256, 256)


def test_flexattention_gets_the_tiles_of_unequal_blocks():
    """As its own function finds them by asking for every position."""
    torch = pytest.importorskip("torch")
    from torch.nn.attention.flex_attention import create_block_mask
    from verbatim_attn.bench import check

    edges = (0, 130, 260, 400, 530), (0, 256, 300, 384, 390, 530)
    for group in (1, 2):
        mask = masks.VariableBlockSparse(*edges, density=0.6, seed=4)
        case = _block_case(mask, 2 * group, 2, 530)
        mod = check.mask_mod(case, "cpu", group)
        found = providers.Flex._block_mask(case, "cpu", group)
        asked = create_block_mask(mod, None, 2 * group, 530, 530, device="cpu")
        assert found.shape[1:] == asked.shape[1:] and found.BLOCK_SIZE == asked.BLOCK_SIZE
        for lists in ("kv", "full_kv", "q", "full_q"):
            counts = getattr(asked, f"{lists}_num_blocks")
            assert counts.sum() > 0 and torch.equal(getattr(found, f"{lists}_num_blocks"), counts)
            first = torch.arange(5) < counts[..., None]  # what comes behind says nothing
            ours, theirs = (getattr(x, f"{lists}_indices") for x in (found, asked))
            assert torch.equal(ours[first], theirs[first])


def test_what_vsa_takes():
    """Without the package: a case is refused with what the form lacks."""
    wide = masks.UniformBlockSparse(128, 128, density=0.5)
    empty = masks.UniformBlockSparse(64, 64, blocks=[[(0, 0), (2, 1)]])
    both = (
        (_block_case(masks.Causal(), 2, 2), "no mask but blocks of 64"),
        (_block_case(wide, 2, 2, 256), "no mask but blocks of 64"),
        (_block_case(BLOCKS_OF_64, 2, 2, 200), "whole blocks"),
        (_block_case(BLOCKS_OF_64, 4, 2, 256), "as many KV heads"),
        (_block_case(BLOCKS_OF_64, 2, 2, 256, batch=2), "one batch entry"),
    )
    compiled = (
        (_block_case(BLOCKS_OF_64, 2, 2, 256, 64, "f16"), "in bf16"),
        (_block_case(BLOCKS_OF_64, 2, 2, 256, 96, "bf16"), "head dims 64 and 128"),
        (_block_case(empty, 1, 1, 192, 64, "bf16"), "no row without blocks"),
    )
    hopper, triton = (registry.known()[f"vsa:{form}"] for form in ("sm90", "triton"))
    for case, reason in both:
        assert reason in hopper.supports(case, "cuda") and reason in triton.supports(case, "cuda")
    for case, reason in compiled:
        assert reason in hopper.supports(case, "cuda") and triton.supports(case, "cuda") is None
    for dim in (64, 128):
        assert hopper.supports(_block_case(BLOCKS_OF_64, 2, 2, 256, dim, "bf16"), "cuda") is None


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_cudnn_gets_the_blocks(kv_heads, monkeypatch):
    """With its package's interface in the place of its kernels: rows of equal and of other counts,
    two batch entries, heads behind lengths; a backward without groups alone."""
    torch = pytest.importorskip("torch")

    def compute(q, k, v, lists, nums):
        shown = torch.zeros(*lists.shape[:3], k.shape[1] // 128, dtype=torch.bool)
        for row in itertools.product(*map(range, lists.shape[:3])):
            shown[row][lists[row][: None if nums is None else nums[row]].long()] = True
        pairs = shown.repeat_interleave(128, 2).repeat_interleave(128, 3)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, pairs, enable_gqa=True
        ).nan_to_num(0.0).transpose(1, 2)  # fmt: skip

    def forward(q, k, v, lists, *, sparse_block_size, layout, q2k_block_nums=None,
                allow_empty_block_nums=False):  # fmt: skip
        assert (sparse_block_size, layout, lists.dtype) == (128, "bshd", torch.int32)
        assert lists.is_contiguous() and (q2k_block_nums is None) != allow_empty_block_nums
        return {"o_tensor": compute(q, k, v, lists, q2k_block_nums), "lse_tensor": q}

    def backward(dout, q, k, v, o, lse, lists, *, sparse_block_size, layout, q2k_block_nums=None):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            found = compute(*leaves, lists, q2k_block_nums)
            grads = torch.autograd.grad(found, leaves, dout)
        return dict(zip(("dq_tensor", "dk_tensor", "dv_tensor"), grads, strict=True))

    folder = types.ModuleType("cudnn.block_sparse_attention")
    folder.api = types.ModuleType("cudnn.block_sparse_attention.api")
    folder.api.block_sparse_attention_forward = forward
    folder.api.block_sparse_attention_backward = backward
    monkeypatch.setitem(sys.modules, "cudnn", types.ModuleType("cudnn"))
    monkeypatch.setitem(sys.modules, folder.__name__, folder)
    monkeypatch.setitem(sys.modules, folder.api.__name__, folder.api)
    provider = registry.known()["cudnn:blocks"]
    assert provider.available() is None
    for blocks in (None, kv_heads * [[(0, 1), (0, 2), (2, 0)]]):
        mask = masks.UniformBlockSparse(128, 128, density=None if blocks else 0.5, blocks=blocks)
        case = _block_case(mask, 4, kv_heads, 384, 128, "bf16", batch=2)
        assert provider.supports(case, "cuda") is None
        assert right_passes(provider, case).has_backward == (kv_heads == 4)
    refused = _block_case(BLOCKS_OF_64, 2, 2, 200, 128, "bf16")
    assert "whole blocks" in provider.supports(refused, "cuda")
    wide = _block_case(masks.UniformBlockSparse(32, 32, density=0.5), 2, 2, 256, 128, "bf16")
    assert "64 or 128" in provider.supports(wide, "cuda")
    assert "head dims" in provider.supports(_block_case(BLOCKS_OF_64, 2, 2, 256, 32, "f16"), "cuda")


@pytest.mark.parametrize("deterministic", [False, True])
def test_flash_attention_2_gets_blocks_of_128(deterministic, monkeypatch):
    """With its package's interface in the place of its kernels: blocks of twice the unit, whose
    last ones end early, two query heads a KV head, two batch entries."""
    torch = pytest.importorskip("torch")

    def attend(
        q, k, v, q_ends, k_ends, kinds, streaming, shown, q_len, kv_len, dropout, repeats, scale
    ):
        assert (kinds.tolist(), streaming, dropout, repeats) == (4 * [1], None, 0.0, deterministic)
        assert (q_ends.tolist(), k_ends.tolist()) == ([0, 300, 600], [0, 520, 1040])
        assert (q_len, kv_len, q.shape, shown.shape) == (300, 520, (600, 4, 64), (2, 4, 3, 5))
        pairs = shown.repeat_interleave(128, 2).repeat_interleave(128, 3)[..., :q_len, :kv_len]
        q, k, v = (x.unflatten(0, (2, -1)).transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, pairs, scale=scale, enable_gqa=True
        ).transpose(1, 2).flatten(0, 1)  # fmt: skip

    package = types.ModuleType("block_sparse_attn")
    package.block_sparse_attn_func = attend
    monkeypatch.setitem(sys.modules, package.__name__, package)
    mask = masks.UniformBlockSparse(256, 256, blocks=2 * [[(0, 0), (0, 2), (1, 1)]])
    case = workloads.Case("given", mask.name, Problem(2, 4, 2, 300, 520, 64, 64, "bf16"), mask)
    name = "flash_attn_2:blocks" + (":deterministic" if deterministic else "")
    provider = registry.known()[name]
    assert provider.available() is None and provider.supports(case, "cuda") is None
    right_passes(provider, case)


def test_what_flash_attention_2_lacks_with_blocks():
    provider = registry.known()["flash_attn_2:blocks"]
    wide = masks.UniformBlockSparse(128, 256, density=0.5)
    for case, reason in (
        (_block_case(masks.Causal(), 2, 2), "no mask but blocks"),
        (_block_case(BLOCKS_OF_64, 2, 2, 256), "multiples of 128"),
        (_block_case(wide, 2, 2, 256, 96), "head dims 32, 64 and 128"),
        (_block_case(wide, 2, 2, 256, 64, "f32"), "in bf16 or f16"),
    ):
        assert reason in provider.supports(case, "cuda")
    for dim in (32, 64, 128):
        assert provider.supports(_block_case(wide, 4, 2, 256, dim, "bf16"), "cuda") is None


@pytest.mark.parametrize("version", ["older", "0.7.4"])
def test_flashinfer_gets_the_blocks_of_every_kv_head(version, monkeypatch):
    """With its wrapper's interface in the place of its kernels: the forward of unequal blocks."""
    torch = pytest.importorskip("torch")

    class Wrapper:
        room = 2**27

        def __init__(self, workspace):
            assert workspace.dtype == torch.uint8

        def reset_workspace_buffer(self, workspace, integers):
            assert (workspace.dtype, integers.dtype) == (torch.uint8, torch.uint8)

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

    class Older(Wrapper):  # it lists the keys in a buffer that callers may bring
        room = 1

        def reset_workspace_buffer(self, workspace, integers, vector_sparse_indices_buffer):
            super().reset_workspace_buffer(workspace, integers)
            self.room = len(vector_sparse_indices_buffer)

    module = types.ModuleType("flashinfer.sparse")
    module.VariableBlockSparseAttentionWrapper = Older if version == "older" else Wrapper
    package = types.ModuleType("flashinfer")
    package.__version__ = version
    for made in (package, module):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    mask = masks.VariableBlockSparse((0, 70, 130, 200), (0, 3, 100, 160, 200), density=0.6, seed=1)
    case = workloads.Case("given", mask.name, Problem(1, 4, 2, 200, 200, 16, 16, "bf16"), mask)
    provider = registry.known()["flashinfer:sparse"]
    assert provider.available() is None and provider.supports(case, "cuda") is None
    assert provider.version() == f"flashinfer {version}"
    assert set(right_passes(provider, case).last) == {"o"}
    assert "no mask but blocks" in provider.supports(_block_case(masks.Causal(), 4, 2), "cuda")

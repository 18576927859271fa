"""What models are asked, in our own words: the language, the three steps, and what was wrong."""

from __future__ import annotations

from . import targets
from .spec import Spec

_PROGRAM_ONLY = (
    "Answer with the whole program in one fenced code block. What stands around it is not read."
)

ROLE = "You write attention kernels for NVIDIA GPUs. Programs are checked by a compiler and run."

_STATEMENTS = """\
TL is a small language of Copy and Compute statements. A program is what one block of threads does
with one tile: BM queries or BN keys of one head. Statements run in order, one a line.

  param pass = forward                           what it is; the first line
  Copy A from global to shared                   moves a tile between global, shared and register
  Compute GEMM A, B and get C                    C = A B; "accumulate C" adds to C instead
  Compute GEMM A, B^T and get C                  ^T transposes a factor
  Compute Fill A with 0                          a number, or -inf
  Compute Add|Subtract|Multiply|Divide A, b and get new A
                                                 A and b of one shape, or b one number a row, a
                                                 number, or `scale`, the problem's; "and get B" makes
                                                 a new tile; x / 0 = 0
  Compute Mask S                                 -inf where the problem's mask hides
  Compute Softmax S with m and l                 a step of the online softmax: m takes the maxima of
                                                 rows, l the sums, S = exp(S - m); what the loop
                                                 accumulates from S is brought to the new m
  Compute Softmax S with L and get P             P = exp(S - L)
  Compute LogSumExp m, l and get L               L = m + log(l)
  Reduce ordered A from register to global as addend
                                                 adds a tile to a sum in the place that a plan gives
                                                 it; "with scale" multiplies the whole sum
  for i = 0:N                                    the one loop: over the tiles of the other axis
    ...
  end

Names are fixed for what lies in global memory. Forward: reads Q, K, V; writes O, and L, the
log-sum-exp of rows. Backward: reads Q, K, V, dO, L and D = rowsum(dO O); its sums are dQ, dK, dV.
The forward keeps a tile of queries and loops over keys, the backward keeps a tile of keys and loops
over queries. GEMM reads shared memory, or registers for a first factor that is not transposed; all
else reads registers. Tiles go from global through shared memory; rows of numbers (L, D) go to
registers; results leave from registers. m, l and what is accumulated start with a Fill. Scores are
multiplied by scale and masked before their softmax. Comments begin with //."""

_CODE = """\
TL code is a sketch with everything that a GPU needs. It adds:

  param target = {target}
  param dtype = {dtype}
  param HeadDim = {head_dim}
  param HeadDimV = {head_dim_v}
  param BM = ..., param BN = ...                 queries and keys of a tile, multiples of 16
  param stages = ...                             buffers of what the loop copies to shared memory
  param warps = ...                              they share the matrix instructions evenly

  Allocate Q in global (M, HeadDim) with offset q_head_offset
                                                 before its first use, every tensor, tile and row of
                                                 numbers; K, V, dK, dV have kv_head_offset
  Allocate K in shared (BN, HeadDim)             extents by name; V, O, dO, dV have HeadDimV columns
  Allocate S in register (BM, BN)
  Copy Q (BM, HeadDim) in coordinate [L = block_idx] from global to shared
                                                 every Copy or Reduce that touches global memory has
                                                 shape and coordinate: block_idx for the tile that
                                                 is kept, i for the loop's
  Reshape S from (MMA_C, MMA_M, MMA_N) to (MMA_A, MMA_M, MMA_N_new)
                                                 before a product in registers becomes a factor
  Wait K                                         before the first use of a tile that a Copy brought
                                                 from global to shared memory

All must fit in the shared memory and registers of the target: {summary}."""

_ABI = """\
Write one CUDA C++ file that defines

  extern "C" void attention_forward(const void* q, const void* k, const void* v, void* o, float* lse,
                                    int batch, int q_heads, int kv_heads, int q_len, int kv_len,
                                    float scale, cudaStream_t stream);

Tensors are {dtype}, dense, (batch, length, heads, dim), with head dim {head_dim} of q and k and
{head_dim_v} of v and o; lse is (batch, q_heads, q_len). Query head h belongs to KV head
h / (q_heads / kv_heads). For each of its rows: S = scale Q K^T over the visible keys,
P = softmax(S), O = P V, lse = log(sum(exp(S))); without a visible key O = 0 and lse = -inf. A key is
visible where this says so:

{predicate}
It is compiled by nvcc for {summary}, and launches its kernels on `stream`."""

_THINK = """\
Think first, step by step: what each block of threads computes, which tiles lie in shared memory and
which in registers, how the softmax goes on from tile to tile, which matrix instructions and copies
the target has, where threads must wait. Then write the program."""


def sketch(spec: Spec) -> str:
    return "\n\n".join(
        [
            _STATEMENTS,
            f"Write the sketch of {_wanted(spec)}. A sketch has no sizes, no Allocate, no Reshape "
            "and no Wait.",
            _PROGRAM_ONLY,
        ]
    )


def reasoning(spec: Spec, target: str, made: str) -> str:
    return "\n\n".join(
        [
            _STATEMENTS,
            _code(spec, target),
            f"Complete this sketch of {_wanted(spec)}. Work out which extents every tile has, then "
            "tile, stages and warps that fit, then where a product becomes a factor and where a "
            "copy must have arrived.",
            made,
            _PROGRAM_ONLY,
        ]
    )


def direct(spec: Spec, target: str) -> str:
    return "\n\n".join(
        [_STATEMENTS, _code(spec, target), f"Write TL code of {_wanted(spec)}.", _PROGRAM_ONLY]
    )


def translation(spec: Spec, target: str, code: str) -> str:
    return "\n\n".join(
        [
            "Translate this TL code, which was checked and run, to CUDA C++ on CuTe. Put every "
            "statement's code under the statement as a comment.",
            code,
            _STATEMENTS,
            _abi(spec, target),
            _PROGRAM_ONLY,
        ]
    )


def cuda(spec: Spec, target: str, think: bool) -> str:
    notes = [spec.notes] if spec.notes else []
    return "\n\n".join([_abi(spec, target), *notes, *([_THINK] if think else []), _PROGRAM_ONLY])


def wrong(found: str) -> str:
    return f"It is refused:\n\n{found}\n\nWrite the whole program again without these faults."


def broken(problem: str) -> str:
    return f"Your last answer could not be used: {problem}. {_PROGRAM_ONLY}"


def _wanted(spec: Spec) -> str:
    notes = f" ({spec.notes})" if spec.notes else ""
    return f"the {spec.pass_} pass of attention{notes}"


def _code(spec: Spec, target: str) -> str:
    p = spec.problem
    return _CODE.format(
        target=target,
        dtype=p.dtype,
        head_dim=p.head_dim,
        head_dim_v=p.head_dim_v,
        summary=targets()[target],
    )


def _abi(spec: Spec, target: str) -> str:
    p = spec.problem
    return _ABI.format(
        dtype={"bf16": "__nv_bfloat16", "f16": "__half"}[p.dtype],
        head_dim=p.head_dim,
        head_dim_v=p.head_dim_v,
        predicate=spec.predicate,
        summary=targets()[target],
    )

"""va.ContextParallel on 2 and 4 processes, through gloo and as peers: the hashes that `verbatim run`
prints."""

import hashlib
import json
import os
import subprocess

import numpy as np
import pytest
import verbatim_attn as va
from verbatim_attn import masks

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch was built without gloo", allow_module_level=True)
if not os.environ.get("VERBATIM_TOOL"):
    pytest.skip("VERBATIM_TOOL does not name the command-line tool", allow_module_level=True)

STRATEGIES = ("ulysses", "ring", "allgather", "usp", "loongtrain", "balanced")
LENGTH, HEADS, DIM = 520, (4, 2), 80  # shards end at multiples of 128
PROBLEM = va.Problem(1, *HEADS, LENGTH, LENGTH, DIM, DIM, "f16")
LENGTHS = (300, 150, 70)
DOCUMENTS = "--doc-lengths 300,150,70"
# Each as Python takes it and as the tool does.
MASKS = [
    (masks.Full(), ""),
    (masks.Causal(), ""),
    (masks.FullSlidingWindow(90), "--window 90"),
    (masks.CausalSlidingWindow(150), "--window 150"),
    (masks.FullDocument(LENGTHS), DOCUMENTS),
    (masks.CausalDocument(LENGTHS), DOCUMENTS),
    (masks.ShareQuestion(LENGTHS), DOCUMENTS),
    (masks.CausalBlockwise(LENGTHS), DOCUMENTS),
    (masks.GlobalSliding(40, 60), "--global 40 --window 60"),
    (masks.PrefixLmCausal(200), "--prefix 200"),
    (masks.PrefixLmDocument(LENGTHS, (100, 40, 9)), f"{DOCUMENTS} --prefix 100,40,9"),
    (masks.BlockCausalDocument(LENGTHS, 32), f"{DOCUMENTS} --block 32"),
    (masks.UniformBlockSparse(64, 40, 0.4, 0), "--block-q 64 --block-k 40 --density 0.4"),
    (
        masks.VariableBlockSparse((0, 200, 330, 520), (0, 70, 400, 520), 0.5, 0),
        "--block-q 200,130,190 --block-k 70,330,120 --density 0.5",
    ),
    (masks.windows((0, LENGTH), (0, LENGTH), 100, 30), "--window 100,30"),
]
NAMES = ("q", "k", "v", "do")


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    """Files of q, k, v and dO."""
    folder, rng = tmp_path_factory.mktemp("tensors"), np.random.default_rng(5)
    files = {name: str(folder / f"{name}.npy") for name in NAMES}
    for (name, file), heads in zip(files.items(), (HEADS[0], HEADS[1], HEADS[1], HEADS[0])):
        np.save(file, rng.standard_normal((1, LENGTH, heads, DIM)).astype(np.float16))
    return files


def hashes_of_tool(mask, words, files, folder):
    result = folder / "result.json"
    subprocess.run(
        [os.environ["VERBATIM_TOOL"], "run", "--mask", mask.name, *words.split(),
         "--seqlen", str(LENGTH), "--q-heads", str(HEADS[0]), "--kv-heads", str(HEADS[1]),
         "--head-dim", str(DIM), "--dtype", "f16", "--repeats", "1", "--check", "none",
         "--input", *(f"{name}={file}" for name, file in files.items()), "--json", result],
        check=True, capture_output=True,
    )  # fmt: skip
    return json.loads(result.read_text())["bits"]["sha256"]


def digest(x):
    return hashlib.sha256(x.detach().contiguous().numpy().tobytes()).hexdigest()


def hashes_of_rank(_rank, mask, files, transport):
    """Of the whole tensors, by strategy."""
    q, k, v, dout = (torch.from_numpy(np.load(files[name])) for name in NAMES)
    found = {}
    for strategy in STRATEGIES:
        parallel = va.ContextParallel(None, PROBLEM, mask, strategy=strategy, transport=transport)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        o, lse = parallel.attention(*map(parallel.dispatch, inputs), return_lse=True)
        o = parallel.undispatch(o)
        lse = parallel.undispatch(lse.mT).mT  # heads come first in the tool's, too
        outputs = (o, lse, *torch.autograd.grad(o, inputs, dout))
        found[strategy] = dict(zip(("o", "lse", "dq", "dk", "dv"), map(digest, outputs)))
    return found


def test_these_are_all_masks(tmp_path):
    file = tmp_path / "info.json"
    subprocess.run([os.environ["VERBATIM_TOOL"], "info", "--json", file], check=True)
    assert json.loads(file.read_text())["masks"] == [mask.name for mask, _ in MASKS]


@pytest.mark.parametrize(("mask", "words"), MASKS, ids=lambda x: getattr(x, "name", ""))
def test_hashes_are_those_of_the_tool(mask, words, ranks, tensors, tmp_path):
    expected = hashes_of_tool(mask, words, tensors, tmp_path)
    for transport in ("group", "peers"):
        for found in ranks.run(hashes_of_rank, mask, tensors, transport):
            for strategy in STRATEGIES:
                assert found[strategy] == expected, (transport, strategy)

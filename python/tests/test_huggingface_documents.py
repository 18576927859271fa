"""Hugging Face: packed documents that cu_seq_lens_q tells, as FlashAttention's interface reads them."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import verbatim_attn as va  # noqa: E402
from test_integrations import CPU, assert_close, same_bits  # noqa: E402
from verbatim_attn import huggingface, masks  # noqa: E402

LENGTHS = (70, 130)  # of more than a tile
TOKENS = torch.randint(97, (2, 200), generator=torch.Generator().manual_seed(1))
EDGES = torch.tensor([0, 70, 200], dtype=torch.int32)
TOLD = {"cu_seq_lens_q": EDGES, "cu_seq_lens_k": EDGES, "max_length_q": 130, "max_length_k": 130}
PADDED = torch.ones(1, 200, dtype=torch.long)
PADDED[:, 190:] = 0
LABELS = TOKENS[:1].masked_fill(PADDED == 0, -100)
RESTARTING = torch.cat([torch.arange(n) for n in LENGTHS])[None]
WINDOW = 6  # of transformers: keys, the query's own among them


def model(implementation, window=None):
    """Of Mistral; without a window its attention is that of Llama."""
    config = transformers.MistralConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=window,
        attn_implementation=implementation,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.MistralForCausalLM(config)


def step(model, place, **batch):
    """Loss and gradients."""
    batch = {"input_ids": TOKENS[:1], "labels": LABELS, **batch}
    batch = {name: x.to(place.device) if torch.is_tensor(x) else x for name, x in batch.items()}
    model = model.to(place.device, place.dtypes[0])
    loss = model(**batch).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def logits(model, place, **how):
    how = {name: x.to(place.device) if torch.is_tensor(x) else x for name, x in how.items()}
    model = model.to(place.device, place.dtypes[0])
    return model(TOKENS[:1].to(place.device), **how).logits  # (1, 200, 97)


def explicit(window, padded, place):
    """What a model without FlashAttention takes: a mask (1, 1, 200, 200) that adds to the scores."""
    mask = masks.CausalDocument(LENGTHS)
    if window:
        mask &= masks.CausalSlidingWindow(window - 1)
    shown = torch.from_numpy(mask.dense(200))  # (1, 1, q_len, kv_len)
    shown &= PADDED.bool() if padded else shown
    least = torch.finfo(place.dtypes[0]).min
    return torch.zeros(shown.shape, dtype=place.dtypes[0]).masked_fill(~shown, least)


@pytest.fixture(autouse=True)
def registered():
    va.register_huggingface()


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("window", [None, WINDOW, 300], ids=["causal", "window", "wide window"])
def test_documents_that_cu_seq_lens_tell(window, padded, place):
    mask = explicit(window, padded, place)
    eager = step(model("eager", window), place, attention_mask=mask)
    how = {"attention_mask": PADDED} if padded else {}
    first, second = (step(model("verbatim", window), place, **how, **TOLD) for _ in range(2))
    assert same_bits(first, second)
    assert_close(first, eager, place)
    joined = step(model("verbatim", window), place, **how)
    assert place is not CPU or abs(first[0] - joined[0]) > 1e-4  # documents were hidden
    with torch.no_grad():  # where masks are tensors
        found = logits(model("verbatim", window), place, **how, **TOLD)
        expected = logits(model("eager", window), place, attention_mask=mask)
    assert_close([found[:, :190]], [expected[:, :190]], place)


@pytest.mark.parametrize("positions", [None, RESTARTING], ids=["told once", "told twice"])
@pytest.mark.parametrize("window", [None, WINDOW], ids=["causal", "window"])
def test_documents_have_the_bits_that_they_have_alone(window, positions, monkeypatch):
    calls, attend = [], huggingface.attention

    def recorded(q, k, v, **how):
        calls.append((q, k, v, attend(q, k, v, **how)))
        return calls[-1][-1]

    monkeypatch.setattr(huggingface, "attention", recorded)
    logits(model("verbatim", window), CPU, position_ids=positions, use_cache=False, **TOLD)
    assert len(calls) == 2
    mask = masks.CausalSlidingWindow(WINDOW - 1) if window else masks.Causal()
    for tensors in calls:
        for q, k, v, o in zip(*(x.split(LENGTHS, 1) for x in tensors), strict=True):
            assert torch.equal(o, va.attention(q, k, v, mask=mask, scale=q.shape[-1] ** -0.5))


def test_documents_under_compile():
    """Lengths in a tensor break the graph."""
    verbatim = model("verbatim")
    compiled = torch.compile(verbatim, backend="eager")
    assert same_bits([logits(compiled, CPU, **TOLD)], [logits(verbatim, CPU, **TOLD)])


def edges(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize(
    "rows, q, k, error",
    [
        (
            1,
            edges(0, 70, 190),
            None,
            r"ends at 190 for 200 queries and 200 keys.*\(nearest: padding",
        ),
        (1, edges(0, 70, 210), None, "ends at 210"),
        (1, EDGES, edges(0, 80, 200), "cu_seq_lens_k that differs from cu_seq_lens_q"),
        (2, edges(0, 200, 400), None, "got 2 rows, expected all documents in one"),
    ],
    ids=["short", "long", "other keys", "two rows"],
)
def test_lengths_that_tell_no_documents_are_refused(rows, q, k, error):
    with pytest.raises((ValueError, NotImplementedError), match=error):
        model("verbatim")(TOKENS[:rows], cu_seq_lens_q=q, cu_seq_lens_k=q if k is None else k)


def test_lengths_of_one_document_tell_nothing():
    told = {"cu_seq_lens_q": edges(0, 200), "cu_seq_lens_k": edges(0, 200)}
    plain = logits(model("verbatim"), CPU)
    assert torch.equal(logits(model("verbatim"), CPU, **told), plain)

"""activate() and Hugging Face."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
import verbatim_attn as va  # noqa: E402
from places import PLACES  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from verbatim_attn import masks  # noqa: E402

needs_registry = pytest.mark.skipif(
    not hasattr(torch.nn.attention, "register_flash_attention_impl"), reason="PyTorch before 2.11"
)


CPU = PLACES["cpu"]


def inputs(place=CPU, q_len=40, kv_len=40, heads=3, dim=16):
    g = torch.Generator().manual_seed(0)
    normal = [torch.randn(2, heads, n, dim, generator=g) for n in (q_len, kv_len, kv_len)]
    return [x.to(place.device, place.dtypes[0]).requires_grad_() for x in normal]


def with_gradients(o, *inputs):
    return (o, *torch.autograd.grad(o.sin().sum(), inputs))


def same_bits(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def ours(q, k, v, **how):
    return va.attention(*(x.transpose(1, 2) for x in (q, k, v)), **how).transpose(1, 2)


@needs_registry
@pytest.mark.parametrize(
    "how, mask",
    [
        ({}, masks.Full()),
        ({"is_causal": True}, masks.Causal()),
        ({"scale": 0.4}, masks.Full()),
        ({"scale": 0.0}, masks.Full()),
    ],
)
def test_activate_replaces_sdpa_until_it_is_removed(how, mask, place, monkeypatch):
    from verbatim_attn import activation

    asked, plan_of = [], activation.plan_of
    monkeypatch.setattr(activation, "plan_of", lambda *a, **b: asked.append(a) or plan_of(*a, **b))
    q, k, v = inputs(place)
    before = F.scaled_dot_product_attention(q, k, v, **how)
    expected = with_gradients(ours(q, k, v, mask=mask, scale=how.get("scale")), q, k, v)
    with va.activate():
        assert torch.nn.attention.current_flash_attention_impl() == "VERBATIM"
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            inside = F.scaled_dot_product_attention(q, k, v, **how)
            assert same_bits(with_gradients(inside, q, k, v), expected)
    assert len(asked) == 2
    after = F.scaled_dot_product_attention(q, k, v, **how)
    assert torch.nn.attention.current_flash_attention_impl() is None
    exactly = dict(rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(after, before, **exactly)
    if before.isfinite().all():  # cuDNN answers a scale of 0 with NaN
        torch.testing.assert_close(after, inside)
    active = va.activate()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert torch.equal(F.scaled_dot_product_attention(q, k, v, **how), inside)
    active.remove()
    active.remove()
    removed = F.scaled_dot_product_attention(q, k, v, **how)
    torch.testing.assert_close(removed, before, **exactly)
    assert len(asked) == 3


@needs_registry
def test_activations_end_with_the_last():
    current = torch.nn.attention.current_flash_attention_impl
    with va.activate():
        with va.activate():
            assert current() == "VERBATIM"
        assert current() == "VERBATIM"
    assert current() is None
    first, second = va.activate(), va.activate()
    first.remove()
    first.remove()
    assert current() == "VERBATIM"
    second.remove()
    assert current() is None
    first = va.activate()
    torch.nn.attention.restore_flash_attention_impl()  # by somebody else
    second = va.activate()
    first.remove()
    assert current() == "VERBATIM"
    second.remove()
    assert current() is None


@needs_registry
def test_activate_with_masks_and_unequal_lengths():
    q, k, v = inputs(q_len=24)
    visible = torch.rand(2, 1, 24, 40) < 0.7
    additive = torch.zeros(24, 40).masked_fill_(visible[0, 0].logical_not(), -torch.inf)
    plain = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    top_left = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    with va.activate(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        got = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        torch.testing.assert_close(got, plain)
        torch.testing.assert_close(
            F.scaled_dot_product_attention(q, k, v, is_causal=True), top_left
        )
        first = F.scaled_dot_product_attention(q, k, v, attn_mask=additive)
        assert torch.equal(first[0], got[0])
        first = F.scaled_dot_product_attention(q, k, v, attn_mask=additive.clamp(min=-1e4))
        assert torch.equal(first[0], got[0])  # as models of BERT's time hide keys
        with pytest.raises(NotImplementedError, match="scores take no bias"):
            F.scaled_dot_product_attention(q, k, v, attn_mask=additive.clamp(min=-1.0))


@needs_registry
def test_activate_under_compile(place):
    q, k, v = inputs(place)
    with va.activate(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        compiled = torch.compile(
            F.scaled_dot_product_attention, fullgraph=True, backend="aot_eager"
        )
        got = with_gradients(compiled(q, k, v, is_causal=True), q, k, v)
        assert same_bits(got, with_gradients(ours(q, k, v, mask=masks.Causal()), q, k, v))


def llama(implementation):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attn_implementation=implementation,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def step(implementation, place=CPU, **batch):
    """Loss and gradients of one training step of a small random Llama."""
    model = llama(implementation).to(place.device, place.dtypes[0])
    batch = {"labels": batch["input_ids"], **batch}
    batch = {name: x.to(place.device) if torch.is_tensor(x) else x for name, x in batch.items()}
    loss = model(**batch, use_cache=False).loss  # a cache hides from Hugging Face what is packed
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


TOKENS = torch.randint(97, (2, 50), generator=torch.Generator().manual_seed(1))
PADDED = torch.ones(2, 50, dtype=torch.long)
PADDED[1, 30:] = 0
LEFT = PADDED.flip(1)


def padded(mask):  # no label is predicted by padding: eager makes up its rows
    labels = TOKENS.masked_fill(mask.cumsum(1) * mask <= 1, -100)
    return {"input_ids": TOKENS, "attention_mask": mask, "labels": labels}


BATCHES = {
    "causal": {"input_ids": TOKENS},
    "padded right": padded(PADDED),
    "padded left": padded(LEFT),
    "packed": {
        "input_ids": TOKENS[:1],
        "position_ids": torch.cat([torch.arange(20), torch.arange(30)])[None],
    },
}


def assert_close(found, expected, place):
    """By the norm of each: a model in bf16 rounds after every layer."""
    allowed = 1e-5 if place is CPU else 0.05
    for x, want in zip(found, expected, strict=True):
        assert (x - want).float().norm() <= allowed * want.float().norm()


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_llama_trains_as_with_eager_attention(batch, place):
    pytest.importorskip("transformers")
    va.register_huggingface()
    names = ("eager", "verbatim", "verbatim")
    eager, first, second = (step(name, place, **batch) for name in names)
    assert same_bits(first, second)
    assert_close(first, eager, place)
    if batch is BATCHES["padded left"] and place is CPU:  # the mask was not dropped
        unmasked = step("verbatim", input_ids=TOKENS, labels=batch["labels"])
        assert abs(first[0] - unmasked[0]) > 1e-4
    if batch is BATCHES["packed"] and place is CPU:  # documents do not see each other
        unpacked = step("verbatim", input_ids=batch["input_ids"])
        assert abs(first[0] - unpacked[0]) > 1e-4


@needs_registry
def test_llama_on_activated_sdpa(place):
    batch = BATCHES["causal"]
    eager, before = (step(name, place, **batch) for name in ("eager", "sdpa"))
    with va.activate(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        first, second = (step("sdpa", place, **batch) for _ in range(2))
    assert same_bits(first, second) and not same_bits(first, before)
    assert_close(first, eager, place)


def test_entries_padded_on_the_left_are_decoded_as_alone(monkeypatch):
    pytest.importorskip("transformers")
    from verbatim_attn import huggingface

    va.register_huggingface()
    calls, attend = [], huggingface.attention

    def recorded(q, k, v, **how):
        calls.append((q, k, v, attend(q, k, v, **how)))
        return calls[-1][-1]

    monkeypatch.setattr(huggingface, "attention", recorded)
    tokens = torch.randint(97, (2, 200), generator=torch.Generator().manual_seed(2))
    shown = torch.ones_like(tokens)
    shown[1, :100] = 0
    how = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    llama("verbatim").eval().generate(tokens, attention_mask=shown, **how)
    chunks = {q.shape[1] for q, *_ in calls}
    assert chunks == {200, 1}
    for q, k, v, o in calls:
        for entry, padding in enumerate((0, 100)):
            rows, keys = (
                slice(max(q.shape[1] - k.shape[1] + padding, 0), None),
                slice(padding, None),
            )
            alone = (q[entry : entry + 1, rows], *(x[entry : entry + 1, keys] for x in (k, v)))
            expected = va.attention(*alone, mask=masks.Causal(), scale=q.shape[-1] ** -0.5)
            assert torch.equal(o[entry : entry + 1, rows], expected)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("prompt", [{}, {"attention_mask": LEFT[:, -25:]}], ids=["full", "padded"])
def test_generation_equals_eager(prompt, cache):
    pytest.importorskip("transformers")
    va.register_huggingface()
    how = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": cache, **prompt}
    eager, ours = (llama(name).eval() for name in ("eager", "verbatim"))
    tokens = TOKENS[:, :25]
    assert torch.equal(eager.generate(tokens, **how), ours.generate(tokens, **how))


def test_generation_with_a_static_window_equals_eager():
    """A prompt that is longer than the window has masks of its own length."""
    transformers = pytest.importorskip("transformers")
    va.register_huggingface()
    config = transformers.MistralConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=6,
    )  # fmt: skip
    made = []
    for name in ("eager", "verbatim"):
        torch.manual_seed(0)
        config._attn_implementation = name
        model = transformers.MistralForCausalLM(config).eval()
        how = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static"}
        made.append(model.generate(TOKENS[:, :25], **how))
    assert torch.equal(*made)


def test_generation_compiles_no_mask():
    """On GPUs transformers compiles what decodes with a static cache."""
    transformers = pytest.importorskip("transformers")
    va.register_huggingface()
    model = llama("verbatim").eval()
    compiling = transformers.CompileConfig(backend="eager", mode=None)
    how = {"max_new_tokens": 14, "do_sample": False, "cache_implementation": "static"}
    expected = model.generate(TOKENS[:, :9], **how)
    compiling._compile_all_devices = True
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        assert torch.equal(model.generate(TOKENS[:, :9], compile_config=compiling, **how), expected)


def test_a_compiled_llama_equals_itself():
    pytest.importorskip("transformers")
    va.register_huggingface()
    model = llama("verbatim").eval()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager")(TOKENS).logits
        assert same_bits([compiled], [model(TOKENS).logits])


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_source_padded_on_the_left_hides_no_target(training):
    transformers = pytest.importorskip("transformers")
    va.register_huggingface()
    config = transformers.BartConfig(
        vocab_size=97, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_position_embeddings=64,
    )  # fmt: skip
    shown = torch.ones(2, 30, dtype=torch.long)
    shown[1, :20] = 0  # fewer tokens than targets
    how = {"attention_mask": shown, "decoder_input_ids": TOKENS[:, 30:47]}
    made = []
    for name in ("eager", "verbatim"):
        torch.manual_seed(0)
        config._attn_implementation = name
        model = transformers.BartModel(config).eval()
        with torch.set_grad_enabled(training):
            made.append(model(TOKENS[:, :30], **how)[0])
    torch.testing.assert_close(*made, rtol=1e-5, atol=1e-5)


def test_a_model_that_asks_without_saying_so_is_served():
    transformers = pytest.importorskip("transformers")
    va.register_huggingface()
    config = transformers.SplinterConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=64,
    )  # fmt: skip
    made = []
    for name in ("eager", "verbatim"):
        torch.manual_seed(0)
        model = transformers.SplinterModel._from_config(config, attn_implementation=name).eval()
        made.append(model(TOKENS, attention_mask=PADDED)[0] * PADDED[..., None])
    torch.testing.assert_close(*made, rtol=1e-5, atol=1e-5)


def test_models_that_attend_by_themselves_are_refused():
    """Bloom adds what a mask is to its scores, and would take ours for one that hides nothing."""
    transformers = pytest.importorskip("transformers")
    va.register_huggingface()
    config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=1, n_head=2)
    model = transformers.BloomModel._from_config(config, attn_implementation="verbatim")
    for called, enabled in (
        (model, False), (model, True), (torch.compile(model, backend="eager"), False),
    ):  # fmt: skip
        with torch.set_grad_enabled(enabled), pytest.raises(NotImplementedError) as refused:
            called(TOKENS)
        assert "for BloomConfig, expected a model that asks" in str(refused.value)

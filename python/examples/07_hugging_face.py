"""A Hugging Face model with attn_implementation="verbatim": the same bits twice."""

import torch
import verbatim_attn as va
from transformers import LlamaConfig, LlamaForCausalLM

va.register_huggingface()
config = LlamaConfig(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
tokens = torch.randint(97, (2, 50), generator=torch.Generator().manual_seed(1))


def train_step(implementation):
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(config, attn_implementation=implementation)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()]


eager, _ = train_step("eager")
(loss, gradients), (again, gradients_again) = train_step("verbatim"), train_step("verbatim")
assert loss == again
assert all(torch.equal(a, b) for a, b in zip(gradients, gradients_again, strict=True))
print(f"loss {loss:.6f}, eager {eager:.6f}; every gradient the same bits twice")

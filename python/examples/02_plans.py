"""What will run, in which order, and what it promises: before any tensor exists."""

import verbatim_attn as va

problem = va.Problem(
    batch=1,
    q_heads=8,
    kv_heads=2,
    q_len=4096,
    kv_len=4096,
    head_dim=64,
    head_dim_v=64,
    dtype="bf16",
)
plan = va.Plan(problem, va.masks.Causal())
print(plan.explain())

print("\norders of the backward:")
for order in va.orders():
    if order["pass"] == "backward":
        chosen = va.Plan(problem, va.masks.Causal(), order=order["name"], level=order["level"])
        print(f"{order['name']:<24} {order['level']:<12} {chosen.backward_pass.fingerprint}")

try:
    va.Plan(problem, order="right_to_left_tail")  # keeps gpu_to_gpu, but not invariant
except NotImplementedError as error:
    print("\n" + str(error))

"""Attention beside its peers: the same workloads, checks, clocks and report for every provider.

    python -m verbatim_attn.bench --list
    python -m verbatim_attn.bench --set dense --device cuda --providers verbatim,torch:flash \\
        --resume dense.jsonl --json dense.json --html dense.html

docs/benchmarks.md says how it measures, docs/schema.md what it writes.
"""

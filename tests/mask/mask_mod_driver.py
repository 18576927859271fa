"""Evaluates emitted mask_mod functions position by position.

The argument is a JSON list of {"source", "text", "q_len", "kv_len", "visible"}, where
visible[b][h] holds one string of 0 and 1 for each query. Needs no torch: a nested list with
tensor indexing stands in for it.
"""

import json
import sys
import types


class Tensor:
    def __init__(self, data):
        self.data = data

    def __getitem__(self, index):
        value = self.data
        for i in index if isinstance(index, tuple) else (index,):
            value = value[i]
        return Tensor(value) if isinstance(value, list) else value


sys.modules["torch"] = types.SimpleNamespace(tensor=Tensor)

for case in json.load(open(sys.argv[1])):
    module = {}
    exec(case["source"], module)
    mask_mod = module["mask_mod"]
    for b, heads in enumerate(case["visible"]):
        for h, rows in enumerate(heads):
            for q in range(case["q_len"]):
                for k in range(case["kv_len"]):
                    if bool(mask_mod(b, h, q, k)) != (rows[q][k] == "1"):
                        sys.exit(f"{case['text']}: b {b} h {h} q {q} k {k}\n{case['source']}")

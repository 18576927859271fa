"""Results of the papers' cases, as a benchmark would write them."""

import json

from verbatim_attn.bench import __main__ as bench
from verbatim_attn.papers import document, evidence


def saved_cases(path, words, *rows, **of_row):
    """A result of the cases that `words` choose, a row for each pair of a case's number and a
    provider."""
    cases = bench.chosen_cases(bench.parser().parse_args(words.split()))
    made = [{"set": case.set, "name": case.name, "provider": provider, "status": "ok", "reason": "",
             "problem": case.problem._asdict(), "forward": None,
             "mask": {"name": case.mask.name, "params": json.loads(case.mask.spec).get("params", {})},
             "backward": {"ms": 1.0, "tflops": case.problem.q_len}, **of_row}
            for number, provider in rows for case in [cases[number]]]  # fmt: skip
    result = {"command": "bench", "device": {"name": "card"}, "commit": "", "results": made}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**result, "arguments": words.split()}))


def told(entry, folder):
    """The lines of an entry's tables."""
    tables = document.tables(entry, evidence.parts(entry, folder))
    return [" | ".join(line) for table in tables for line in table.lines]

"""The benchmark with peers. Sampling, workloads and reports run without PyTorch."""

import importlib.util
import itertools
import json
import pathlib
import re
import shlex
import subprocess
import sys
from importlib.metadata import version

import pytest
from benching import ROOT, bench, schema
from verbatim_attn import masks
from verbatim_attn._errors import Refused
from verbatim_attn.bench import __main__ as command
from verbatim_attn.bench import (
    page,
    peers,
    providers,
    registry,
    report,
    results,
    sampling,
    workloads,
)
from verbatim_attn.plan import Problem

torch = importlib.util.find_spec("torch")
TINY = ["--mask", "causal", "--seqlen", "48", "--heads", "4:2", "--head-dim", "16",
        "--dtype", "f32", "--repeats", "2"]  # fmt: skip


FEW_KEYS = workloads.Choice(
    seqlens=(96,), heads=((4, 2),), head_dims=(16,), lengths=(11, 30), dtype="f32"
)


def row(provider="verbatim", ms=2.0, **more):
    problem = workloads.Problem(1, 2, 1, 64, 64, 16, 16, "f32")._asdict()
    timing = {"ms": ms, "noise": 0.01, "tflops": 1 / ms, "clock_mhz": 0.0}
    return {"set": "given", "name": "case", "provider": provider, "status": "ok", "reason": "",
            "problem": problem, "mask": {"name": "full", "params": {}, "area": 8192},
            "plan": None, "forward": timing, "backward": timing, "unordered": None, "check": None,
            "bits": None, "workspace_bytes": None, "memory_bytes": None,
            "repro": f"run {provider}", **more}  # fmt: skip


def result(*rows):
    device = {"name": "device", "multiprocessors": 1, "l2_bytes": 0, "max_clock_mhz": 0,
              "driver": ""}  # fmt: skip
    rates = {"before": 1.0, "after": 1.0}
    return {"command": "bench", "schema": results.SCHEMA, "version": "0", "arguments": [],
            "device": device, "commit": "", "protocol": "rested", "software": {},
            "matmul_tflops": dict(rates), "copy_tb_per_s": dict(rates), "results": list(rows)}  # fmt: skip


def test_lengths_are_a_pure_function_of_their_seed():
    assert sampling.document_lengths(8192, seed=0) == (1237, 2307, 4034, 235, 212, 167)
    assert sampling.document_lengths(1024, seed=1) == (159, 314, 101, 180, 270)
    assert sampling.document_lengths(50, lengths=(7, 9), seed=1) == sampling.document_lengths(
        50, lengths=(7, 9), seed=1
    )
    assert set(sampling.document_lengths(1000, lengths=(7, 9))[:-1]) == {7, 9}


@pytest.mark.parametrize("source", sampling.SOURCES)
@pytest.mark.parametrize("total", [1, 1000, 8192, 16384, 100000])
def test_lengths_fill_the_total(source, total):
    drawn = sampling.document_lengths(total, source, seed=3)
    assert sum(drawn) == total and min(drawn) > 0


def test_quantiles_are_the_table_s():
    for name, known in sampling.DISTRIBUTIONS.items():
        assert [sampling.quantile(name, s / 100) for s in sampling.SHARES] == list(known)
    assert 206 < sampling.quantile("pile", 0.45) < 257


def test_sixty_percent_of_mixed_tokens_are_in_long_documents():
    shares = []
    for seed in range(20):
        drawn = sampling.document_lengths(2**20, "mixed", seed)
        shares.append(sum(n for n in drawn if sampling.LONG[0] <= n <= sampling.LONG[1]) / 2**20)
    assert 0.58 < sum(shares) / len(shares) < 0.66


def test_sets_have_unique_names_and_masks_of_their_length():
    for name in ("dense", "gqa", "longca", "sparse", "mqa", "models"):
        cases = workloads.cases(name, workloads.Choice(seqlens=(256, 512)))
        assert len({case.name for case in cases}) == len(cases)
        for case in cases[:60]:
            p = case.problem
            shown = case.mask.dense(p.q_len, kv_heads=p.kv_heads).sum()
            assert case.area == shown * p.batch * p.q_heads // p.kv_heads, case.name
    dense = workloads.cases("dense", workloads.Choice())
    assert len(dense) == 24
    assert dense[7].name == "hd128 full 1024"
    assert tuple(dense[7].problem)[:7] == (16, 16, 16, 1024, 1024, 128, 128)
    documents = workloads.cases("masks", workloads.Choice())  # of one length
    assert len(documents) == 12 and all(case.area > 0 for case in documents)
    chosen = workloads.Choice(seqlens=(64,), heads=((4, 2), (2, 1)), head_dims=(32,), batch=3)
    assert [(case.name, *case.problem[:4]) for case in workloads.cases("mqa", chosen)] == [
        (f"{q}:{kv} {mask} 64 hd32", 3, q, kv, 64)
        for q, kv in ((4, 2), (2, 1)) for mask in ("causal", "full")
    ]  # fmt: skip
    several = workloads.Choice(seqlens=(512, 640), heads=((4, 2), (2, 1)), head_dims=(64, 128))
    for name in ("dense", "gqa", "mqa", "longca", "sparse"):
        cases = workloads.cases(name, several)
        assert len({case.name for case in cases}) == len(cases) >= 16, name
    names = {case.mask.name for case in workloads.cases("longca", workloads.Choice())}
    assert len(names) == 12


def test_nominal_areas_are_those_of_published_tables():
    choice = workloads.Choice(seqlens=(2048,), heads=((2, 1),))
    by_mask = {case.mask.name: case for case in workloads.cases("longca", choice)}
    assert by_mask["causal"].nominal_area == 2 * 2048**2 / 2
    window = by_mask["full_sliding_window"]
    assert window.nominal_area == by_mask["causal_sliding_window"].area < window.area
    assert by_mask["share_question"].nominal_area == by_mask["share_question"].area
    assert by_mask["full"].flops("backward", 10) == 2.5 * 4 * 10 * 128


def test_corner_pieces_cover_every_mask_once():
    np = pytest.importorskip("numpy")
    documents = (5, 0, 9, 10)
    for mask in (masks.Full(), masks.Causal(), masks.FullSlidingWindow(3), masks.FullSlidingWindow(0),
                 masks.CausalSlidingWindow(7), masks.GlobalSliding(3, 2), masks.PrefixLmCausal(6),
                 masks.ShareQuestion(documents), masks.PrefixLmDocument(documents, 2),
                 masks.BlockCausalDocument(documents, 4)):  # fmt: skip
        count = np.zeros((24, 24), int)
        for q0, q1, k0, k1, kind in peers.corner_pieces(mask, 24, 24):
            q, k = np.arange(q0, q1)[:, None], np.arange(k0, k1)[None]
            shown = (q >= 0) & (k >= 0)
            shown &= (k - k1 <= q - q1) if kind & 1 else True
            shown &= (k - k0 >= q - q0) if kind & 2 else True
            count[q0:q1, k0:k1] += shown
        assert (count == mask.dense(24)[0, 0]).all(), mask


@pytest.mark.parametrize(
    "words, parts",
    [
        (["--set", "dens", "--dry-run"], ["--set got dens", "nearest: dense"]),
        (["--set", "dense", "--match", "(", "--dry-run"], ["--match got ("]),
        (["--set", "dense", "--match", "zzz", "--dry-run"], ["no case has such a name"]),
        (["--mask", "causl", "--dry-run"], ["nearest: causal"]),
        (["--mask", "causal", "--heads", "3:2", "--dry-run"], ["--heads got 3:2"]),
        (["--mask", "causal", "--seqlen", "0", "--dry-run"], ["--seqlen got 0"]),
        (["--dry-run"], ["--mask got nothing"]),
        (["block", "--preset", "lama", "--dry-run"], ["nearest: llama3-8b"]),
        (["--mask", "causal", "--providers", "torch:flsh"], ["nearest: torch:flash"]),
        (["--mask", "causal", "--providers", "verbatim:no.tl"], ["--providers got no.tl"]),
        (["block", "--passes", "forward"], ["--passes got forward", "nearest: both"]),
        (["--mask", "causal", "--device", "nowhere"], ["nowhere"] if torch else ["PyTorch"]),
        (["--from", "/no/such.json"], ["/no/such.json"]),
        (["--no-such-option"], ["unrecognized arguments"]),
    ],
)
def test_bad_input_is_refused(words, parts):
    message = bench(*words, code=2).stderr
    assert message.startswith("verbatim_attn.bench: ") and all(part in message for part in parts)


def test_list_names_every_provider():
    listed = bench("--list").stdout
    assert all(f"  {name}" in listed for name in registry.known())
    assert re.search(r"flash_attn_3 +(not installed|available)", listed)


def test_repro_names_the_same_problem():
    words = ["--set", "longca", "--seqlen", "512,600", "--seed", "4", "--samples", "2"]
    a = command.parser().parse_args(words)
    for case in command.chosen_cases(a)[::5]:
        line = shlex.split(command.repro(a, case, "verbatim"))
        again = command.chosen_cases(command.parser().parse_args(line[3:]))
        assert [(c.problem, c.mask) for c in again] == [(case.problem, case.mask)]


def test_reports_compare_and_escape():
    evil = "<script>alert(1)</script>"
    found = [result(row(), row("torch:flash", 4.0), row("flex", name=evil, ms=1.0),
                    row("verbatim:unordered", 1.0),
                    row("magi", status="unsupported", reason=evil, forward=None, backward=None))]  # fmt: skip
    text, shown = report.text(found), page.html(found)
    assert re.search(r"backward, speed-up of verbatim over\n.*\ncase +2\.00", text)
    assert re.search(r"speed-up of a fixed order over none\n.*\ncase +0\.50", text)
    assert evil not in shown and "&lt;script&gt;" in shown and "<svg" in shown
    assert not re.search(r"<script|https?://", shown)
    assert "<script>" not in report.markdown(found, "the command")
    assert len(report.csv_text(found).splitlines()) == 6


def test_the_price_of_determinism_is_that_of_calls_in_turn():
    """Not that of the medians, where a row has both."""
    ordered, free = row(ms=2.0, order_ratio=0.8), row("verbatim:unordered", 1.0)
    alone = row(ms=2.0, name="alone", order_ratio=0.5, unordered=free["backward"],
                block={"ms": 9.0}, bits={"differing_words": 0}, check={"error_ratio": 0.1})  # fmt: skip
    found = [result(ordered, free, row("flex", 1.0), alone)]
    text = report.text(found)
    assert re.search(r"speed-up of a fixed order over none\n.*\ncase +0\.80", text)
    assert re.search(r"speed-up of a fixed order over none\n.*\n.*\nalone +0\.50", text)
    assert re.search(r"backward, speed-up of verbatim over\n.*\ncase +0\.50", text)
    assert "0.80" in page.html(found)
    twin = report.rows_of(found)[-1]  # of "alone": nobody checked it or compared its bits
    assert twin["provider"] == "verbatim:unordered" and twin["name"] == "alone"
    assert twin["backward"] and not any(twin[x] for x in ("block", "bits", "check", "repro"))


def test_calls_in_turn(monkeypatch):
    """Every call gets as many, each right behind another, and starts one burst of its own."""
    pytest.importorskip("torch")
    from verbatim_attn.bench import measure, run

    device, order = measure.Device("cpu"), []
    device.time = lambda call: call() or float(len(order))
    calls = [lambda: order.append("a"), lambda: order.append("b")]
    times = device.times_in_turn(calls, "rested")
    assert "".join(order) == "abababababab" + "a" + "ba" * 6 + "b"
    assert [len(taken) for taken in times] == [10, 10]
    assert not set(times[0]) & set(times[1])
    assert measure.ratio_in_turn([2.0, 9.0, 6.0], [1.0, 3.0, 3.0]) == 2.0

    # Long calls are fewer: one that warms up and what makes three of each.
    order.clear()
    device.time = lambda call: call() or 700.0
    times = device.times_in_turn(calls, "brief")
    assert "".join(order) == "a" + "babab" + "b" + "a"
    assert sorted(map(len, times)) == [3, 3]
    assert measure.ratio_in_turn([2.0, 9.0, 6.0], [1.0, 3.0]) == 2.5

    def in_turn(calls, protocol):
        for call in calls:
            call()
        return [[2.0, 8.0], [3.0, 12.0]]

    device.kind, device.times_in_turn, device.clock_mhz = "cuda", in_turn, lambda: 0.0
    case = workloads.cases("longca", FEW_KEYS)[4]
    tensors = run.check.inputs(case, "cpu")
    of = run.Bench(case, device, run.Settings(repeats=1, checked=False))
    of._tensors = tensors
    passes = run.Passes(registry.known()["verbatim"], case, "cpu", tensors)
    passes.forward()
    filled = {}
    of._time_backward(filled, passes)
    assert filled["backward"]["ms"] == 5.0 and filled["unordered"]["ms"] == 7.5
    assert filled["order_ratio"] == 1.5

    # A twin that fails, or whose results are wrong, costs the row nothing but the comparison.
    device.times_in_turn = lambda calls, protocol: [[4.0]] * len(calls)
    attend = providers.Verbatim("verbatim").make(case, "cpu")
    for bad in (lambda q, k, v: 1 / 0, lambda q, k, v: 2 * attend(q, k, v)):

        class Bad(providers.Verbatim):
            def make(self, case, device, bad=bad):
                return bad

        monkeypatch.setattr(run, "known", lambda: {"verbatim:unordered": Bad("verbatim:unordered")})
        of._expected = run.check.expectations(case, tensors)
        filled = {}
        of._time_backward(filled, passes)
        assert filled["backward"]["ms"] == 4.0 and "unordered" not in filled


def test_reports_read_the_tool_s_results():
    old = results.read(str(pathlib.Path(__file__).with_name("tool_result.json")))
    assert "hd128 causal 4096" in report.text([old]) and "<svg" in page.html([old])


def test_pages_and_pictures_of_results_are_current(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import draw_docs
    import write_results

    pages = write_results.pages()
    for name, text in pages.items():
        assert text == (ROOT / "docs" / "results" / f"{name}.md").read_text(), name
    lines = re.findall(
        r"^\|(.*)\| \[.*\]\(docs/results/(\S+)\.md\) \|$", (ROOT / "README.md").read_text(), re.M
    )
    quoted = [(cell, name) for line, name in lines for cell in line.split("|") if " to " in cell]
    assert len(quoted) == 9
    for cell, name in quoted:
        extent, mean = cell.strip().split(", ")
        assert f"| {extent}, mean {mean} |" in pages[name], (cell, name)
    for name, draw in draw_docs.PICTURES.items():
        assert draw() == (ROOT / "docs" / f"{name}.svg").read_text(), name


def test_peers_of_the_tool_stand_beside_it():
    """`verbatim bench --providers`: its own rows have no provider, cuDNN's do."""
    ours, asked, fast = row(), row("cudnn:deterministic", ms=3.0), row("cudnn", ms=1.5)
    for member in ("provider", "status", "reason"):
        del ours[member]
    text = report.text([result(ours, asked, fast, row("flash", status="error", reason="why"))])
    assert re.search(r"speed-up of verbatim over\n.*\ncase +1\.50 +0\.75", text)
    assert re.search(r"speed-up of a fixed order over none\n.*cudnn.*\ncase .*0\.50", text)
    assert "flash: error, why" in text


def test_a_log_becomes_a_page_and_a_result(tmp_path):
    log, page_file, whole = (tmp_path / name for name in ("r.jsonl", "r.md", "r.json"))
    header = result()
    del header["results"]
    results.Log(str(log), header).add(row())
    bench("--from", log, "--markdown", page_file, "--json", whole)
    assert json.loads(whole.read_text()) == results.read(str(log))
    lines = page_file.read_text().splitlines()
    made = "python -m verbatim_attn.bench --from r.jsonl --markdown r.md --json r.json"
    assert lines[0].startswith("# ") and lines[3] == made  # no paths of the machine that made it
    assert "| case | 0.5 |" in lines
    refused = bench("--from", log, log, "--json", whole, code=2)
    assert "a file holds one result" in refused.stderr
    refused = bench("--from", log, log, code=2)  # which of the two times would a table show?
    assert "two files have a time of one case and provider" in refused.stderr


def test_charts_are_lines_over_lengths_and_dots_of_cases():
    one = [row(name=name) for name in ("full", "causal")]
    longer = row(name="long")
    longer["problem"] = {**longer["problem"], "q_len": 128, "kv_len": 128}
    dots, lines = (page.html([result(*rows)]) for rows in (one, [*one, longer]))
    assert "<polyline" not in dots and dots.count("<circle") == 2 * len(one)  # both passes
    assert all(f'text-anchor="end">{name}</text>' in dots for name in ("full", "causal"))
    assert lines.count("<polyline") == 2 and lines.count("<circle") == 4  # the median of a length


def test_a_cut_log_goes_on(tmp_path):
    path = str(tmp_path / "log.jsonl")
    header = result()
    del header["results"]
    results.Log(path, dict(header)).add(row())
    whole = pathlib.Path(path).read_text()
    pathlib.Path(path).write_text(whole + '{"provider": "fle')
    log = results.Log(path, dict(header))
    assert list(log.done) == [("run verbatim",)]
    log.add(row("flex", status="error"))
    assert pathlib.Path(path).read_text().startswith(whole + '{"set"')
    assert len(results.read(path)["results"]) == 2
    assert list(results.Log(path, dict(header)).done) == [("run verbatim",)]  # errors run again
    with pytest.raises(Refused, match="its protocol is 'rested'"):
        results.Log(path, {**header, "protocol": "sustained"})


def test_a_tiny_run(tmp_path):
    pytest.importorskip("torch")
    json_file, log = tmp_path / "r.json", tmp_path / "r.jsonl"
    words = [*TINY, "--providers", "verbatim,torch:math,torch:cudnn,flash_attn_3",
             "--resume", log, "--json", json_file, "--html", tmp_path / "r.html"]  # fmt: skip
    bench(*words)
    found = json.loads(json_file.read_text())
    assert schema.check(found) == []
    by_name = {r["provider"]: r for r in found["results"]}
    ours = by_name["verbatim"]
    assert ours["status"] == "ok" and ours["bits"]["differing_words"] == 0
    assert ours["forward"]["ms"] > 0 and ours["check"]["error_ratio"] <= 2
    assert by_name["torch:math"]["status"] == "ok"
    assert by_name["torch:math"]["provider_version"] == f"torch {version('torch')}"
    assert ours["provider_version"] is None  # the header's
    assert by_name["torch:cudnn"]["status"] == "unsupported"
    assert by_name["flash_attn_3"]["status"] == "unsupported"  # on a CPU, installed or not
    assert by_name["flash_attn_3"]["forward"] is by_name["flash_attn_3"]["provider_version"] is None
    again = bench(*words)
    assert json.loads(json_file.read_text())["results"][0] == ours  # not measured twice
    assert "verbatim" not in again.stderr.replace("verbatim_attn", "")


def test_the_forward_alone(tmp_path):
    pytest.importorskip("torch")
    bench(*TINY, "--passes", "forward", "--json", tmp_path / "r.json")
    (row,) = json.loads((tmp_path / "r.json").read_text())["results"]
    assert row["status"] == "ok" and row["forward"]["ms"] > 0 and row["backward"] is None
    assert set(row["bits"]["sha256"]) == {"o"} and "--passes forward" in row["repro"]


def test_varlen_is_asked_for_the_mask(monkeypatch):
    """With FlashAttention's terms as its documentation has them in the place of its kernels."""
    torch = pytest.importorskip("torch")
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    shown = []

    def varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, *, window_size):
        assert q.dim() == k.dim() == 3 and cu_q.dtype == cu_k.dtype == torch.int32
        mask = torch.zeros(len(q), len(k), dtype=torch.bool)
        left, right = window_size
        spans = zip(*(itertools.pairwise(cu.tolist()) for cu in (cu_q, cu_k)))
        for (q0, q1), (k0, k1) in spans:
            assert q1 - q0 <= max_q and k1 - k0 <= max_k
            ahead = torch.arange(k1 - k0) - (torch.arange(q1 - q0)[:, None] + k1 - k0 - q1 + q0)
            seen = torch.ones_like(ahead, dtype=torch.bool)
            seen &= (ahead >= -left) if left >= 0 else True
            seen &= (ahead <= right) if right >= 0 else True
            mask[q0:q1, k0:k1] = seen
        shown.append(mask)
        return q

    def case_of(mask, batch):
        problem = Problem(batch, 2, 2, 24, 24, 8, 8, "f32")
        return workloads.Case("given", mask.name, problem, mask)

    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    provider = registry.known()["torch:varlen:deterministic"]
    documents = (5, 0, 9, 10)
    for mask in (masks.Full(), masks.Causal(), masks.FullSlidingWindow(3), masks.CausalSlidingWindow(7),
                 masks.FullDocument(documents), masks.CausalDocument(documents)):  # fmt: skip
        batch = 1 if hasattr(mask, "doc_lengths") else 2
        case = case_of(mask, batch)
        assert provider.supports(case, "cuda") is None
        x = torch.zeros(batch, 24, 2, 8)
        assert provider.make(case, "cpu")(x, x, x).shape == x.shape
        one = torch.from_numpy(mask.dense(24)[0, 0])
        assert (shown.pop() == torch.block_diag(*[one] * batch)).all(), mask
    assert "packed documents" in provider.supports(case_of(masks.GlobalSliding(3, 2), 1), "cuda")
    assert "one batch" in provider.supports(case_of(masks.CausalDocument(documents), 2), "cuda")


def test_what_is_wrong_or_differs_gets_no_time():
    torch = pytest.importorskip("torch")
    from verbatim_attn.bench import run
    from verbatim_attn.bench.measure import Device

    class Fake(providers.Verbatim):
        noise = 0.0

        def make(self, case, device):
            attend = super().make(case, device)
            return lambda q, k, v: attend(q, k, v) + self.noise * torch.rand(())

    a = command.parser().parse_args(TINY)
    one = run.Bench(command.chosen_cases(a)[0], Device("cpu"), run.Settings(repeats=2))
    for noise, status in ((0.0, "ok"), (1.0, "wrong"), (1e-7, "differs"), (float("nan"), "wrong")):
        fake = Fake("verbatim")
        fake.noise = noise
        found = one.row(fake)
        assert found["status"] == status, found
        assert (found["backward"] is not None) == (status == "ok")
    assert run.explain(RuntimeError("CUDA out of memory. Tried"))[0] == "out of memory"
    assert run.explain(RuntimeError("No available kernel. Aborting"))[0] == "unsupported"


def test_every_static_mask_passes_the_check():
    pytest.importorskip("torch")
    from verbatim_attn.bench import run
    from verbatim_attn.bench.measure import Device

    settings = run.Settings(repeats=1)
    for case in workloads.cases("longca", FEW_KEYS)[4:]:
        device = Device("cpu")
        device.times_in_turn = lambda calls, protocol: [[1.0]]  # the check, not the clock
        bench_of = run.Bench(case, device, settings)
        for name in ("verbatim", "torch:math"):
            found = bench_of.row(registry.known()[name])
            assert found["status"] == "ok", (case.name, found["reason"])


def test_a_tiny_block(tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "b.json"
    bench("block", "--preset", "sam-vit-h", "--seqlen", 16, "--batch", 1, "--dtype", "f32",
          "--providers", "verbatim,torch:flash", "--repeats", 1, "--json", file)  # fmt: skip
    found = json.loads(file.read_text())
    assert schema.check(found) == []
    for one in found["results"]:
        assert one["status"] == "ok" and one["block"]["ms"] > 0, one


def test_the_cost_of_a_call_is_measured(tmp_path):
    file = tmp_path / "calls.json"
    words = ["--calls", "40", "--commit", "1a2b3c4", "--json", file]
    subprocess.run([sys.executable, ROOT / "bench" / "python_overhead.py", *map(str, words)],
                   capture_output=True, check=True, timeout=300)  # fmt: skip
    found = json.loads(file.read_text())
    assert found["commit"] == "1a2b3c4"
    passes = {row["pass"] for row in found["results"] if row["tensors"] == "NumPy"}
    assert passes == {"forward", "backward"}
    assert all(cost > 0 for row in found["results"] for cost in row["us"])

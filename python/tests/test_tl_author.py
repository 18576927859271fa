"""The author loop against an endpoint that is scripted: repaired, or a clear end and a transcript."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import stub
import verbatim_attn as va
from verbatim_attn import tl
from verbatim_attn.tl import __main__ as tool
from verbatim_attn.tl import cuda, judge, sandbox

pytest.importorskip("openai")
if not os.environ.get("VERBATIM_TOOL"):
    pytest.skip("VERBATIM_TOOL does not name the command-line tool", allow_module_level=True)

KEY = "key-of-the-test-0123456789"
PROBLEM = {"batch": 1, "q_heads": 2, "kv_heads": 1, "q_len": 70, "kv_len": 90, "head_dim": 64,
           "head_dim_v": 64, "dtype": "bf16"}  # fmt: skip
SPEC = {"pass": "forward", "problem": PROBLEM, "mask": {"name": "causal", "params": {}}}
SKETCHES = Path(__file__).parents[2] / "kernels" / "tl"
SKETCH = (SKETCHES / "forward.tl").read_text()
CODE = tl.reason(SKETCH, va.Problem(**PROBLEM), "a100")
RESHAPE = next(line for line in CODE.splitlines(True) if "Reshape S" in line)
FAULTS = {
    "reshape": CODE.replace(RESHAPE, ""),
    "transpose": CODE.replace("GEMM Q, K^T", "GEMM Q, K"),
    "tensor": CODE.replace("Copy K (", 'Copy "../../../etc/K" ('),
}


def fenced(text):
    return f"```tl\n{text}```\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder that programs are started in, with a spec and a key in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    return tmp_path


@pytest.fixture
def interpreted(monkeypatch):
    """The programs that the tool was asked to run."""
    programs = []
    run = sandbox.run

    def noted(command, folder, seconds):
        programs.extend(path.read_text() for path in folder.glob("kernel.*"))
        return run(command, folder, seconds)

    monkeypatch.setattr(sandbox, "run", noted)
    return programs


def arguments(url, *more):
    return ["generate", "--spec", "spec.json", "--target", "a100", "--base-url", url,
            "--model", "stub", "--output", "made", "--pause", "0", *more]  # fmt: skip


def generated(answers, *more):
    """Exit code, result and transcript of a run whose endpoint gives `answers`."""
    with stub.Stub(*answers) as endpoint:
        code = tool.main(arguments(endpoint.url, *more))
    result = json.loads(Path("made/result.json").read_text())
    return code, result, transcript("made")


def transcript(folder):
    lines = Path(folder, "transcript.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines][1:]


def files_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def replayed_the_same():
    """The transcript of `made` makes the same files without an endpoint or a key."""
    replay = ["generate", "--replay", "made/transcript.jsonl", "--output", "again"]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY")
        patch.setitem(sys.modules, "openai", None)
        code = tool.main(replay)
    return code, files_of("again") == files_of("made")


def test_right_at_once(here, interpreted):
    code, result, lines = generated([stub.says(fenced(SKETCH)), stub.says(fenced(CODE))])
    assert code == 0 and result["outcome"] == "right" and "error ratio" in result["reason"]
    assert [(line["step"], line["right"]) for line in lines] == [("sketch", True), ("code", True)]
    assert Path("made/sketch.tl").read_text() == SKETCH
    assert Path("made/kernel.tl").read_text() == CODE and interpreted == [CODE]
    assert result["files"] == ["sketch.tl", "kernel.tl"] and result["tokens"] == 200
    assert SKETCH in lines[1]["messages"][1]["content"]
    assert replayed_the_same() == (0, True)


def test_the_backward_too(here):
    sketch = (SKETCHES / "backward.tl").read_text()
    code = tl.reason(sketch, va.Problem(**PROBLEM), "h200")
    (here / "spec.json").write_text(json.dumps({**SPEC, "pass": "backward"}))
    answers = [stub.says(fenced(sketch)), stub.says(fenced(code))]
    assert generated(answers, "--target", "h200")[0] == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_checker_finds_goes_back(here, interpreted, fault):
    answers = [stub.says(fenced(FAULTS[fault])), stub.says(fenced(CODE))]
    code, _, lines = generated(answers, "--mode", "direct")
    assert code == 0 and [line["right"] for line in lines] == [False, True]
    found = tl.check(FAULTS[fault])[0]
    assert found.shown in lines[0]["verdict"] and found.shown in lines[1]["messages"][-1]["content"]
    assert lines[1]["messages"][-2] == {"role": "assistant", "content": fenced(FAULTS[fault])}
    assert interpreted == [CODE]  # what the checker refused did not run
    assert replayed_the_same() == (0, True)


@pytest.mark.parametrize(
    "change, said",
    [
        (("Compute Multiply S, scale", "Compute Divide S, scale"), "o: error ratio"),
        (
            ("Compute LogSumExp m, l", "Compute Divide l, 0 and get new l\nCompute LogSumExp m, l"),
            "lse: 140 NaN or infinite",
        ),
    ],
)
def test_what_the_interpreter_finds_goes_back(here, interpreted, change, said):
    wrong = CODE.replace(*change)
    assert tl.check(wrong) == []
    answers = [stub.says(fenced(wrong)), stub.says(fenced(CODE))]
    code, _, lines = generated(answers, "--mode", "direct")
    assert code == 0 and said in lines[0]["verdict"] and "expected" in lines[0]["verdict"]
    assert interpreted == [wrong, CODE]


# What the checker has nothing against, the interpreter runs, and no translation has words for.
UNTRANSLATED = CODE.replace(
    "Allocate S in", "Allocate X in shared (BM, HeadDimV)\nAllocate S in"
).replace("Compute Divide O, l", "Copy O from register to shared and get X\nCompute Divide O, l")


def test_what_the_translation_refuses_goes_back(here, interpreted):
    assert tl.check(UNTRANSLATED) == []
    answers = [stub.says(fenced(UNTRANSLATED)), stub.says(fenced(CODE))]
    code, _, lines = generated(answers, "--mode", "direct")
    assert code == 0 and [line["right"] for line in lines] == [False, True]
    assert "not translated" in lines[0]["verdict"] and "tl.emit" in lines[0]["verdict"]
    assert lines[0]["verdict"] in lines[1]["messages"][-1]["content"]
    assert interpreted == [CODE]
    assert replayed_the_same() == (0, True)


def test_what_the_target_is_not_translated_for_is_never_right(here, interpreted):
    problem = {**PROBLEM, "head_dim": 192, "head_dim_v": 128}  # MLA's
    sketch = (SKETCHES / "backward.tl").read_text()
    program = tl.reason(sketch, va.Problem(**problem), "h200")
    assert tl.check(program) == []
    (here / "spec.json").write_text(json.dumps({**SPEC, "problem": problem, "pass": "backward"}))
    more = ["--mode", "direct", "--target", "h200", "--tries", "2"]
    code, result, _ = generated([stub.says(fenced(program))], *more)
    assert code == 1 and not interpreted and not result["files"]
    assert "not translated for h200" in result["reason"]


def test_a_model_may_translate_what_ours_does_not(here, interpreted):
    answers = [stub.says(fenced(UNTRANSLATED)), stub.says(fenced(CUDA))]
    code, result, _ = generated(answers, "--mode", "direct", "--translate", "model")
    assert code == 3 and result["files"] == ["kernel.tl", "kernel.cu"]
    assert interpreted == [UNTRANSLATED]


@pytest.mark.parametrize("status", [0, 7])
def test_a_translation_is_compiled_when_asked_for(here, monkeypatch, status):
    (here / "bin").mkdir()
    nvcc = here / "bin" / "nvcc"
    nvcc.write_text(
        f'#!/bin/sh\nfor o in "$@"; do case $o in *.part) >$o;; esac; done\nexit {status}'
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nvcc.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDACXX", raising=False)
    code, result, _ = generated([stub.says(CODE)], "--mode", "direct", "--run", "--tries", "1")
    said = {0: "nvcc compiles its translation", 7: "nvcc ends with 7"}[status]
    # A tool that was built without CUDA has no headers to compile with.
    expected = (3, "headers") if "headers" in result["reason"] else (min(status, 1), said)
    assert code == expected[0] and expected[1] in result["reason"]
    assert result["files"] == ([] if code == 1 else ["kernel.tl"])


def test_a_program_for_something_else_is_refused(here, interpreted):
    other = tl.reason(SKETCH, va.Problem(**{**PROBLEM, "dtype": "f16"}), "l40s", tile=(64, 64))
    code, _, lines = generated([stub.says(fenced(other))], "--mode", "direct", "--tries", "1")
    assert code == 1 and not interpreted
    assert "target is l40s; it must be a100" in lines[0]["verdict"]
    assert "dtype is f16; it must be bf16" in lines[0]["verdict"]


def test_prose_around_and_prose_alone(here):
    answers = [
        "Let me think about it.",
        "Here:\n" + fenced("x\n") + "no,\n\n" + fenced(CODE) + "Good luck!",
    ]
    code, _, lines = generated(map(stub.says, answers), "--mode", "direct")
    assert code == 0 and "syntax" in lines[0]["verdict"]


def test_half_an_answer(here, interpreted):
    cut = stub.says(fenced(CODE)[:900], finish="length")
    code, _, lines = generated([cut, stub.half, stub.says(CODE)], "--mode", "direct")
    assert code == 0 and "was cut after" in lines[0]["problem"] and lines[1]["problem"]
    assert "was cut after" in lines[1]["messages"][-1]["content"] and interpreted == [CODE]


@pytest.mark.parametrize("stall", [stub.stalls, stub.drips(200), stub.drips(500)])
def test_a_stall(here, stall):
    more = ["--mode", "direct", "--timeout", "1"]
    code, result, lines = generated([stall, stub.says(CODE)], *more)
    assert code == 0 and lines[0]["problem"] and 0.9 < lines[0]["seconds"] < 20
    assert replayed_the_same() == (0, True)


def test_refusals_that_pass(here):
    answers = [stub.refuses(429), stub.refuses(500), stub.refuses(503), stub.says(CODE)]
    code, _, lines = generated(answers, "--mode", "direct")
    assert code == 0 and [line["problem"][:8] for line in lines[:3]] == [
        "HTTP 429", "HTTP 500", "HTTP 503"]  # fmt: skip


def test_refusals_that_stay(here):
    code, result, lines = generated([stub.refuses(500)], "--tries", "3")
    assert code == 1 and len(lines) == 3 and result["outcome"] == "wrong"
    assert "no right sketch after 3 tries" in result["reason"] and "HTTP 500" in result["reason"]
    assert replayed_the_same() == (1, True)


def test_an_endpoint_that_is_not_there(here, capsys):
    with stub.Stub() as closed:
        pass
    assert tool.main(arguments(closed.url)) == 2
    error = capsys.readouterr().err
    for part in ("--base-url", closed.url, "refused", "expected", "nearest: http://localhost"):
        assert part in error
    assert not Path("made").exists()


def test_an_endpoint_that_goes_away(here):
    def last_words(handler):
        handler.server.shutdown()
        handler.server.server_close()
        stub.says("x")(handler)

    code, result, lines = generated([last_words], "--tries", "2")
    assert code == 1 and lines[0]["text"] == "x" and not lines[0]["problem"]
    assert lines[1]["problem"] and "after 2 tries" in result["reason"]


def test_a_wrong_key_is_asked_for_once_and_not_written(here):
    code, result, lines = generated([stub.refuses_with_the_key])
    assert code == 1 and len(lines) == 1 and "Bearer [key]" in result["reason"]


@pytest.mark.parametrize("bytes", [10 << 20, 2 << 20])
def test_ten_megabytes(here, bytes, interpreted):
    code, _, lines = generated([stub.says("x" * bytes), stub.says(CODE)], "--mode", "direct")
    assert code == 0 and "longer than" in lines[0]["problem"] and interpreted == [CODE]
    assert Path("made/transcript.jsonl").stat().st_size < 1 << 16


@pytest.mark.parametrize(
    "body", ["", "[]", "{}", '{"choices": []}', '{"choices": [{"message": {"content": 3}}]}', "<p>"]
)
def test_what_is_no_answer(here, body):
    code, _, lines = generated([stub.sends(body), stub.says(CODE)], "--mode", "direct")
    assert code == 0 and "not an answer" in lines[0]["problem"]


@pytest.mark.parametrize(
    "text", ["\0", "\ud800", "```" * 100_000, "Copy " * 20_000, "\x1b[2J", "param \xff = 1", ""]
)
def test_hostile_programs(here, interpreted, text):
    code, result, lines = generated([stub.says(text)], "--tries", "2")
    assert code == 1 and not interpreted and not result["files"]
    assert Path("made/transcript.jsonl").stat().st_size < 1 << 20
    assert replayed_the_same() == (1, True)


def test_nothing_leaves_the_folder(here):
    names = ["/etc/passwd", "../outside", "a'b", 'a"b', "$(touch outside)", "`touch outside`"]
    hostile = "".join(f"Copy {name} from global to shared\n" for name in names)
    for each in (
        hostile,
        CODE.replace(" S ", ' "../S" ').replace("param", "param ../x = 1\nparam"),
    ):
        generated([stub.says(fenced(each))], "--mode", "direct", "--tries", "2")
        assert set(files_of("made")) == {"transcript.jsonl", "result.json"}
        assert sorted(path.name for path in here.iterdir()) == ["made", "spec.json"]
        for path in Path("made").iterdir():
            path.unlink()


def test_tokens_are_bounded(here):
    code, result, lines = generated([stub.says("x", tokens=600)], "--total-tokens", "1000")
    assert code == 1 and len(lines) == 2 and "within 1000 tokens" in result["reason"]


def test_the_request_is_what_was_asked_for(here):
    with stub.Stub(stub.says(CODE)) as endpoint:
        tool.main(arguments(endpoint.url, "--mode", "direct", "--max-tokens", "77"))
    (asked,) = endpoint.asked
    assert asked["model"] == "stub" and asked["max_tokens"] == 77
    assert asked["messages"] == transcript("made")[0]["messages"]


def test_the_key_is_in_no_file(here, capfd):
    echo = f"// {KEY}\n{CODE}"
    for number, answers in enumerate(([stub.says(echo)], [stub.refuses_with_the_key],
                                      [stub.says(f"no {KEY}")])):  # fmt: skip
        with stub.Stub(*answers) as endpoint:
            more = ["--mode", "direct", "--tries", "2", "--output", f"made{number}"]
            tool.main(arguments(endpoint.url, *more))
    written = [path for path in here.rglob("*") if path.is_file()]
    assert len(written) > 6 and not any(KEY.encode() in path.read_bytes() for path in written)
    assert KEY not in "".join(capfd.readouterr())
    assert "[key]" in Path("made0/kernel.tl").read_text()


def test_a_key_stays_in_this_process(here):
    code, output = sandbox.run(["env"], here, 10)
    assert code == 0 and "PATH=" in output and KEY not in output


def test_a_process_that_does_not_end(here):
    code, output = sandbox.run(["sh", "-c", "echo begun; sleep 60 & sleep 60"], here, 0.5)
    assert code == sandbox.TOO_LONG and output == "begun\n"


CUDA = """\
extern "C" void attention_forward(const void*, const void*, const void*, void*, float*, int, int,
                                  int, int, int, float, cudaStream_t) {}
"""


@pytest.mark.parametrize("mode", ["cot", "vanilla"])
def test_cuda_is_not_compiled_unless_asked_for(here, interpreted, mode):
    code, result, lines = generated([stub.says(fenced(CUDA))], "--mode", mode)
    assert code == 3 and result["outcome"] == "not judged" and "--run" in result["reason"]
    assert not interpreted and Path("made/kernel.cu").read_text() == CUDA
    assert ("step by step" in lines[0]["messages"][1]["content"]) == (mode == "cot")
    assert replayed_the_same() == (3, True)


def test_another_model_translates(here):
    answers = [stub.says(fenced(SKETCH)), stub.says(fenced(CODE)), stub.says(fenced(CUDA))]
    code, result, lines = generated(answers, "--translate", "model", "--translate-model", "other")
    assert code == 3 and result["files"] == ["sketch.tl", "kernel.tl", "kernel.cu"]
    assert [line["model"] for line in lines] == ["stub", "stub", "other"]
    assert CODE in lines[2]["messages"][1]["content"]


def test_nvcc_has_its_say(here):
    try:
        cuda.Compiler("a100")
    except tool.Refused:
        pytest.skip("no CUDA compiler")
    answers = [stub.says(fenced(CUDA + "int x = y;\n")), stub.says(fenced(CUDA))]
    code, result, lines = generated(answers, "--mode", "vanilla", "--run", "--tries", "2")
    assert "nvcc refuses" in lines[0]["verdict"] and '"y" is undefined' in lines[0]["verdict"]
    assert "y" in lines[1]["messages"][-1]["content"]
    # Where there is a GPU, O is found to be NaN.
    assert (code, "no GPU" in result["reason"]) in ((3, True), (1, False))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_cuda_is_compared_with_double_precision(dtype):
    mask = {"name": "causal", "params": {}}
    spec = tool.spec.of({"problem": {**PROBLEM, "q_len": 100, "kv_len": 70, "dtype": dtype},
                         "mask": mask})  # fmt: skip
    inputs = cuda.draw(spec.problem)
    exact, lse = cuda.attention(spec, inputs, lambda x: x)
    o = cuda.from_bytes(cuda.to_bytes(cuda.rounded(exact.astype("f4"), dtype), dtype), dtype)
    lse = lse.astype("f4").ravel()
    assert (lse == -float("inf")).sum() == 60  # 30 rows of two heads see no key
    assert cuda.compare(spec, inputs, o, lse)[0]
    for wrong in (0.05, float("nan")):
        changed = o.copy()
        changed[5000] += wrong
        right, said = cuda.compare(spec, inputs, changed, lse)
        assert not right and "dim) (0, 39, 0, 8)" in said
    assert not cuda.compare(spec, inputs, o, lse + 0.01)[0]


@pytest.mark.parametrize(
    "more, said",
    [
        (["--target", "a10"], ["--target", "a10", "t4, rtx8000", "nearest: a100"]),
        (["--mode", "tll"], ["--mode", "tll", "nearest: tl"]),
        (["--translate", "mode"], ["--translate", "nearest: model"]),
        (["--spec", "none.json"], ["--spec", "none.json", "No such file"]),
        (["--base-url", ""], ["--base-url", "nothing", "nearest: --base-url http://"]),
        (["--base-url", "localhost:8000"], ["--base-url", "http(s)://"]),
        (["--base-url", "http://user:secret@host/v1"], ["--base-url", "without a user"]),
        (["--model", ""], ["--model"]),
        (["--tries", "0"], ["--tries", "0", "1 or more"]),
        (["--tries", "many"], ["--tries", "many"]),
        (["--timeout", "-1"], ["--timeout"]),
        (["--key-env", "NO_SUCH_KEY"], ["NO_SUCH_KEY", "0 characters"]),
        (["--mode", "cot", "--translate", "model"], ["--translate"]),
        (["--output", "full"], ["--output", "full", "new or empty"]),
        (["--output", "no/such"], ["--output"]),
        (["--replay", "spec.json"], ["--spec", "nothing beside --replay"]),
    ],
)
def test_bad_input(here, capsys, more, said):
    Path("full").mkdir()
    Path("full/file").write_text("mine")
    before = sorted(here.rglob("*"))
    assert tool.main(arguments("http://127.0.0.1:9/v1", *more)) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in said), error
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("mode", ["direct", "vanilla"])
def test_no_compiler(here, capsys, monkeypatch, mode):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if "nvcc" in name else which(name))
    assert tool.main(arguments("http://127.0.0.1:9/v1", "--mode", mode, "--run")) == 2
    error = capsys.readouterr().err
    for part in ("no nvcc", "--run", "PATH or CUDACXX", "nearest: without --run"):
        assert part in error
    assert not Path("made").exists()


@pytest.mark.parametrize(
    "change, said",
    [
        ({"problm": {}}, ["problm", "nearest: problem"]),
        ({"pass": "forwards"}, ["--spec pass", "nearest: forward"]),
        ({"problem": {**PROBLEM, "head_dims": 3}}, ["head_dims", "nearest: head_dim"]),
        ({"problem": {**PROBLEM, "dtype": "f32"}}, ["dtype", "nearest: f16"]),
        ({"problem": {**PROBLEM, "q_heads": 3, "kv_heads": 2}}, ["q_heads"]),
        ({"problem": {**PROBLEM, "dropout": 0.5}}, ["dropout", "0.5", "nearest: 0"]),
        ({"problem": {**PROBLEM, "q_len": 1 << 30}}, ["too large"]),
        ({"problem": {"batch": 1}}, ["--spec"]),
        ({"mask": {"name": "cuasal", "params": {}}}, ["cuasal"]),
        ({"notes": f"use {KEY}"}, ["the key is in the arguments"]),
    ],
)
def test_bad_specs(here, capsys, change, said):
    (here / "spec.json").write_text(json.dumps({**SPEC, **change}))
    assert tool.main(arguments("http://127.0.0.1:9/v1")) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in said) and KEY not in error, error
    assert not Path("made").exists()


def test_bad_transcripts(here, capsys):
    generated([stub.says(CODE)], "--mode", "direct")
    first, second = Path("made/transcript.jsonl").read_text().splitlines()
    replay = ["generate", "--replay", "changed.jsonl", "--output", "again"]
    for text, said in (
        ("", "--replay"),
        ("{}", "settings"),
        (first + "\n{}", "model"),
        (first, "no more answers"),
        (first.replace("a100", "h200") + "\n" + second, "exchange 1 asks something else"),
    ):
        Path("changed.jsonl").write_text(text)
        assert tool.main(replay) == 2
        assert said in capsys.readouterr().err and not Path("again").exists()


def test_the_last_block_is_the_program():
    assert judge.program_in("a\n```tl\nb\n```\nc\n```\nd\ne\n```\nf") == "d\ne\n"
    assert judge.program_in("a\n```\nb") == "b\n" and judge.program_in("a\nb") == "a\nb"

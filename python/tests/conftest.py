"""Tests that take `place` run on the CPU and, where PyTorch finds one, on a GPU; --device keeps one.
Tensors take the way through Python but in test_native.py; --native builds the other one for all."""

import os
from pathlib import Path

import pytest
from places import PLACES
from ranks import Ranks


def pytest_addoption(parser):
    parser.addoption("--device", choices=list(PLACES), help="default: every device there is")
    parser.addoption("--native", action="store_true", help="build and take it")
    parser.addoption(
        "--skips-need-a-gpu", action="store_true", help="fail if a test skips for another reason"
    )


def pytest_configure(config):
    os.environ.setdefault("VERBATIM_CACHE", str(Path(__file__).parents[2] / "build" / "native"))
    if config.getoption("--native"):
        from verbatim_attn import native

        native.build()
    else:
        os.environ["VERBATIM_NATIVE"] = "0"


def pytest_sessionfinish(session):
    if session.config.getoption("--skips-need-a-gpu"):
        skipped = session.config.pluginmanager.get_plugin("terminalreporter").stats.get(
            "skipped", []
        )
        if any("CUDA" not in report.longrepr[2] for report in skipped):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _names(config):
    if chosen := config.getoption("--device"):
        return [chosen]
    try:
        import torch
    except ModuleNotFoundError:
        return ["cpu"]
    return list(PLACES) if torch.cuda.is_available() else ["cpu"]


def pytest_generate_tests(metafunc):
    if "place" in metafunc.fixturenames:
        names = _names(metafunc.config)
        metafunc.parametrize("place", [PLACES[name] for name in names], ids=names)


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, tmp_path_factory):
    started = Ranks(request.param, tmp_path_factory.mktemp("store"))
    yield started
    started.stop()

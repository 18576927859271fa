"""Tests that take `place` run on the CPU and, where PyTorch finds one, on a GPU; --device keeps one."""

from places import PLACES


def pytest_addoption(parser):
    parser.addoption("--device", choices=list(PLACES), help="default: every device there is")


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

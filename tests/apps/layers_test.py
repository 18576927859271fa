"""tools/check_layers.py fails on every arrow that its tables do not allow."""

import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
import check_layers  # noqa: E402
import draw_layers  # noqa: E402

TREE = {
    "include/verbatim/low.h": "",
    "include/verbatim/high.h": '#include "verbatim/low.h"',
    "src/low/part.h": "",
    "src/low/part.cpp": '#include "low/part.h"\n#include <vector>',
    "src/high/part.h": '#include "verbatim/high.h"\n#include "low/part.h"',
    "src/high/inner/part.h": "",
    "src/facade.cpp": '#include "high/part.h"',
    "python/verbatim_attn/__init__.py": "from . import high",
    "python/verbatim_attn/low.py": "import json",
    "python/verbatim_attn/high/__init__.py": "from .. import low",
    "python/verbatim_attn/high/part.py": "from ..low import name",
}
SOURCES = {"low": [], "high/inner": [], "high": ["low"], "facade": ["high"]}
HEADERS = {"low.h": "low", "high.h": "high"}
MODULES = {"low": [], "high": ["low"], "__init__": ["high"]}


def found(files=(), **tables):
    """What the check says of TREE with other `files`, in other tables."""
    tables = {"SOURCES": SOURCES, "HEADERS": HEADERS, "MODULES": MODULES, **tables}
    with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(check_layers, **tables):
        root = pathlib.Path(folder)
        for name, text in {**TREE, **dict(files)}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return list(check_layers.violations(root))


class Layers(unittest.TestCase):
    def test_arrows_of_the_tables(self):
        self.assertEqual(found(), [])

    def test_forbidden_arrows(self):
        arrows = {
            "src/low/part.cpp": ('#include "high/part.h"', "low may not include high"),
            "src/low/part.h": ('#include "verbatim/high.h"', "low may not include high"),
            "include/verbatim/low.h": ('#  include <verbatim/high.h>', "low may not include high"),
            "src/high/part.cpp": ('#include "inner/part.h"', "high may not include high/inner"),
            "src/high/inner/part.h": ('#include "low/part.h"', "high/inner may not include low"),
            "python/verbatim_attn/low.py": (
                "def later():\n    from .high import part", "low may not include high"
            ),
            "python/verbatim_attn/high/part.py": (
                "import verbatim_attn\nfrom . import high", "high may not include __init__"
            ),
        }  # fmt: skip
        for file, (text, said) in arrows.items():
            with self.subTest(file):
                self.assertTrue(any(said in line for line in found({file: text})))

    def test_what_has_no_row(self):
        file = {"src/new/part.cpp": '#include "low/part.h"'}
        self.assertEqual(found(file), ["src/new/part.cpp has no row in the table"])
        file = {"src/high/new.cpp": '#include "verbatim/new.h"', "include/verbatim/new.h": ""}
        self.assertEqual(found(file), ["include/verbatim/new.h has no row in the table"])

    def test_tables_without_order(self):
        upward = {"high": ["low"], "low": [], "high/inner": [], "facade": ["high"]}
        self.assertEqual(
            found(SOURCES=upward), ["the table lets high include low, which is not above it"]
        )
        unused = {**SOURCES, "facade": ["low", "high"]}
        self.assertEqual(
            found(SOURCES=unused), ["the table lets facade include low, but it does not"]
        )

    def test_circles_inside_a_row(self):
        module = {"python/verbatim_attn/high/__init__.py": "from .. import low\nfrom . import part",
                  "python/verbatim_attn/high/part.py": "from . import name"}  # fmt: skip
        self.assertEqual(len(found(module)), 1)
        self.assertIn("a circle: verbatim_attn.high", found(module)[0])
        header = {"src/low/other.h": '#include "part.h"', "src/low/part.h": '#include "other.h"'}
        self.assertIn("a circle: src/low/", found(header)[0])


class Picture(unittest.TestCase):
    def test_shows_the_table_of_now(self):
        drawn = (draw_layers.ROOT / "docs" / "layers.svg").read_text()
        self.assertEqual(drawn, draw_layers.draw_table(), "run tools/draw_layers.py")

    def test_leaves_out_what_another_arrow_implies(self):
        table = {
            "low": [],
            "middle": ["low"],
            "schedule.h": ["low", "middle"],
            "schedule": ["middle"],
        }
        with mock.patch.object(check_layers, "SOURCES", table):
            arrows = {"low": set(), "middle": {"low"}, "schedule": {"middle"}}
            self.assertEqual(draw_layers.arrows(), arrows)


if __name__ == "__main__":
    unittest.main()

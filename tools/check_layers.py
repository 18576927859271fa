#!/usr/bin/env python3
"""Fails when a source file, a public header or a module of the Python package includes what its row
of these tables does not allow, and where there is a circle."""

import ast
import graphlib
import importlib.util
import pathlib
import re
import sys

# Rows are folders, or files by the start of their names; the longest that fits is a file's own.
# A row: what its files may include besides one another. Only rows above it can stand there.
SOURCES = {
    "core": [],
    "mask": ["core"],
    "contract": ["core", "mask"],
    "plan": ["core", "mask", "contract"],
    "schedule.h": ["core", "plan"],
    "schedule/orders": ["core", "contract", "plan", "schedule.h"],
    "schedule": ["core", "contract", "plan", "schedule.h", "schedule/orders"],
    "tl": ["core", "mask", "contract", "plan", "schedule.h"],
    "backend": ["core", "plan", "schedule.h"],
    "backend/reference": ["core", "mask"],
    "backend/cpu": ["core", "mask", "contract", "plan", "backend"],
    "backend/tl": ["core", "plan", "contract", "tl", "backend"],
    "backend/cuda/device": ["core", "plan"],
    "backend/cuda": ["core", "mask", "plan", "backend", "backend/cuda/device"],
    "backend/cuda/sm80": ["core", "contract", "plan", "backend/cuda/device", "backend/cuda"],
    "backend/cuda/sm90": ["core", "contract", "plan", "backend/cuda/device", "backend/cuda"],
    "backend/cuda/registry": ["backend/cuda", "backend/cuda/sm80", "backend/cuda/sm90"],
    "backend/cuda/executor": ["contract", "backend", "backend/cuda",
                              "backend/cuda/registry"],
    "backend/cuda/pieces": ["backend", "backend/cuda", "backend/cuda/executor"],
    "backend/cuda/rank_memory": ["backend/cuda", "backend/cuda/executor"],
    "dist": ["core", "contract", "plan", "schedule.h", "schedule", "backend"],
    "verbatim": ["core", "mask", "plan", "schedule.h", "backend"],
    "context_parallel": ["core", "dist", "verbatim"],
    "bench": ["core", "schedule.h", "backend", "backend/reference", "verbatim"],
    "bench/cuda": ["core", "backend", "backend/cuda", "backend/cuda/device", "backend/cuda/sm90",
                   "bench"],
    "c_api": ["core", "tl", "verbatim"],
    "c_api_tl": ["core", "tl", "c_api"],
    "c_dist": ["core", "context_parallel", "c_api"],
    "c_masks": ["core", "mask", "c_api"],
    "c_selected": ["core", "backend", "c_api"],
    "report": ["core", "mask"],
    "apps": ["core", "mask", "plan", "tl", "backend", "backend/reference", "dist", "verbatim", "bench",
             "bench/cuda", "report"],
}  # fmt: skip

# The row that each public header belongs to, as if it lay there.
HEADERS = {
    "c.h": "c_api", "cluster.h": "dist", "context_parallel.h": "context_parallel",
    "contract.h": "contract", "dist.h": "dist", "error.h": "core", "mask.h": "mask",
    "packed_runs.h": "plan", "piece.h": "plan", "plan.h": "plan", "problem.h": "core",
    "run.h": "core", "runs.h": "plan", "schedule.h": "schedule.h", "selected.h": "backend",
    "tensor.h": "core", "timeline.h": "core", "tl.h": "tl", "transport.h": "dist",
    "verbatim.h": "verbatim",
}  # fmt: skip

# The same of the Python package: modules and packages inside it.
MODULES = {
    "_library": [],
    "_json": [],
    "_planes": [],
    "_reads": [],
    "_untraced": [],
    "_page": [],
    "_files": [],
    "_errors": [],
    "_meant": [],
    "masks": ["_library", "_json", "_meant", "_planes", "_reads", "_untraced"],
    "blocks": ["_library", "_planes", "_reads", "_untraced", "masks"],
    "_handles": ["_library", "_json"],
    "_compiled": [],
    "_native": ["_library", "_compiled", "_handles"],
    "_arrays": ["_library", "_native"],
    "_calls": ["_library", "_untraced", "_arrays"],
    "_traced": ["_handles", "_arrays"],
    "plan": ["_library", "_untraced", "masks", "_handles", "_arrays", "_calls", "_traced"],
    "_torch": ["_handles", "_native", "_arrays", "_traced", "plan"],
    "attention": ["masks", "_handles", "_arrays", "plan", "_torch"],
    "_ranks": ["_library", "_handles"],
    "context_parallel": ["_library", "masks", "_handles", "_arrays", "_calls", "_ranks"],
    "native": ["_compiled", "_native"],
    "_xla": ["_library", "_compiled"],
    "jax": ["_library", "_json", "masks", "_handles", "_arrays", "_xla"],
    "waits": ["_library"],
    "flex": ["_library", "_planes", "_untraced", "masks", "blocks"],
    "flash": ["masks", "attention"],
    "huggingface": ["_untraced", "masks", "attention"],
    "activation": ["masks", "plan"],
    "_intervals": ["masks"],
    "_cudnn_flex": ["masks", "_intervals"],
    "audit": ["_library", "_page", "_files", "_errors", "masks", "plan", "attention", "_cudnn_flex"],
    "__init__": ["_library", "masks", "blocks", "plan", "attention", "waits", "flex", "flash",
                 "huggingface", "activation", "audit", "context_parallel"],
    "tl": ["_library", "masks", "_errors", "_handles", "_arrays", "_calls", "plan", "__init__"],
    "bench": ["_errors", "_files", "_page", "masks", "plan", "attention", "tl", "_intervals",
              "_cudnn_flex", "__init__"],
    "papers": ["_errors", "_page", "bench"],
}  # fmt: skip

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)


def row_of(table, name):
    """The longest row that is `name`, a folder of it or the start of its file name; or None."""
    fits = [row for row in table if re.match(re.escape(row) + r"(?![^/.])", name)]
    return max(fits, key=len, default=None)


def wrong_rows(table):
    above = set()
    for row, allowed in table.items():
        for other in set(allowed) - above:
            yield f"the table lets {row} include {other}, which is not above it"
        above.add(row)


def wrong_arrows(table, edges):
    """`edges`: (file, its name in the table, what it includes, its name in the table)."""
    used = set()
    for file, own, other_file, other in edges:
        arrow = row_of(table, own), row_of(table, other)
        used.add(arrow)
        if None in arrow:
            yield f"{other_file if arrow[0] else file} has no row in the table"
        elif arrow[0] != arrow[1] and arrow[1] not in table[arrow[0]]:
            yield f"{file}: {arrow[0]} may not include {arrow[1]}: {other_file}"
    for row, allowed in table.items():
        for other in allowed:
            if (row, other) not in used:
                yield f"the table lets {row} include {other}, but it does not"


def circles(edges):
    """A circle of files, if there is any: a table does not see those inside a row."""
    graph = {}
    for file, _own, other, _row in edges:
        graph.setdefault(file, set()).add(other)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield "a circle: " + " -> ".join(reversed(error.args[1]))


def source_name(path):
    """The name in SOURCES of a file, given relative to the root."""
    if path.parts[0] == "include":
        return HEADERS.get(path.name, str(path))
    return str(path).removeprefix("src/")


def sources(root):
    for top in ("include", "src", "apps"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in {".h", ".cpp", ".cuh", ".cu", ".inc"}:
                continue
            for include in INCLUDE.findall(file.read_text()):
                places = (file.parent, root / "include", root / "src")
                found = [place / include for place in places if (place / include).exists()]
                if found:
                    name, other = file.relative_to(root), found[0].relative_to(root)
                    yield str(name), source_name(name), str(other), source_name(other)


def module_name(name):
    """The name in MODULES of a module: verbatim_attn.bench.page is bench/page."""
    return "/".join(name.split(".")[1:]) or "__init__"


def imports(tree, parent):
    """What a module imports, wherever in it: each with the name that it stands for if it is none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), parent)
            yield from ((f"{base}.{alias.name}", base) for alias in node.names)


def modules(root):
    top = root / "python"
    files = {}
    for file in sorted((top / "verbatim_attn").rglob("*.py")):
        parts = file.relative_to(top).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = file
    for name, file in files.items():
        parent = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for inner, base in imports(ast.parse(file.read_text()), parent):
            other = inner if inner in files else base
            if other in files and other != name:
                yield name, module_name(name), other, module_name(other)


def violations(root):
    for table, edges in ((SOURCES, list(sources(root))), (MODULES, list(modules(root)))):
        yield from wrong_rows(table)
        yield from wrong_arrows(table, edges)
        yield from circles(edges)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"layers: {len(found)} wrong includes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

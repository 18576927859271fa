#!/usr/bin/env python3
"""Fails when a source file includes from a folder that comes after its own in the data flow."""
import pathlib
import re
import sys

# A file may include from its own layer and from the layers before it.
LAYERS = ["core", "mask", "contract", "plan", "schedule", "tl", "backend", "dist", "verbatim.cpp",
          "c_api.h", "c_api.cpp", "c_api_tl.cpp", "c_dist.cpp", "bench", "report", "apps"]
# Nobody else may look inside these parts of the backend; a part may use what is before it.
BACKENDS = ["reference", "cpu", "tl", "cuda"]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def layer_of(path):
    """Index of the layer of `path`, relative to the root or to src/; None for public headers."""
    parts = pathlib.PurePath(path).parts
    if parts and parts[0] == "src":
        parts = parts[1:]
    return LAYERS.index(parts[0]) if parts and parts[0] in LAYERS else None


def violations(root):
    files = [p for top in ("src", "apps") for p in (root / top).rglob("*")
             if p.suffix in {".h", ".cpp", ".cuh", ".cu", ".inc"}]
    for file in sorted(files):
        name = file.relative_to(root)
        own = layer_of(name)
        if own is None:
            yield f"{name}: this folder has no place in the layers"
            continue
        for include in INCLUDE.findall(file.read_text()):
            other = layer_of(include)
            if other is not None and other > own:
                yield f"{name}: includes {include}, which comes later"
            parts = pathlib.PurePath(include).parts
            backend = parts[1] if len(parts) > 2 and parts[0] == "backend" else None
            home = name.parts[2] if name.parts[:2] == ("src", "backend") else None
            if backend in BACKENDS and home in BACKENDS and backend != home:
                yield f"{name}: a backend includes another, {include}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"layers: {len(found)} wrong includes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

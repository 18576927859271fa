#!/usr/bin/env python3
"""Opens the page of a run in headless Chromium: it must render whole, without a complaint."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
EXAMPLE = (
    "--mask causal_document --doc-lengths 200,150,162 --q-heads 4 --kv-heads 2 --dtype bf16"
).split()


def main(tool):
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        print("skipped: no Chromium here")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        page, shot = pathlib.Path(folder, "run.html"), pathlib.Path(folder, "run.png")
        subprocess.run([tool, "run", *EXAMPLE, "--report", page], check=True, capture_output=True)
        options = "--headless --no-sandbox --disable-gpu --enable-logging=stderr".split()
        options += [f"--user-data-dir={folder}/profile", "--window-size=1100,2000"]
        done = subprocess.run(
            [browser, *options, "--dump-dom", page.as_uri()],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        # The page logs through the console when its policy blocks something or it does not parse.
        complaints = re.findall(r".*(?:CONSOLE|Content Security Policy).*", done.stderr)
        assert not complaints, complaints
        for wanted in ("</svg>", "The mask", "The plan", "The bits", "identical bits", "</footer>"):
            assert wanted in done.stdout, f"{wanted} is not on the page"
        assert done.stdout.count("<rect") == page.read_text().count("<rect"), "shapes were lost"
        subprocess.run(
            [browser, *options, f"--screenshot={shot}", page.as_uri()],
            check=True,
            capture_output=True,
            timeout=120,
        )
        assert shot.stat().st_size > 20000, "the picture of the page is empty"
    print("the page renders whole, without a complaint")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

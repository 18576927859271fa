#!/usr/bin/env python3
"""What another project gets: an installed library that find_package() finds, and a folder that
add_subdirectory() takes. install_test.py BUILD SOURCE CMAKE"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD, SOURCE, CMAKE = sys.argv[1:4]

INSTALLED = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(verbatim 0.2 REQUIRED)
add_executable(user user.c)
target_link_libraries(user PRIVATE verbatim::c)
"""
USER = r"""
#include <verbatim/c.h>
int main(void) { return verbatim_check("cpu") == verbatim_ok ? 0 : 1; }
"""
INSIDE = f"""
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
add_subdirectory({SOURCE} verbatim)
add_executable(user user.cpp)
target_link_libraries(user PRIVATE verbatim::verbatim)
"""


# As of a user who sets nothing.
PLAIN = {k: v for k, v in os.environ.items() if k not in ("CMAKE_BUILD_TYPE", "CXXFLAGS")}


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=PLAIN)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Projects(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def configure(self, text, *options):
        (self.folder / "CMakeLists.txt").write_text(text)
        run(CMAKE, "-S", self.folder, "-B", self.folder / "build", *options)

    def test_an_installed_library_is_found(self):
        root = self.folder / "root"
        run(CMAKE, "--install", BUILD, "--prefix", root)
        found = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
        self.assertIn("include/verbatim/c.h", found)
        self.assertIn("bin/verbatim", found)
        self.assertFalse([name for name in found if "verbatim_attn" in name])  # that is a wheel's
        run(root / "bin/verbatim", "--version")
        (self.folder / "user.c").write_text(USER)
        self.configure(INSTALLED, f"-DCMAKE_PREFIX_PATH={root}")
        run(CMAKE, "--build", self.folder / "build")
        run(self.folder / "build/user")

    def test_another_project_takes_the_folder(self):
        shutil.copy(Path(SOURCE) / "examples/01_first_run.cpp", self.folder / "user.cpp")
        self.configure(INSIDE, "-G", "Ninja", "-DVERBATIM_CUDA=OFF")
        ninja = "ninja", "-C", self.folder / "build"
        commands = run(*ninja, "-t", "commands").splitlines()
        (kernels,) = [line for line in commands if "kernels_avx512.cpp.o -c" in line]
        self.assertIn(" -O3 ", kernels)  # whatever the project builds itself with
        (user,) = [line for line in commands if "user.cpp.o -c" in line]
        self.assertNotIn(" -O3 ", user)
        run(*ninja, "CMakeFiles/user.dir/user.cpp.o")
        self.assertIn("user", run(*ninja, "-n", "user"))  # every file is there
        self.assertNotIn("c_api_test", run(*ninja, "-t", "targets"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

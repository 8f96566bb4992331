#!/usr/bin/env python3
"""What build.sh and test.sh say before they install or build anything: a usage error, and a checkout that was moved."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent


class BuildScripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "moved"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("build.sh", "test.sh", "common.sh", "help.sh", "mpi_env.sh"):
            shutil.copy(SCRIPTS / name, self.root / "scripts")
        # What would install, make an environment, configure or build only says that it was called.
        self.called, programs = self.root / "called", self.root / "programs"
        programs.mkdir()
        for path in (*(programs / name for name in ("dpkg-query", "apt-get", "sudo", "cmake", "ctest")), self.root / "scripts/python_env.sh"):
            path.write_text(f'#!/bin/sh\necho "$0" >>{self.called}\n[ "${{0##*/}}" != dpkg-query ] || echo install ok installed\n')
            path.chmod(0o755)
        self.env = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}")

    def run_script(self, *command):
        done = subprocess.run([f"./scripts/{command[0]}", *command[1:]], cwd=self.root, env=self.env, capture_output=True, text=True, timeout=60)
        called = {pathlib.Path(line).name for line in self.called.read_text().split()} if self.called.exists() else set()
        return done, called

    def test_an_unknown_part_or_option_is_refused_before_anything_is_installed(self):
        for command in (("test.sh", "nonsense"), ("test.sh", "release", "nonsense"), ("build.sh", "--nonsense"), ("build.sh", "nonsense")):
            done, called = self.run_script(*command)
            self.assertEqual(done.returncode, 2, (command, done.stderr))
            self.assertIn("error: ", done.stderr)
            self.assertEqual(called, set(), command)
        self.assertIn("use lint, release, asan or tsan", self.run_script("test.sh", "nonsense")[0].stderr)

    def test_a_moved_checkout_is_told_what_to_remove(self):
        cache = self.root / "build/release/CMakeCache.txt"
        cache.parent.mkdir(parents=True)
        cache.write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/where/it/was\n")
        done, called = self.run_script("build.sh")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(f"rm -r '{self.root}/build/release'", done.stderr)
        self.assertNotIn("cmake", called)
        cache.write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={self.root}\n")
        done, called = self.run_script("build.sh")
        self.assertEqual((done.returncode, "cmake" in called), (0, True), done.stderr)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""`cmake --install` gives a tree that can be moved and used from the PATH, with no trace of where it was built.

  install_test.py BUILD_FOLDER PYTHON     PYTHON has the report's packages
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BUILD, PYTHON = map(os.path.abspath, sys.argv[1:3])


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        prefix = cls.folder / "first"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", str(prefix)], check=True, capture_output=True)
        cls.tree = prefix.rename(cls.folder / "second")
        cls.share = cls.tree / "share" / "longnet-bench"
        cls.path = cls.folder / "path"
        cls.path.mkdir()
        (cls.path / "lnbench").symlink_to(cls.tree / "bin" / "lnbench")

    def lnbench(self, *args, code=0, **variables):
        env = {k: v for k, v in os.environ.items() if k not in ("LONGNET_HOME", "LONGNET_PYTHON")}
        env |= {"PATH": f"{self.path}:{env['PATH']}"} | variables
        done = subprocess.run(["lnbench", *map(str, args)], cwd=self.folder, env=env, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}\n{done.stderr}")
        return done

    def test_no_file_names_the_source_or_the_build(self):
        files = [f for f in self.tree.rglob("*") if f.is_file()]
        self.assertGreater(len(files), 60)
        for file in files:
            content = file.read_bytes()
            for path in (str(SOURCE), BUILD, str(self.folder / "first")):
                self.assertNotIn(path.encode(), content, file)

    def test_tests_are_not_installed(self):
        self.assertEqual([*self.tree.rglob("*_test.py"), *self.tree.rglob("*_fixture.py")], [])

    def test_version_plan_simulate_and_report(self):
        self.assertIn("lnbench", self.lnbench("--version").stdout)
        self.assertIn("dilated", self.lnbench("plan", self.share / "configs" / "quick.json").stdout)
        self.lnbench("simulate", self.share / "configs" / "quick-cluster.json", "--cluster",
                     self.share / "configs" / "clusters" / "h100-ndr400.json", "-o", "result", "--progress", "none")
        self.lnbench("report", "result", LONGNET_PYTHON=PYTHON)
        self.assertIn("LongNet-Bench report", (self.folder / "result" / "report.html").read_text())
        self.assertTrue(list((self.folder / "result" / "plots").glob("*.svg")))

    def test_a_python_without_the_packages_is_told_what_to_do(self):
        bare = self.folder / "bare_python"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
        bare.chmod(0o755)
        said = self.lnbench("report", "result", code=1, LONGNET_PYTHON=str(bare)).stderr
        self.assertIn(f"{self.share}/scripts/python_env.sh", said)
        self.assertTrue((self.share / "scripts" / "python_env.sh").exists())
        said = self.lnbench("report", "result", code=2, LONGNET_PYTHON="no-such-python").stderr
        self.assertIn("cannot run 'no-such-python'", said)

    def test_without_its_files_lnbench_says_where_it_looked(self):
        alone = self.folder / "alone" / "lnbench"
        alone.parent.mkdir()
        alone.write_bytes((self.tree / "bin" / "lnbench").read_bytes())
        alone.chmod(0o755)
        done = subprocess.run([alone, "report", "result"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"in any folder above {alone.parent}", done.stderr)
        self.assertIn("holds no scripts/report", self.lnbench("report", "result", code=2, LONGNET_HOME="/nowhere").stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

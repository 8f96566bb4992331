#!/usr/bin/env python3
"""Tests of the pictures beside a report and of the program that draws them: report_test.py runs them too."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import make_report, pictures
from report.markup import script_safe
from report.synthetic_fixture import K, full_sweep, point, write_result
from report.training_fixture import write_training


class Pictures(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_pictures_and_stale_pictures(self) -> None:
        directory = write_result(self.folder / "run", [point("dilated", n * K, p) for n in (8, 16) for p in (1, 2)])
        plots = directory / "plots"
        plots.mkdir()
        (plots / "timeline-1.svg").write_text("stale")
        (plots / "mine.svg").write_text("kept")
        self.assertEqual(make_report.main([str(directory)]), 0)
        self.assertFalse((plots / "timeline-1.svg").exists())
        self.assertTrue((plots / "mine.svg").exists())
        svg = (plots / "latency.svg").read_text()
        for label in ("8K", "16K", "Latency against tokens", "filled marks: measured"):
            self.assertIn(label, svg)
        middle, label = re.findall(r"legend-(?:symbol|label) .*?translate\(([\d.]+),", svg)[:2]
        self.assertGreaterEqual(float(label) - float(middle), 12)  # a symbol is 6 wide on either side
        self.assertEqual((plots / "latency.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertTrue((directory / "report.html").is_file())

    def test_an_engine_without_memory_leaves_a_page_and_an_error(self) -> None:
        """The page has figures where the environment keeps their program, and none where that has to be made."""
        kept, ended = self.folder / "charts.js", r"vl-convert ended with SIGTRAP \(Fatal .*\)\n  hint: .*2,097,152 KiB.*\n$"
        kept.write_text("kept program")
        runs = (write_result(self.folder / "run", full_sweep()[:12]), write_training(self.folder / "train", 1))
        for folder, library in itertools.product(runs, (Path("no-file"), kept)):
            script = f"from report import make_report, pictures; pictures.KEPT_LIBRARY = pictures.Path({str(library)!r}); raise SystemExit(make_report.main())"
            done = subprocess.run(
                [sys.executable, "-c", script, str(folder)],
                env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")},
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)),
                capture_output=True,
                text=True,
            )
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            page = (folder / "report.html").read_text()
            self.assertIn('id="table"', page)
            if library == kept:
                self.assertRegex(done.stderr, r"^make_report.py: \S+/plots: 0 of \d+ pictures are written: " + ended)
                self.assertIn("kept program", page)
                self.assertIn('class="chart"', page)
            else:
                self.assertRegex(done.stderr, r"^make_report.py: \S+/report.html: written without figures: " + ended)
                self.assertIn("Without figures, which could not be drawn: vl-convert ended with SIGTRAP", page)
                self.assertNotIn('class="chart"', page)

    def test_the_kept_program_of_charts_is_the_one_that_is_made(self) -> None:
        made = script_safe(pictures.apart(pictures.bundle))
        self.assertTrue(pictures.chart_library() == made, f"{pictures.KEPT_LIBRARY} is of other packages: remove it")

    def test_pictures_that_are_finished_stay(self) -> None:
        directory = write_result(self.folder / "run", full_sweep()[:12])

        def png(*_: object, **__: object) -> bytes:
            if png.left == 0:
                os.kill(os.getpid(), signal.SIGTRAP)
            png.left -= 1
            return b"PNG"

        for left, words in ((2, "5 of "), (1, "3 of ")):
            png.left = left
            with unittest.mock.patch("vl_convert.svg_to_png", png), contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(make_report.main([str(directory)]), 3)
            self.assertRegex(said.getvalue(), rf"^make_report.py: \S+/plots: {words}\d+ pictures are written: vl-convert ended with SIGTRAP \(no message\)\n  hint: ")
            self.assertEqual(len(list((directory / "plots").iterdir())), 2 * left + 1)
            self.assertIn('class="chart"', (directory / "report.html").read_text())
        with unittest.mock.patch("vl_convert.vegalite_to_svg", side_effect=ValueError("no such mark")), contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(make_report.main([str(directory)]), 3)
        self.assertIn("vl-convert failed (ValueError: no such mark)", said.getvalue())


if __name__ == "__main__":
    unittest.main()

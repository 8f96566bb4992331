#!/usr/bin/env python3
"""Tests of the report of a validation, on SYNTHETIC published cases: report_test.py runs them too."""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import make_report
from report.synthetic_fixture import published


def unpacked(page: str, name: str) -> str:
    """The data that the page's program reads from one of its blocks."""
    data = page.split(f'id="{name}">')[1].split("<")[0]
    return gzip.decompress(base64.b64decode(data)).decode()


class ValidationReport(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_a_validation_alone_is_a_report(self) -> None:
        errors = self.folder / "errors.json"
        measured = json.loads((ROOT / "results/reference/validation-xeon.json").read_text())
        errors.write_text(json.dumps(measured | {"published": published()}))
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(make_report.main(["--validation", str(errors)]), 0)
        self.assertIn("report.html: a validation, 1 figures (0 without data)", said.getvalue())
        self.assertEqual({p.name for p in (self.folder / "plots").iterdir()}, {"published-attention.svg", "published-attention.png"})
        page = (self.folder / "report.html").read_text()
        self.assertIn("<title>How right the simulator is", page)
        self.assertRegex(page, r"36 published measurements. Inside their interval lie \d+ of 18 development cases")
        self.assertNotIn('id="claims"', page)
        self.assertNotIn('id="runs"', page)
        spec = json.loads(unpacked(page, "data-published-attention"))
        rows = spec["datasets"]["rows"]
        self.assertEqual({r["found"] for r in rows}, {"development", "blind"})
        self.assertTrue(all(r["low"] < r["value"] < r["high"] and r["origin"] for r in rows))
        marks, bars = (next(layer for layer in spec["layer"] if layer["name"] == name)["encoding"] for name in ("cases", "intervals"))
        self.assertEqual(marks["shape"]["field"], "found")
        self.assertIn("origin", [t["field"] for t in marks["tooltip"]])
        self.assertEqual((bars["y"]["field"], bars["y2"]["field"]), ("low", "high"))
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            make_report.main([])

    def test_a_validation_of_no_published_measurement_is_a_report(self) -> None:
        measured = ROOT / "results/reference/validation-xeon.json"
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(make_report.main(["--validation", str(measured), "-o", str(self.folder / "report.html")]), 0)
        self.assertIn("report.html: a validation, 0 figures (1 without data)", said.getvalue())
        self.assertIn("Median error 4.7 %", (self.folder / "report.html").read_text())


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""The report of a SYNTHETIC result, opened from file:// in headless Chromium.

Exit code 77, with the reason, when Chromium is missing (ctest: SKIP_RETURN_CODE 77); with
LONGNET_REQUIRE_BROWSER=1 that is a failure, exit code 1.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import make_report
from report.browser_fixture import Browser, chromium, wait_for
from report.synthetic_fixture import (
    HOSTILE,
    batch_sweep,
    full_sweep,
    opponents_sweep,
    write_interrupted,
    write_result,
)

SKIP = 77
MARKS = "path, rect, line, text"  # elements of Vega's SVG inside mark groups


class ReportInBrowser(unittest.TestCase):
    browser: Browser
    folder: tempfile.TemporaryDirectory[str]
    records: list[dict[str, Any]]
    opponents: list[dict[str, Any]]
    pages: dict[str, Path]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        root = Path(cls.folder.name)
        cls.records = full_sweep()
        cls.records[5]["id"] = HOSTILE
        full = write_result(root / "full", cls.records, name=f"synthetic {HOSTILE}")
        batch = write_result(root / "batch", batch_sweep())
        cut = write_interrupted(root / "cut", full_sweep()[:12])
        cls.opponents = opponents_sweep()
        opponents = write_result(root / "opponents", cls.opponents)
        for directory in (full, batch, cut, opponents):
            if make_report.main([str(directory)]) != 0:
                raise AssertionError(f"no report of {directory}")
        cls.pages = {d.name: (d / "report.html") for d in (full, batch, cut, opponents)}
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def visit(self, name: str, **options: Any) -> None:
        self.browser.open(self.pages[name].as_uri(), **options)
        self.drawn = self.browser.evaluate("longnetReport.ready")

    def js(self, expression: str) -> Any:
        return self.browser.evaluate(expression)

    def test_figures_are_drawn(self) -> None:
        for name in self.pages:
            with self.subTest(report=name):
                self.visit(name)
                self.assertEqual(self.js("longnetReport.errors"), [])
                charts = self.js(
                    "[...document.querySelectorAll('.chart')].map(c => { const s = c.querySelector('svg'); const b = s ? s.getBoundingClientRect() : {};"
                    f" return {{name: c.dataset.figure, width: b.width || 0, height: b.height || 0, marks: s ? s.querySelectorAll('.role-mark :is({MARKS})').length : 0,"
                    " rows: longnetReport.views[c.dataset.figure]?.data('rows').length ?? 0}; })"
                )
                self.assertEqual(self.drawn, len(charts))
                self.assertGreaterEqual(len(charts), 10)
                for chart in charts:
                    self.assertGreater(min(chart["width"], chart["height"]), 60, chart)
                    self.assertGreater(min(chart["marks"], chart["rows"]), 0, chart)

    def test_every_measured_point_is_a_mark(self) -> None:
        self.visit("full")
        ok = [r for r in self.records if r["status"] == "ok"]
        for layer, wanted in (
            ("measured", sum(r["source"] == "measured" for r in ok)),
            ("modelled", sum(r["source"] != "measured" for r in ok)),
            ("skipped", len(self.records) - len(ok)),
        ):
            selector = f"[data-figure=latency] .{layer}_marks path"
            self.assertEqual(self.js(f"document.querySelectorAll({json.dumps(selector)}).length"), wanted, layer)

    def marks(self, figure: str, layer: str, shape: str = "path") -> int:
        return self.js(f"document.querySelectorAll('[data-figure={json.dumps(figure)}] .{layer}_marks {shape}').length")

    def test_opponents_are_all_drawn(self) -> None:
        self.visit("opponents")
        causal = [r for r in self.opponents if r["params"]["collective"] == "native" and r["params"]["ranks"] >= 2]
        native = [r for r in self.opponents if r["params"]["collective"] == "native"]
        longest = [r for r in native if r["params"]["seq_len"] == 1 << 16]
        self.assertEqual(self.marks("causal_balance", "measured"), len(causal) // 4)  # one of four lengths
        self.assertEqual(self.marks("causal_balance", "closed_form"), 1)
        self.assertEqual(self.marks("error_ranks", "measured"), len(longest))
        for ranks in (1, 2, 4, 8):
            wanted = sum(r["params"]["ranks"] == ranks for r in native)
            self.assertEqual(self.marks(f"latency-{ranks}", "measured"), wanted)
        self.assertEqual(self.marks("ablations", "bars"), 4 * 14)
        self.assertEqual(self.marks("ablations", "single_attend", "path, rect"), 14)
        chosen = sum(r["params"]["collective"] != "native" for r in self.opponents)
        self.assertEqual(self.marks("collectives", "marks"), chosen + 4)  # and four native ones

    def test_marks_and_labels_of_opponents_stay_apart_and_inside(self) -> None:
        for width in (390, 1280):
            self.visit("opponents", width=width)
            self.assertLessEqual(self.js("document.documentElement.scrollWidth"), width)
            outside = self.js(
                """[...document.querySelectorAll('.chart')].filter(c => { const s = c.querySelector('svg').getBoundingClientRect();
                return [...c.querySelectorAll('svg .role-legend text, svg [class*=measured_marks] path')].some(t => t.getBoundingClientRect().right > s.right + 1); })
                .map(c => c.dataset.figure)"""
            )
            self.assertEqual(outside, [], width)
        boxes = self.js(
            """[...document.querySelectorAll('[data-figure=causal_balance] .measured_marks path')].map(p => { const b = p.getBoundingClientRect();
            return Math.round(b.x + b.width / 2) + ' ' + Math.round(b.y + b.height / 2); })"""
        )
        self.assertEqual(len(set(boxes)), len(boxes))

    def test_nothing_leaves_the_file(self) -> None:
        for name in self.pages:
            self.visit(name)
            self.assertEqual({u.split(":")[0] for u in self.browser.requests()} - {"file", "data", "blob"}, set())
            self.assertEqual(sum(u.startswith("file:") for u in self.browser.requests()), 1)

    def test_console_is_clean(self) -> None:
        for name in self.pages:
            self.visit(name)
            self.assertEqual(self.browser.complaints(), [])

    def test_hostile_names_run_nothing(self) -> None:
        self.visit("full")
        self.assertEqual(self.js("document.querySelectorAll('img').length"), 0)
        self.assertIn("<script>alert", self.js("document.querySelector('h1').textContent"))

    def test_a_call_out_would_be_seen_and_blocked(self) -> None:
        self.visit("full")
        self.js("fetch('http://example.invalid/x').catch(() => 0)")
        self.assertTrue(self.browser.complaints(), "the policy should refuse a request")

    def column(self, title: str) -> list[float]:
        return self.js(f"""(() => {{ const t = document.querySelector('table.sortable');
            const i = [...t.tHead.rows[0].cells].findIndex(c => c.textContent.trim() === {json.dumps(title)});
            return [...t.tBodies[0].rows].map(r => r.cells[i].dataset.value).filter(v => v !== '').map(Number); }})()""")

    def press(self, title: str) -> str:
        return self.js(f"""(() => {{ const h = [...document.querySelectorAll('table.sortable th')].find(c => c.textContent.trim() === {json.dumps(title)});
            h.querySelector('button').click(); return h.getAttribute('aria-sort'); }})()""")

    def test_table_sorts(self) -> None:
        self.visit("full")
        before = self.column("median")
        self.assertNotEqual(before, sorted(before))
        self.assertEqual(self.press("median"), "ascending")
        self.assertEqual(self.column("median"), sorted(before))
        self.assertEqual(self.press("median"), "descending")
        self.assertEqual(self.column("median"), sorted(before, reverse=True))
        self.assertEqual(
            self.js("document.querySelectorAll('table.sortable th[aria-sort]:not([aria-sort=none])').length"), 1
        )

    def test_table_filters(self) -> None:
        self.visit("full")
        shown = "[...document.querySelectorAll('table.sortable tbody tr')].filter(r => !r.hidden).length"
        self.assertEqual(self.js(shown), len(self.records))
        self.js(
            "(() => { const f = document.getElementById('filter'); f.value = 'ring simulated'; f.dispatchEvent(new Event('input')); })()"
        )
        self.assertEqual(
            self.js(shown), sum(r["params"]["algorithm"] == "ring" and r["source"] == "simulated" for r in self.records)
        )

    def test_csv_has_all_rows(self) -> None:
        self.visit("full")
        links = self.js("[...document.querySelectorAll('a.csv')].map(a => a.href)")
        rows = [row for link in links for row in csv.DictReader(io.StringIO(unquote(link.split(",", 1)[1])))]
        self.assertEqual(len(rows), len(self.records))
        self.assertEqual(sum(1 for r in rows if r["status"] == "ok"), sum(r["status"] == "ok" for r in self.records))

    def faint(self) -> int:
        return self.js(
            "[...document.querySelectorAll('[data-figure=latency] .measured_marks path')].filter(p => Number(p.getAttribute('opacity')) < 0.2).length"
        )

    def test_legend_singles_out_a_series(self) -> None:
        self.visit("full")
        self.assertEqual(self.faint(), 0)
        place = "(() => { const t = [...document.querySelectorAll('[data-figure=latency] .role-legend-label text')].find(e => e.textContent === 'ring'); t.scrollIntoView({block: 'center'}); const b = t.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        x, y = self.js(place)
        dilated = sum(
            r["status"] == "ok" and r["source"] == "measured" and r["params"]["algorithm"] == "dilated"
            for r in self.records
        )
        self.browser.click(x, y)
        wait_for(lambda: self.faint() == dilated, "the other series to fade", 10)
        time.sleep(0.5)  # two clicks in a row would be a double click, which clears
        self.browser.click(x, y)
        wait_for(lambda: self.faint() == 0, "all series to return", 10)

    def test_narrow_and_dark(self) -> None:
        for width in (390, 768, 1280):
            for dark in (False, True):
                self.visit("full", width=width, dark=dark)
                self.assertLessEqual(self.js("document.documentElement.scrollWidth"), width)
                self.assertLessEqual(
                    self.js(
                        "Math.max(...[...document.querySelectorAll('.chart svg')].map(s => s.getBoundingClientRect().right))"
                    ),
                    width,
                )
        colours = []
        for dark in (False, True):
            self.visit("full", dark=dark)
            colours.append(
                self.js(
                    "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.card')).backgroundColor]"
                )
            )
        self.assertNotEqual(colours[0][0], colours[1][0])
        self.assertEqual(colours[0][1], colours[1][1])  # charts stay on a light card

    def test_token_axis(self) -> None:
        self.visit("batch")
        labels = self.js(
            "[...document.querySelectorAll('[data-figure=batch_runtime] .role-axis-label text')].map(t => t.textContent).filter(Boolean)"
        )
        for label in ("8K", "64K", "1M"):
            self.assertIn(label, labels)
        self.assertTrue(any(re.fullmatch(r"[\d,.]+ (ms|s)", label) for label in labels), labels)

    def test_interrupted_run_says_so(self) -> None:
        self.visit("cut")
        self.assertIn("interrupted", self.js("document.querySelector('.verdict').textContent"))
        self.assertIn("result.json is missing", self.js("document.querySelector('header').textContent"))


if __name__ == "__main__":
    if chromium() is None:
        required = os.environ.get("LONGNET_REQUIRE_BROWSER") == "1"
        why = "no Chromium found (apt-get install chromium, or set CHROMIUM)"
        print(
            f"FAILED: {why}, and LONGNET_REQUIRE_BROWSER=1 forbids to skip" if required else f"SKIPPED: {why}",
            file=sys.stderr,
        )
        raise SystemExit(1 if required else SKIP)
    unittest.main()

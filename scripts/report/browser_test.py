#!/usr/bin/env python3
"""The report of a SYNTHETIC result, opened from file:// in headless Chromium.

Exit code 77, with the reason, when Chromium is missing (ctest: SKIP_RETURN_CODE 77); with
LONGNET_REQUIRE_BROWSER=1 that is a failure, exit code 1.
"""

from __future__ import annotations

import base64
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
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "results" / "reference"
sys.path.insert(0, str(ROOT / "scripts"))

from report import make_report
from report.browser_fixture import Browser, chromium, wait_for
from report.charts import build_figures
from report.model import PASSES
from report.models_test import models_sweep
from report.pictures import write_pictures
from report.synthetic_fixture import (
    HOSTILE,
    batch_sweep,
    comparison,
    crossover_sweep,
    full_sweep,
    opponents_sweep,
    passes_sweep,
    published,
    write_interrupted,
    write_result,
)
from report.training_fixture import write_training

SKIP = 77
LOAD_S = 3.0  # until the answer and the tables are there
SIZE_MB = 3.0  # the largest report, of 3,000 points
PRINTED_PAGES = 12
PAPER_PX = 703  # width of a portrait page of A4 without its margins
LOOKS = [(1400, False), (420, False), (1400, True)]  # no width changes a colour, no colour a place
# Text of a page or of its figures whose contrast with what is behind it is below 4.5: 1.
FAINT = """(() => {
  const light = (c) => { const v = c / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const parts = (colour) => { const m = colour.match(/[\\d.]+/g).map(Number); return m.length > 3 ? m : [...m.slice(0, 3), 1]; };
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const known = new Map(); // element: what its parents let through is theirs
  const behind = (e) => {
    if (!e) return [255, 255, 255, 1];
    if (!known.has(e)) { const c = parts(getComputedStyle(e).backgroundColor); known.set(e, c[3] > 0.99 ? c : behind(e.parentElement)); }
    return known.get(e);
  };
  const cells = new Map(); // picture: paths of its cells and where they are
  const cell = (e) => { // a map's cell, below its text
    const b = e.getBoundingClientRect(), x = b.x + b.width / 2, y = b.y + b.height / 2, svg = e.closest('svg');
    if (!cells.has(svg)) cells.set(svg, [...(svg?.querySelectorAll('.cell_marks path') ?? [])].map((p) => [p, p.getBoundingClientRect()]));
    const hit = cells.get(svg).find(([, r]) => r.left <= x && x <= r.right && r.top <= y && y <= r.bottom);
    return hit ? parts(getComputedStyle(hit[0]).fill) : null;
  };
  const found = [];
  for (const e of document.querySelectorAll('main *, nav *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest('.vega-actions')) continue;
    const svg = e.tagName === 'text' || e.tagName === 'tspan';
    const style = getComputedStyle(e), colour = parts(svg ? style.fill : style.color);
    const [a, b] = [luminance(colour), luminance((svg && cell(e)) || behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${e.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(found)].slice(0, 10);
})()"""
# Texts of a figure whose boxes share more than a pixel in both directions.
OVERLAPS = """(() => [...document.querySelectorAll('.card')].flatMap((chart) => {
  const boxes = [...chart.querySelectorAll('svg text')].filter((t) => t.textContent.trim() && t.checkVisibility({opacityProperty: true}) && t.getAttribute('opacity') !== '0')
    .map((t) => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], i) => boxes.slice(i + 1)
    .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
    .map(([other]) => `${chart.parentElement.innerText.slice(0, 30)}: ${text} / ${other}`));
}).slice(0, 10))()"""
# Texts of a figure that reach beyond its picture, which cuts them off.
CUT = """(() => [...document.querySelectorAll('.card')].flatMap((chart) => {
  const { left, right } = chart.querySelector('svg').getBoundingClientRect();
  return [...chart.querySelectorAll('svg text')].filter((t) => t.checkVisibility() && t.getAttribute('opacity') !== '0' && t.textContent.trim())
    .filter((t) => { const b = t.getBoundingClientRect(); return b.right > right + 1 || b.left < left - 1; })
    .map((t) => `${chart.parentElement.innerText.slice(0, 30)}: ${t.textContent}`);
}).slice(0, 10))()"""
# Upright texts of a saved picture that would reach beyond it in a font 1.3 times as wide as Arial, whose alphabet is 12.73 em long.
WIDE = """(() => { const edge = document.documentElement.getBoundingClientRect();
  const canvas = document.createElementNS('http://www.w3.org/1999/xhtml', 'canvas').getContext('2d');
  canvas.font = `100px ${document.querySelector('text').getAttribute('font-family')}`;
  const wider = 1.3 * 1273 / canvas.measureText('abcdefghijklmnopqrstuvwxyz').width;
  return [...document.querySelectorAll('text')].filter((t) => t.getAttribute('opacity') !== '0' && !/rotate/.test(t.getAttribute('transform'))).filter((t) => {
    const b = t.getBoundingClientRect(), more = (wider - 1) * b.width, share = {end: 1, middle: 0.5}[t.getAttribute('text-anchor')] ?? 0;
    return b.left - share * more < edge.left || b.right + (1 - share) * more > edge.right;
  }).map((t) => t.textContent); })()"""
# Labels of a saved picture's legends that would touch the next symbol in a font 1.2 times as wide as Arial.
TOUCHING = """(() => {
  const canvas = document.createElementNS('http://www.w3.org/1999/xhtml', 'canvas').getContext('2d');
  canvas.font = `100px ${document.querySelector('text').getAttribute('font-family')}`;
  const wider = 1.2 * 1273 / canvas.measureText('abcdefghijklmnopqrstuvwxyz').width;
  const symbols = [...document.querySelectorAll('.role-legend-symbol path')].map((s) => s.getBoundingClientRect());
  return [...document.querySelectorAll('.role-legend-label text')].filter((t) => {
    const b = t.getBoundingClientRect();
    return symbols.some((s) => s.left > b.left && s.top < b.bottom && s.bottom > b.top && b.left + wider * b.width > s.left);
  }).map((t) => t.textContent); })()"""
# Pictures that reach beyond their box.
OUTSIDE = """[...document.querySelectorAll('.card')].filter((card) => card.querySelector('svg').getBoundingClientRect().right > card.getBoundingClientRect().right + 1)
  .map((card) => card.parentElement.innerText.slice(0, 30))"""
# Cells of maps whose text is hidden, or reaches beyond them.
CELLS = """[...document.querySelectorAll('.chart')].flatMap((chart) => {
  const texts = [...chart.querySelectorAll('.text_marks text')];
  return [...chart.querySelectorAll('.cell_marks path')].map((path, place) => [texts[place], path.getBoundingClientRect(), texts[place].getBoundingClientRect()])
    .filter(([text, cell, box]) => text.getAttribute('opacity') === '0' || box.width > cell.width + 1 || box.height > cell.height + 1)
    .map(([text]) => `${chart.dataset.figure}: ${text.textContent}`);
}).slice(0, 10)"""
MARKS = "path, rect, line, text"  # elements of Vega's SVG inside mark groups


class ReportInBrowser(unittest.TestCase):
    browser: Browser
    folder: tempfile.TemporaryDirectory[str]
    records: list[dict[str, Any]]
    opponents: list[dict[str, Any]]
    pages: dict[str, Path]
    published: dict[str, list[Path]]  # folders of the reports of reference results

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        root = Path(cls.folder.name)
        cls.records = full_sweep()
        cls.records[5]["id"] = HOSTILE
        next(r for r in cls.records if r["status"] != "ok")["reason"] = '=1+1, "quoted"'
        full = write_result(root / "full", cls.records, name=f"synthetic {HOSTILE}")
        batch = write_result(root / "batch", batch_sweep())
        cut = write_interrupted(root / "cut", full_sweep()[:12])
        cls.opponents = opponents_sweep()
        opponents = write_result(root / "opponents", cls.opponents)
        crossover = write_result(root / "crossover", crossover_sweep())
        training, one = (write_training(root / name, ranks, steps=600, planned=600) for name, ranks in (("training", 2), ("one", 1)))
        models = write_result(root / "models", models_sweep())
        passes, backward = write_result(root / "passes", passes_sweep(*PASSES)), write_result(root / "backward", passes_sweep("backward"))
        verdicts, errors = root / "comparison.json", root / "validation.json"
        verdicts.write_text(json.dumps(comparison(cls.records)))
        measured = json.loads((REFERENCE / "validation-xeon.json").read_text())
        errors.write_text(json.dumps(measured | {"published": published()}))
        options = {
            **{d.name: [d] for d in (full, batch, cut, opponents, crossover, models, training, passes, backward)},
            "trainings": [one, training],
            "measured": [REFERENCE / "opponents-cpu"],  # not synthetic
            "compared": [full, write_result(root / "later", full_sweep()), "--comparison", verdicts],
            "validated": [batch, "--validation", errors],
            "validation": ["--validation", errors],
        }
        cls.published = {r.parent.name: [r.parent] for r in REFERENCE.glob("*/result.json")} | {
            "readme": [REFERENCE / name for name in ("complexity", "constant-latency-cpu", "one-billion-cpu")]
        }
        cls.pages = {name: root / name / "report.html" for name in options}
        pictures = mock.patch.object(make_report, "write_pictures", return_value=0)  # report_test.py looks at these
        pictures.start()
        cls.addClassCleanup(pictures.stop)
        for name, arguments in options.items():
            cls.make(cls.pages[name], arguments)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    @staticmethod
    def make(page: Path, arguments: list[Any]) -> None:
        if make_report.main([*map(str, arguments), "-o", str(page)]) != 0:
            raise AssertionError(f"no report of {arguments}")

    def visit(self, name: str, **options: Any) -> None:
        self.browser.open(self.pages[name].as_uri(), **options)
        self.browser.evaluate("longnetReport.ready")

    def visit_all(self, name: str, **options: Any) -> None:
        """With every figure drawn, those behind "more" as well."""
        self.visit(name, **options)
        self.js("document.querySelectorAll('#more').forEach(d => d.open = true)")
        self.drawn = len(self.js("longnetReport.drawAll().then(() => Object.keys(longnetReport.views))"))

    def js(self, expression: str) -> Any:
        return self.browser.evaluate(expression)

    def expect_drawn(self, name: str) -> None:
        self.assertEqual(self.js("longnetReport.errors"), [])
        charts = self.js(
            "[...document.querySelectorAll('.chart')].map(c => { const s = c.querySelector('svg'); const b = s ? s.getBoundingClientRect() : {};"
            f" return {{name: c.dataset.figure, width: b.width || 0, height: b.height || 0, marks: s ? s.querySelectorAll('.role-mark :is({MARKS})').length : 0,"
            " rows: longnetReport.views[c.dataset.figure] ? 1 : 0}; })"
        )
        self.assertEqual(self.drawn, len(charts))
        self.assertGreaterEqual(len(charts), {"training": 8, "models": 2, "validation": 1}.get(name, 10))
        for chart in charts:
            self.assertGreater(min(chart["width"], chart["height"]), 60, chart)
            self.assertGreater(min(chart["marks"], chart["rows"]), 0, chart)

    def expect_few_printed_pages(self) -> None:
        printed = base64.b64decode(self.browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
        pages = len(re.findall(rb"/Type\s*/Page\b", printed))
        self.assertGreater(pages, 2)
        self.assertLessEqual(pages, PRINTED_PAGES)
        boxes = re.findall(rb"/MediaBox\s*\[\s*0\s+0\s+([\d.]+)\s+([\d.]+)\s*\]", printed)
        self.assertEqual({float(wide) > float(high) for wide, high in boxes}, {True, False})  # tables of points lie across

    def expect_no_call_out(self) -> None:
        self.assertEqual({u.split(":")[0] for u in self.browser.requests()} - {"file", "data", "blob"}, set())
        self.assertEqual(sum(u.startswith("file:") for u in self.browser.requests()), 1)
        self.assertEqual(self.browser.complaints(), [])

    def test_every_measured_point_is_a_mark(self) -> None:
        self.visit_all("full")
        ok = [r for r in self.records if r["status"] == "ok"]
        for layer, wanted in (
            ("measured", sum(r["source"] == "measured" for r in ok)),
            ("modelled", sum(r["source"] != "measured" for r in ok)),
            ("skipped", len(self.records) - len(ok)),
        ):
            selector = f"[data-figure=latency] .{layer}_marks path"
            self.assertEqual(self.js(f"document.querySelectorAll({json.dumps(selector)}).length"), wanted, layer)

    def marks(self, figure: str, layer: str, shape: str = "path") -> int:
        return self.js(f"document.querySelectorAll('[data-figure={json.dumps(figure)}] [class*={layer}_marks] {shape}').length")

    def test_opponents_are_all_drawn(self) -> None:
        self.visit_all("opponents")
        causal = [r for r in self.opponents if r["params"]["collective"] == "native" and r["params"]["ranks"] >= 2]
        native = [r for r in self.opponents if r["params"]["collective"] == "native"]
        longest = [r for r in native if r["params"]["seq_len"] == 1 << 16]
        self.assertEqual(self.marks("causal_balance", "measured"), len(causal) // 4)  # one of four lengths
        self.assertEqual(self.marks("causal_balance", "closed_form"), 1)
        self.assertEqual(self.marks("error_ranks", "measured"), len(longest))
        self.assertEqual(self.marks("latency", "measured"), len(native))
        self.assertEqual(self.marks("ablations", "bars"), 4 * 14 - 1)  # local sends nothing
        self.assertEqual(self.marks("ablations", "single_attend", "path, rect"), 14)
        chosen = sum(r["params"]["collective"] != "native" for r in self.opponents)
        self.assertEqual(self.marks("collectives", "marks"), chosen + 4)  # and four native ones

    def test_every_page_in_every_look(self) -> None:
        """Drawn whole, readable and without overlaps, from the file alone; the longest ones print on a few pages."""
        for width, dark in LOOKS:
            for name in self.pages:
                with self.subTest(report=name, width=width, dark=dark):
                    self.visit_all(name, width=width, dark=dark)
                    self.expect_drawn(name)
                    self.expect_no_call_out()
                    for faults in (FAINT,) if dark else (OVERLAPS, FAINT, OUTSIDE, CUT, CELLS):
                        self.assertEqual(self.js(faults), [])
                    self.assertLessEqual(self.js("document.documentElement.scrollWidth"), width)
                    if (width, dark) == LOOKS[0] and name in ("crossover", "compared", "validated"):
                        self.expect_few_printed_pages()
        self.visit_all("opponents", width=420)
        boxes = self.js(
            """[...document.querySelectorAll('[data-figure=causal_balance] .measured_marks path')].map(p => { const b = p.getBoundingClientRect();
            return Math.round(b.x + b.width / 2) + ' ' + Math.round(b.y + b.height / 2); })"""
        )
        self.assertEqual(len(set(boxes)), len(boxes))

    def test_no_label_is_cut_at_other_widths(self) -> None:
        for width in (1000, 700, 600, 360):
            self.visit_all("measured", width=width)
            for faults in (OVERLAPS, OUTSIDE, CUT, CELLS):
                self.assertEqual(self.js(faults), [], width)

    def test_saved_pictures_have_room_for_a_wider_font(self) -> None:
        folder = self.pages["measured"].parent / "plots"
        figures = build_figures(make_report.make_context([REFERENCE / "opponents-cpu"]))
        write_pictures([f for f in figures if f.name in ("ablations", "collectives", "latency", "strong_scaling")], folder)
        pictures = [*folder.glob("*.svg"), *(ROOT / "docs").glob("*.svg")]
        self.assertGreater(len(pictures), 6)
        for picture in pictures:
            self.browser.open(picture.as_uri())
            self.assertGreater(self.js("document.querySelectorAll('text').length"), 10)
            self.assertEqual(self.js(WIDE), [], picture.name)
            self.assertEqual(self.js(TOUCHING), [], picture.name)

    def test_overlap_and_contrast_would_be_seen(self) -> None:
        self.visit("full")
        self.assertEqual(self.js(FAINT), [])
        self.js("document.querySelector('.said p').style.color = '#999'")
        self.assertTrue(self.js(FAINT))
        self.js("document.querySelectorAll('.role-axis-label text').forEach(t => t.setAttribute('transform', 'translate(0,0)'))")
        self.assertTrue(self.js(OVERLAPS))

    def loading_s(self, page: Path) -> float:
        begin = time.monotonic()
        self.browser.open(page.as_uri(), width=1400)
        self.js("longnetReport.ready")
        return time.monotonic() - begin

    def test_a_large_report_loads_fast_and_is_small(self) -> None:
        root, records = Path(self.folder.name), crossover_sweep()
        verdicts = root / "crossovers.json"
        verdicts.write_text(json.dumps(comparison(records)))
        both = [write_result(root / name, records, name=name) for name in ("before", "after")]
        self.make(root / "crossovers.html", [*both, "--comparison", verdicts])
        for page in (root / "crossovers.html", self.pages["crossover"]):
            self.assertLess(page.stat().st_size, SIZE_MB * 1e6, page.name)
            # Once of three times: other tests may have the cores.
            self.assertTrue(any(self.loading_s(page) < LOAD_S for _ in range(3)), page.name)
        self.assertGreater(self.js("document.querySelectorAll('.chart svg').length"), 0)
        self.assertGreater(self.js("document.querySelectorAll('table.sortable tbody tr').length"), 0)

    def test_the_answer_is_on_the_first_screen(self) -> None:
        for name in ("full", "batch", "opponents"):
            self.visit(name, width=1400)
            bottom = "[...document.querySelectorAll('.said, #answer .chart svg.marks, .strip')].map(e => e.getBoundingClientRect().bottom)"
            said, figure, strip = self.js(bottom)
            self.assertLess(said, 450, name)
            self.assertLess(min(figure, strip), 900, name)
        self.visit("training", width=1400)
        said, figure = self.js("[...document.querySelectorAll('.said, #answer .chart svg.marks')].map(e => e.getBoundingClientRect().bottom)")
        self.assertLess(said, 300)
        self.assertLess(figure, 900)

    def test_published_results_answer_on_the_first_screen(self) -> None:
        """Short sentences and a whole figure."""
        for name, folders in self.published.items():
            with self.subTest(name):
                page = Path(self.folder.name) / name / "report.html"
                self.make(page, folders)
                self.browser.open(page.as_uri(), width=1400)
                self.js("longnetReport.ready")
                said = self.js("[...document.querySelectorAll('.said p:not(.detail)')].map(p => p.innerText)")
                self.assertTrue(said)
                for sentence in re.split(r"(?<=\.)\s", " ".join(said)):
                    self.assertLessEqual(len(sentence.split()), 30, sentence)
                bottoms = "[...document.querySelectorAll('#answer .chart svg.marks, .strip ul:first-of-type')].map(e => e.getBoundingClientRect().bottom)"
                self.assertLessEqual(max(self.js(bottoms)), 900)  # the figure, and the claims with their words
                for faults in (OVERLAPS, CUT, OUTSIDE):
                    self.assertEqual(self.js(faults.replace("'.card'", "'#answer .card'")), [])

    def test_figures_behind_more_are_drawn_when_scrolled_to(self) -> None:
        self.visit("opponents")
        self.assertGreater(len(self.js("[...document.querySelectorAll('#more .chart')]")), 0)
        drawn = "[...document.querySelectorAll('#more .chart')].filter(c => c.querySelector('svg')).length"
        before = "[...document.querySelectorAll('.chart')].filter(c => !c.closest('#more')).length"
        self.assertLessEqual(self.js(before), 12)
        self.assertEqual(self.js(drawn), 0)
        self.js("(() => { const d = document.getElementById('more'); d.open = true; d.scrollIntoView(); })()")
        wait_for(lambda: self.js(drawn) >= 1, "a figure behind more", 10)
        self.assertLess(self.js(drawn), self.js("document.querySelectorAll('#more .chart').length"))

    def test_it_can_be_used_without_seeing_it(self) -> None:
        for name in ("validated", "validation", "full"):
            self.visit(name)
            self.assertEqual(self.js("document.querySelectorAll('.chart:not([role=img])').length"), 0)
            alt = self.js("[...document.querySelectorAll('[role=img]:not(.chart *)')].map(c => c.getAttribute('aria-label'))")
            self.assertTrue(alt)
            for text in alt:
                self.assertRegex(text, r"\. .*\d")  # a title, and a finding in numbers
        self.assertEqual(self.js("[...document.querySelectorAll('table')].filter(t => !t.caption?.textContent).length"), 0)
        self.assertEqual(self.js("[...document.querySelectorAll('h2')].filter(h => h.id && !h.querySelector('a.anchor')).length"), 0)
        targets = "[...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.getElementById(a.getAttribute('href').slice(1)) && !a.closest('.vega-actions')).length"
        self.assertEqual(self.js(targets), 0)
        self.assertEqual(self.js("document.body.querySelector('a').className"), "skip")

    def test_paper_says_what_it_leaves_out(self) -> None:
        tables = """[...document.querySelectorAll('table')].filter(t => t.checkVisibility()).map(t => {
            const rows = [...t.tBodies].flatMap(b => [...b.rows]), note = t.closest('.scroll').nextElementSibling;
            return [t.caption.textContent, rows.length, rows.filter(r => r.checkVisibility()).length,
                    note?.matches('.on-paper') && note.checkVisibility() ? note.textContent : '', t.getBoundingClientRect().right]; })"""
        for words, total in (("", 2940), ("ring fast", 280), ("ring fast 64k", 20)):  # double_ring is one, too
            self.visit("crossover", width=PAPER_PX)
            self.assertEqual(self.js("[...document.querySelectorAll('.on-paper')].filter(p => p.checkVisibility()).length"), 0)
            self.js(f"(() => {{ const f = document.getElementById('filter'); f.value = '{words}'; f.dispatchEvent(new Event('input')); }})()")
            self.browser.call("Emulation.setEmulatedMedia", media="print")
            printed = self.js(tables)
            more = self.js("document.querySelector('#more + .on-paper').checkVisibility()")
            self.browser.call("Emulation.setEmulatedMedia", media="")
            self.assertTrue(more)
            self.assertGreaterEqual(len(printed), 3)
            for name, rows, visible, note, right in printed:
                said = re.match(r"([\d,]+) of ([\d,]+) rows are not printed: ", note)
                hidden, whole = (int(n.replace(",", "")) for n in said.groups()) if said else (0, rows)
                self.assertEqual(visible, whole - hidden, (name, note))
                self.assertEqual(whole, total if name == "simulated points" else rows, name)
                self.assertLessEqual(right, PAPER_PX, name)

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

    def test_columns_come_in_groups(self) -> None:
        self.visit("full")
        heads = "[...document.querySelectorAll('section.points')[0].querySelectorAll('thead th')].filter(h => !h.hidden).map(h => h.textContent)"
        few = self.js(heads)
        self.assertLessEqual(len(few), 12)
        self.js("document.querySelector('.groups input').click()")
        self.assertEqual(self.js(heads)[: len(few)], few)
        self.assertGreater(len(self.js(heads)), len(few))
        self.assertEqual(self.js("getComputedStyle(document.querySelector('.sortable tbody th')).position"), "sticky")

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
        texts = self.js("longnetReport.tables.map(t => t.csv())")
        rows = [row for text in texts for row in csv.DictReader(io.StringIO(text))]
        self.assertEqual(len(rows), len(self.records))
        medians = {r["id"]: r["timing"]["median_s"] for r in self.records if r["status"] == "ok"}
        self.assertEqual({r["id"]: float(r["median_s"]) for r in rows if r["status"] == "ok"}, medians)
        formulas = [r["reason"] for r in rows if "1+1" in r.get("reason", "")]
        self.assertEqual(formulas, ["'=1+1, \"quoted\""])  # a spreadsheet would run it
        self.assertEqual(sum(1 for r in rows if r["status"] == "ok"), sum(r["status"] == "ok" for r in self.records))

    def faint(self) -> int:
        return self.js(
            "[...document.querySelectorAll('[data-figure=latency] .measured_marks path')].filter(p => Number(p.getAttribute('opacity')) < 0.2).length"
        )

    def test_legend_singles_out_a_series(self) -> None:
        self.visit_all("full")
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

    def test_dark(self) -> None:
        colours = []
        for dark in (False, True):
            self.visit("full", dark=dark)
            colours.append(
                self.js(
                    "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.card')).backgroundColor]"
                )
            )
        self.assertNotEqual(colours[0][0], colours[1][0])
        self.assertNotEqual(colours[0][1], colours[1][1])

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

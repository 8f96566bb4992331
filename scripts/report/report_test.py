#!/usr/bin/env python3
"""Tests of the report on SYNTHETIC results: tables, escaping, interrupted runs, the whole page."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import jsonschema

from report import make_report, page
from report.charts import build_figures
from report.claims import judge
from report.design_test import Design  # noqa: F401  (runs it too)
from report.figures_test import Figures  # noqa: F401  (runs it too)
from report.markup import escape, script_json
from report.model import Point
from report.models_test import Models  # noqa: F401  (runs it too)
from report.opponents_test import Opponents, figure, rows_of  # noqa: F401  (runs them too)
from report.page import render_page
from report.pictures_test import Pictures  # noqa: F401  (runs it too)
from report.reading import load_run
from report.series import sources_of
from report.shape import ResultError
from report.synthetic_fixture import (
    HOSTILE,
    OPPONENTS,
    K,
    M,
    context,
    full_sweep,
    opponent,
    opponents_sweep,
    point,
    result,
    write_interrupted,
    write_result,
)
from report.tables import columns_of, table_data
from report.training_fixture import sealed
from report.training_test import TrainingReport  # noqa: F401  (runs it too)
from report.validation_test import ValidationReport, unpacked  # noqa: F401  (runs it too)


def exact_rows(points: list[Point]) -> list[dict[str, Any]]:
    columns = json.loads(table_data(points, columns_of(points, False)))
    return [{c["key"]: c["exact"][place] for c in columns} for place in range(len(points))]


class Results(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def page(self, directory: Path) -> str:
        ctx = make_report.make_context([directory])
        return render_page(ctx, build_figures(ctx), judge(ctx))

    def test_interrupted_run(self) -> None:
        directory = write_interrupted(self.folder / "run", full_sweep()[:10])
        run = load_run(directory, 0)
        self.assertEqual((run.interrupted, len(run.points), run.verdict), (True, 9, "interrupted"))
        page = self.page(directory)
        self.assertIn("The run was interrupted", page)
        self.assertIn("is torn and was left out", page)

    def test_edited_line_of_an_interrupted_run(self) -> None:
        directory = write_interrupted(self.folder / "run", full_sweep()[:3], torn=False)
        lines = directory / "points.jsonl"
        whole = [sealed(json.loads(line)) for line in lines.read_text().splitlines()]
        lines.write_text("\n".join(whole))
        self.assertEqual(len(load_run(directory, 0).points), 3)
        unsealed = {k: v for k, v in json.loads(whole[1]).items() if k != "sha256"}
        for edited in (whole[1].replace('"ok"', '"oom"', 1), json.dumps(json.loads(whole[1])), json.dumps(unsealed)):
            self.assertNotEqual(edited, whole[1])
            lines.write_text("\n".join([whole[0], edited, whole[2]]))
            with self.assertRaisesRegex(ResultError, "points.jsonl:2: the line was changed"):
                load_run(directory, 0)

    def test_bytes_that_are_no_text_are_refused_with_the_file(self) -> None:
        directory = write_result(self.folder / "run", full_sweep()[:3])
        file = directory / "result.json"
        file.write_bytes(file.read_bytes().replace(b'"algorithm"', b'"algorithm\xff"', 1))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(make_report.main([str(directory)]), 2)
        self.assertIn(f"{file}: not valid JSON", said.getvalue())

    def test_a_line_ends_where_json_lines_do(self) -> None:
        directory = write_interrupted(self.folder / "run", full_sweep()[:3], torn=False)
        lines = directory / "points.jsonl"
        record = json.loads(lines.read_text().split("\n")[0]) | {"reason": "a\u2028b\x85c"}
        lines.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
        (found,) = load_run(directory, 0).points
        self.assertEqual(found.text("reason"), record["reason"])

    def test_missing_and_odd_fields(self) -> None:
        odd = [
            {},
            {"id": "a", "status": "ok"},
            {"id": "b", "status": "of a later version", "params": {"new": [1]}, "timing": {"median_s": None}, "later": {"x": 1}},
            {"id": "c", "status": "ok", "source": "measured", "params": {"algorithm": "dilated", "ranks": None}, "timing": {"samples_s": [None, 1]}},
        ]
        directory = write_result(self.folder / "run", odd)
        self.assertIn("untested", self.page(directory))
        (directory / "result.json").write_text(
            '{"points": [{"id": "n", "timing": {"median_s": NaN, "ci_low_s": Infinity}}]}'
        )
        self.assertIsNone(load_run(directory, 0).points[0].median_s)
        self.page(directory)

    def test_wrong_types_are_named_with_their_place(self) -> None:
        def said(*options: str) -> str:
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                self.assertEqual(make_report.main([*map(str, options)]), 2, options)
            return errors.getvalue()

        run = self.folder / "run"
        for changes, place in (
            ({"points": {}}, "result.json: points must be array"),
            ({"points": None}, "result.json: points must be array"),
            ({"points": [{}, {"params": {"seq_len": "8K"}}]}, "points[1].params.seq_len must be integer"),
            ({"points": [{"params": {"ranks": 0}}]}, "points[0].params.ranks must be bigger"),
            ({"points": [{"timing": {"samples_s": [1, True]}}]}, "points[0].timing.samples_s[1] must be null or number\n  hint: "),
            ({"run": 3}, "result.json: run must be object"),
            ({"points": [{"source": 1}]}, "points[0].source must be null or string"),
        ):
            record = result([]) | changes
            write_result(run, [])
            (run / "result.json").write_text(json.dumps(record))
            self.assertIn(place, said(run))
        (run / "result.json").write_text("{}")
        self.assertIn("result.json: it must contain ['points']", said(run))
        (run / "result.json").write_text("9" * 5000)
        self.assertIn("result.json: it must be object", said(run))
        write_result(run, [{"id": "a"}])
        (run / "timelines.jsonl").write_text('{"id": "a", "timeline": {"rank": 1}}')
        self.assertIn("timelines.jsonl:1: timeline must be", said(run))
        cut = write_interrupted(self.folder / "cut", [{"id": "a"}, {"timing": []}], torn=False)
        self.assertIn("points.jsonl:2: timing must be object", said(cut))
        (cut / "points.jsonl").write_text("garbage")
        (cut / "run.json").write_text("garbage")
        self.assertIn("nothing can be read", said(cut))
        (cut / "run.json").write_text('{"run": [1]}')
        self.assertIn("run.json: run must be object", said(cut))
        write_result(run, full_sweep()[:2])
        for option, text, place in (
            ("--validation", '{"closed_form": 1}', "must contain"),
            ("--comparison", '{"threshold": 1, "summary": "", "environment": [], "points": [{"id": "a", "verdict": 3}]}', "points[0].verdict must be string"),
        ):
            (self.folder / "other.json").write_text(text)
            self.assertIn(place, said(run, option, self.folder / "other.json"))

    def test_hostile_strings_stay_text(self) -> None:
        records = full_sweep()
        for record in records:
            record["reason"] = record["id"] = HOSTILE + record["id"]
            record["params"]["kernel"] = HOSTILE
        records[3]["params"]["kernel"] = "</script><!--"
        records[3]["check"]["status"] = HOSTILE
        records[4]["source"] = HOSTILE
        page = self.page(write_result(self.folder / "run", records, name=HOSTILE, verdict=HOSTILE))
        for forbidden in ("<script>alert", "<img src=x", "</script><!--"):
            self.assertNotIn(forbidden, page)
        self.assertEqual(page.count("<script"), page.count("</script>"))
        self.assertNotIn("<", script_json({"a": "</script>"}))

    def test_a_simulated_run_shows_its_cluster(self) -> None:
        plain = write_result(self.folder / "run", full_sweep())
        self.assertNotIn('id="clusters"', self.page(plain))
        result = json.loads((plain / "result.json").read_text())
        result["run"]["cluster"] = {
            "name": "two nodes",
            "nodes": {"value": 2, "source": "chosen" + HOSTILE},
            "device": {"attend": [{"rows": 64, "flops_per_s": 1e12, "source": "measured"}]},
        }
        (plain / "result.json").write_text(json.dumps(result))
        page = self.page(plain)
        self.assertIn('<a href="#clusters">', page)
        self.assertIn('<th scope="row">nodes</th><td>2</td><td class="long">chosen', page)
        self.assertIn('<th scope="row">device attend 1</th><td>rows 64, flops per s 1e12</td>', page)
        self.assertNotIn("<script>alert", page)

    def test_a_disturbed_run_says_so_at_the_top(self) -> None:
        records = full_sweep()[:4]
        self.assertNotIn("Something disturbed", self.page(write_result(self.folder / "quiet", records)))
        directory = write_result(self.folder / "loud", records)
        result = json.loads((directory / "result.json").read_text())
        result["environment"]["busy_share"] = 0.4
        result["summary"]["disturbed"] = {records[1]["id"]: "samples are 1.9 times apart"}
        (directory / "result.json").write_text(json.dumps(result))
        page = self.page(directory)
        self.assertIn("The machine was busy when this run began: other programs used 40", page)
        self.assertIn(f"Something disturbed 1 point ({records[1]['id']}: samples are 1.9 times apart)", page)

    def test_an_older_result_says_what_it_does_not_know(self) -> None:
        """Its fits leave their batches out, and it never looked for disturbed points."""
        directory = write_result(self.folder / "older", full_sweep()[:4])
        result = json.loads((directory / "result.json").read_text())
        fit = result["summary"]["fits"][0]
        batches = {"fixed": {"size": 1}, "constant_tokens": {"tokens_per_batch": 16 * M}}
        for rule, of in batches.items():
            for suffix in ("", " batch=2", " tokens_per_batch=16M"):
                result["run"]["config"]["sweep"] = {"batch": {"rule": rule} | of}
                result["summary"] = {"verdict": "pass", "fits": [fit | {"series": f"ring{suffix}"}]}
                (directory / "result.json").write_text(json.dumps(result))
                page = self.page(directory)
                added = " (by its config, batches of 16M tokens)" if rule == "constant_tokens" and not suffix else ""
                self.assertIn(f"<td>ring{suffix}{added}</td>", page)
                self.assertIn("is not known (the run was recorded before lnbench looked", page)

    def test_recorded_exponents_stand_with_their_intervals(self) -> None:
        directory = write_result(self.folder / "fits", full_sweep()[:4])
        result = json.loads((directory / "result.json").read_text())
        fit = result["summary"]["fits"][0]
        result["summary"]["fits"] = [fit, fit | {"exponent_low": 1.98, "exponent_high": 2.01}, fit | {"exponent_low": None, "exponent_high": None}]
        (directory / "result.json").write_text(json.dumps(result))
        recorded = self.page(directory).partition("Fits recorded by ")[2]
        self.assertEqual(re.findall(r"<td[^>]*>(2(?: \[[^<]*)?)</td>", recorded.partition("</table>")[0]), ["2", "2 [1.98, 2.01]", "2"])
        self.assertNotIn("exponent_low", recorded)

    def test_only_regular_files_are_read_and_replaced(self) -> None:
        directory = write_result(self.folder / "run", full_sweep()[:12])
        pipe, deep = self.folder / "pipe", self.folder / "deep.json"
        os.mkfifo(pipe)
        deep.write_text("[" * 100_000)
        for options in (["-o", str(pipe)], ["--validation", str(pipe)], ["--validation", str(deep)], ["--comparison", str(pipe)]):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(make_report.main([str(directory), *options]), 2, options)
            self.assertIn(options[1], said.getvalue())
        self.assertTrue(pipe.is_fifo())
        for name in ("result.json", "run.json", "points.jsonl", "timelines.jsonl"):
            other = write_result(self.folder / f"with-{name}", full_sweep()[:12])
            (other / name).unlink(missing_ok=True)
            os.mkfifo(other / name)
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(make_report.main([str(other)]), 2, name)
            self.assertIn(f"{name}: it is no regular file", said.getvalue())

    def test_the_table_has_all_rows_and_exact_numbers(self) -> None:
        ctx = context(full_sweep())
        measured = [p for p in ctx.points if p.source == "measured"]
        table = exact_rows(measured)
        self.assertEqual(len(table), len(measured))
        self.assertEqual([r["median_s"] for r in table if r["median_s"]], [p.median_s for p in measured if p.median_s])
        page = self.page(write_result(self.folder / "run", full_sweep()))
        data = [json.loads(unpacked(page, f"points-{source}")) for source in sources_of(ctx.points)]
        self.assertEqual(sum(len(columns[0]["shown"]) for columns in data), len(ctx.points))

    def test_several_runs_stay_apart(self) -> None:
        directories = [
            write_result(self.folder / name, [point("dilated", n * K, 1, time_s=t) for n in (8, 16)], name=name)
            for name, t in (("a", 1.0), ("b", 2.0))
        ]
        ctx = make_report.make_context(directories)
        self.assertEqual(len({ctx.index.label(p) for p in ctx.points}), 2)
        output = self.folder / "both.html"
        self.assertEqual(
            make_report.main([*map(str, directories), "-o", str(output), "--plots-dir", str(self.folder / "pictures")]),
            0,
        )
        self.assertIn("Run 2 (b)", output.read_text())
        self.assertTrue((self.folder / "pictures" / "latency.svg").is_file())

    def test_a_report_of_published_results_adds_no_file_to_git(self) -> None:
        git = ["git", "-C", str(ROOT)]
        if not (ROOT / ".git").exists() or not shutil.which("git") or subprocess.run([*git, "rev-parse"], capture_output=True).returncode:
            self.skipTest("no checkout that git may read")
        run, other = (ROOT / "results" / name for name in ("reference/complexity", "h200/model-step"))
        for arguments in ([run], [other], [run, other], ["--validation", run.with_name("validation-xeon.json")]):
            output = make_report.default_output(make_report.parse_arguments(list(map(str, arguments))))
            written = [str(output), str(output.parent / "plots" / "latency.svg")]
            ignored = subprocess.run([*git, "check-ignore", "--no-index", *written], capture_output=True, text=True)
            self.assertEqual(ignored.stdout.split(), written)
        tracked = subprocess.run([*git, "ls-files", "--cached", "--ignored", "--exclude-standard"], capture_output=True, text=True)
        self.assertEqual(tracked.stdout, "")

    def test_fixture_follows_the_schema(self) -> None:
        schema = ROOT / "configs" / "schema" / "result.schema.json"
        if not schema.is_file():
            self.skipTest(f"{schema} is missing")
        for records in (full_sweep(), opponents_sweep()):
            jsonschema.validate(result(records), json.loads(schema.read_text()))

    def test_claims_link_to_their_figures(self) -> None:
        page = self.page(write_result(self.folder / "run", opponents_sweep()))
        row = page.split('data-claim="No distributed algorithm')[1].split("</tr>")[0]
        for anchor in ("#figure-latency", "#figure-error_ranks", "#figure-communication_ranks"):
            self.assertIn(f'href="{anchor}"', row)
            self.assertIn(f'id="{anchor[1:]}"', page)

    def test_claims_are_short_and_explained(self) -> None:
        """Words that the paper does not use stand on the page, and what a cell leaves out behind "more"."""
        claims = self.page(write_result(self.folder / "run", opponents_sweep())).split('<section id="claims">')[1].split("</section>")[0]
        for word, text in page.GLOSSARY:
            self.assertIn(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>", claims)
        row = claims.split('data-claim="No distributed algorithm')[1].split("</tr>")[0]
        self.assertIn("arXiv 2105.13120", row)
        self.assertNotIn("arXiv 2105.13120", re.sub(r"<details>.*?</details>", "", row))

    def test_table_names_balance_degrees_and_summary_tokens(self) -> None:
        records = [opponent(64 * K, 2, **p) for p in OPPONENTS]
        ctx = context(records)
        table = exact_rows(ctx.points)
        by_name = {(r["algorithm"], r["layout"]): r for r in table}
        self.assertEqual(by_name["usp", "zigzag"]["ulysses_degree"], 2)
        self.assertIsNone(by_name["ring", "zigzag"]["ulysses_degree"])
        self.assertEqual(by_name["ring", "zigzag"]["balance"], 0.999)
        self.assertEqual(by_name["sparse", "contiguous"]["branches_w_r"], "256/1 256/1+8")
        ring = next(r for r in records if r["params"]["algorithm"] == "ring")
        compute = by_name["ring", "contiguous"]["ablation_compute_only_s"]
        self.assertEqual(compute, ring["ablations"]["compute_only_s"])

    def test_a_missing_browser_is_a_failure_where_it_is_required(self) -> None:
        script = ROOT / "scripts" / "report" / "browser_test.py"
        clean = {k: v for k, v in os.environ.items() if k != "LONGNET_REQUIRE_BROWSER"}
        for required, code, word in (({}, 77, "SKIPPED"), ({"LONGNET_REQUIRE_BROWSER": "1"}, 1, "FAILED")):
            environment = clean | {"CHROMIUM": "/nowhere/chromium"} | required
            done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(f"{word}: no Chromium found", done.stderr)

    def test_report_names_its_run(self) -> None:
        page = self.page(write_result(self.folder / "run", full_sweep()))
        for text in (
            "0000000synthetic",
            "2026-01-02T03:04:05Z",
            "synthetic-host",
            "lnbench run configs/synthetic.json",
            "ab" * 32,
            "limit_fraction",
            "exponent",
        ):
            self.assertIn(text, page)
        self.assertNotIn("http://", page.split("<script>")[0])


if __name__ == "__main__":
    unittest.main()

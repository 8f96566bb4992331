#!/usr/bin/env python3
"""Tests of validate_real.py on SYNTHETIC numbers: which points belong together, errors, page, schema, report section."""
import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import validate_json
import validate_real
from report.rows import Context
from report.rows_published import published
from report.shape import ResultError
from report.strata import domain_text, stratum_rows
from report.validation import load_validation, validation_section


def point(algorithm, seconds, status="ok", **params):
    values = {"layout": "contiguous", "algorithm": algorithm, "seq_len": 1024, "ranks": 2, "heads": 4, "head_dim": 64,
              "dtype": "fp32", "causal": False, "branches": []}
    return {"status": status, "reason": None if status == "ok" else "too large", "params": values | params,
            "timing": {"samples_s": 10 * [seconds], "median_s": seconds, "ci_low_s": seconds, "ci_high_s": seconds}}


class Folders(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)

    def write(self, name, points):
        (self.path / name).mkdir()
        disturbed = {p["id"]: "others ran" for p in points if p.get("id") == "disturbed"}
        (self.path / name / "result.json").write_text(json.dumps({
            "points": points, "summary": {"disturbed": disturbed}, "run": {"started_utc": "2026-01-02T03:04:05Z"}, "build": {"revision": "abc"},
            "environment": {"cpu": {"model": "cpu", "usable_threads": 2}, "mpi_version": "mpi", "load_average": [0.1, 0.1, 0.1]}}))
        return self.path / name

    def compare(self, measured, simulated, *options):
        """The exit code and real.json."""
        out = self.path / "real.json"
        case = f"here={self.write('m', measured)}:{self.write('s', simulated)}"
        with contextlib.redirect_stdout(io.StringIO()) as said:
            args = sys.argv
            sys.argv = ["validate_real.py", "compare", case, *options, "-o", str(out)]
            try:
                code = validate_real.main()
            finally:
                sys.argv = args
        self.said = said.getvalue()
        return code, json.loads(out.read_text())

    def validation(self, real):
        path = self.path / "validation.json"
        path.write_text(json.dumps({
            "schema_version": 1, "closed_form": {"max_rel_error": 1e-12, "cases": []},
            "simgrid": {"uncontended_max_rel_error": None, "contended_max_rel_error": None, "reason": "not built"}, "real": real}))
        return path


class Compare(Folders):
    def test_points_meet_their_own_prediction(self):
        simulated = [point("ring", 2.2, mode="simulated"), point("ring", 9, seq_len=2048), point("ulysses", 0.98)]
        code, real = self.compare([point("ulysses", 1.0, transport="mpi"), point("ring", 2.0, transport="mpi")], simulated)
        errors = {c["algorithm"]: c["error"] for c in real["cases"]}
        self.assertAlmostEqual(errors["ring"], 0.1)
        self.assertAlmostEqual(errors["ulysses"], -0.02)
        self.assertAlmostEqual(real["median_rel_error"], 0.06)
        self.assertEqual(code, 1)  # above the goal

    def test_within_the_goals(self):
        code, real = self.compare([point("ring", 1.0)], [point("ring", 1.04)])
        self.assertEqual((code, real["points"]), (0, 1))

    def test_goals_of_their_own(self):
        code, real = self.compare([point("ring", 1.0)], [point("ring", 1.07)], "--goals", "0.08", "0.2")
        self.assertEqual((code, real["goal_median_rel_error"], real["goal_p95_rel_error"]), (0, 0.08, 0.2))
        path = self.validation(real)
        self.assertIn("Goal for real runs: 8 % in the median, 20 % at", validate_real.page(json.loads(path.read_text())))
        section = validation_section(load_validation(path))
        self.assertIn("median error, goal 8 %", section)
        self.assertIn("goals met", section)

    def test_what_has_no_prediction_is_named(self):
        _, real = self.compare([point("ring", 1.0), point("usp", 1.0), point("local", 0, status="skipped_memory")],
                               [point("ring", 1.0), point("usp", 0, status="skipped_memory")])
        self.assertEqual([c["algorithm"] for c in real["left_out"]], ["usp", "local"])
        self.assertIn("too large", real["left_out"][1]["reason"])

    def test_a_disturbed_point_is_left_out(self):
        _, real = self.compare([point("ring", 1.0), point("usp", 3.0) | {"id": "disturbed"}], [point("ring", 1.0), point("usp", 1.0)])
        self.assertEqual([(c["algorithm"], c["reason"]) for c in real["left_out"]], [("usp", "disturbed: others ran")])
        self.assertEqual(real["max_rel_error"], 0)

    def test_nothing_in_common_is_an_error(self):
        with self.assertRaises(SystemExit):
            self.compare([point("ring", 1.0)], [point("ring", 1.0, causal=True)])

    def test_the_error_of_a_cluster_holds_four_points_of_five_either_way(self):
        seconds = (1.0, 1.1, 1 / 1.2, 1.02, 1.5)
        points = [{"predicted_s": s, "measured_s": 1.0} for s in seconds]
        self.assertEqual(validate_real.error_of(points), 0.2)
        self.assertEqual(validate_real.held_text(points, 0.2), "4 of 5 points (80 %)")
        self.assertEqual(validate_real.held_text(points, 0.19), "3 of 5 points (60 %)")
        lengths = range(1024, 6 * 1024, 1024)
        self.compare([point("ring", 1.0, seq_len=n) for n in lengths], [point("ring", s, seq_len=n) for n, s in zip(lengths, seconds, strict=True)])
        self.assertIn('# "error" 0.2 in the cluster file: intervals hold 4 of 5 points (80 %)\n', self.said)

    def test_percentile_is_the_nearest_rank(self):
        self.assertEqual(validate_real.percentile(range(1, 101), 0.95), 95)
        self.assertEqual(validate_real.percentile([3, 1, 2], 0.95), 3)
        self.assertEqual(validate_real.percentile([1], 0.95), 1)


class Shown(Folders):
    def test_page_schema_and_report(self):
        _, real = self.compare([point("ring", 1.0), point("<b>", 2e-3)], [point("ring", 1.5), point("<b>", 2e-3)])
        path = self.validation(real)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(validate_json.main([str(path)]), 0)
        page = validate_real.page(json.loads(path.read_text()))
        self.assertIn("| here | ring | 2 | 1024 |", page)
        self.assertIn("+50.0 %", page)
        section = validation_section(load_validation(path))
        self.assertIn("goals missed", section)
        self.assertIn("+50.0 %", section)
        self.assertNotIn("<b>", section)
        self.assertEqual(section.count("<circle"), 3)  # the key and two points

    def test_how_many_samples_each_point_has_is_said(self):
        few = point("usp", 1.0)
        few["timing"]["samples_s"] = 5 * [1.0]
        _, real = self.compare([point("ring", 1.0), few], [point("ring", 1.0), point("usp", 1.0)])
        self.assertEqual([c["samples"] for c in real["cases"]], [10, 5])
        path = self.validation(real)
        for text in (validate_real.page(json.loads(path.read_text())), validation_section(load_validation(path))):
            self.assertIn("5 to 10 samples a point.", text)

    def test_strata_keep_the_sign(self):
        _, real = self.compare([point("ring", 1.0, head_dim=d, seq_len=n) for d in (48, 64) for n in (1024, 2048, 4096)],
                               [point("ring", 1.1 if d == 48 else 0.9 + n / 20480, head_dim=d, seq_len=n)
                                for d in (48, 64) for n in (1024, 2048, 4096)])
        for case, where in zip(real["cases"], ["one host"] * 3 + ["two hosts, 400 Mbit/s"] * 3):
            case["where"] = where
        rows = {row[:2]: row[2:] for row in stratum_rows(real["cases"])}
        self.assertEqual(rows["head_dim", "48"], ("3", "+10.0 %", "10 %", "10 %", "10 %"))
        self.assertEqual(rows["head_dim", "64"], ("3", "+0.0 %", "5 %", "10 %", "10 %"))
        self.assertEqual(rows["hosts", "two hosts"][:2], ("3", "+0.0 %"))
        self.assertEqual([k for k in rows if k[0] == "rate of the link"], [("rate of the link", "400 Mbit/s")])
        self.assertLessEqual({"hosts", "rate of the link", "head_dim", "algorithm", "dtype"}, {name for name, _ in rows})
        domain = domain_text(real["cases"])
        for words in ("one host, two hosts (400 Mbit/s)", "1,024 to 4,096 tokens", "head_dim 48, 64", "ranks 2;", "fp32; ring."):
            self.assertIn(words, domain)
        path = self.validation(real)
        for text in (validate_real.page(json.loads(path.read_text())), validation_section(load_validation(path))):
            self.assertIn(domain, text)
            self.assertIn("+10.0 %", text)
            self.assertIn("rate of the link", text)

    def test_passes_are_told_apart(self):
        measured, predicted = ([point("ring", s), point("ring", 3 * s, **{"pass": "backward"})] for s in (1.0, 1.1))
        _, real = self.compare(measured, [*predicted[:1], point("ring", 3.0, **{"pass": "backward"})])
        rows = {row[:2]: row[3] for row in stratum_rows(real["cases"])}
        self.assertEqual((rows["pass", "forward"], rows["pass", "backward"]), ("+10.0 %", "+0.0 %"))
        path = self.validation(real)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(validate_json.main([str(path)]), 0)
        self.assertIn("| here | ring backward | 2 |", validate_real.page(json.loads(path.read_text())))
        self.assertIn("ring backward", validation_section(load_validation(path)))

    def test_steps_of_models_say_what_they_compute_again(self):
        step = {"pass": "step", "scope": "model"}
        points = [point("ring", 1.0, **step), point("ring", 1.2, **step, recompute="full")]
        _, real = self.compare(points, points)
        path = self.validation(real)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(validate_json.main([str(path)]), 0)
        page = validate_real.page(json.loads(path.read_text()))
        self.assertIn("| here | ring step | 2 |", page)
        self.assertIn("| here | ring step, recompute full | 2 |", page)

    def test_without_real_runs(self):
        path = self.validation({"points": None, "median_rel_error": None, "p95_rel_error": None, "reason": "nobody ran"})
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(validate_json.main([str(path)]), 0)
        self.assertIn("nobody ran", validate_real.page(json.loads(path.read_text())))
        self.assertIn("nobody ran", validation_section(load_validation(path)))

    def test_published_measurements_are_drawn_over_their_predictions(self):
        case = {"id": "a", "source": "s", "family": "ring", "size": "4K tokens a rank", "ranks": 8, "published_s": 2e-3, "predicted_s": 1e-3,
                "low_s": 1e-3, "high_s": 1.1e-3, "error": -0.5, "inside": False, "tolerance": 0.01, "held_out": True, "blind": False,
                "beyond_kernel_table": True, "reason": None}
        group = {"name": "attention", "cases": 1, "median_rel_error": 0.5, "p95_rel_error": 0.5, "bias": -0.5, "inside": 0}
        path = self.validation({"points": None, "median_rel_error": None, "p95_rel_error": None, "reason": "nobody ran"})
        found = json.loads(path.read_text())
        message = {"id": "m", "size": "below 16 MB", "high_s": 3e-3, "inside": True, "blind": True, "beyond_kernel_table": False}
        step = {"id": "t", "family": "steps, local"}
        none = dict.fromkeys(("predicted_s", "low_s", "high_s", "error", "inside"))
        found["published"] = {"cases": [case, case | none | {"reason": "no"}, case | message, case | step],
                              "groups": [group], "pairs": 3, "pairs_in_order": 2}
        path.write_text(json.dumps(found))
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(validate_json.main([str(path)]), 0)
        attention, steps, messages = published(Context([], [], None, load_validation(path)))
        [row] = attention.rows
        self.assertEqual([row[k] for k in ("label", "origin", "value", "low", "high", "error_text", "found", "marks")],
                         ["a", "s", 0.5, 0.5, 0.55, "-50.0 %", "development", "beyond the kernel table, outside its interval"])
        self.assertEqual([(r["label"], r["found"], r["marks"]) for r in messages.rows], [("m", "blind", "blind")])
        self.assertEqual((steps.rows[0]["label"], steps.suffix), ("t", "training_steps"))
        self.assertIn("2 of 3 pairs", attention.finding)
        self.assertIn("Inside their interval lie 0 of 1 development cases (0 %).", attention.finding)
        self.assertNotIn("pairs", messages.finding)
        self.assertIn("Inside their interval lie 1 of 1 blind cases (100 %).", messages.finding)
        section = validation_section(load_validation(path))
        self.assertIn("Inside their interval lie 0 of 2 development cases (0 %), 1 of 1 blind cases (100 %).", section)
        self.assertIn("<td>-50.0 %</td><td>beyond the kernel table, outside its interval</td>", section)
        self.assertIn("<td></td><td>no</td>", section)
        self.assertEqual(published(Context([], [], None)), [])

    def test_a_broken_validation_is_refused(self):
        path = self.validation({"median_rel_error": 0.1})
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(validate_json.main([str(path)]), 1)
        with self.assertRaises(ResultError):
            load_validation(path)


if __name__ == "__main__":
    unittest.main()

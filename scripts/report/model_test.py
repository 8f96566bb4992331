#!/usr/bin/env python3
"""Tests of the loader on SYNTHETIC results: layouts of a result directory, mode and pattern of older records."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import make_report
from report.model import Run, run_names
from report.reading import load_run, with_mode_and_pattern
from report.shape import ResultError
from report.synthetic_fixture import K, full_sweep, point, result, write_interrupted, write_result


class Layouts(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_timelines_stand_beside_the_result_or_in_it(self) -> None:
        records = full_sweep()
        timelines = {r["id"]: r["timeline"] for r in records if "timeline" in r}
        self.assertGreaterEqual(len(timelines), 2)
        beside, inside = write_result(self.folder / "beside", records), self.folder / "inside"
        self.assertNotIn("timeline", (beside / "result.json").read_text())
        inside.mkdir()
        (inside / "result.json").write_text(json.dumps(result(records)))
        for directory in (beside, inside, write_interrupted(self.folder / "run", records, torn=False)):
            found = {p.text("id"): p.get("timeline") for p in load_run(directory, 0).points if p.get("timeline")}
            self.assertEqual(found, timelines, directory.name)

    def test_a_result_needs_no_timelines(self) -> None:
        directory = write_result(self.folder, full_sweep())
        (directory / "timelines.jsonl").unlink()
        self.assertFalse(any(p.get("timeline") for p in load_run(directory, 0).points))
        (directory / "timelines.jsonl").write_text('{"id": "0badcafe", "timeline": []}\n{"id": torn')
        self.assertIn("Line 2 of timelines.jsonl is torn", load_run(directory, 0).notes[0])

    def test_repeated_point_of_a_resumed_run(self) -> None:
        first, second = point("dilated", 8 * K, 1, time_s=1.0), point("dilated", 8 * K, 1, time_s=2.0)
        run = load_run(write_interrupted(self.folder / "run", [first, second], torn=False), 0)
        self.assertEqual(len(run.points), 1)
        self.assertGreater(run.points[0].median_s, 1.5)

    def test_unreadable_results_are_named(self) -> None:
        with self.assertRaisesRegex(ResultError, "no result.json"):
            load_run(self.folder, 0)
        (self.folder / "result.json").write_text("{")
        with self.assertRaisesRegex(ResultError, "not valid JSON(.|\n)*nothing else"):
            load_run(self.folder, 0)
        (self.folder / "points.jsonl").touch()
        with self.assertRaisesRegex(ResultError, "move it away, and points.jsonl"):
            load_run(self.folder, 0)
        self.assertEqual(make_report.main([str(self.folder)]), 2)

    def test_damaged_results_are_errors_and_no_tracebacks(self) -> None:
        good = json.dumps(result(full_sweep()))
        damaged = {
            "deep": "[" * 100_000 + "]" * 100_000,
            "latin": good.encode().replace(b"synthetic", b"synth\xe9tic", 1),
            "types": good.replace('"run": {', '"run": [], "old": {', 1),
            "points": good.replace('"timing": {', '"timing": 3, "old": {'),
        }
        for name, text in damaged.items():
            folder = self.folder / name
            folder.mkdir()
            (folder / "result.json").write_bytes(text if isinstance(text, bytes) else text.encode())
            self.assertEqual(make_report.main([str(folder)]), 2, name)
        (self.folder / "deep" / "result.json").rename(self.folder / "deep" / "run.json")
        self.assertEqual(make_report.main([str(self.folder / "deep")]), 2)


class ModeAndPattern(unittest.TestCase):
    def params(self, **given: object) -> dict[str, object]:
        return with_mode_and_pattern({"params": {"algorithm": "any", "seq_len": 8 * K} | given})["params"]

    def test_the_mode_is_recorded_or_follows_from_the_transport(self) -> None:
        for transport, mode in (("mpi", "real"), ("virtual", "virtual"), ("simulated", "simulated"), (None, "real")):
            self.assertEqual(self.params(transport=transport)["mode"], mode)
        self.assertEqual(self.params(mode="virtual", transport="threads")["mode"], "virtual")

    def test_only_a_real_run_has_a_transport(self) -> None:
        self.assertEqual(self.params(transport="mpi")["transport"], "mpi")
        self.assertNotIn("transport", self.params(mode="simulated", transport="mpi"))
        self.assertNotIn("transport", self.params(transport="virtual"))

    def test_the_pattern_is_recorded_or_follows_from_the_branches(self) -> None:
        whole = {"segment_length": 8 * K, "dilation_rate": 1}
        short = {"segment_length": 2 * K, "dilation_rate": 1}
        for branches, pattern in (
            ([whole], "dense"),
            ([short], "dilated"),
            ([short, whole | {"dilation_rate": 4}], "dilated"),
            ([short, short | {"summary_tokens": 8}], "sparse"),
            ([], ""),
        ):
            self.assertEqual(self.params(branches=branches)["pattern"], pattern)
        self.assertEqual(self.params(branches=[whole], pattern="dilated")["pattern"], "dilated")

    def test_records_of_older_results_are_read_so(self) -> None:
        record = point("dilated", 8 * K, 2)
        del record["params"]["pattern"]
        record["params"]["transport"] = "virtual"
        with tempfile.TemporaryDirectory() as folder:
            found = load_run(write_result(Path(folder), [record]), 0).points[0]
        self.assertEqual((found.mode, found.pattern, found.in_turn), ("virtual", "dilated", True))

    def test_runs_have_the_first_name_that_tells_them_apart(self) -> None:
        def runs(*kept: tuple[str, str, str]) -> list[Run]:
            return [Run(Path(folder), {"run": {"name": name}, "environment": {"hostname": host}}, []) for name, folder, host in kept]

        self.assertEqual(run_names(runs(("a", "x", "h"), ("b", "x", "h"))), ["run 1 (a)", "run 2 (b)"])
        self.assertEqual(run_names(runs(("a", "in/x", "h"), ("a", "in/y", "h"))), ["run 1 (x)", "run 2 (y)"])
        self.assertEqual(run_names(runs(("a", "in/x", "h"), ("a", "of/x", "i"))), ["run 1 (h)", "run 2 (i)"])
        self.assertEqual(run_names(runs(("a", "x", "h"), ("a", "x", "h"))), ["run 1", "run 2"])


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Tests of the report of training runs, on SYNTHETIC folders: report_test.py runs them too."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import make_report
from report.charts import build_figures
from report.opponents_test import rows_of
from report.page import render_training
from report.rows_cost import phase_of
from report.rows_training import PARTS
from report.specs import PHASE_COLOURS
from report.synthetic_fixture import full_sweep, write_result
from report.training import load_training
from report.training_fixture import sealed, training_step, write_training
from report.training_page import difference


class TrainingReport(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def figures(self, *folders: Path) -> dict:
        return {f.name: f for f in build_figures(make_report.make_context(list(folders)))}

    def failure(self, *folders: Path) -> str:
        """make_report's message where it refuses."""
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            self.assertEqual(make_report.main([*map(str, folders), "-o", str(self.root / "r.html")]), 2)
        self.assertNotIn("Traceback", error.getvalue())
        self.assertNotIn("not what it should be", error.getvalue())
        return error.getvalue()

    def test_the_answer_has_the_runs_own_numbers(self) -> None:
        ctx = make_report.make_context([write_training(self.root / "a", 2)])
        page = render_training(ctx, build_figures(ctx))
        held = 1.03 * 8 * 100**-0.25
        self.assertRegex(page, rf"After 100 steps and .* on 2 ranks a model of 2\.73 million parameters with dilated attention .*{held:.3f}")
        self.assertIn("100 of 100 steps", page)
        self.assertIn("verdict: <strong>complete</strong>", page)
        self.assertNotIn('id="claims"', page)
        stopped = load_training(write_training(self.root / "b", 2, steps=30), 0)
        self.assertEqual((stopped.verdict, stopped.extent), ("stopped early", "30 of 100 steps"))
        for held_out, why in ((1 << 19, "held-out text was not evaluated yet"), (0, "nothing was held out")):
            young = make_report.make_context([write_training(self.root / "c", 2, steps=7, held_out=held_out)])
            self.assertIn(f"in its last batch ({why})", render_training(young, build_figures(young)))

    def test_figures_are_those_of_training(self) -> None:
        drawn = self.figures(write_training(self.root / "a", 2))
        self.assertTrue(all(not f.absent and not f.more for f in drawn.values()), drawn.keys())
        self.assertEqual(next(iter(drawn)), "training_loss")
        self.assertEqual(set(drawn), {"training_loss", "training_loss_time", "training_speed", "training_parts", "training_gradient", "training_rate", "training_memory", "timeline-1"})
        rows = rows_of(drawn["training_loss"])
        self.assertEqual(sum("held_out" in r for r in rows), 5)
        self.assertEqual(sum("value" in r for r in rows), 100)
        for f in drawn.values():
            self.assertRegex(f.finding, r"\d")
            self.assertIn("measured", f.source_text)
        self.assertIn("100 steps", drawn["training_speed"].source_text)
        sweep = build_figures(make_report.make_context([write_result(self.root / "sweep", full_sweep())]))
        self.assertFalse([f.name for f in sweep if f.name.startswith("training")])

    def test_the_parts_of_a_step_add_up_to_it(self) -> None:
        folder = write_training(self.root / "a", 1)
        rows = rows_of(self.figures(folder)["training_parts"])
        run = load_training(folder, 0)
        bars = {r["begin"]: 0.0 for r in rows}
        for r in rows:
            bars[r["begin"]] += r["high"] - r["low"]
        for window in run.windows(60):
            self.assertAlmostEqual(bars[window.steps[0].number - 1], window.seconds)
        self.assertEqual({r["phase"] for r in rows}, {*PARTS.values(), "other"})
        self.assertTrue({r["phase"] for r in rows} <= set(PHASE_COLOURS))

    def test_long_runs_are_drawn_as_means(self) -> None:
        folder = write_training(self.root / "long", 1, steps=1200, planned=1200)
        rows = [r for r in rows_of(self.figures(folder)["training_gradient"]) if "value" in r]
        self.assertEqual(len(rows), 400)
        self.assertAlmostEqual(rows[1]["value"], sum(0.5 + 4 / n for n in (4, 5, 6)) / 3)
        self.assertEqual(rows[1]["steps"], "steps 4 to 6")

    def test_ops_of_a_model_have_the_colours_of_its_parts(self) -> None:
        self.assertEqual([phase_of(op, True) for op in ("attend", "gemm", "layer_norm", "cross_entropy")], ["attention", "GEMM", "row-wise", "cross-entropy"])
        self.assertEqual([phase_of(op, False) for op in ("attend", "all_gather", "merge", "wait")], ["compute", "messages", "merge", "waiting"])

    def test_two_runs_are_overlaid_and_their_difference_is_said(self) -> None:
        folders = [write_training(self.root / f"p{ranks}", ranks) for ranks in (1, 2)]
        ctx = make_report.make_context(folders)
        drawn = {f.name: f for f in build_figures(ctx)}
        self.assertEqual({r["ranks_label"] for r in rows_of(drawn["training_loss"])}, {"1 rank", "2 ranks"})
        self.assertIn("training_parts-2", drawn)
        (said,) = difference(ctx)
        self.assertIn("100 common steps", said)
        self.assertIn("0 bits per byte", said)
        self.assertIn("1.8 times the tokens per second", said)
        lines = (folders[1] / "train.jsonl").read_text().splitlines()
        other = training_step(50, 2)
        lines[49] = sealed(other | {"bits_per_byte": other["bits_per_byte"] + 0.25})
        (folders[1] / "train.jsonl").write_text("\n".join(lines))
        self.assertRegex(difference(make_report.make_context(folders))[0], r"0\.25 bits per byte</strong> apart \(step 50\)")

    def test_a_damaged_journal_is_said_and_the_rest_is_shown(self) -> None:
        folder = write_training(self.root / "a", 1)
        file = folder / "train.jsonl"
        whole = file.read_text().splitlines()
        edited = whole[9].replace('"seconds": 1', '"seconds": 2')
        file.write_text("\n".join([*whole[:9], edited, whole[10], "{}", sealed({"step": "x"}), whole[4], *whole[11:-1], whole[-1][:-30]]))
        run = load_training(folder, 0)
        self.assertEqual([s.number for s in run.steps], [*range(1, 10), *range(11, 100)])
        self.assertIn("5 lines of train.jsonl torn, damaged or out of order (line 10, 12, 13, …)", run.notes[0])
        self.assertIn("1 step before step 99 missing", run.notes[1])
        self.assertEqual(run.verdict, "damaged")
        file.write_text("\n".join([*whole[:30], whole[30][:-30]]))  # killed while it wrote: no step is lost
        self.assertEqual(load_training(folder, 0).verdict, "stopped early")
        self.assertTrue(self.figures(folder)["training_loss"].spec)

    def test_values_that_are_missing_or_of_other_types_are_left_out(self) -> None:
        folder = write_training(self.root / "a", 1)
        step = training_step(1, 1)
        bare = sealed({k: step[k] for k in ("step", "seconds", "learning_rate")} | {"gradient_norm": None})
        wrong = ({"bits_per_byte": "two"}, {"seconds_by": [1]}, {"held_out_bits": True}, {"step": "2"}, {"seconds": -1})
        lines = [bare, *(sealed(training_step(n, 1) | change) for n, change in enumerate(wrong, 2))]
        (folder / "train.jsonl").write_text("\n".join(lines))
        self.assertIn("5 lines of train.jsonl torn, damaged", load_training(folder, 0).notes[0])
        drawn = self.figures(folder)
        self.assertEqual([name for name, f in drawn.items() if f.absent], ["training_loss", "training_loss_time", "training_parts", "training_gradient"])
        ctx = make_report.make_context([folder])
        self.assertIn("– bits per byte", render_training(ctx, build_figures(ctx)))

    def test_what_cannot_be_shown_is_refused_with_a_reason(self) -> None:
        folder = write_training(self.root / "a", 1)
        good = (folder / "train.jsonl").read_bytes(), (folder / "run.json").read_text()
        for damage in b"", b"\xff\xfe\x00", b"[" * 100_000, good[0][:100]:
            (folder / "train.jsonl").write_bytes(damage)
            self.assertIn("train.jsonl: no step to show", self.failure(folder))
        (folder / "train.jsonl").write_bytes(good[0])
        bad_params = {"run": {"training": {"point": {"seq_len": "1K"}}}}
        for damage, said in (
            ("", "run.training"),
            ("[]", "run.json: it must be object"),
            ('{"run": 7}', "run.json: run must be object"),
            (json.dumps({"run": {"training": {"point": 1}}}), "run.training.point must be object"),
            (json.dumps({"run": {"training": {"point": {}}}}), "run.training.point must contain seq_len"),
            (json.dumps(bad_params), "run.training.point.seq_len must be integer"),
        ):
            (folder / "run.json").write_text(damage)
            self.assertIn(said, self.failure(folder))
        (folder / "run.json").write_text(good[1])
        self.assertIn("runs of one kind", self.failure(folder, write_result(self.root / "sweep", full_sweep()[:3])))


if __name__ == "__main__":
    unittest.main()

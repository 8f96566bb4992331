"""Tests of what a busy machine, other sources and wrong points decide, on SYNTHETIC points: claims_test.py runs them."""

from __future__ import annotations

import unittest
from pathlib import Path

from .claims import COMMUNICATION, judge
from .claims_fixture import busy_machine, claim, line_of, paper_line, slim, slower
from .evidence import NOT_SUPPORTED, NOT_TESTED, SEEN, SUPPORTED
from .model import Point, Run
from .noise import disturbances
from .rows import Context
from .series import SeriesIndex
from .synthetic_fixture import K, complexity_sweep, context, point


class Noise(unittest.TestCase):
    def test_times_of_a_busy_machine_decide_nothing(self) -> None:
        flat, steep = line_of("dilated", 0.0), line_of("dilated", 1.0)
        title = "dilated attention is nearly"
        for environment, quiet in (
            (busy_machine(2.0), True),  # a quarter of 8 usable threads
            (busy_machine(2.1), False),
            (busy_machine(3.9, mpi="Open MPI"), True),  # ranks are bound: of all 16
            (busy_machine(4.1, mpi="Open MPI"), False),
            ({"load_average": [9.0]}, True),  # the number of threads is not known
            ({"load_average": []}, True),
            (busy_machine(9.0) | {"busy_share": 0.05}, True),  # the share just before decides
            (busy_machine(0.0) | {"busy_share": 0.4}, False),
        ):
            with self.subTest(environment=environment):
                self.assertEqual(claim(flat, title, **environment).status, SUPPORTED if quiet else NOT_TESTED)
                self.assertEqual(claim(steep, title, **environment).status, NOT_SUPPORTED if quiet else NOT_TESTED)
        noisy = claim(steep, title, **busy_machine(7.5))
        self.assertIn("not decided: machine was busy (load average 7.5 on 8 usable", noisy.evidence[0].whole)
        self.assertIn("These times alone would say: ", noisy.evidence[0].whole)
        self.assertEqual(claim(line_of("ring", 1.0), "vanilla attention grows", **busy_machine(7)).status, NOT_TESTED)
        table = complexity_sweep()
        self.assertNotEqual(claim(table, "Complexity").status, NOT_TESTED)
        self.assertEqual(claim(table, "Complexity", **busy_machine(7)).status, NOT_TESTED)

    def test_noise_does_not_touch_what_no_clock_decides(self) -> None:
        records = paper_line() + line_of("ring", 1.0) + slim([point("local", 8 * K, 1), point("ring", 8 * K, 4)])
        self.assertEqual(claim(records, "Communication", **busy_machine(7)).status, SUPPORTED)
        self.assertEqual(claim(records, "equals the reference", **busy_machine(7)).status, SUPPORTED)
        self.assertEqual(claim(records, "No distributed", **busy_machine(7)).status, SEEN)
        simulated = line_of("dilated", 0.5, source="simulated")
        self.assertEqual(claim(simulated, "attention is nearly", **busy_machine(7)).status, NOT_SUPPORTED)
        # Too few points stay what they are, whatever the noise.
        few = claim(line_of("dilated", 0.0)[:2], "attention is nearly", **busy_machine(7))
        self.assertNotIn("busy", few.evidence[0].whole)

    def test_a_quiet_run_decides_beside_a_busy_one(self) -> None:
        ctx = context(line_of("dilated", 1.0) + line_of("dilated", 0.0))
        quiet, loud = ctx.runs[0], Run(Path("busy"), {"environment": busy_machine(7), "summary": {"disturbed": {}}}, [])
        points = [Point(int(i < 5), p.raw) for i, p in enumerate(ctx.points)]  # the steep line is the busy run's
        index = SeriesIndex(points, [quiet, loud])
        latency = next(c for c in judge(Context(points, [quiet, loud], index)) if "is nearly" in c.title)
        self.assertEqual(latency.status, SUPPORTED)

    def test_what_was_sampled_beside_a_point_decides_more_than_what_was_before_the_run(self) -> None:
        records = line_of("dilated", 0.0)
        for record in records:
            record.setdefault("metrics", {})["busy_share"] = 0.02
        self.assertEqual(claim(records, "dilated attention is nearly", **busy_machine(7)).status, SUPPORTED)
        for record in records:
            del record["metrics"]["busy_share"]
        self.assertEqual(claim(records, "dilated attention is nearly", **busy_machine(7)).status, NOT_TESTED)

    def test_a_gpu_that_slowed_its_clocks_down_decides_nothing(self) -> None:
        records = line_of("dilated", 0.0)
        self.assertEqual(claim(records, "dilated attention is nearly").status, SUPPORTED)
        self.assertNotIn("clocks", str(disturbances(context(records).runs[0])))
        for record in records:
            record.setdefault("metrics", {})["device_throttled"] = 1
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_TESTED)
        self.assertIn("slowed its clocks down", str(disturbances(context(records).runs[0])))

    def test_disturbed_points_decide_nothing(self) -> None:
        """One point of a line is five times too slow, and its run says that something disturbed it."""
        title = "dilated attention is nearly"
        records = line_of("dilated", 0.0)
        slower(records[2], 5)
        self.assertEqual(claim(records, title).status, NOT_SUPPORTED)
        why = "samples are 5 times apart"
        found = claim(records, title, {records[2]["id"]: why})
        self.assertEqual(found.status, SUPPORTED, found)
        self.assertIn("Without 1 point that something disturbed (dilated at 32K on 2 ranks).", found.deciding.whole)
        everything = {r["id"]: why for r in records}
        self.assertIn("not decided: machine was busy (5 points disturbed)", claim(records, title, everything).evidence[0].whole)
        ctx = context(records)
        ctx.runs[0].record["summary"] = {"disturbed": {records[2]["id"]: why}}
        self.assertTrue(any(f"{records[2]['id']}: {why}" in n for n in disturbances(ctx.runs[0])))

    def test_a_claim_names_the_disturbed_points_of_its_own_lines_alone(self) -> None:
        """Those of other algorithms, and of lengths that make no line, took no part in it."""
        dilated, ring, short = line_of("dilated", 0.0), line_of("ring", 1.0), [point("dilated", 8 * K, 4)]
        local = [point("dilated", n * K, 8, time_s=n) for n in (16, 32, 64, 128, 256)]  # long branches without work: listed alone
        why = {r["id"]: "samples are 5 times apart" for r in (dilated[2], ring[0], ring[1], *short, local[1])}
        records = dilated + ring + short + local
        texts = {title: claim(records, title, why).deciding.text for title in ("dilated attention is nearly", "vanilla attention grows")}
        self.assertIn("Without 1 point that something disturbed (dilated at 32K on 2 ranks).", texts["dilated attention is nearly"])
        self.assertIn("Without 2 points that something disturbed (ring at 8K on 2 ranks, ring at 16K on 2 ranks).", texts["vanilla attention grows"])
        self.assertIn("(dilated at 32K on 8 ranks)", claim(local, "dilated attention is nearly", why).deciding.whole)
        self.assertNotIn("without the line", texts["vanilla attention grows"])  # three of its five points are left
        alone = claim(records, "dilated attention is nearly", {ring[0]["id"]: "samples are 5 times apart"})
        self.assertNotIn("disturbed", alone.deciding.whole)

    def test_a_line_that_vanishes_with_its_disturbed_points_is_named(self) -> None:
        ring = line_of("ring", 1.0)
        other = [r | {"id": f"u{i}", "params": r["params"] | {"algorithm": "ulysses"}} for i, r in enumerate(line_of("ring", 1.0))]
        why = {r["id"]: "samples are 5 times apart" for r in other[:3]}
        found = claim(ring + other, "vanilla attention grows", why).deciding
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("ulysses at 32K on 2 ranks), and so without the line of ulysses on 2 ranks.", found.text)

    def test_times_of_an_interrupted_run_decide_nothing(self) -> None:
        """Without result.json no point is known to be disturbed: neither the five times too slow one, nor the others."""
        title = "dilated attention is nearly"
        records = line_of("dilated", 0.0)
        slower(records[2], 5)
        for record in records:  # nor does it help that somebody looked beside each of them
            record["metrics"] = {"busy_share": 0.02}
        self.assertEqual(claim(records, title).status, NOT_SUPPORTED)
        found = claim(records, title, interrupted=True)
        self.assertEqual(found.status, NOT_TESTED)
        self.assertTrue(found.evidence[0].text.startswith("not decided: the run was interrupted before"), found)
        self.assertEqual(claim(line_of("dilated", 0.0), title, interrupted=True).status, NOT_TESTED)
        self.assertEqual(claim(paper_line(), "Communication", interrupted=True).status, SUPPORTED)  # no clock decides it
        simulated = line_of("dilated", 0.5, source="simulated")
        self.assertEqual(claim(simulated, title, interrupted=True).status, NOT_SUPPORTED)
        ctx = context(records)
        ctx.runs[0].interrupted = True
        self.assertTrue(any("is not known (the run was interrupted" in n for n in disturbances(ctx.runs[0])))
        whole = Run(Path("whole"), {"summary": {"disturbed": {}}}, [])
        points = [Point(int(i >= 5), p.raw) for i, p in enumerate(context(records + line_of("dilated", 0.0)).points)]
        both = Context(points, [ctx.runs[0], whole], SeriesIndex(points, [ctx.runs[0], whole]))
        self.assertEqual(next(c for c in judge(both) if title in c.title).status, SUPPORTED)

    def test_times_of_a_run_without_the_look_for_disturbed_points_decide_nothing(self) -> None:
        """Older results have no `summary.disturbed`: that nothing disturbed their points is not known."""
        title, before = "dilated attention is nearly", "the run was recorded before lnbench looked for disturbed points"
        for exponent, decided in ((0.0, SUPPORTED), (1.0, NOT_SUPPORTED)):
            records = line_of("dilated", exponent)
            self.assertEqual(claim(records, title).status, decided)
            ctx = context(records)
            del ctx.runs[0].record["summary"]["disturbed"]
            found = next(c for c in judge(ctx) if title in c.title)
            self.assertEqual(found.status, NOT_TESTED)
            self.assertTrue(found.evidence[0].text.startswith(f"not decided: {before}. These times alone would say: "), found)
            self.assertEqual([before in n for n in disturbances(ctx.runs[0])], [True])
        ctx = context(paper_line() + line_of("dilated", 0.5, source="simulated"))
        del ctx.runs[0].record["summary"]["disturbed"]
        judged = {c.title: c.status for c in judge(ctx)}
        self.assertEqual(judged[COMMUNICATION], SUPPORTED)  # no clock decides it
        self.assertEqual(next(s for t, s in judged.items() if title in t), NOT_SUPPORTED)  # a simulation has no clock

    def test_sources_are_judged_apart(self) -> None:
        records = line_of("dilated", 0.5, source="simulated") + line_of("dilated", 0.0)
        latency = claim(records, "dilated attention is nearly")
        self.assertEqual(
            {e.source: e.status for e in latency.evidence}, {"measured": SUPPORTED, "simulated": NOT_SUPPORTED}
        )
        self.assertEqual((latency.status, latency.source), (SUPPORTED, "measured"))
        simulated = claim(line_of("dilated", 0.5, source="simulated"), "dilated attention is nearly")
        self.assertEqual((simulated.status, simulated.source), (NOT_SUPPORTED, "simulated"))

    def test_a_simulation_says_where_its_square_comes_from(self) -> None:
        for title, records in (("vanilla attention grows", line_of("ring", 1.0)), ("Complexity", complexity_sweep())):
            measured = claim(records, title).deciding
            simulated = claim([r | {"source": "simulated"} for r in records], title).deciding
            self.assertEqual((measured.status, simulated.status), (SUPPORTED, SEEN))
            self.assertIn("N² follows from the simulator’s cost model", simulated.text)
            self.assertNotIn("cost model", measured.text)
        alone = claim([r | {"source": "simulated"} for r in complexity_sweep() if r["params"]["algorithm"] == "dilated"], "Complexity").deciding
        self.assertNotIn("cost model", alone.text)

    def test_wrong_points_support_nothing(self) -> None:
        records = line_of("dilated", 0.0)
        for record in records:
            record["status"] = "check_failed"
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_TESTED)

    def test_ranks_that_share_cores_decide_nothing_about_time(self) -> None:
        records = line_of("ring", 0.3)
        self.assertEqual(claim(records, "vanilla attention grows").status, NOT_SUPPORTED)
        for record in records:
            threads = record["params"]["ranks"] * record["params"]["threads"]
            record["metrics"] = {"usable_cores": threads}
        self.assertEqual(claim(records, "vanilla attention grows").status, NOT_SUPPORTED)
        for record in records:
            record["metrics"] = {"usable_cores": threads - 1}
        self.assertEqual(claim(records, "vanilla attention grows").status, NOT_TESTED)

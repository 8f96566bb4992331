#!/usr/bin/env python3
"""Tests of the logic behind the report on SYNTHETIC points: units, fits, and the status of each claim."""

from __future__ import annotations

import math
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report.claims import judge
from report.evidence import COMPUTED, NOT_SUPPORTED, NOT_TESTED, SEEN, SUPPORTED, Claim
from report.fits import fit_power_law
from report.model import Point, Run
from report.noise import disturbances
from report.paper_lines import RULES
from report.rows import Context
from report.series import SeriesIndex
from report.synthetic_fixture import (
    B,
    K,
    M,
    complexity_sweep,
    context,
    opponents_sweep,
    point,
    refused,
    with_depth,
)
from report.units import bytes_label, duration_label, ratio_label, significant, token_label


def claim(records: list[dict], words: str, disturbed: dict[str, str] | None = None, **environment: object) -> Claim:
    ctx = context(records)
    ctx.runs[0].record["summary"] = {"disturbed": disturbed or {}}
    ctx.runs[0].record["environment"] = environment
    return next(c for c in judge(ctx) if words in c.title)


def busy_machine(load: float, usable: int = 8, threads: int = 16, mpi: str | None = None) -> dict[str, object]:
    cpu = {"threads": threads, "usable_threads": usable}
    return {"cpu": cpu, "load_average": [load, 0, 0], "mpi_version": mpi}


class Units(unittest.TestCase):
    def test_token_labels_are_binary(self) -> None:
        expected = {8 * K: "8K", 512 * K: "512K", M: "1M", B: "1B", 3 * K: "3K", 1000: "1,000", 1025: "1,025", 1: "1"}
        self.assertEqual({n: token_label(n) for n in expected}, expected)

    def test_durations(self) -> None:
        expected = {0.01234: "12.3 ms", 2.0: "2 s", 4.5e-6: "4.5 µs", 3.2e-8: "32 ns", 1e-3: "1 ms", 17180.0: "17200 s"}
        self.assertEqual({s: duration_label(s) for s in expected}, expected)

    def test_bytes_and_significant_digits(self) -> None:
        self.assertEqual(bytes_label(6291456), "6 MiB")
        self.assertEqual(bytes_label(None), "–")
        self.assertEqual([significant(v) for v in (0, 0.00012345, 99.96, 1234.5)], ["0", "0.000123", "100", "1230"])

    def test_ratios_stay_short(self) -> None:
        self.assertEqual([ratio_label(v) for v in (0.5, 2800, 14_190, 500_000, 1.24e6)],
                         ["0.5×", "2800×", "14.2k×", "500k×", "1.24M×"])


class Fits(unittest.TestCase):
    def test_exact_power_law(self) -> None:
        fit = fit_power_law([(x, 3 * x**2) for x in (1, 2, 4, 8)])  # y = 3 x^2
        self.assertAlmostEqual(fit.exponent, 2.0, places=12)
        self.assertAlmostEqual(fit.prefactor, 3.0, places=12)
        self.assertAlmostEqual(fit.r_squared, 1.0, places=12)
        self.assertEqual((fit.count, fit.x_min, fit.x_max, fit.y_ratio), (4, 1, 8, 64))

    def test_unusable_values_are_left_out(self) -> None:
        self.assertIsNone(fit_power_law([(1, 2), (1, 3)]))
        self.assertIsNone(fit_power_law([(1, None), (2, 0), (None, 3)]))
        self.assertEqual(fit_power_law([(1, 2), (2, 4), (3, -1)]).count, 2)


def slim(records: list[dict]) -> list[dict]:
    """The same points with memory in proportion to the tokens on a rank."""
    for record in records:
        record["memory"]["measured_peak_bytes"] = 16 * 768 * record["params"]["seq_len"] // record["params"]["ranks"]
    return records


def floor_line(algorithm: str) -> list[dict]:
    """Quadratic once it is past a millisecond of latency."""
    return [point(algorithm, n * K, 4, time_s=1e-3 * (1 + (n / 64) ** 2)) for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048)]


def equal_work(records: list[dict]) -> list[dict]:
    """The same points with rates sqrt(w / 2048): every branch does the work of the first."""
    for record in records:
        for branch in record["params"]["branches"]:
            branch["dilation_rate"] = max(1, math.isqrt(branch["segment_length"] // 2048))
    return records


class Claims(unittest.TestCase):
    def line(self, algorithm: str, exponent: float, **options: object) -> list[dict]:
        """Time of a sequence ~ N^(1 + exponent), exactly."""
        lengths = (8, 16, 32, 64, 128)
        records = [point(algorithm, n * K, 2, time_s=1e-6 * n * K * n**exponent, **options) for n in lengths]
        return equal_work(records) if algorithm == "dilated" else records

    def test_latency_constant(self) -> None:
        for exponent, status in (
            (0.0, SUPPORTED),
            (0.07, SUPPORTED),
            (0.2, NOT_SUPPORTED),
            (-0.3, SUPPORTED),  # better than constant
            (1.0, NOT_SUPPORTED),
        ):
            with self.subTest(exponent=exponent):
                self.assertEqual(claim(self.line("dilated", exponent), "dilated attention is nearly").status, status)
        self.assertIn("time per token falls ~ N^-0.30", claim(self.line("dilated", -0.3), "nearly").deciding.text)
        bumpy = self.line("dilated", -0.3)
        bumpy[2]["timing"]["median_s"] *= 1.6  # 1.3 times the point before
        self.assertEqual(claim(bumpy, "dilated attention is nearly").status, SUPPORTED)
        self.assertIn("falls ~ N^-0.30, largest rise 1.3×", claim(bumpy, "nearly").deciding.text)

    def test_a_line_within_a_quarter_is_constant(self) -> None:
        records = [point("dilated", n * K, 2, time_s=1e-6 * n * K * (n / 8) ** 0.08) for n in (8, 32, 128)]  # 1.25 at most
        records[1]["timing"]["median_s"] *= 0.95
        self.assertEqual(claim(equal_work(records), "dilated attention is nearly").status, SUPPORTED)

    def test_one_jump_refutes_a_constant_latency(self) -> None:
        records = [
            point("dilated", n * K, 2, time_s=1e-6 * n * K * (2.5 if n == 32 else 1)) for n in (8, 16, 32, 64, 128)
        ]
        self.assertEqual(claim(equal_work(records), "dilated attention is nearly").status, NOT_SUPPORTED)
        falling = [point("dilated", n * K, 2, time_s=1e-6 * n * K * (2.5 if n == 8 else 1)) for n in (8, 16, 32, 64, 128, 256)]
        self.assertEqual(claim(equal_work(falling), "dilated attention is nearly").status, SUPPORTED)

    def test_branches_without_work_decide_no_constant_latency(self) -> None:
        """Rates that grow as the segments: beyond 64K tokens the first segment does nearly all."""
        for exponent, words in ((0.0, ("Constant", "as support")), (1.0, ("Not constant", "against it"))):
            records = [point("dilated", n * K, 2, time_s=1e-6 * n * K * n**exponent) for n in (8, 16, 32, 64, 128)]
            found = claim(records, "dilated attention is nearly")
            self.assertEqual((found.status, found.source), (SEEN, "measured"))
            self.assertTrue(found.deciding.text.startswith(f"{words[0]} at rates as in section 2.4: "), found)
            self.assertIn("largest rise 1×" if exponent == 0 else "largest rise 16×", found.deciding.text)
            self.assertIn(
                f"Not counted {words[1]}, because branches that ranks share do 1.49 % to 14.3 % of the FLOPs. A run that counts: lnbench",
                found.deciding.text,
            )
        both = records + [r | {"params": r["params"] | {"dtype": "bf16"}, "id": f"b{i}"} for i, r in enumerate(self.line("dilated", 0.0))]
        found = claim(both, "dilated attention is nearly")
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("1 line not judged, long branches do less than 10 % of the FLOPs at some length (beyond the threshold)", found.deciding.text)

    def test_a_branch_that_no_ranks_share_is_no_long_one(self) -> None:
        """A dense segment as long as a rank's tokens: on two ranks it is local, on one device it is long."""
        records = [point("dilated", n * K, 2, time_s=1e-6 * n * K) for n in (8, 16, 32, 64, 128)]
        for record in records:
            n = record["params"]["seq_len"]
            widths = ((2 * K, 1), (n // 2, math.isqrt(n // 4096)), (n, n // 1024))
            record["params"]["branches"] = [{"segment_length": w, "dilation_rate": r} for w, r in widths]
        self.assertEqual(claim(records, "dilated attention is nearly").status, SEEN)
        for record in records:
            record["params"]["branches"][2]["dilation_rate"] = math.isqrt(record["params"]["seq_len"] // 2048)
        found = claim(records, "dilated attention is nearly")
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("branches that ranks share do 25 % to 50 % of the FLOPs", found.deciding.text)
        for record in records:
            record["params"] |= {"mode": "virtual", "branches": record["params"]["branches"][:2]}
        found = claim(records, "dilated attention is nearly")
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("branches beyond the first segment do 50 %", found.deciding.text)

    def test_what_was_only_seen_gives_way_to_what_was_judged(self) -> None:
        seen = [point("dilated", n * K, 2, time_s=1e-6 * n * K) for n in (8, 16, 32, 64, 128)]
        title = "dilated attention is nearly"
        both = claim(seen + self.line("dilated", 0.5, source="simulated"), title)
        self.assertEqual((both.status, both.source), (NOT_SUPPORTED, "simulated"))
        steep = [r | {"id": f"b{i}", "params": r["params"] | {"dtype": "bf16"}} for i, r in enumerate(self.line("dilated", 1.0))]
        disturbed = claim(seen + steep, title, {r["id"]: "samples are 5 times apart" for r in steep})
        self.assertEqual(disturbed.status, NOT_TESTED)
        self.assertIn("not decided: machine was busy (5 points disturbed)", disturbed.evidence[0].text)

    def test_long_lines_that_are_not_judged_are_listed(self) -> None:
        lengths = [8 * 2**i for i in range(12)]
        for name, title in (("dilated", "dilated attention is nearly"), ("ring", "vanilla attention grows"), ("ring", "Complexity")):
            floor = [point(name, n * K, 4, time_s=1e-3 * (1 + n / 1e9)) for n in lengths]
            evidence = claim(equal_work(floor) if name == "dilated" else floor, title).evidence[0]
            self.assertEqual(evidence.status, NOT_TESTED)
            self.assertRegex(evidence.text, rf"1 line not judged, latency rules at too many of its lengths: .*{name} on 4 ranks \(MPI processes, one host\) \(8K … 16M, n = 12\)")
            self.assertTrue(evidence.details[0].startswith("not judged, latency rules"), evidence.details)
            judged = self.line(name, 0.0 if name == "dilated" else 1.0)
            for record in judged:
                record["params"]["dtype"] = "bf16"
                record["id"] = f"b{record['id']}"
            if title != "Complexity":
                found = claim(floor + judged, title)
                self.assertEqual(found.status, SUPPORTED)
                self.assertIn("1 line not judged, latency rules", found.deciding.text)

    def test_only_lines_of_figure_5_are_judged(self) -> None:
        def changed(**changes: object) -> list[dict]:
            steep = self.line("dilated", 1.0)
            for i, record in enumerate(steep):
                record["id"] = f"steep{i}"
                record["params"] |= changes.get("params", {})
                record["metrics"] = changes.get("metrics", {})
            return steep + self.line("dilated", 0.0)

        title = "dilated attention is nearly"
        self.assertEqual(claim(changed(params={"dtype": "bf16"}), title).status, NOT_SUPPORTED)
        for changes in (
            {"params": {"cluster": "x, straggler=0.2"}, "metrics": {"what_if_straggler": 0.2}},
            {"params": {"collective": "bruck"}},
            {"params": {"offset": "block"}},
            {"params": {"ranks": 64}},  # 8K tokens on 64 ranks: 128 each, less than the first segment
        ):
            with self.subTest(changes=changes):
                self.assertEqual(claim(changed(**changes), title).status, SUPPORTED)

    def test_a_point_where_latency_rules_is_left_out_whatever_the_axis(self) -> None:
        """At 4K tokens a rank only the ranks grow, and latency with them; at fixed ranks the same points do not grow."""
        records = [
            point("dilated", n * p * K, p, time_s=1e-6 * n * K + 1e-3 * p) for p in (2, 4, 8, 16, 32) for n in (4, 8, 16)
        ]
        weak = [r for r in equal_work(records) if r["params"]["seq_len"] == 4 * K * r["params"]["ranks"]]
        title = "dilated attention is nearly"
        self.assertEqual(claim(weak, title).status, NOT_SUPPORTED)
        found = claim(records, title)
        self.assertNotEqual(found.status, NOT_SUPPORTED, found)

    def test_lines_never_mix_batches(self) -> None:
        records = self.line("dilated", 0.0)
        other = [point("dilated", n * K, 2, batch=4, time_s=9e-6 * 4 * n * K) for n in (8, 16)]
        self.assertEqual(claim(records + equal_work(other), "dilated attention is nearly").status, SUPPORTED)
        constant = [point("dilated", n * K, 2, batch=128 // n, time_s=1.0) for n in (8, 16, 32, 64, 128)]
        found = claim(equal_work(constant), "dilated attention is nearly")
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("n = 5", found.deciding.text)

    def test_lengths_where_latency_rules_are_left_out_and_counted(self) -> None:
        lengths = [8 * 2**i for i in range(12)]
        for law, title in (
            (lambda n: 1 + n / 256, "dilated attention is nearly"),
            (lambda n: 1 + (n / 256) ** 2, "vanilla attention grows"),
        ):
            name = "dilated" if "dilated" in title else "ring"
            records = equal_work([point(name, n * K, 4, time_s=1e-3 * law(n)) for n in lengths])
            found = claim(records, title)
            self.assertEqual(found.status, SUPPORTED, found)
            self.assertRegex(found.deciding.text, r"without \d lengths up to \d+[KM], where latency rules")
        law = claim(complexity_sweep() + floor_line("ring"), "Complexity")  # the same rule in the row of table 1
        self.assertEqual(law.status, SUPPORTED, law)
        self.assertTrue(any("where latency rules" in d for d in law.deciding.details), law.deciding.details)
        floor = [point("dilated", n * K, 64, time_s=1e-3 * (1 + n / 1e9)) for n in lengths]
        self.assertEqual(claim(floor, "dilated attention is nearly").status, NOT_TESTED, "latency alone tests nothing")

    def test_short_lines_test_nothing(self) -> None:
        self.assertEqual(claim(self.line("dilated", 0.0)[:2], "dilated attention is nearly").status, NOT_TESTED)
        self.assertEqual(claim(self.line("dilated", 0.0)[:4], "dilated attention is nearly").status, NOT_TESTED)  # a factor of 8
        self.assertEqual(claim(self.line("ring", 1.0)[:2], "vanilla attention grows").status, NOT_TESTED)
        self.assertEqual(claim([], "nearly").status, NOT_TESTED)

    def test_vanilla_grows(self) -> None:
        self.assertEqual(claim(self.line("ring", 1.0), "vanilla attention grows").status, SUPPORTED)
        self.assertEqual(claim(self.line("ring", 0.3), "vanilla attention grows").status, NOT_SUPPORTED)
        self.assertIn("N^2.00", claim(self.line("ring", 1.0), "vanilla attention grows").deciding.text)

    def test_times_of_a_busy_machine_decide_nothing(self) -> None:
        flat, steep = self.line("dilated", 0.0), self.line("dilated", 1.0)
        title = "dilated attention is nearly"
        for environment, quiet in (
            (busy_machine(2.0), True),  # a quarter of 8 usable threads
            (busy_machine(2.1), False),
            (busy_machine(3.9, mpi="Open MPI"), True),  # ranks are bound: of all 16
            (busy_machine(4.1, mpi="Open MPI"), False),
            ({"load_average": [9.0]}, True),  # of how many threads is not known
            ({"load_average": []}, True),
            (busy_machine(9.0) | {"busy_share": 0.05}, True),  # what was measured just before decides
            (busy_machine(0.0) | {"busy_share": 0.4}, False),
        ):
            with self.subTest(environment=environment):
                self.assertEqual(claim(flat, title, **environment).status, SUPPORTED if quiet else NOT_TESTED)
                self.assertEqual(claim(steep, title, **environment).status, NOT_SUPPORTED if quiet else NOT_TESTED)
        noisy = claim(steep, title, **busy_machine(7.5))
        self.assertIn("not decided: machine was busy (load average 7.5 on 8 usable", noisy.evidence[0].text)
        self.assertIn("Seen all the same: ", noisy.evidence[0].text)
        self.assertEqual(claim(self.line("ring", 1.0), "vanilla attention grows", **busy_machine(7)).status, NOT_TESTED)
        table = complexity_sweep()
        self.assertNotEqual(claim(table, "Complexity").status, NOT_TESTED)
        self.assertEqual(claim(table, "Complexity", **busy_machine(7)).status, NOT_TESTED)

    def test_noise_does_not_touch_what_no_clock_decides(self) -> None:
        records = self.paper_line() + self.line("ring", 1.0) + slim([point("local", 8 * K, 1), point("ring", 8 * K, 4)])
        self.assertEqual(claim(records, "Communication", **busy_machine(7)).status, SUPPORTED)
        self.assertEqual(claim(records, "equals the reference", **busy_machine(7)).status, SUPPORTED)
        self.assertEqual(claim(records, "No distributed", **busy_machine(7)).status, SEEN)
        simulated = self.line("dilated", 0.5, source="simulated")
        self.assertEqual(claim(simulated, "attention is nearly", **busy_machine(7)).status, NOT_SUPPORTED)
        # Too few points stay what they are, whatever the noise.
        few = claim(self.line("dilated", 0.0)[:2], "attention is nearly", **busy_machine(7))
        self.assertNotIn("busy", few.evidence[0].text)

    def test_a_quiet_run_decides_beside_a_busy_one(self) -> None:
        ctx = context(self.line("dilated", 1.0) + self.line("dilated", 0.0))
        quiet, loud = ctx.runs[0], Run(Path("busy"), {"environment": busy_machine(7)}, [])
        points = [Point(int(i < 5), p.raw) for i, p in enumerate(ctx.points)]  # the steep line is the busy run's
        index = SeriesIndex(points, [quiet, loud])
        latency = next(c for c in judge(Context(points, [quiet, loud], index)) if "is nearly" in c.title)
        self.assertEqual(latency.status, SUPPORTED)

    def test_what_was_sampled_beside_a_point_decides_more_than_what_was_before_the_run(self) -> None:
        records = self.line("dilated", 0.0)
        for record in records:
            record.setdefault("metrics", {})["busy_share"] = 0.02
        self.assertEqual(claim(records, "dilated attention is nearly", **busy_machine(7)).status, SUPPORTED)
        for record in records:
            del record["metrics"]["busy_share"]
        self.assertEqual(claim(records, "dilated attention is nearly", **busy_machine(7)).status, NOT_TESTED)

    def test_disturbed_points_decide_nothing(self) -> None:
        """One point of a line is five times too slow, and its run says that something disturbed it."""
        title = "dilated attention is nearly"
        records = self.line("dilated", 0.0)
        records[2]["timing"]["median_s"] *= 5
        self.assertEqual(claim(records, title).status, NOT_SUPPORTED)
        why = "samples are 5 times apart"
        found = claim(records, title, {records[2]["id"]: why})
        self.assertEqual(found.status, SUPPORTED, found)
        self.assertIn("Without 1 point that something disturbed (dilated at 32K on 2 ranks).", found.deciding.text)
        everything = {r["id"]: why for r in records}
        self.assertIn("not decided: machine was busy (5 points disturbed)", claim(records, title, everything).evidence[0].text)
        ctx = context(records)
        ctx.runs[0].record["summary"] = {"disturbed": {records[2]["id"]: why}}
        self.assertTrue(any(f"{records[2]['id']}: {why}" in n for n in disturbances(ctx.runs[0])))

    def test_sources_are_judged_apart(self) -> None:
        records = self.line("dilated", 0.5, source="simulated") + self.line("dilated", 0.0)
        latency = claim(records, "dilated attention is nearly")
        self.assertEqual(
            {e.source: e.status for e in latency.evidence}, {"measured": SUPPORTED, "simulated": NOT_SUPPORTED}
        )
        self.assertEqual((latency.status, latency.source), (SUPPORTED, "measured"))
        simulated = claim(self.line("dilated", 0.5, source="simulated"), "dilated attention is nearly")
        self.assertEqual((simulated.status, simulated.source), (NOT_SUPPORTED, "simulated"))

    def test_wrong_points_support_nothing(self) -> None:
        records = self.line("dilated", 0.0)
        for record in records:
            record["status"] = "check_failed"
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_TESTED)

    def paper_line(self) -> list[dict]:
        return [point("dilated", n * K, 2) for n in (8, 16, 32, 64)]

    def test_communication_is_judged_where_rates_follow_segments(self) -> None:
        records = self.line("dilated", 0.0)
        for record in records:  # sqrt(w w_0) rows
            rows = math.isqrt(record["params"]["seq_len"]) * 1000
            record["comm"] |= {"counted_bytes_per_rank": rows, "predicted_bytes_per_rank": rows}
        found = claim(records, "Communication")
        self.assertEqual(found.status, NOT_TESTED)
        self.assertIn("1 line not judged, rates grow more slowly than segments", found.evidence[0].text)

    def test_communication(self) -> None:
        records = self.paper_line()
        self.assertEqual(claim(records, "Communication").status, SUPPORTED)
        for record in records:  # grows with N, as a ring's would
            record["comm"]["counted_bytes_per_rank"] = record["comm"]["predicted_bytes_per_rank"] = (
                record["params"]["seq_len"] * 100
            )
        self.assertEqual(claim(records, "Communication").status, NOT_SUPPORTED)
        for place, record in enumerate(records):  # falls: better than constant
            record["comm"] |= dict.fromkeys(("counted_bytes_per_rank", "predicted_bytes_per_rank"), 8 * M >> place)
        self.assertEqual(claim(records, "Communication").status, SUPPORTED)
        for place, record in enumerate(records):  # moved by MPI's own collectives
            record["comm"] |= {"counted_bytes_per_rank": 0, "modelled_bytes_per_rank": 8 * M >> place}
        self.assertEqual(claim(records, "Communication").status, SUPPORTED)
        for record in records[:2]:  # of four lengths
            record["comm"]["counted_bytes_per_rank"] += 8
        self.assertEqual(claim(records, "Communication").status, NOT_TESTED)
        self.assertEqual(
            claim([point("dilated", n * K, 1) for n in (8, 16, 32, 64)], "Communication").status, NOT_TESTED
        )

    def test_communication_over_ranks(self) -> None:
        weak = [point("dilated", p * 8 * K, p) for p in (2, 4, 8, 16)]  # (P-1)/P of a constant
        found = claim(weak, "Communication")
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("largest rise 1.88×, of which (P−1)/P alone explains 1.88× (16K … 128K", found.deciding.text)
        self.assertNotIn("alone explains", claim(self.paper_line(), "Communication").deciding.text)
        for record in weak:  # a ring: (P-1) shards
            record["comm"]["counted_bytes_per_rank"] = record["comm"]["predicted_bytes_per_rank"] = (
                record["params"]["ranks"] - 1
            ) * M
        self.assertEqual(claim(weak, "Communication").status, NOT_SUPPORTED)

    def test_backward_passes_scatter_sums_of_constant_bytes(self) -> None:
        def backward(record: dict) -> dict:
            record["params"]["pass"] = "backward"
            record["comm"]["collectives_used"] = ["all_gather: native", "reduce_scatter: linear"]
            record["check"]["gradients"] = {"dq_rel_l2_error": 5e-7, "dk_rel_l2_error": 4e-7, "dv_rel_l2_error": 3e-7}
            return record

        def line() -> list[dict]:
            return [backward(point("dilated", n * K, 2)) for n in (8, 16, 32, 64, 128)]

        title = "Backward is a reduce-scatter"
        found = claim(line(), title)
        self.assertEqual((found.status, found.source), (SUPPORTED, "measured"))
        self.assertIn("gradients summed by reduce-scatter. dQ, dK and dV of sampled rows off by at most 5e-07.", found.deciding.text)
        self.assertEqual(claim(line(), "Communication").status, NOT_TESTED)  # of forward passes
        self.assertEqual(claim(self.paper_line(), title).status, NOT_TESTED)
        more = line()
        more[-1]["comm"]["counted_bytes_per_rank"] = more[-1]["comm"]["predicted_bytes_per_rank"] = 4 * more[0]["comm"]["predicted_bytes_per_rank"]
        self.assertEqual(claim(more, title).status, NOT_SUPPORTED)
        gathers = line()
        gathers[0]["comm"]["collectives_used"] = ["all_gather: native"]
        self.assertEqual(claim(gathers, title).status, NOT_TESTED)  # another algorithm than the sentence's
        wrong = line()
        wrong[2]["status"] = "check_failed"
        self.assertIn("1 of 5 backward points wrong", claim(wrong, title).deciding.text)
        self.assertEqual(claim(wrong, title).status, NOT_SUPPORTED)

    def test_one_billion(self) -> None:
        self.assertEqual(claim([point("dilated", 512 * M, 64)], "billion").status, NOT_TESTED)
        simulated = claim([point("dilated", B, 64, source="simulated")], "billion")
        self.assertEqual((simulated.status, simulated.source), (SEEN, "simulated"))
        small = claim([refused("dilated", B, 64, "skipped_memory", "too large")], "billion")  # another machine may hold it
        self.assertEqual((small.status, small.evidence[0].text), (NOT_TESTED, "1B tokens do not fit here, on up to 64 ranks: too large"))
        self.assertEqual(
            claim([refused("dilated", B, 64, "skipped_excluded", "too slow")], "billion").status, NOT_TESTED
        )
        self.assertEqual(claim([point("ring", B, 64)], "billion").status, NOT_TESTED)
        apart = claim([with_depth(point("dilated", B, 64), -1, 2.0)], "tokens fit")  # a pattern that joins no two halves
        self.assertEqual(apart.status, SEEN)
        self.assertIn("some token never hears from some other", apart.deciding.text)

    def test_a_billion_on_one_device_is_no_distributed_system(self) -> None:
        walked = point("dilated", B, 128, time_s=3000.0)
        walked["params"]["mode"] = "virtual"
        found = claim([walked], "tokens fit")
        self.assertEqual((found.status, found.source), (SEEN, "measured"))
        self.assertIn("of one rank's shard at a time (whose output is checked, then dropped)", found.deciding.text)
        self.assertEqual(claim([point("dilated", B, 1)], "tokens fit").status, SEEN)
        ranks = claim([walked, point("dilated", B, 64)], "tokens fit")
        self.assertEqual(ranks.status, SUPPORTED)
        self.assertIn("ran on 64 ranks, peak memory", ranks.deciding.text)
        alone = refused("dilated", B, 64, "skipped_memory", "too large")
        self.assertEqual(claim([walked, alone], "tokens fit").status, SEEN)
        alone["params"]["mode"] = "virtual"
        self.assertEqual(claim([alone], "tokens fit").status, NOT_TESTED)

    def test_a_computed_billion(self) -> None:
        def walked(**changes: object) -> dict:
            record = point("dilated", B, 128, time_s=3000.0)
            record["params"]["mode"] = "virtual"
            record["content"] = {"nan_values": 0, "rows": B}
            record["metrics"] = {"walk_wall_s": 3200.0}
            record["check"] |= {"queries": 1024, "max_rel_error": 4.5e-7}
            return record | changes

        computed = claim([walked()], "are computed")
        self.assertEqual((computed.status, computed.source), (SEEN, "measured"))
        self.assertEqual(claim([walked() | {"params": point("dilated", B, 64)["params"]}], "are computed").status, SUPPORTED)
        one = walked()
        one["params"]["heads"] = 1
        for depth, words in ((-1, "never hears from some other"), (5, "within 5 layers"), (None, "depth is not stated")):
            one["metrics"]["dependency_depth_layers"] = depth
            for title in ("are computed", "tokens fit"):
                text = claim([one], title).deciding.text
                self.assertIn("one head of 64 (the paper's base model has 12), fp32 inputs", text)
                self.assertIn("no distributed system", text)
                self.assertIn(words, text)
        for words in ("1B", "one device in the place of 128 ranks", "1,024 sampled rows", "worst row alone by 4.5e-07", "in 3000 s, 3200 s with making inputs"):
            self.assertIn(words, computed.deciding.text)
        self.assertIn("one device", claim([walked()], "tokens fit").deciding.text)
        self.assertEqual(claim([walked(content={"nan_values": 1, "rows": B})], "are computed").status, NOT_TESTED)
        self.assertEqual(claim([walked(source="extrapolated")], "are computed").status, NOT_TESTED)
        self.assertEqual(claim([walked(status="check_failed", reason="wrong")], "are computed").status, NOT_SUPPORTED)
        self.assertEqual(claim([point("dilated", 512 * M, 64)], "are computed").status, NOT_TESTED)

    def test_the_time_of_ranks_in_turn_is_no_rank_s_time(self) -> None:
        records = [point("dilated", n * 8 * K, n, time_s=1e-6 * n * 8 * K) for n in (1, 2, 4, 8, 16)]
        records = equal_work(records)
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_SUPPORTED)
        for record in records:
            record["params"]["mode"] = "virtual"
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_TESTED)

    def test_walks_of_two_runs_with_the_same_branches_are_one_line(self) -> None:
        branches = [{"segment_length": 2 * K, "dilation_rate": 1}, {"segment_length": M, "dilation_rate": 4}]
        records = [point("dilated", n, ranks, time_s=1e-6 * n) for n, ranks in ((8 * K, 1), (16 * K, 1), (M, 4))]
        for record in records:
            n = record["params"]["seq_len"]
            cut = [b | {"segment_length": min(b["segment_length"], n)} for b in branches]
            record["params"] |= {"mode": "virtual", "branches": cut, "batch": 1, "threads": 2}
        seen = claim(records, "dilated attention is nearly")
        self.assertEqual(seen.status, SUPPORTED)
        self.assertIn("same branches", seen.deciding.text)
        records[2]["timing"] |= dict.fromkeys(("median_s", "ci_low_s", "ci_high_s"), 9 * M * 1e-06)
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_SUPPORTED)
        records[2]["params"]["branches"][1]["dilation_rate"] = 8  # another model
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_TESTED)

    def test_walks_begin_where_latency_no_longer_rules(self) -> None:
        """Four runs of the same branches: their time grows with N from 64K on alone."""
        def walks(first: int) -> list[dict]:
            records = [point("dilated", n * K, ranks, time_s=1e-6 * K * max(n, first)) for n, ranks in ((8, 1), (64, 1), (256, 2), (1024, 4), (4096, 8))]
            for record in records:
                n = record["params"]["seq_len"]
                branches = [{"segment_length": min(w, n), "dilation_rate": r} for w, r in ((2 * K, 1), (4 * M, 4))]
                record["params"] |= {"mode": "virtual", "branches": branches, "batch": 1, "threads": 2}
            return records

        title = "dilated attention is nearly"
        found = claim(walks(64), title)
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("without 1 length up to 8K, where latency rules", found.deciding.text)
        self.assertIn("64K … 4M, n = 4", found.deciding.text)
        never = claim(walks(8192), title)
        self.assertEqual(never.status, NOT_TESTED)
        self.assertIn("1 line not judged, latency rules at too many of its lengths: dilated with the same branches", never.evidence[0].text)

    def test_ranks_that_share_cores_decide_nothing_about_time(self) -> None:
        records = self.line("ring", 0.3)
        self.assertEqual(claim(records, "vanilla attention grows").status, NOT_SUPPORTED)
        for record in records:
            threads = record["params"]["ranks"] * record["params"]["threads"]
            record["metrics"] = {"usable_cores": threads}
        self.assertEqual(claim(records, "vanilla attention grows").status, NOT_SUPPORTED)
        for record in records:
            record["metrics"] = {"usable_cores": threads - 1}
        self.assertEqual(claim(records, "vanilla attention grows").status, NOT_TESTED)

    def test_reference(self) -> None:
        good, bad = point("dilated", 8 * K, 2), point("dilated", 16 * K, 2)
        self.assertEqual(claim([good], "equals the reference").status, SUPPORTED)
        self.assertIn("on 2 ranks (MPI processes, one host),", claim([good], "equals the reference").deciding.text)
        threads = point("dilated", 8 * K, 4)
        threads["params"]["transport"] = "threads"
        cores = {"cpu": {"cores": 2, "threads": 2}}
        self.assertIn("on 4 ranks (threads of one process, one host, 2 cores),", claim([threads], "equals the reference", **cores).deciding.text)
        silent = point("dilated", 8 * K, 2)
        silent["comm"]["counted_messages_per_rank"] = 0
        modelled = point("dilated", 8 * K, 2)
        modelled["comm"] |= {"counted_messages_per_rank": 0, "modelled_messages_per_rank": 2}
        self.assertEqual(claim([modelled], "equals the reference").status, SUPPORTED)
        walked = point("dilated", 8 * K, 2)
        walked["params"]["mode"] = "virtual"
        for alone in (point("dilated", 8 * K, 1), silent, walked):
            found = claim([alone], "equals the reference")
            self.assertEqual(found.status, NOT_TESTED)
            self.assertIn("right on one rank, or without messages: 1 point", found.evidence[0].text)
        bad |= {"status": "check_failed", "reason": "relative error 0.5 above 1e-4"}
        bad["check"] |= {"status": "fail", "max_rel_error": 0.5}
        self.assertEqual(claim([good, bad], "equals the reference").status, NOT_SUPPORTED)
        self.assertEqual(claim([point("ring", 8 * K, 1)], "equals the reference").status, NOT_TESTED)
        self.assertEqual(
            claim([point("dilated", 8 * K, 1, source="simulated")], "equals the reference").status, NOT_TESTED
        )

    def test_what_nobody_checked_agrees_with_nothing(self) -> None:
        unchecked = point("dilated", 8 * K, 2)
        unchecked["check"]["status"] = "not_run"
        self.assertEqual(claim([unchecked], "equals the reference").status, NOT_TESTED)
        partly = point("dilated", 8 * K, 2)
        partly["check"]["strata_left_out"] = 1200
        self.assertIn("1,200 strata (branch, head, rank)", claim([partly], "equals the reference").deciding.text)

    def test_exact_attention_where_fewer_ranks_have_no_memory_speaks_against_the_negative_claim(self) -> None:
        title = "No distributed algorithm"
        none, ran = slim([refused("local", 8 * K, 1, "oom", "too large"), point("ring", 8 * K, 2)])
        found = claim([none, ran], title)
        self.assertEqual(found.status, NOT_SUPPORTED)
        self.assertIn("ring ran on 2 ranks (MPI processes, one host) and agreed with the reference at lengths for which fewer ranks had", found.deciding.text)
        predicted = claim([none | {"status": "skipped_memory"}, ran], title)
        self.assertEqual(predicted.status, SEEN)
        self.assertIn("for which fewer ranks are predicted to have no memory", predicted.deciding.text)
        for other in (none | {"status": "skipped_excluded"}, none | {"params": none["params"] | {"seq_len": 4 * K}},
                      none | {"params": none["params"] | {"ranks": 4}}):
            self.assertEqual(claim([other, ran], title).status, NOT_TESTED)
        wrong = ran | {"check": ran["check"] | {"status": "not_run"}}
        self.assertEqual(claim([none, wrong], title).status, NOT_TESTED)
        simulated = claim([point("ring", B, 64, source="simulated")], title)
        self.assertEqual(simulated.status, SEEN)
        self.assertIn("ring at 1B tokens on 64 ranks, predicted peak memory", simulated.deciding.text)

    def test_exact_attention_in_less_memory_per_rank_is_seen(self) -> None:
        title = "No distributed algorithm"
        one, two = slim([point("local", 8 * K, 1), point("ring", 8 * K, 2)])
        found = claim([one, two], title)
        self.assertEqual(found.status, SEEN)
        self.assertIn("up to 8K tokens that fewer ranks hold as well", found.deciding.text)
        self.assertIn("each rank computes N²/P pairs", found.deciding.text)
        self.assertIn("1 exact algorithm agreed with the reference on 2 ranks (MPI processes, one host) and held at most 50 %", found.deciding.text)
        self.assertIn("section 3 cites sequence parallelism, which came before", found.test)
        self.assertRegex(found.deciding.details[0], r"8K tokens on 2 ranks, 50 % of the memory per rank")
        self.assertEqual(claim([two], title).status, NOT_TESTED)  # beside nothing
        self.assertEqual(claim([one], title).status, NOT_TESTED)
        fat = two | {"memory": two["memory"] | {"measured_peak_bytes": int(0.88 * one["memory"]["measured_peak_bytes"])}}
        self.assertIn("in 88 % or more of the memory per rank that the same tokens take on fewer ranks (two ranks", claim([one, fat], title).evidence[0].text)
        for path, value in (("memory", {"measured_peak_bytes": 1 << 40}), ("comm", {"counted_messages_per_rank": 0}),
                            ("check", {"status": "not_run"})):
            self.assertEqual(claim([one, two | {path: two[path] | value}], title).status, NOT_TESTED, path)

    def test_every_exact_algorithm_on_several_ranks_is_listed(self) -> None:
        records = slim(opponents_sweep())
        evidence = claim(records, "No distributed algorithm").deciding
        exact = ("all_gather", "double_ring", "query_gather", "ring", "ulysses", "usp")
        self.assertIn(f"{len(exact)} exact algorithms agreed with the reference on 2 to 8 ranks", evidence.text)
        for name in exact:
            self.assertIn(name, evidence.text)
        for name in ("dilated", "sparse", "local"):
            self.assertNotIn(name, evidence.text)
        self.assertTrue(any(d.startswith("ring zigzag: 64K tokens on 8 ranks, ") for d in evidence.details), evidence.details)
        for record in records:
            if record["params"]["algorithm"] == "ulysses":
                record["check"]["status"] = "not_run"
            if record["params"]["algorithm"] == "usp":
                record["status"] = "check_failed"
        text = claim(records, "No distributed algorithm").deciding.text
        self.assertNotIn("usp", text)
        self.assertIn("4 exact algorithms", text)

    def test_complexity_table(self) -> None:
        row = claim(complexity_sweep(), "Complexity")
        self.assertEqual((row.status, len(row.deciding.details)), (SUPPORTED, 4))
        for text in ("vanilla, local (dense) on 1 rank: time ~ N^2.00", "sparse, sparse on 2 ranks (MPI processes, one host): time ~ N^1.50"):
            self.assertTrue(any(text in d for d in row.deciding.details), row.deciding.details)
        self.assertTrue(all("R² 1.0000" in d and "4K … 64K, n = 5" in d for d in row.deciding.details))
        self.assertEqual([d.endswith("branches that ranks share do 2.86 % to 33.3 % of the FLOPs") for d in row.deciding.details].count(True), 1)
        wrong = (("local", 1.8), ("ring", 2.2), ("sparse", 1.7), ("dilated", 1.2))
        for off in ({name: exponent} for name, exponent in wrong):
            self.assertEqual(claim(complexity_sweep(**off), "Complexity").status, NOT_SUPPORTED, off)
        for near in ({"local": 1.9}, {"sparse": 1.6}, {"dilated": 1.1}, {"sparse": 1.3}, {"dilated": 0.8}):  # O() is kept
            self.assertEqual(claim(complexity_sweep(**near), "Complexity").status, SUPPORTED, near)

    def test_complexity_needs_all_three_methods_and_long_lines(self) -> None:
        def without(name: str) -> list[dict]:
            return [r for r in complexity_sweep() if r["params"]["algorithm"] != name]

        row = claim(without("sparse"), "Complexity")
        self.assertEqual(row.status, SEEN)
        self.assertIn("The table is not judged without: sparse.", row.evidence[0].text)
        bad = [r for r in complexity_sweep(dilated=1.5) if r["params"]["algorithm"] != "sparse"]
        self.assertEqual(claim(bad, "Complexity").status, NOT_SUPPORTED)
        short = [r for r in complexity_sweep() if r["params"]["seq_len"] <= 16 * K]
        self.assertEqual(claim(short, "Complexity").status, NOT_TESTED)
        narrow = [r for r in complexity_sweep() if r["params"]["seq_len"] in (4 * K, 8 * K, 16 * K)]
        narrow += [r | {"params": r["params"] | {"seq_len": 12 * K}} for r in narrow if r["params"]["seq_len"] == 8 * K]
        self.assertEqual(claim(narrow, "Complexity").status, NOT_TESTED)
        apart = [r | {"source": "simulated"} if r["params"]["algorithm"] == "sparse" else r for r in complexity_sweep()]
        self.assertEqual(claim(apart, "Complexity").status, SEEN)
        for record in apart:
            record["status"] = "check_failed"
        self.assertEqual(claim(apart, "Complexity").status, NOT_TESTED)

    def test_a_scattered_line_has_no_exponent(self) -> None:
        records = complexity_sweep()
        for place, record in enumerate(r for r in records if r["params"]["algorithm"] == "sparse"):
            record["timing"]["median_s"] *= 2.5 if place % 2 else 1.0
        row = claim(records, "Complexity")
        self.assertEqual(row.status, SEEN)
        self.assertIn("The table is not judged without: sparse.", row.evidence[0].text)
        self.assertRegex(row.evidence[0].text, r"1 line not judged, times follow no power law: sparse, sparse on 2 ranks \(MPI processes, one host\) \(R² 0\.[0-9]{4}; 4K … 64K, n = 5\)")

    def test_only_patterns_of_the_papers_rule_have_its_complexity(self) -> None:
        records = complexity_sweep()
        for record in records:
            if record["params"]["algorithm"] == "sparse":  # segments of a fixed length: quadratic, and not √N
                for branch in record["params"]["branches"]:
                    branch["segment_length"] = 256
        self.assertIn("not judged without: sparse", claim(records, "Complexity").evidence[0].text)
        self.assertIn("1 line not judged, its segments and keys per query do not grow as √N: sparse,", claim(records, "Complexity").evidence[0].text)
        records = complexity_sweep()
        for record in records:
            if record["params"]["algorithm"] == "sparse":  # as many keys as dilated attention has: linear
                branch = record["params"]["branches"][1]
                width = branch["segment_length"]
                branch["summary_tokens"] = max(1, 2048 * width // record["params"]["seq_len"])
        self.assertIn("not judged without: sparse", claim(records, "Complexity").evidence[0].text)
        records = complexity_sweep()
        for record in records:
            if record["params"]["algorithm"] == "sparse":  # rounded to powers of two
                for branch in record["params"]["branches"]:
                    branch["segment_length"] = 1 << round(math.log2(branch["segment_length"]))
        self.assertEqual(claim(records, "Complexity").status, SUPPORTED)
        records = complexity_sweep()
        for record in records:
            if record["params"]["algorithm"] == "dilated":  # rates that do not grow with the segments
                for branch in record["params"]["branches"]:
                    branch["dilation_rate"] = 1
        self.assertIn("not judged without: dilated", claim(records, "Complexity").evidence[0].text)

    def test_dependency_depth(self) -> None:
        def depths(*pairs: tuple[int | None, float | None]) -> Claim:
            """Segments 2048, 4096, ... up to N, at 8K, 16K, ... tokens."""
            listed = [point("dilated", 8 * K << i, 1) for i in range(len(pairs))]
            for i, record in enumerate(listed):
                record["params"]["branches"] = [{"segment_length": 2 * K << j, "dilation_rate": 1 << j} for j in range(i + 3)]
            return claim([with_depth(r, *pair) for r, pair in zip(listed, pairs)], "dependency")

        found = depths((3, 1.0), (3, 2.2), (4, 6.0))
        self.assertEqual((found.status, found.source), (SUPPORTED, COMPUTED))
        self.assertIn("3 of 3 patterns within 2 layers of the paper's estimate rounded up", found.deciding.text)
        self.assertEqual(
            [d.partition("tokens: ")[2] for d in found.deciding.details],
            [
                "3 layers, 2 layers more than the paper's estimate of 1",
                "3 layers, no more than the paper's estimate of 2.2, rounded up to 3",
                "4 layers, no more than the paper's estimate of 6",
            ],
        )
        self.assertEqual(depths((5, 2.2), (3, 7.0)).status, SUPPORTED)  # rounded up: 3 + 2
        self.assertEqual(depths((6, 2.2), (3, 7.0)).status, NOT_SUPPORTED)
        near = depths((3, 1.0), (9, 4.0))  # 9 > 4 + 2, but over one or two lengths everything is logarithmic
        self.assertEqual(near.status, SEEN)
        self.assertIn("2 patterns not judged, estimates with one first segment and one α are less than 4 layers apart, which does not tell log N from a constant: 3 to 9 layers beside estimates of 1 to 4.", near.deciding.text)
        never = depths((3, 2.0), (-1, 3.0), (3, 4.0))  # whatever the spread
        self.assertEqual(never.status, NOT_SUPPORTED)
        self.assertIn("16K tokens: some token never hears", never.deciding.text)
        self.assertEqual(depths((None, 2.0), (3, None)).status, NOT_TESTED)
        self.assertEqual(claim([with_depth(point("ring", 8 * K, 1), 1, 1.0)], "dependency").status, NOT_TESTED)
        simulated = with_depth(point("dilated", 8 * K, 1, source="simulated"), -1, 1.0)
        self.assertEqual(claim([simulated], "dependency").source, COMPUTED)  # whatever the source of its times

    def test_dependency_depth_of_patterns_that_the_estimate_leaves_out(self) -> None:
        skipping = with_depth(point("dilated", 8 * K, 1), -1, 2.0)
        skipping["params"]["branches"][-1]["dilation_rate"] = 4096  # over the first segment's 2048 tokens
        seen = claim([skipping], "dependency")
        self.assertEqual(seen.status, SEEN)
        self.assertIn("1 pattern not judged, a dilation rate exceeds the next shorter segment", seen.evidence[0].text)
        skipping["params"]["branches"][-1]["dilation_rate"] = 2048
        self.assertEqual(claim([skipping], "dependency").status, NOT_SUPPORTED)
        same = [with_depth(point("dilated", 8 * K, 1), 3, 1.0) for _ in range(2)]
        same[1]["id"] = "another0"  # the same pattern twice counts once
        self.assertIn("1 pattern not judged", claim(same, "dependency").deciding.text)


class Quotes(unittest.TestCase):
    def test_the_paper_is_quoted_in_whole_sentences(self) -> None:
        for c in judge(context([])):
            quoted = re.match("“([^”]+)” \\((?:section|table|abstract)", c.quote)
            self.assertIsNotNone(quoted, c.quote)
            self.assertTrue(quoted[1][0].isupper() and quoted[1].endswith("."), c.quote)
            for part in re.findall("“([^”]+)”", c.quote):
                self.assertGreaterEqual(len(part.split()), 7, part)  # no fragment

    def test_claims_name_rules_that_exist(self) -> None:
        named = {name for c in judge(context([])) for name in c.rules}
        self.assertEqual(named, set(RULES))
        for title in ("dilated attention is nearly", "Communication", "Complexity"):
            self.assertIn("rates", claim([], title).rules)


if __name__ == "__main__":
    unittest.main()

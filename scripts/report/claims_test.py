#!/usr/bin/env python3
"""Tests of the logic behind the report on SYNTHETIC points: units, fits, and the status of each claim."""

from __future__ import annotations

import math
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report.claims import judge
from report.evidence import NOT_SUPPORTED, NOT_TESTED, SUPPORTED, Claim
from report.fits import fit_power_law
from report.model import Point, Run
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


def claim(records: list[dict], words: str, **environment: object) -> Claim:
    ctx = context(records)
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


class Claims(unittest.TestCase):
    def line(self, algorithm: str, exponent: float, **options: object) -> list[dict]:
        """Time of a sequence ~ N^(1 + exponent), exactly."""
        return [point(algorithm, n * K, 2, time_s=1e-6 * n * K * n**exponent, **options) for n in (8, 16, 32, 64)]

    def test_latency_constant(self) -> None:
        for exponent, status in (
            (0.0, SUPPORTED),
            (0.07, SUPPORTED),
            (0.2, NOT_SUPPORTED),
            (-0.3, NOT_SUPPORTED),
            (1.0, NOT_SUPPORTED),
        ):
            with self.subTest(exponent=exponent):
                self.assertEqual(claim(self.line("dilated", exponent), "dilated attention is nearly").status, status)

    def test_a_short_line_within_a_quarter_is_constant(self) -> None:
        records = [point("dilated", n * K, 2, time_s=1e-6 * n * K * n**-0.12) for n in (8, 16, 32)]  # 4^0.12 = 1.18
        self.assertEqual(claim(records, "dilated attention is nearly").status, SUPPORTED)

    def test_one_jump_refutes_a_constant_latency(self) -> None:
        records = [
            point("dilated", n * K, 2, time_s=1e-6 * n * K * (2.5 if n == 32 else 1)) for n in (8, 16, 32, 64, 128)
        ]
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_SUPPORTED)

    def test_lengths_where_latency_rules_are_left_out_and_counted(self) -> None:
        lengths = [8 * 2**i for i in range(12)]
        for law, title in (
            (lambda n: 1 + n / 256, "dilated attention is nearly"),
            (lambda n: 1 + (n / 256) ** 2, "vanilla attention grows"),
        ):
            name = "dilated" if "dilated" in title else "ring"
            found = claim([point(name, n * K, 64, time_s=1e-3 * law(n)) for n in lengths], title)
            self.assertEqual(found.status, SUPPORTED, found)
            self.assertRegex(found.deciding.text, r"without \d lengths below \d+[KM], where latency rules")
        floor = [point("dilated", n * K, 64, time_s=1e-3 * (1 + n / 1e9)) for n in lengths]
        self.assertEqual(claim(floor, "dilated attention is nearly").status, NOT_TESTED, "latency alone tests nothing")

    def test_short_lines_test_nothing(self) -> None:
        self.assertEqual(claim(self.line("dilated", 0.0)[:2], "dilated attention is nearly").status, NOT_TESTED)
        self.assertEqual(claim(self.line("ring", 1.0)[:2], "vanilla attention grows").status, NOT_TESTED)
        self.assertEqual(claim([], "nearly").status, NOT_TESTED)

    def test_vanilla_grows(self) -> None:
        self.assertEqual(claim(self.line("ring", 1.0), "vanilla attention grows").status, SUPPORTED)
        self.assertEqual(claim(self.line("ring", 0.1), "vanilla attention grows").status, NOT_SUPPORTED)
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
        self.assertIn("noisy machine: load average 7.5 on 8 usable", noisy.evidence[0].text)
        self.assertIn("Seen all the same: ", noisy.evidence[0].text)
        self.assertEqual(claim(self.line("ring", 1.0), "vanilla attention grows", **busy_machine(7)).status, NOT_TESTED)
        table = complexity_sweep()
        self.assertNotEqual(claim(table, "Complexity").status, NOT_TESTED)
        self.assertEqual(claim(table, "Complexity", **busy_machine(7)).status, NOT_TESTED)

    def test_noise_does_not_touch_what_no_clock_decides(self) -> None:
        records = self.line("dilated", 0.0) + self.line("ring", 1.0)
        self.assertEqual(claim(records, "Communication", **busy_machine(7)).status, SUPPORTED)
        self.assertEqual(claim(records, "equals the reference", **busy_machine(7)).status, SUPPORTED)
        self.assertEqual(claim(records, "No distributed", **busy_machine(7)).status, NOT_SUPPORTED)
        simulated = self.line("dilated", 0.5, source="simulated")
        self.assertEqual(claim(simulated, "attention is nearly", **busy_machine(7)).status, NOT_SUPPORTED)
        # Too few points stay what they are, whatever the noise.
        few = claim(self.line("dilated", 0.0)[:2], "attention is nearly", **busy_machine(7))
        self.assertNotIn("noisy", few.evidence[0].text)

    def test_a_quiet_run_decides_beside_a_busy_one(self) -> None:
        ctx = context(self.line("dilated", 1.0) + self.line("dilated", 0.0))
        quiet, loud = ctx.runs[0], Run(Path("busy"), {"environment": busy_machine(7)}, [])
        points = [Point(int(i < 4), p.raw) for i, p in enumerate(ctx.points)]  # the steep line is the busy run's
        index = SeriesIndex(points, [quiet, loud])
        latency = next(c for c in judge(Context(points, [quiet, loud], index)) if "is nearly" in c.title)
        self.assertEqual(latency.status, SUPPORTED)

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

    def test_communication(self) -> None:
        records = self.line("dilated", 0.0)
        self.assertEqual(claim(records, "Communication").status, SUPPORTED)
        for record in records:  # grows with N, as a ring's would
            record["comm"]["counted_bytes_per_rank"] = record["comm"]["predicted_bytes_per_rank"] = (
                record["params"]["seq_len"] * 100
            )
        self.assertEqual(claim(records, "Communication").status, NOT_SUPPORTED)
        records = self.line("dilated", 0.0)
        records[1]["comm"]["counted_bytes_per_rank"] += 8
        self.assertEqual(claim(records, "Communication").status, NOT_SUPPORTED)
        self.assertEqual(
            claim([point("dilated", n * K, 1) for n in (8, 16, 32, 64)], "Communication").status, NOT_TESTED
        )

    def test_communication_over_ranks(self) -> None:
        weak = [point("dilated", p * 8 * K, p) for p in (2, 4, 8, 16)]  # (P-1)/P of a constant
        self.assertEqual(claim(weak, "Communication").status, SUPPORTED)
        for record in weak:  # a ring: (P-1) shards
            record["comm"]["counted_bytes_per_rank"] = record["comm"]["predicted_bytes_per_rank"] = (
                record["params"]["ranks"] - 1
            ) * M
        self.assertEqual(claim(weak, "Communication").status, NOT_SUPPORTED)

    def test_one_billion(self) -> None:
        self.assertEqual(claim([point("dilated", 512 * M, 64)], "billion").status, NOT_TESTED)
        self.assertEqual(claim([point("dilated", B, 64, source="simulated")], "billion").source, "simulated")
        self.assertEqual(
            claim([refused("dilated", B, 64, "skipped_memory", "too large")], "billion").status, NOT_SUPPORTED
        )
        self.assertEqual(
            claim([refused("dilated", B, 64, "skipped_excluded", "too slow")], "billion").status, NOT_TESTED
        )
        self.assertEqual(claim([point("ring", B, 64)], "billion").status, NOT_TESTED)

    def test_a_computed_billion(self) -> None:
        def walked(**changes: object) -> dict:
            record = point("dilated", B, 128, time_s=3000.0)
            record["params"]["mode"] = "virtual"
            record["content"] = {"nan_values": 0, "rows": B}
            record["metrics"] = {"walk_wall_s": 3200.0}
            record["check"] |= {"queries": 1024, "max_rel_error": 4.5e-7}
            return record | changes

        computed = claim([walked()], "are computed")
        self.assertEqual((computed.status, computed.source), (SUPPORTED, "measured"))
        for words in ("1B", "one device in the place of 128 ranks", "1,024 sampled rows", "4.5e-07", "3200 s"):
            self.assertIn(words, computed.deciding.text)
        self.assertIn("one device", claim([walked()], "tokens fit").deciding.text)
        self.assertEqual(claim([walked(content={"nan_values": 1, "rows": B})], "are computed").status, NOT_TESTED)
        self.assertEqual(claim([walked(source="extrapolated")], "are computed").status, NOT_TESTED)
        self.assertEqual(claim([walked(status="check_failed", reason="wrong")], "are computed").status, NOT_SUPPORTED)
        self.assertEqual(claim([point("dilated", 512 * M, 64)], "are computed").status, NOT_TESTED)

    def test_the_time_of_ranks_in_turn_is_no_rank_s_time(self) -> None:
        records = [point("dilated", n * 8 * K, n, time_s=1e-6 * n * 8 * K) for n in (1, 2, 4, 8)]
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_SUPPORTED)
        for record in records:
            record["params"]["mode"] = "virtual"
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_TESTED)

    def test_walks_of_two_runs_with_the_same_branches_are_one_line(self) -> None:
        branches = [{"segment_length": 2 * K, "dilation_rate": 1}, {"segment_length": M, "dilation_rate": 512}]
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

    def test_ranks_that_share_cores_decide_nothing_about_time(self) -> None:
        records = self.line("ring", 0.1)
        self.assertEqual(claim(records, "vanilla attention grows").status, NOT_SUPPORTED)
        for record in records:
            threads = record["params"]["ranks"] * record["params"]["threads"]
            record["metrics"] = {"usable_cores": threads}
        self.assertEqual(claim(records, "vanilla attention grows").status, NOT_SUPPORTED)
        for record in records:
            record["metrics"] = {"usable_cores": threads - 1}
        self.assertEqual(claim(records, "vanilla attention grows").status, NOT_TESTED)

    def test_reference(self) -> None:
        good, bad = point("dilated", 8 * K, 1), point("dilated", 16 * K, 1)
        self.assertEqual(claim([good], "equals the reference").status, SUPPORTED)
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

    def test_exact_distributed_attention_refutes_the_negative_claim(self) -> None:
        self.assertEqual(claim([point("ring", 8 * K, 2)], "No distributed algorithm").status, NOT_SUPPORTED)
        self.assertEqual(claim([point("ring", 8 * K, 1)], "No distributed algorithm").status, NOT_TESTED)

    def test_every_exact_algorithm_on_several_ranks_is_listed(self) -> None:
        records = opponents_sweep()
        evidence = claim(records, "No distributed algorithm").deciding
        exact = ("all_gather", "double_ring", "query_gather", "ring", "ulysses", "usp")
        self.assertIn(f"{len(exact)} exact algorithms ran", evidence.text)
        for name in exact:
            self.assertIn(name, evidence.text)
        for name in ("dilated", "sparse", "local"):
            self.assertNotIn(name, evidence.text)
        self.assertTrue(any(d == "ring zigzag: 64K tokens on 8 ranks" for d in evidence.details), evidence.details)
        for record in records:
            if record["params"]["algorithm"] == "ulysses":
                record["check"]["status"] = "not_run"
            if record["params"]["algorithm"] == "usp":
                record["status"] = "check_failed"
        text = claim(records, "No distributed algorithm").deciding.text
        self.assertIn("Ran unchecked: ulysses.", text)
        self.assertNotIn("usp", text)
        self.assertIn("4 exact algorithms", text)

    def test_complexity_table(self) -> None:
        row = claim(complexity_sweep(), "Complexity")
        self.assertEqual((row.status, len(row.deciding.details)), (SUPPORTED, 4))
        for text in ("vanilla, local (dense) on 1 rank: time ~ N^2.00", "sparse, sparse on 2 ranks: time ~ N^1.50"):
            self.assertTrue(any(text in d for d in row.deciding.details), row.deciding.details)
        self.assertTrue(all("R² 1.0000" in d and "4K … 64K, n = 5" in d for d in row.deciding.details))
        wrong = (("local", 1.8), ("ring", 2.2), ("sparse", 1.7), ("sparse", 1.3), ("dilated", 1.2), ("dilated", 0.8))
        for off in ({name: exponent} for name, exponent in wrong):
            self.assertEqual(claim(complexity_sweep(**off), "Complexity").status, NOT_SUPPORTED, off)
        for near in ({"local": 1.9}, {"sparse": 1.6}, {"dilated": 1.1}):
            self.assertEqual(claim(complexity_sweep(**near), "Complexity").status, SUPPORTED, near)

    def test_complexity_needs_all_three_methods_and_long_lines(self) -> None:
        def without(name: str) -> list[dict]:
            return [r for r in complexity_sweep() if r["params"]["algorithm"] != name]

        row = claim(without("sparse"), "Complexity")
        self.assertEqual(row.status, NOT_TESTED)
        self.assertIn("No such line: sparse", row.evidence[0].text)
        bad = [r for r in complexity_sweep(dilated=1.5) if r["params"]["algorithm"] != "sparse"]
        self.assertEqual(claim(bad, "Complexity").status, NOT_SUPPORTED)
        short = [r for r in complexity_sweep() if r["params"]["seq_len"] <= 16 * K]
        self.assertEqual(claim(short, "Complexity").status, NOT_TESTED)
        narrow = [r for r in complexity_sweep() if r["params"]["seq_len"] in (4 * K, 8 * K, 16 * K)]
        narrow += [r | {"params": r["params"] | {"seq_len": 12 * K}} for r in narrow if r["params"]["seq_len"] == 8 * K]
        self.assertEqual(claim(narrow, "Complexity").status, NOT_TESTED)
        apart = [r | {"source": "simulated"} if r["params"]["algorithm"] == "sparse" else r for r in complexity_sweep()]
        self.assertEqual(claim(apart, "Complexity").status, NOT_TESTED)
        for record in apart:
            record["status"] = "check_failed"
        self.assertEqual(claim(apart, "Complexity").status, NOT_TESTED)

    def test_a_scattered_line_has_no_exponent(self) -> None:
        records = complexity_sweep()
        for place, record in enumerate(r for r in records if r["params"]["algorithm"] == "sparse"):
            record["timing"]["median_s"] *= 2.5 if place % 2 else 1.0
        row = claim(records, "Complexity")
        self.assertEqual(row.status, NOT_SUPPORTED)
        self.assertIn("sparse", row.deciding.text)

    def test_only_patterns_of_the_papers_rule_have_its_complexity(self) -> None:
        records = complexity_sweep()
        for record in records:
            if record["params"]["algorithm"] == "sparse":  # segments of a fixed length: quadratic, and not √N
                for branch in record["params"]["branches"]:
                    branch["segment_length"] = 256
        self.assertIn("No such line: sparse", claim(records, "Complexity").evidence[0].text)
        records = complexity_sweep()
        for record in records:
            if record["params"]["algorithm"] == "sparse":  # as many keys as dilated attention has: linear
                branch = record["params"]["branches"][1]
                width = branch["segment_length"]
                branch["summary_tokens"] = max(1, 2048 * width // record["params"]["seq_len"])
        self.assertIn("No such line: sparse", claim(records, "Complexity").evidence[0].text)
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
        self.assertIn("No such line: dilated", claim(records, "Complexity").evidence[0].text)

    def test_dependency_depth(self) -> None:
        def depths(*pairs: tuple[int | None, float | None]) -> Claim:
            listed = [point("dilated", 8 * K << i, 1) for i in range(len(pairs))]
            return claim([with_depth(r, *pair) for r, pair in zip(listed, pairs)], "dependency")

        self.assertEqual(depths((3, 1.0), (3, 2.2), (4, 6.0)).status, SUPPORTED)
        self.assertEqual(depths((3, 1.0), (4, 1.0)).status, NOT_SUPPORTED)  # 4 > 1 + 2
        self.assertEqual(depths((5, 2.2)).status, SUPPORTED)  # rounded up: 3 + 2
        self.assertEqual(depths((6, 2.2)).status, NOT_SUPPORTED)
        never = depths((3, 2.0), (-1, 3.0), (3, 4.0))
        self.assertEqual(never.status, NOT_SUPPORTED)
        self.assertIn("2 of 3 patterns", never.deciding.text)
        self.assertIn("16K tokens: some token never hears", never.deciding.text)
        self.assertEqual(depths((None, 2.0), (3, None)).status, NOT_TESTED)
        self.assertEqual(claim([with_depth(point("ring", 8 * K, 1), 1, 1.0)], "dependency").status, NOT_TESTED)
        same = [with_depth(point("dilated", 8 * K, 1), 3, 1.0) for _ in range(2)]
        same[1]["id"] = "another0"  # the same pattern twice counts once
        self.assertEqual(len(claim(same, "dependency").deciding.details), 1)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Tests of the logic behind the report on SYNTHETIC points: units, fits, and the status of each claim."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report.claims import NOT_SUPPORTED, NOT_TESTED, SUPPORTED, Claim, judge  # noqa: E402
from report.fits import fit_power_law  # noqa: E402
from report.synthetic_fixture import B, K, M, context, point, refused  # noqa: E402
from report.units import bytes_label, duration_label, significant, token_label  # noqa: E402


def claim(records: list[dict], words: str) -> Claim:
    return next(c for c in judge(context(records)) if words in c.title)


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

    def test_short_lines_test_nothing(self) -> None:
        self.assertEqual(claim(self.line("dilated", 0.0)[:2], "dilated attention is nearly").status, NOT_TESTED)
        self.assertEqual(claim(self.line("ring", 1.0)[:2], "vanilla attention grows").status, NOT_TESTED)
        self.assertEqual(claim([], "nearly").status, NOT_TESTED)

    def test_vanilla_grows(self) -> None:
        self.assertEqual(claim(self.line("ring", 1.0), "vanilla attention grows").status, SUPPORTED)
        self.assertEqual(claim(self.line("ring", 0.1), "vanilla attention grows").status, NOT_SUPPORTED)
        self.assertIn("N^2.00", claim(self.line("ring", 1.0), "vanilla attention grows").deciding.text)

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

    def test_exact_distributed_attention_refutes_the_negative_claim(self) -> None:
        self.assertEqual(claim([point("ring", 8 * K, 2)], "No distributed algorithm").status, NOT_SUPPORTED)
        self.assertEqual(claim([point("ring", 8 * K, 1)], "No distributed algorithm").status, NOT_TESTED)


if __name__ == "__main__":
    unittest.main()

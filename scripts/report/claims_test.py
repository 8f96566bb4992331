#!/usr/bin/env python3
"""Tests of the logic behind the report on SYNTHETIC points: units, fits, and the status of each claim."""

from __future__ import annotations

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report.claims import judge
from report.claims_billion_test import Billion  # noqa: F401  (runs them too)
from report.claims_communication_test import Communication  # noqa: F401  (runs them too)
from report.claims_distributed_test import Distributed  # noqa: F401  (runs them too)
from report.claims_fixture import claim, floor_line, line_of, paper_line, slim
from report.claims_latency_test import Latency  # noqa: F401  (runs them too)
from report.claims_noise_test import Noise  # noqa: F401  (runs them too)
from report.claims_pattern_test import Pattern  # noqa: F401  (runs them too)
from report.fits import fit_power_law
from report.page import claim_row
from report.paper_lines import RULES
from report.synthetic_fixture import B, K, M, complexity_sweep, context, opponents_sweep, point, with_depth
from report.units import bytes_label, duration_label, ratio_label, significant, token_label


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


class Commands(unittest.TestCase):
    def test_what_is_not_decided_names_a_documented_run_that_decides(self) -> None:
        table = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
        for found in judge(context([])):
            self.assertTrue(f"`{found.command}`" in table, found.command)
            self.assertTrue((ROOT / re.search(r"configs/\S+", found.command)[0]).is_file(), found.command)
            self.assertIn(f"To decide it: <code>{found.command}</code>", claim_row(1, found, []))
        self.assertNotIn("To decide it", claim_row(1, claim(line_of("dilated", 0.0), "dilated attention is nearly"), []))


class Fits(unittest.TestCase):
    def test_exact_power_law(self) -> None:
        fit = fit_power_law([(x, 3 * x**2) for x in (1, 2, 4, 8)])  # y = 3 x^2
        self.assertAlmostEqual(fit.exponent, 2.0, places=12)
        self.assertAlmostEqual(fit.r_squared, 1.0, places=12)
        self.assertEqual((fit.count, fit.x_min, fit.x_max), (4, 1, 8))
        self.assertIsNone(fit.exponent_interval)

    def test_an_exponent_has_the_interval_that_its_points_allow(self) -> None:
        """Two times known to a factor of 2 either way, a factor of 16 in x apart: an exponent of 1 ± 1/2, a rise of 4 to 64."""
        fit = fit_power_law([(1, 1, 0.5, 2), (16, 16, 8, 32)])
        self.assertAlmostEqual(fit.exponent_interval[0], 0.5, places=12)
        self.assertAlmostEqual(fit.exponent_interval[1], 1.5, places=12)
        self.assertEqual((fit.y_rise, fit.rise_interval), (16, (4, 64)))
        unknown = fit_power_law([(1, 1, 0.5, 2), (4, 4), (16, 8, 4, 16)])  # one sample
        self.assertIsNone(unknown.exponent_interval)
        self.assertEqual((unknown.y_rise, unknown.rise_interval), (8, None))
        self.assertEqual(fit_power_law([(1, 8, 7, 9), (2, 2, 1, 9)]).rise_interval, (1, 9 / 7))  # it falls, if not by much
        records = line_of("ring", 1.0)
        self.assertIn("time of a sequence ~ N^2.00 [2.00, 2.00] (8K to 128K", claim(records, "vanilla attention grows").deciding.text)
        for record in records:
            record["timing"]["ci_level"] = 0.75  # three samples
        unsure = claim(records, "vanilla attention grows").evidence[0]
        self.assertEqual(unsure.status, "undecided")
        self.assertIn("N^2.00 (8K to 128K tokens, 5 points). 1 line undecided: no interval that lies on one side of the threshold.", unsure.text)
        simulated = claim(line_of("ring", 1.0, source="simulated"), "vanilla attention grows")
        self.assertIn("time of a sequence ~ N^2.00 (8K to 128K", simulated.deciding.text)

    def test_unusable_values_are_left_out(self) -> None:
        self.assertIsNone(fit_power_law([(1, 2), (1, 3)]))
        self.assertIsNone(fit_power_law([(1, None), (2, 0), (None, 3)]))
        self.assertEqual(fit_power_law([(1, 2), (2, 4), (3, -1)]).count, 2)


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


class Scale(unittest.TestCase):
    def test_a_status_says_how_far_it_reaches(self) -> None:
        one = [r | {"id": f"o{i}", "params": r["params"] | {"ranks": 1, "seq_len": 2 * r["params"]["seq_len"]}} for i, r in enumerate(line_of("ring", 1.0))]
        for records, scale in (
            (line_of("ring", 1.0), "to 128K tokens on 2 ranks, measured"),
            (line_of("ring", 1.0) + one, "to 256K tokens on 1 rank, 128K on 2 ranks, measured"),  # not 256K on 2
            ([*line_of("ring", 1.0), point("ring", B, 64)], "to 128K tokens on 2 ranks, measured"),  # a point is no line
            (line_of("ring", 1.0, source="simulated"), "to 128K tokens on 2 ranks, simulated"),
            ([], ""),
        ):
            self.assertEqual(claim(records, "vanilla attention grows").scale, scale)
        depths = [with_depth(r, 3, 2.0 + 2 * i) for i, r in enumerate(paper_line())]
        self.assertEqual(claim(depths, "dependency").scale, "to 64K tokens, computed")
        for title in ("equals the reference", "is constant"):
            self.assertEqual(claim(paper_line(), title).scale, "to 64K tokens on 2 ranks, measured")

    def test_lines_that_show_one_constant_alone_say_so(self) -> None:
        """Latency in fp32, bytes in bf16: no line has both."""
        flat = line_of("dilated", 0.0)
        for record in flat:  # as rates grow more slowly than segments, its bytes grow
            record["comm"] |= dict.fromkeys(("counted_bytes_per_rank", "predicted_bytes_per_rank"), record["params"]["seq_len"])
        bytes_alone = [r | {"id": f"b{i}", "params": r["params"] | {"dtype": "bf16"}} for i, r in enumerate(paper_line())]
        for title, other in (("dilated attention is nearly", "communication"), ("Communication", "latency")):
            found = claim(flat + bytes_alone, title)
            self.assertEqual(found.status, "supported")
            self.assertTrue(found.deciding.text.endswith(f"Constant {other} is shown by other lines, of other patterns or ranks; no line here shows both."), found)
            alone = claim(flat if "latency" not in other else bytes_alone, title).deciding
            self.assertNotIn("other lines", alone.text)
        both = line_of("dilated", 0.0)
        for record in both:  # three segments of equal work on ranks, and rates as segments
            n = record["params"]["seq_len"]
            record["params"]["branches"] = [{"segment_length": w, "dilation_rate": max(1, w // 2048)} for w in (2048, 4096, 8192, n)]
            record["params"]["ranks"] = n // 4096
            record["comm"] |= dict.fromkeys(("counted_bytes_per_rank", "predicted_bytes_per_rank"), M)
            record["timing"] |= dict.fromkeys(("median_s", "ci_low_s", "ci_high_s"), 1.0)
        for title in ("dilated attention is nearly", "Communication"):
            found = claim(both, title)
            self.assertEqual(found.status, "supported", found)
            self.assertNotIn("other lines", found.deciding.text)

    def test_cells_are_short(self) -> None:
        for c in judge(context(complexity_sweep() + line_of("dilated", 0.0) + paper_line() + floor_line("ring") + slim(opponents_sweep()))):
            self.assertLess(len(c.test.split()), 60, c.title)
            for e in c.evidence:
                self.assertLess(len(e.text.split()), 75, e.text)


if __name__ == "__main__":
    unittest.main()

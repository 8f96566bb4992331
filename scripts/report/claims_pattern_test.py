"""Tests of table 1 and of the dependency depth, on SYNTHETIC points: claims_test.py runs them."""

from __future__ import annotations

import math
import unittest

from .claims_fixture import claim, scattered, slower
from .evidence import COMPUTED, NOT_SUPPORTED, NOT_TESTED, SEEN, SUPPORTED, Claim
from .synthetic_fixture import K, complexity_sweep, point, with_depth


class Pattern(unittest.TestCase):
    def test_complexity_table(self) -> None:
        row = claim(complexity_sweep(), "Complexity")
        self.assertEqual((row.status, len(row.deciding.details)), (SUPPORTED, 4))
        for text in ("vanilla, local (dense) on 1 rank: time ~ N^2.00", "sparse on 2 ranks: time ~ N^1.50"):
            self.assertTrue(any(text in d for d in row.deciding.details), row.deciding.details)
        self.assertTrue(all("R² 1.0000" in d and "4K to 64K tokens, 5 points" in d for d in row.deciding.details))
        self.assertEqual(["; branches that ranks share do 2.86 % to 33.3 % of the FLOPs; ranks are MPI processes, one host" in d for d in row.deciding.details].count(True), 1)
        reached = [r for r in complexity_sweep() if r["params"]["pattern"] != "dense" or r["params"]["seq_len"] < 64 * K]
        self.assertEqual(claim(reached, "Complexity").scale, "vanilla to 32K, sparse and dilated to 64K tokens, measured")
        wrong = (("local", 1.8), ("ring", 2.2), ("sparse", 1.7), ("dilated", 1.2))
        for off in ({name: exponent} for name, exponent in wrong):
            self.assertEqual(claim(complexity_sweep(**off), "Complexity").status, NOT_SUPPORTED, off)
        for near in ({"local": 1.9}, {"sparse": 1.6}, {"dilated": 1.1}, {"sparse": 1.3}, {"dilated": 0.8}):  # O() is kept
            self.assertEqual(claim(complexity_sweep(**near), "Complexity").status, SUPPORTED, near)

    def test_an_exponent_decides_by_its_whole_interval(self) -> None:
        """Each time known to 10 % either way leaves an exponent over 16 times the length open by 0.08 either way."""
        for name, exponent, status in (
            ("local", 2.0, SUPPORTED),
            ("local", 1.9, SEEN),
            ("local", 2.1, SEEN),
            ("local", 1.7, NOT_SUPPORTED),
            ("local", 2.3, NOT_SUPPORTED),
            ("sparse", 1.6, SEEN),
            ("dilated", 0.8, SUPPORTED),
            ("dilated", 1.2, SEEN),
            ("dilated", 1.3, NOT_SUPPORTED),
        ):
            with self.subTest(name=name, exponent=exponent):
                self.assertEqual(claim(scattered(complexity_sweep(**{name: exponent}), 0.1), "Complexity").status, status)
        across = claim(scattered(complexity_sweep(local=1.9), 0.1), "Complexity").deciding
        self.assertIn("3 of 4 lines within the threshold; the worst: vanilla, local (dense) on 1 rank: time ~ N^1.90 [1.82, 1.98]", across.text)
        self.assertIn(" 1 line undecided: no interval that lies on one side of the threshold.", across.text)
        for exponent in (2.0, 1.8):  # [1.75, 2.25], [1.55, 2.05]
            self.assertEqual(claim(scattered(complexity_sweep(local=exponent), 0.3), "Complexity").status, SEEN)
        self.assertEqual(claim(scattered(complexity_sweep(local=1.8, ring=1.4), 0.3), "Complexity").status, NOT_SUPPORTED)

    def test_complexity_needs_all_three_methods_and_long_lines(self) -> None:
        def without(name: str) -> list[dict]:
            return [r for r in complexity_sweep() if r["params"]["algorithm"] != name]

        row = claim(without("sparse"), "Complexity")
        self.assertEqual(row.status, SEEN)
        self.assertIn("The table is not judged without: sparse.", row.evidence[0].whole)
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
            slower(record, 2.5 if place % 2 else 1.0)
        row = claim(records, "Complexity")
        self.assertEqual(row.status, SEEN)
        self.assertIn("The table is not judged without: sparse.", row.evidence[0].whole)
        self.assertRegex(row.evidence[0].whole, r"1 line not judged: times follow no power law\. .*not judged, times follow no power law: sparse on 2 ranks \(R² 0\.[0-9]{4}; 4K to 64K tokens, 5 points\)")

    def test_only_patterns_of_the_papers_rule_have_its_complexity(self) -> None:
        records = complexity_sweep()
        for record in records:
            if record["params"]["algorithm"] == "sparse":  # segments of a fixed length: quadratic, and not √N
                for branch in record["params"]["branches"]:
                    branch["segment_length"] = 256
        self.assertIn("not judged without: sparse", claim(records, "Complexity").evidence[0].whole)
        self.assertIn("not judged, segments and keys per query do not grow as √N: sparse on", claim(records, "Complexity").evidence[0].whole)
        records = complexity_sweep()
        for record in records:
            if record["params"]["algorithm"] == "sparse":  # as many keys as dilated attention has: linear
                branch = record["params"]["branches"][1]
                width = branch["segment_length"]
                branch["summary_tokens"] = max(1, 2048 * width // record["params"]["seq_len"])
        self.assertIn("not judged without: sparse", claim(records, "Complexity").evidence[0].whole)
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
        self.assertIn("not judged without: dilated", claim(records, "Complexity").evidence[0].whole)

    def test_dependency_depth(self) -> None:
        def depths(*pairs: tuple[int | None, float | None]) -> Claim:
            """Segments 2048, 4096, ... up to N, at 8K, 16K, ... tokens."""
            listed = [point("dilated", 8 * K << i, 1) for i in range(len(pairs))]
            for i, record in enumerate(listed):
                record["params"]["branches"] = [{"segment_length": 2 * K << j, "dilation_rate": 1 << j} for j in range(i + 3)]
            return claim([with_depth(r, *pair) for r, pair in zip(listed, pairs)], "dependency")

        found = depths((3, 1.0), (3, 2.2), (4, 6.0))
        self.assertEqual((found.status, found.source), (SUPPORTED, COMPUTED))
        self.assertIn("3 of 3 patterns within 2 layers of the paper's estimate rounded up", found.deciding.whole)
        self.assertEqual(
            [d.partition("tokens: ")[2] for d in found.deciding.details],
            [
                "3 layers, 2 layers more than the paper's estimate of 1",
                "3 layers, no more than the paper's estimate of 2.2, rounded up to 3",
                "4 layers, no more than the paper's estimate of 6",
            ],
        )
        self.assertIn(" At 8K and 32K tokens 3 and 4 layers were computed, 1 and 6 estimated. The estimate is up to 2 too low and up to 2 too high.", found.deciding.text)
        self.assertNotIn("Growth was not seen", found.deciding.text)
        flat = depths((3, 2.0), (3, 9.0)).deciding.text
        self.assertIn("The estimate is up to 1 too low and up to 6 too high. Growth was not seen: O(log N) holds as an upper bound.", flat)
        self.assertIn("3 layers were computed, 1 and 7 estimated. The estimate is up to 2 too low and up to 4 too high.", depths((3, 1.0), (3, 7.0)).deciding.text)
        self.assertEqual(depths((5, 2.2), (3, 7.0)).status, SUPPORTED)  # rounded up: 3 + 2
        self.assertEqual(depths((6, 2.2), (3, 7.0)).status, NOT_SUPPORTED)
        near = depths((3, 1.0), (9, 4.0))  # 9 > 4 + 2, but over one or two lengths everything is logarithmic
        self.assertEqual(near.status, SEEN)
        self.assertIn("2 patterns not judged: their estimates are less than 4 layers apart, which does not tell log N from a constant.", near.deciding.whole)
        never = depths((3, 2.0), (-1, 3.0), (3, 4.0))  # whatever the spread
        self.assertEqual(never.status, NOT_SUPPORTED)
        self.assertIn("16K tokens: some token never hears", never.deciding.whole)
        self.assertEqual(depths((None, 2.0), (3, None)).status, NOT_TESTED)
        self.assertEqual(claim([with_depth(point("ring", 8 * K, 1), 1, 1.0)], "dependency").status, NOT_TESTED)
        simulated = with_depth(point("dilated", 8 * K, 1, source="simulated"), -1, 1.0)
        self.assertEqual(claim([simulated], "dependency").source, COMPUTED)  # whatever the source of its times

    def test_dependency_depth_of_patterns_without_one_ratio(self) -> None:
        """The paper's figure 5 has segments 2048, tokens per device, N: at 64K tokens on two ranks the ratios are 16 and 2."""
        def of(*branches: tuple[int, int], layers: int = 5) -> Claim:
            record = with_depth(point("dilated", 64 * K, 2), layers, 3.0)
            record["params"]["branches"] = [{"segment_length": w, "dilation_rate": r} for w, r in branches]
            return claim([record], "dependency")

        for branches in (((2 * K, 1), (32 * K, 16), (64 * K, 32)), ((16 * K, 1), (32 * K, 2), (64 * K, 12))):
            found = of(*branches)
            self.assertEqual(found.status, SEEN)
            self.assertTrue(found.deciding.text.startswith("no pattern judged, though in each every token hears from every other within 5 layers."), found)
            self.assertIn("1 pattern not judged: segments or rates have no single ratio α, which the paper's estimate assumes.", found.deciding.text)
            self.assertTrue(found.deciding.details[0].endswith("64K tokens: 5 layers; the paper's estimate does not apply"), found)
            self.assertEqual(of(*branches, layers=-1).status, NOT_SUPPORTED)  # no number of layers is logarithmic
        self.assertIn("2 layers more than the paper's estimate of 3", of((16 * K, 1), (32 * K, 2), (64 * K, 4)).deciding.whole)

    def test_dependency_depth_of_patterns_that_the_estimate_leaves_out(self) -> None:
        skipping = with_depth(point("dilated", 8 * K, 1), -1, 2.0)
        skipping["params"]["branches"][-1]["dilation_rate"] = 4096  # over the first segment's 2048 tokens
        seen = claim([skipping], "dependency")
        self.assertEqual(seen.status, SEEN)
        self.assertIn("1 pattern not judged: a dilation rate exceeds the next shorter segment", seen.evidence[0].whole)
        skipping["params"]["branches"][-1]["dilation_rate"] = 2048
        self.assertEqual(claim([skipping], "dependency").status, NOT_SUPPORTED)
        same = [with_depth(point("dilated", 8 * K, 1), 3, 1.0) for _ in range(2)]
        same[1]["id"] = "another0"  # the same pattern twice counts once
        self.assertIn("1 pattern not judged", claim(same, "dependency").deciding.whole)

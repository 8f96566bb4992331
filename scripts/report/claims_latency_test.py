"""Tests of the claims about the time per token, on SYNTHETIC points: claims_test.py runs them."""

from __future__ import annotations

import math
import unittest
from pathlib import Path

from .claims import judge
from .claims_fixture import claim, equal_work, floor_line, line_of, scattered, slower
from .evidence import NOT_SUPPORTED, NOT_TESTED, SEEN, SUPPORTED
from .model import Point, Run
from .paper_lines import has_paper_segments
from .rows import Context
from .series import SeriesIndex
from .synthetic_fixture import K, M, complexity_sweep, context, point


class Latency(unittest.TestCase):
    def test_latency_constant(self) -> None:
        for exponent, status in (
            (0.0, SUPPORTED),
            (0.07, SUPPORTED),
            (0.2, NOT_SUPPORTED),
            (-0.3, SUPPORTED),  # better than constant
            (1.0, NOT_SUPPORTED),
        ):
            with self.subTest(exponent=exponent):
                self.assertEqual(claim(line_of("dilated", exponent), "dilated attention is nearly").status, status)
        self.assertIn("time per token falls ~ N^-0.30", claim(line_of("dilated", -0.3), "nearly").deciding.whole)
        bumpy = line_of("dilated", -0.3)
        slower(bumpy[2], 1.6)  # 1.3 times the point before
        self.assertEqual(claim(bumpy, "dilated attention is nearly").status, SUPPORTED)
        self.assertIn("falls ~ N^-0.30 [-0.30, -0.30], largest rise 1.3× [1.3, 1.3]", claim(bumpy, "nearly").deciding.whole)

    def test_a_line_decides_by_its_whole_interval(self) -> None:
        """Each time known to 5 % either way leaves the exponent open by 0.04 either way, and a rise of 1.1 times."""
        title = "dilated attention is nearly"
        for exponent, status in ((0.0, SUPPORTED), (0.1, SEEN), (0.2, NOT_SUPPORTED)):
            with self.subTest(exponent=exponent):
                self.assertEqual(claim(scattered(line_of("dilated", exponent), 0.05), title).status, status)
        across = claim(scattered(line_of("dilated", 0.1), 0.05), title).deciding
        self.assertIn("time per token ~ N^0.10 [0.06, 0.14], largest rise 1.32× [1.2, 1.45] (8K to 128K tokens, 5 points)", across.text)
        self.assertIn(". 1 line undecided: no interval that lies on one side of the threshold.", across.text)
        self.assertEqual(len(across.judged), 1)
        failing = [r | {"id": f"f{i}", "params": r["params"] | {"dtype": "bf16"}} for i, r in enumerate(line_of("dilated", 0.5))]
        both = claim(scattered(line_of("dilated", 0.1), 0.05) + failing, title)
        self.assertEqual(both.status, NOT_SUPPORTED)  # one line that fails is enough
        self.assertIn("0 of 2 lines within the threshold; the worst: ", both.deciding.text)
        self.assertIn("rises ~ N^0.50", both.deciding.text)
        jump = line_of("dilated", 0.0)
        slower(jump[2], 1.95)
        self.assertEqual(claim(jump, title).status, SUPPORTED)  # twice at most
        self.assertEqual(claim(scattered(jump, 0.03), title).status, SEEN)  # 1.84 to 2.07 times

    def test_a_rise_is_open_by_the_intervals_of_all_its_points(self) -> None:
        """Medians rise by 1.2 times from 8K to 16K tokens; one sample of a longer length may be 1.3 times the first."""
        records = line_of("dilated", 0.0)
        slower(records[1], 1.2)
        records[3]["timing"]["ci_high_s"] *= 1.3
        self.assertIn("largest rise 1.2× [1.2, 1.3]", claim(records, "dilated attention is nearly").deciding.text)

    def test_local_lines_say_that_their_intervals_leave_it_open(self) -> None:
        records = scattered([point("dilated", n * K, 2, time_s=1e-6 * n * K * n**0.1) for n in (8, 16, 32, 64, 128)], 0.05)
        found = claim(records, "dilated attention is nearly").deciding
        self.assertTrue(found.text.startswith("Left open by intervals at rates that grow as the segments do"), found)
        self.assertIn("Not counted at all, because branches", found.text)
        self.assertIn("at some length (left open by intervals): dilated on 2 ranks", found.details[0])

    def test_a_line_within_a_quarter_is_constant(self) -> None:
        records = [point("dilated", n * K, 2, time_s=1e-6 * n * K * (n / 8) ** 0.08) for n in (8, 32, 128)]  # 1.25 at most
        slower(records[1], 0.95)
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
            self.assertTrue(found.deciding.text.startswith(f"{words[0]} at rates that grow as the segments do, this suite's choice: "), found)
            self.assertIn("largest rise 1×" if exponent == 0 else "largest rise 16×", found.deciding.whole)
            self.assertIn(
                f"Not counted {words[1]}, because branches that ranks share do 1.49 % to 14.3 % of the FLOPs.",
                found.deciding.text,
            )
        both = records + [r | {"params": r["params"] | {"dtype": "bf16"}, "id": f"b{i}"} for i, r in enumerate(line_of("dilated", 0.0))]
        found = claim(both, "dilated attention is nearly")
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("1 line not judged: long branches do less than 10 % of the FLOPs at some length (beyond the threshold)", found.deciding.whole)

    def test_a_first_segment_that_is_not_the_papers_is_named(self) -> None:
        records = line_of("dilated", 0.0)
        self.assertNotIn("the paper: 2,048", claim(records, "dilated attention is nearly").deciding.text)
        for record in records:
            record["params"]["branches"][0]["segment_length"] = 1024
        for title in ("dilated attention is nearly", "Communication"):
            self.assertIn("; segments from 1,024 tokens (the paper: 2,048)", claim(records, title).evidence[0].whole)
        for record in records:
            record["params"]["branches"][0] = {"segment_length": 2 * K, "dilation_rate": 2}
        self.assertIn("; segments from 2,048 tokens at rate 2 (the paper: 2,048)", claim(records, "dilated attention is nearly").deciding.text)
        short = [point("dilated", n, 1) | {"id": f"s{n}"} for n in (1024, 2048)]  # segments end with the sequence
        self.assertEqual([has_paper_segments(p) for p in context(short).points], [True, True])

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
        self.assertIn("branches that ranks share do 25 % to 50 % of the FLOPs", found.deciding.whole)
        for record in records:
            record["params"] |= {"mode": "virtual", "branches": record["params"]["branches"][:2]}
        found = claim(records, "dilated attention is nearly")
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("branches beyond the first segment do 50 %", found.deciding.whole)

    def test_what_was_only_seen_gives_way_to_what_was_judged(self) -> None:
        seen = [point("dilated", n * K, 2, time_s=1e-6 * n * K) for n in (8, 16, 32, 64, 128)]
        title = "dilated attention is nearly"
        both = claim(seen + line_of("dilated", 0.5, source="simulated"), title)
        self.assertEqual((both.status, both.source), (NOT_SUPPORTED, "simulated"))
        steep = [r | {"id": f"b{i}", "params": r["params"] | {"dtype": "bf16"}} for i, r in enumerate(line_of("dilated", 1.0))]
        disturbed = claim(seen + steep, title, {r["id"]: "samples are 5 times apart" for r in steep})
        self.assertEqual(disturbed.status, NOT_TESTED)
        self.assertIn("not decided: machine was busy (5 points disturbed)", disturbed.evidence[0].whole)

    def test_long_lines_that_are_not_judged_are_listed(self) -> None:
        lengths = [8 * 2**i for i in range(12)]
        for name, title in (("dilated", "dilated attention is nearly"), ("ring", "vanilla attention grows"), ("ring", "Complexity")):
            floor = [point(name, n * K, 4, time_s=1e-3 * (1 + n / 1e9)) for n in lengths]
            evidence = claim(equal_work(floor) if name == "dilated" else floor, title).evidence[0]
            self.assertEqual(evidence.status, NOT_TESTED)
            self.assertIn(" 1 line not judged: latency rules at too many of its lengths.", evidence.text)
            self.assertRegex(evidence.details[0], rf"^not judged, latency rules at too many of its lengths: .*{name}.* on 4 ranks \(8K to 16M tokens, 12 points\)$")
            judged = line_of(name, 0.0 if name == "dilated" else 1.0)
            for record in judged:
                record["params"]["dtype"] = "bf16"
                record["id"] = f"b{record['id']}"
            if title != "Complexity":
                found = claim(floor + judged, title)
                self.assertEqual(found.status, SUPPORTED)
                self.assertIn("1 line not judged: latency rules", found.deciding.whole)

    def test_only_lines_of_figure_5_are_judged(self) -> None:
        def changed(**changes: object) -> list[dict]:
            steep = line_of("dilated", 1.0)
            for i, record in enumerate(steep):
                record["id"] = f"steep{i}"
                record["params"] |= changes.get("params", {})
                record["metrics"] = changes.get("metrics", {})
            return steep + line_of("dilated", 0.0)

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
        records = line_of("dilated", 0.0)
        other = [point("dilated", n * K, 2, batch=4, time_s=9e-6 * 4 * n * K) for n in (8, 16)]
        self.assertEqual(claim(records + equal_work(other), "dilated attention is nearly").status, SUPPORTED)
        constant = [point("dilated", n * K, 2, batch=128 // n, time_s=1.0) for n in (8, 16, 32, 64, 128)]
        found = claim(equal_work(constant), "dilated attention is nearly")
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("5 points", found.deciding.whole)

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
            self.assertRegex(found.deciding.whole, r"without \d lengths up to \d+[KM], where latency rules")
        law = claim(complexity_sweep() + floor_line("ring"), "Complexity")  # the same rule in the row of table 1
        self.assertEqual(law.status, SUPPORTED, law)
        self.assertTrue(any("where latency rules" in d for d in law.deciding.details), law.deciding.details)
        floor = [point("dilated", n * K, 64, time_s=1e-3 * (1 + n / 1e9)) for n in lengths]
        self.assertEqual(claim(floor, "dilated attention is nearly").status, NOT_TESTED, "latency alone tests nothing")

    def test_short_lines_test_nothing(self) -> None:
        self.assertEqual(claim(line_of("dilated", 0.0)[:2], "dilated attention is nearly").status, NOT_TESTED)
        self.assertEqual(claim(line_of("dilated", 0.0)[:4], "dilated attention is nearly").status, NOT_TESTED)  # a factor of 8
        self.assertEqual(claim(line_of("ring", 1.0)[:2], "vanilla attention grows").status, NOT_TESTED)
        self.assertEqual(claim([], "nearly").status, NOT_TESTED)

    def test_vanilla_grows(self) -> None:
        self.assertEqual(claim(line_of("ring", 1.0), "vanilla attention grows").status, SUPPORTED)
        self.assertEqual(claim(line_of("ring", 0.3), "vanilla attention grows").status, NOT_SUPPORTED)
        self.assertIn("N^2.00", claim(line_of("ring", 1.0), "vanilla attention grows").deciding.whole)
        for exponent, status in ((0.95, SUPPORTED), (0.88, SEEN), (0.75, NOT_SUPPORTED)):  # 1.85 at least, open by 0.08
            self.assertEqual(claim(scattered(line_of("ring", exponent), 0.1), "vanilla attention grows").status, status)
        across = claim(scattered(line_of("ring", 0.88), 0.1), "vanilla attention grows").deciding.text
        self.assertIn("time of a sequence ~ N^1.88 [1.80, 1.96] (8K to 128K tokens, 5 points). 1 line undecided: no interval that lies on one side of the threshold.", across)

    def test_the_time_of_ranks_in_turn_is_no_rank_s_time(self) -> None:
        records = [point("dilated", n * 8 * K, n, time_s=1e-6 * n * 8 * K) for n in (1, 2, 4, 8, 16)]
        records = equal_work(records)
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_SUPPORTED)
        for record in records:
            record["params"]["mode"] = "virtual"
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_TESTED)

    def test_walks_of_a_run_with_the_same_branches_are_one_line(self) -> None:
        branches = [{"segment_length": 2 * K, "dilation_rate": 1}, {"segment_length": M, "dilation_rate": 4}]
        records = [point("dilated", n, ranks, time_s=1e-6 * n) for n, ranks in ((8 * K, 1), (16 * K, 1), (M, 4))]
        for record in records:
            n = record["params"]["seq_len"]
            cut = [b | {"segment_length": min(b["segment_length"], n)} for b in branches]
            record["params"] |= {"mode": "virtual", "branches": cut, "batch": 1, "threads": 2}
        seen = claim(records, "dilated attention is nearly")
        self.assertEqual(seen.status, SUPPORTED)
        self.assertIn("same branches", seen.deciding.whole)
        records[2]["timing"] |= dict.fromkeys(("median_s", "ci_low_s", "ci_high_s"), 9 * M * 1e-06)
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_SUPPORTED)
        records[2]["params"]["branches"][1]["dilation_rate"] = 8  # another model
        self.assertEqual(claim(records, "dilated attention is nearly").status, NOT_TESTED)

    def test_walks_mix_neither_batches_nor_runs(self) -> None:
        def walks(tokens: int, seconds_per_token: float) -> list[dict]:
            """8K to 512K tokens in the place of 1 and of 4 ranks, all with the same branches; so many tokens a batch."""
            records = []
            for n in (8, 32, 128, 256, 512):
                ranks, batch = 1 if n < 128 else 4, tokens // (n * K)
                record = point("dilated", n * K, ranks, batch=batch, time_s=seconds_per_token * tokens)
                branches = [{"segment_length": min(w, n * K), "dilation_rate": r} for w, r in ((2 * K, 1), (M, 4))]
                record["params"] |= {"mode": "virtual", "branches": branches, "threads": 2}
                records.append(record)
            return records

        title = "dilated attention is nearly"
        slow, fast = walks(M, 9e-6), walks(8 * M, 1e-6)
        both = claim(slow + fast, title)
        self.assertEqual(both.status, SUPPORTED)
        self.assertIn("2 of 2 lines", both.deciding.whole)
        self.assertTrue(all("largest rise 1× [1, 1] (8K to 512K tokens, 5 points)" in d for d in both.deciding.details), both.deciding.details)
        # Three lengths of one run and two of another: neither is a line of its own.
        records = walks(M, 1e-6)
        self.assertEqual(claim(records, title).status, SUPPORTED)
        runs = [Run(Path(name), {"summary": {"disturbed": {}}}, []) for name in ("first", "second")]
        points = [Point(int(i > 2), p.raw) for i, p in enumerate(context(records).points)]
        latency = next(c for c in judge(Context(points, runs, SeriesIndex(points, runs))) if title in c.title)
        self.assertNotIn("5 points", str(latency))

    def test_walks_begin_where_latency_no_longer_rules(self) -> None:
        """Four numbers of ranks, the same branches: their time grows with N from 64K on alone."""
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
        self.assertIn("without 1 length up to 8K, where latency rules", found.deciding.whole)
        self.assertIn("64K to 4M tokens, 4 points", found.deciding.whole)
        never = claim(walks(8192), title)
        self.assertEqual(never.status, NOT_TESTED)
        self.assertIn(" not judged, latency rules at too many of its lengths: dilated with the same branches", never.evidence[0].whole)

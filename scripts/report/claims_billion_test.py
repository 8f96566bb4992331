"""Tests of the claims about a billion tokens, on SYNTHETIC points: claims_test.py runs them."""

from __future__ import annotations

import unittest

from .claims_fixture import claim
from .evidence import NOT_SUPPORTED, NOT_TESTED, SEEN, SUPPORTED
from .synthetic_fixture import B, M, point, refused, with_depth


def walked(**changes: object) -> dict:
    record = point("dilated", B, 128, time_s=3000.0)
    record["params"]["mode"] = "virtual"
    record["content"] = {"nan_values": 0, "rows": B}
    record["metrics"] = {"walk_wall_s": 3200.0}
    record["check"] |= {"queries": 1024, "max_rel_error": 4.5e-7}
    return record | changes


def on_ranks(**params: object) -> dict:
    """The same on 64 ranks of a distributed system."""
    return walked(params=point("dilated", B, 64)["params"] | params, id="on 64 ranks")


class Billion(unittest.TestCase):
    def test_one_billion(self) -> None:
        self.assertEqual(claim([on_ranks()], "billion").status, SUPPORTED)
        self.assertEqual(claim([point("dilated", 512 * M, 64)], "billion").status, NOT_TESTED)
        simulated = claim([point("dilated", B, 64, source="simulated")], "billion")
        self.assertEqual((simulated.status, simulated.source), (SEEN, "simulated"))
        self.assertIn("predicted peak memory", simulated.deciding.whole)
        self.assertIn("Undecided: simulated points compute no output.", simulated.deciding.text)
        small = claim([refused("dilated", B, 64, "skipped_memory", "too large")], "billion")  # another machine may hold it
        self.assertEqual((small.status, small.evidence[0].text), (NOT_TESTED, "1B tokens do not fit here, on up to 64 ranks: too large"))
        self.assertEqual(claim([refused("dilated", B, 64, "skipped_excluded", "too slow")], "billion").status, NOT_TESTED)
        self.assertEqual(claim([point("ring", B, 64)], "billion").status, NOT_TESTED)

    def test_the_verdict_says_what_the_sentence_lacks(self) -> None:
        """Status and reason of one point each, all with 1B tokens."""
        unchecked = on_ranks() | {"check": {"status": "not_run"}}
        for record, lacks in (
            (walked(), "one device in the place of all ranks is no distributed system"),
            (on_ranks(ranks=1), "one rank is no distributed system"),
            (with_depth(on_ranks(), -1, 2.0), "section 2.4 has no pattern that leaves tokens apart"),
            (unchecked, "its output was not checked"),
            (on_ranks() | {"content": {"nan_values": 1, "rows": B}}, "its output was not checked"),
            (walked(source="extrapolated"), "extrapolated points compute no output"),
        ):
            found = claim([record], "billion")
            self.assertEqual(found.status, SEEN, lacks)
            self.assertTrue(found.deciding.text.endswith(f" Undecided: {lacks}."), found.deciding.text)
        self.assertNotIn("Undecided", claim([on_ranks()], "billion").deciding.text)
        self.assertEqual(claim([walked(status="check_failed", reason="wrong")], "billion").status, NOT_SUPPORTED)

    def test_what_is_said_of_one_device(self) -> None:
        one = walked()
        one["params"]["heads"] = 1
        for depth, words in ((-1, "never hears from some other"), (5, "within 5 layers"), (None, "depth is not stated")):
            one["metrics"]["dependency_depth_layers"] = depth
            text = claim([one], "billion").deciding.text
            self.assertIn("one head of 64 (the paper's base model has 12)", text)
            self.assertIn("one device in the place of 128 ranks", text)
            self.assertIn(words, text)
        whole = claim([walked()], "billion").deciding.whole
        for words in ("1B tokens were computed and checked", "1,024 sampled rows", "worst row alone by 4.5e-07", "3000 s, 3200 s with making inputs",
                      "of one rank's shard at a time (whose output is checked, then dropped)", "fp32 inputs"):
            self.assertIn(words, whole)
        self.assertEqual(claim([walked()], "billion").scale, "to 1B tokens on one device for 128 ranks, measured")

    def test_nothing_hides_ranks(self) -> None:
        fast, apart = walked(), with_depth(on_ranks(), -1, 2.0) | {"id": "apart"}
        fast["timing"]["median_s"] = 1000.0
        alone = refused("dilated", B, 64, "skipped_memory", "too large")
        self.assertEqual(claim([walked(), alone], "billion").status, SEEN)
        for others in ([fast], [apart], [fast, apart, alone]):
            for records in ([*others, on_ranks()], [on_ranks(), *others]):
                found = claim(records, "billion")
                self.assertEqual(found.status, SUPPORTED)
                self.assertIn("computed and checked on 64 ranks in 50 min", found.deciding.text)

    def test_a_backward_is_no_forward_pass(self) -> None:
        self.assertEqual(claim([on_ranks(**{"pass": "backward"})], "billion").status, NOT_TESTED)
        self.assertEqual(claim([on_ranks(**{"pass": "backward"}) | {"status": "check_failed"}, walked()], "billion").status, SEEN)
        both = claim([on_ranks(**{"pass": "forward_backward"})], "billion")
        self.assertEqual(both.status, SUPPORTED)
        self.assertIn("attention's forward and backward pass with", both.deciding.text)

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
        computed = claim([walked()], "are computed")
        self.assertEqual((computed.status, computed.source), (SEEN, "measured"))
        self.assertEqual(claim([on_ranks()], "are computed").status, SUPPORTED)
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

    def test_a_pattern_that_leaves_tokens_apart_computes_no_billion(self) -> None:
        for title in ("are computed", "tokens fit"):
            apart = claim([with_depth(on_ranks(), -1, 2.0)], title)
            self.assertEqual(apart.status, SEEN)
            self.assertIn("some token never hears from some other", apart.deciding.text)
            whole = with_depth(on_ranks(), 5, 4.0)
            whole["timing"] = whole["timing"] | {"median_s": 9000.0}
            self.assertEqual(claim([with_depth(on_ranks(), -1, 2.0) | {"id": "apart"}, whole], title).status, SUPPORTED)

    def test_a_faster_walk_hides_no_ranks(self) -> None:
        fast = walked()
        fast["timing"]["median_s"] = 1000.0
        for records in ([fast, on_ranks()], [on_ranks(), fast]):
            found = claim(records, "are computed")
            self.assertEqual(found.status, SUPPORTED)
            self.assertIn("computed on 64 ranks in 3000 s", found.deciding.text)

    def test_other_passes_are_no_forward_pass(self) -> None:
        for name in ("backward", "forward_backward"):
            for title in ("are computed", "tokens fit"):
                self.assertEqual(claim([on_ranks(**{"pass": name})], title).status, NOT_TESTED)
                self.assertEqual(claim([on_ranks(**{"pass": name}) | {"status": "check_failed"}, walked()], title).status, SEEN)

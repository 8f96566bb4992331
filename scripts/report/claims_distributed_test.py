"""Tests of the claims about distributed algorithms, on SYNTHETIC points: claims_test.py runs them."""

from __future__ import annotations

import unittest

from .claims_fixture import claim, slim
from .evidence import NOT_SUPPORTED, NOT_TESTED, OUTDATED, SEEN, SUPPORTED
from .synthetic_fixture import B, K, opponents_sweep, point, refused


class Distributed(unittest.TestCase):
    def test_reference(self) -> None:
        good, bad = point("dilated", 8 * K, 2), point("dilated", 16 * K, 2)
        self.assertEqual(claim([good], "equals the reference").status, SUPPORTED)
        self.assertIn("ranks are MPI processes, one host, with messages between them", claim([good], "equals the reference").deciding.whole)
        threads = point("dilated", 8 * K, 4)
        threads["params"]["transport"] = "threads"
        cores = {"cpu": {"cores": 2, "threads": 2}}
        self.assertIn("ranks are threads of one process, one host, 2 cores, with messages", claim([threads], "equals the reference", **cores).deciding.whole)
        for name, devices, text in (("nccl", 4, "GPUs over nccl"), ("other", None, "joined by other"), (None, None, "joined by an unnamed transport")):
            carried = point("dilated", 8 * K, 4)
            carried["params"]["transport"] = name
            carried["metrics"] = {"devices": devices} if devices else {}
            self.assertIn(f"ranks are {text}, one host, with messages", claim([carried], "equals the reference").deciding.whole)
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
            self.assertIn("right on one rank, or without messages: 1 point", found.evidence[0].whole)
        bad |= {"status": "check_failed", "reason": "relative error 0.5 above 1e-4"}
        bad["check"] |= {"status": "fail", "max_rel_error": 0.5}
        self.assertEqual(claim([good, bad], "equals the reference").status, NOT_SUPPORTED)
        self.assertEqual(claim([point("ring", 8 * K, 1)], "equals the reference").status, NOT_TESTED)
        self.assertEqual(
            claim([point("dilated", 8 * K, 1, source="simulated")], "equals the reference").status, NOT_TESTED
        )

    def test_a_point_whose_check_failed_never_agrees(self) -> None:
        """A check other than that of the sampled rows may fail, as that of bytes: check.status is then "pass"."""
        title = "equals the reference"
        wrong = [point("dilated", n * K, 2) | {"status": "check_failed", "reason": "counted bytes differ"} for n in (8, 16)]
        found = claim(wrong, title)
        self.assertEqual(found.status, NOT_SUPPORTED)
        self.assertIn("2 of 2 checked points differ", found.deciding.whole)
        self.assertIn("counted bytes differ", found.deciding.whole)
        beside = claim([point("dilated", 32 * K, 2), wrong[0]], title)
        self.assertEqual(beside.status, NOT_SUPPORTED)
        self.assertIn("1 of 2 checked points differ", beside.deciding.whole)
        wrong[0]["comm"]["counted_messages_per_rank"] = 0  # they were lost
        self.assertEqual(claim(wrong[:1], title).status, NOT_SUPPORTED)
        alone = claim([point("dilated", 8 * K, 1) | {"status": "check_failed"}], title)
        self.assertEqual(alone.status, NOT_TESTED)
        self.assertNotIn("right on one rank", alone.evidence[0].whole)
        crashed = claim([point("dilated", 8 * K, 2) | {"status": "error"}], title)
        self.assertEqual(crashed.status, NOT_TESTED)

    def test_what_nobody_checked_agrees_with_nothing(self) -> None:
        unchecked = point("dilated", 8 * K, 2)
        unchecked["check"]["status"] = "not_run"
        self.assertEqual(claim([unchecked], "equals the reference").status, NOT_TESTED)
        partly = point("dilated", 8 * K, 2)
        partly["check"]["strata_left_out"] = 1200
        self.assertIn("1,200 strata (branch, head, rank)", claim([partly], "equals the reference").deciding.whole)

    def test_exact_attention_where_fewer_ranks_have_no_memory_outdates_the_negative_claim(self) -> None:
        title = "No distributed algorithm"
        none, ran = slim([refused("local", 8 * K, 1, "oom", "too large"), point("ring", 8 * K, 2)])
        found = claim([none, ran], title)
        self.assertEqual(found.status, OUTDATED)
        self.assertIn("ring, later than the paper, ran on 2 ranks and agreed with the reference at lengths for which fewer ranks had", found.deciding.whole)
        predicted = claim([none | {"status": "skipped_memory"}, ran], title)
        self.assertEqual(predicted.status, SEEN)
        self.assertIn("for which fewer ranks are predicted to have no memory", predicted.deciding.whole)
        for other in (none | {"status": "skipped_excluded"}, none | {"params": none["params"] | {"seq_len": 4 * K}},
                      none | {"params": none["params"] | {"ranks": 4}}):
            found = claim([other, ran], title)
            self.assertEqual(found.status, SEEN)
            self.assertIn("Undecided: whether fewer ranks have no memory for these lengths is not known.", found.deciding.text)
        wrong = ran | {"check": ran["check"] | {"status": "not_run"}}
        self.assertEqual(claim([none, wrong], title).status, NOT_TESTED)
        simulated = claim([point("ring", B, 64, source="simulated")], title)
        self.assertEqual(simulated.status, SEEN)
        self.assertIn("ring at 1B tokens on 64 ranks: nothing was computed or checked.", simulated.deciding.whole)

    def test_exact_attention_in_less_memory_per_rank_is_seen(self) -> None:
        title = "No distributed algorithm"
        one, two = slim([point("local", 8 * K, 1), point("ring", 8 * K, 2)])
        found = claim([one, two], title)
        self.assertEqual(found.status, SEEN)
        self.assertIn("Undecided: fewer ranks hold these lengths, up to 8K tokens, as well.", found.deciding.whole)
        self.assertIn("each rank computes N²/P pairs", found.deciding.whole)
        self.assertIn("ring, later than the paper, ran on 2 ranks and agreed with the reference, in 50 % of the memory per rank", found.deciding.whole)
        self.assertIn("Asked of today’s algorithms, all later than the sentence", found.test)
        for words in ("in July 2023, there were Ring Self-Attention (arXiv 2105.13120, May 2021)", "(2205.05198, May 2022)", "Ring Attention (2310.01889, October 2023)"):
            self.assertIn(words, found.more)  # earlier ones, and later ones
        self.assertRegex(found.deciding.details[0], r"8K tokens on 2 ranks, 50 % of the memory per rank")
        self.assertEqual(claim([one], title).status, NOT_TESTED)
        for share, words in ((0.88, "in 88 % of the memory per rank"), (1.2, "in 120 % of the memory per rank")):  # no threshold of ours
            memory = two["memory"] | {"measured_peak_bytes": int(share * one["memory"]["measured_peak_bytes"])}
            found = claim([one, two | {"memory": memory}], title)
            self.assertEqual(found.status, SEEN)
            self.assertIn(words, found.deciding.text)
        alone = claim([two], title)  # beside nothing
        self.assertEqual(alone.status, SEEN)
        self.assertIn("Undecided: whether fewer ranks have no memory for these lengths is not known.", alone.deciding.text)
        for path, value in (("comm", {"counted_messages_per_rank": 0}), ("check", {"status": "not_run"})):
            self.assertEqual(claim([one, two | {path: two[path] | value}], title).status, NOT_TESTED, path)

    def test_every_exact_algorithm_on_several_ranks_is_listed(self) -> None:
        records = slim(opponents_sweep())
        evidence = claim(records, "No distributed algorithm").deciding
        exact = ("all_gather", "double_ring", "query_gather", "ring", "ulysses", "usp")
        self.assertIn(f"{', '.join(exact)}, later than the paper, ran on 2 to 8 ranks and agreed with the reference", evidence.text)
        for name in exact:
            self.assertIn(name, evidence.whole)
        for name in ("dilated", "sparse", "local"):
            self.assertNotIn(name, evidence.whole)
        self.assertTrue(any(d.startswith("ring zigzag: 64K tokens on 8 ranks, ") for d in evidence.details), evidence.details)
        for record in records:
            if record["params"]["algorithm"] == "ulysses":
                record["check"]["status"] = "not_run"
            if record["params"]["algorithm"] == "usp":
                record["status"] = "check_failed"
        text = claim(records, "No distributed algorithm").deciding.text
        self.assertNotIn("usp", text)
        self.assertIn("all_gather, double_ring, query_gather, ring, later", text)

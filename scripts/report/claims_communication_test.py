"""Tests of the claims about communication, on SYNTHETIC points: claims_test.py runs them."""

from __future__ import annotations

import math
import unittest

from .claims_fixture import claim, line_of, paper_line
from .evidence import NOT_SUPPORTED, NOT_TESTED, SEEN, SUPPORTED
from .synthetic_fixture import K, M, of_pass, point
from .units import bytes_label

BACKWARD_CLAIM = "Backward is a reduce-scatter"


class Communication(unittest.TestCase):
    def test_communication_is_judged_where_rates_follow_segments(self) -> None:
        records = line_of("dilated", 0.0)
        for record in records:  # sqrt(w w_0) rows
            rows = math.isqrt(record["params"]["seq_len"]) * 1000
            record["comm"] |= {"counted_bytes_per_rank": rows, "predicted_bytes_per_rank": rows}
        found = claim(records, "Communication")
        self.assertEqual(found.status, NOT_TESTED)
        self.assertIn("1 line not judged: rates grow more slowly than segments", found.evidence[0].whole)

    def test_communication(self) -> None:
        records = paper_line()
        found = claim(records, "Communication")
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("; ranks are MPI processes, one host", found.deciding.whole)
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
        for record in records[:2]:  # two of four lengths
            record["comm"]["counted_bytes_per_rank"] += 8
        self.assertEqual(claim(records, "Communication").status, NOT_TESTED)
        self.assertEqual(
            claim([point("dilated", n * K, 1) for n in (8, 16, 32, 64)], "Communication").status, NOT_TESTED
        )

    def test_bytes_by_formula_are_computed_whatever_is_listed_beside_them(self) -> None:
        records = paper_line()
        for record in records:  # moved by MPI's own collectives
            record["comm"] |= {"counted_bytes_per_rank": 0, "modelled_bytes_per_rank": M, "predicted_bytes_per_rank": M}
        counted = [r | {"id": f"c{i}", "params": r["params"] | {"dtype": "bf16"}} for i, r in enumerate(line_of("dilated", 0.0))]
        for beside in ([], counted):  # its rates grow more slowly: listed, not judged
            found = claim(records + beside, "Communication")
            self.assertEqual((found.status, found.scale), (SUPPORTED, "to 64K tokens, computed"))
        self.assertEqual(claim(paper_line() + counted, "Communication").source, "measured")
        simulated = claim([r | {"source": "simulated"} for r in paper_line()], "Communication")
        self.assertEqual((simulated.status, simulated.source), (SUPPORTED, "computed"))
        self.assertIn("per rank and sequence by the formula, largest rise", simulated.deciding.whole)

    def test_communication_over_ranks(self) -> None:
        weak = [point("dilated", p * 8 * K, p) for p in (2, 4, 8, 16)]  # (P-1)/P of a constant
        found = claim(weak, "Communication")
        self.assertEqual(found.status, SUPPORTED)
        self.assertIn("largest rise 1.88×, of which (P−1)/P alone explains 1.88× (16K to 128K", found.deciding.whole)
        self.assertNotIn("alone explains", claim(paper_line(), "Communication").deciding.whole)
        for record in weak:  # a ring: (P-1) shards
            record["comm"]["counted_bytes_per_rank"] = record["comm"]["predicted_bytes_per_rank"] = (
                record["params"]["ranks"] - 1
            ) * M
        self.assertEqual(claim(weak, "Communication").status, NOT_SUPPORTED)

    def test_backward_passes_scatter_sums_of_constant_bytes(self) -> None:
        def backward(record: dict) -> dict:
            return of_pass(record, "backward")

        def line() -> list[dict]:
            return [backward(point("dilated", n * K, 2)) for n in (8, 16, 32, 64, 128)]

        title = BACKWARD_CLAIM
        found = claim(line(), title)
        self.assertEqual((found.status, found.source), (SUPPORTED, "measured"))
        self.assertIn("gradients summed by reduce-scatter. dQ, dK and dV of sampled rows off by at most 5e-07.", found.deciding.whole)
        self.assertEqual(claim(line(), "Communication").status, NOT_TESTED)  # forward passes alone
        for unchecked in ({}, {"dq_rel_l2_error": 5e-7, "dk_rel_l2_error": 4e-7}, None):
            records = line()
            records[3]["check"]["gradients"] = unchecked  # one point among five
            found = claim(records, title)
            self.assertEqual(found.status, NOT_TESTED)
            self.assertIn("Gradients were not checked on every point.", found.evidence[0].whole)
        for record in (simulated := [backward(point("dilated", n * K, 2, source="simulated")) for n in (8, 16, 32, 64, 128)]):
            del record["check"]["gradients"]
        found = claim(simulated, title)
        self.assertEqual((found.status, found.source), (SEEN, "simulated"))
        for record in simulated:
            del record["comm"]["collectives_used"]  # lnbench simulate records none
        self.assertEqual(claim(simulated, title).status, SEEN)
        self.assertNotIn("sampled rows", found.deciding.whole)
        simulated[-1]["comm"] |= dict.fromkeys(("counted_bytes_per_rank", "predicted_bytes_per_rank"), 64 * M)
        self.assertEqual(claim(simulated, title).status, NOT_SUPPORTED)
        self.assertEqual(claim(paper_line(), title).status, NOT_TESTED)
        more = line()
        more[-1]["comm"]["counted_bytes_per_rank"] = more[-1]["comm"]["predicted_bytes_per_rank"] = 4 * more[0]["comm"]["predicted_bytes_per_rank"]
        self.assertEqual(claim(more, title).status, NOT_SUPPORTED)
        gathers = line()
        gathers[0]["comm"]["collectives_used"] = ["all_gather: native"]
        self.assertEqual(claim(gathers, title).status, NOT_TESTED)  # another algorithm than the sentence's
        wrong = line()
        wrong[2]["status"] = "check_failed"
        self.assertIn("1 of 5 backward points wrong", claim(wrong, title).deciding.whole)
        self.assertEqual(claim(wrong, title).status, NOT_SUPPORTED)

    def test_of_both_passes_the_forward_is_subtracted(self) -> None:
        forward = [point("dilated", n * K, 2) for n in (8, 16, 32, 64)]
        both = [of_pass(record, "forward_backward") for record in forward]
        sent = forward[0]["comm"]["counted_bytes_per_rank"]
        for records, text, count in (
            (forward + both, "both passes less the forward", 3 * sent),
            (both, "both passes together", 4 * sent),
        ):
            found = claim(records, BACKWARD_CLAIM)
            self.assertEqual(found.status, SUPPORTED)
            self.assertIn(f"dilated on 2 ranks, {text}: at most {bytes_label(count)} per rank", found.deciding.whole)
            self.assertIn("dQ, dK and dV of sampled rows off by at most 5e-07.", found.deciding.whole)

        def grown(record: dict, count: int) -> dict:
            return record | {"comm": record["comm"] | dict.fromkeys(("counted_bytes_per_rank", "predicted_bytes_per_rank"), count)}

        # Rows kept: the same forward is subtracted, which has no such option. It gathers once, and the backward scatters 2.
        kept = [grown(record | {"id": f"kept{i}", "params": record["params"] | {"keep_gathered": True}}, 3 * sent) for i, record in enumerate(both)]
        for records in (forward + kept, forward + both + kept):
            found = claim(records, BACKWARD_CLAIM)
            self.assertEqual(found.status, SUPPORTED)
            self.assertRegex(found.deciding.whole, f"dilated on 2 ranks, both passes less the forward: at most {bytes_label(2 * sent)} per .*series dilated · rows kept")
            self.assertNotIn("both passes together", found.deciding.whole)

        # The backward's bytes rise from 3 to 4, those of both passes from 4 to 5.
        rising = [*both[:3], grown(both[3], 5 * sent)]
        self.assertEqual(claim(forward + rising, BACKWARD_CLAIM).status, NOT_SUPPORTED)
        alone = claim(rising, BACKWARD_CLAIM)
        self.assertEqual(alone.status, NOT_TESTED)
        self.assertIn("both passes together rise, whose forward is not known apart", alone.evidence[0].whole)
        # Where the forward's bytes rise and the sum's with them, the backward's are constant.
        gathers = [*forward[:3], grown(forward[3], 2 * sent)]
        self.assertEqual(claim(gathers + rising, BACKWARD_CLAIM).status, SUPPORTED)

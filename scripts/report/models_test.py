#!/usr/bin/env python3
"""Tests of the figures about training steps of models, on SYNTHETIC points: report_test.py runs them too."""

from __future__ import annotations

import json
import sys
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report.answer import model_sentences, sentences
from report.charts import build_figures
from report.claims import judge
from report.opponents_test import figure, rows_of
from report.page import render_page
from report.rows import Context
from report.synthetic_fixture import M, context, full_sweep, point, refused


def of_model(record: dict[str, Any]) -> dict[str, Any]:
    record = json.loads(json.dumps(record))
    record["id"] = f"{record['id'][:-1]}m"
    record["source"] = "simulated"
    record["params"] |= {"scope": "model", "pass": "step", "cluster": "synthetic", "mode": "simulated", "layers": 12}
    time_s = record["timing"].get("median_s") if record["status"] == "ok" else None
    if time_s:
        record["phases"] = {"compute_s": 0.8 * time_s, "merge_s": 0.0}
        record["metrics"] = {"gemm_s": 0.3 * time_s, "row_wise_s": 0.1 * time_s, "update_s": 0.05 * time_s}
    return record


def step(algorithm: str, seq_len: int, ranks: int, time_s: float) -> dict[str, Any]:
    return of_model(point(algorithm, seq_len, ranks, time_s=time_s))


def models_sweep() -> list[dict[str, Any]]:
    """Memory ends both at 4M tokens on 8 ranks, the sweep at 16M on 32; ring takes over 10 s beyond 1M and 2M."""
    records = []
    for ranks, lengths in ((8, (1, 2, 4)), (32, (2, 4, 8, 16))):
        for n in lengths:
            records.append(step("dilated", n * M, ranks, 0.1 * n * 8 / ranks))
            records.append(step("ring", n * M, ranks, 9.0 * n * n * 8 / ranks))
    return records + [of_model(refused(a, 8 * M, 8, "skipped_memory", "too large")) for a in ("dilated", "ring")]


def layer(algorithm: str, ranks: int, replicas: int = 1) -> dict[str, Any]:
    record = step(algorithm, 4 * M, ranks, 0.5)
    record["params"] |= {"scope": "layer", "pass": "forward_backward", "replicas": replicas, "batch": replicas}
    del record["params"]["layers"], record["metrics"]["update_s"]
    record["id"] = f"{record['id'][:-2]}{ranks % 10}{replicas}"
    return record


class Models(unittest.TestCase):
    def test_a_layer_alone_is_named_so_and_stands_beside_steps(self) -> None:
        records = [layer("dilated", 8), layer("ring", 8), layer("dilated", 16, replicas=2)]
        rows = rows_of(figure([*models_sweep(), *records], "model_parts"))
        labels = {row["label"] for row in rows if "one layer" in row["label"]}
        self.assertEqual(len(labels), 3)
        self.assertEqual(sum("2 replicas" in label for label in labels), 1)
        said = " ".join(one.text for one in model_sentences(context(records)))
        self.assertIn("forward and backward pass of one layer over 4M tokens", said)

    def test_head_groups_are_named_beside_the_same_ranks_without(self) -> None:
        split = layer("ring", 8)
        split["id"], split["params"]["head_groups"] = "00000004", 4
        labels = {row["label"] for row in rows_of(figure([layer("ring", 8), split], "model_parts"))}
        self.assertEqual([sum(" ".join(label.split()).count(text) for label in labels) for text in ("ring", "head groups 4")], [2, 1])

    def test_other_parallelisms_are_judged_by_losses(self) -> None:
        def made(ranks: int, replicas: int, heads: int, product: float) -> dict[str, Any]:
            record = layer("dilated", ranks, replicas)
            record["id"] = f"0000{ranks}{replicas}{heads}a"
            record["source"], record["metrics"]["output_product"] = "measured", product
            record["params"] |= {"mode": "real", "transport": "threads", "head_groups": heads, "batch": 2}
            record["params"]["branches"] = [{"segment_length": 2048, "dilation_rate": 1}]
            record["check"] = {"status": "pass"}
            return record

        def claim(records: list[dict[str, Any]]) -> Any:
            return next(c for c in judge(context(records)) if "orthogonal" in c.title)

        records = [made(1, 1, 1, 0.5), made(4, 2, 1, 0.5 + 3e-7), made(4, 1, 2, 0.5)]
        self.assertEqual(claim(records).status, "supported")
        self.assertIn("1 with replicas (data parallelism), 1 with split heads", claim(records).deciding.whole)
        for fewer in (records[:2], records[1:], [*records[:2], made(2, 1, 2, 0.5)]):  # one rank a sequence: nothing beside it
            self.assertEqual(claim(fewer).status, "untested")
        self.assertEqual(claim([*records, made(2, 1, 1, 0.5 + 2e-6)]).status, "contradicted")
        failed = made(2, 1, 1, 0.5) | {"status": "check_failed", "reason": "counted bytes differ"}
        self.assertEqual(claim([*records, failed]).status, "contradicted")

    def test_parts_add_up_to_the_step(self) -> None:
        rows = rows_of(figure(models_sweep(), "model_parts"))
        shares: dict[str, dict[str, float]] = {}
        for row in rows:
            shares.setdefault(row["label"], {})[row["phase"]] = row["share"]
        self.assertEqual(len(shares), 14)
        for parts in shares.values():
            self.assertAlmostEqual(sum(parts.values()), 1)
            for name, share in {"GEMM": 0.3, "attention": 0.35, "row-wise": 0.1, "update": 0.05, "exposed messages": 0.2}.items():
                self.assertAlmostEqual(parts[name], share)

    def test_points_without_a_bar_are_named_with_the_reason(self) -> None:
        records = models_sweep()
        self.assertNotIn("Left out", figure(records, "model_parts").caption)
        del records[0]["metrics"]["gemm_s"]
        records[3]["phases"]["compute_s"] *= 1.5
        records += [step("dilated", n * M >> 6, ranks, 0.1) for n in (1, 2, 4, 8) for ranks in (8, 32)]
        drawn = figure(records, "model_parts")
        self.assertEqual(len({r["label"] for r in rows_of(drawn)}), 16)
        for text in (
            "16 of 22 points have a bar. Left out: ",
            "without parts in the record, 1 point (dilated at 1M on 8 ranks)",
            "with parts that take longer than the step, so that they overlap, 1 point (ring at 2M on 8 ranks)",
            "for lack of room, 4 points of shorter sequences (dilated at 16K, 32K on 8 ranks, dilated at 16K, 32K on 32 ranks).",
        ):
            self.assertIn(text, drawn.caption)

    def test_the_longest_sequence_by_memory_and_by_time(self) -> None:
        drawn = figure(models_sweep(), "longest_sequence")
        found = {(r["panel"][:8], r["series"].split()[0], r["ranks"]): (r["value"] // M, "open" in r) for r in rows_of(drawn)}
        self.assertEqual(
            found,
            {
                ("whatever", "dilated", 8): (4, False),
                ("whatever", "ring", 8): (4, False),
                ("whatever", "dilated", 32): (16, True),
                ("whatever", "ring", 32): (16, True),
                ("steps of", "dilated", 8): (4, False),
                ("steps of", "ring", 8): (1, False),
                ("steps of", "dilated", 32): (16, True),
                ("steps of", "ring", 32): (2, False),
            },
        )
        self.assertIn("On 32 ranks memory holds dilated 16M", drawn.finding)
        self.assertIn("hollow marks: simulated", drawn.spec["title"]["subtitle"])
        self.assertTrue(figure(models_sweep()[:14], "longest_sequence").absent)

    def test_steps_do_not_stand_among_attention(self) -> None:
        attention = full_sweep()
        alone = {f.name: f for f in build_figures(context(attention))}
        both = {f.name: f for f in build_figures(context(attention + models_sweep()))}
        for name, drawn in alone.items():
            if not drawn.absent:
                self.assertEqual(len(rows_of(drawn)), len(rows_of(both[name])), name)
        self.assertEqual([c.status for c in judge(context(attention))], [c.status for c in judge(context(attention + models_sweep()))])
        self.assertEqual(sentences(context(models_sweep())), [])

    def test_a_report_lists_the_absent_figures_of_its_points_alone(self) -> None:
        models, attention = models_sweep(), full_sweep()

        def absent(ctx: Context) -> set[str]:
            return {f.name for f in build_figures(ctx) if f.absent}

        self.assertEqual(absent(context(models)), set())
        self.assertEqual(absent(context(models[:14])), {"longest_sequence"})  # memory ends nothing
        self.assertIn("collectives", absent(context(attention)))
        self.assertFalse({"model_parts", "longest_sequence", "training_loss", "published"} & absent(context(attention)))
        self.assertEqual(absent(context(attention + models)), absent(context(attention)))
        ctx = context(attention)
        ctx.validation = {"published": None}
        self.assertIn("published", absent(ctx))

    def test_the_answer_names_both(self) -> None:
        ctx = context(models_sweep())
        page = render_page(ctx, build_figures(ctx), [])
        self.assertRegex(page, r"A training step of a model of 12 layers over 16M tokens on 32 ranks.*0\.4|400 ms")
        self.assertRegex(page, r"with exact attention \(ring\): 1440×")
        self.assertNotIn('id="claims"', page)


if __name__ == "__main__":
    unittest.main()

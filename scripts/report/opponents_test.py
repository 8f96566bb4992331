#!/usr/bin/env python3
"""Tests of the figures that set algorithms against each other, on SYNTHETIC points; report_test.py runs them too."""

from __future__ import annotations

import math
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import itertools

from report.charts import Figure, build_figures
from report.page import header
from report.rows import PLOT_PX, point_label, point_name, side_by_side
from report.synthetic_fixture import K, context, full_sweep, opponent, opponents_sweep, point
from report.tables import COLUMNS


def figure(records: list[dict], name: str) -> Figure:
    return next(f for f in build_figures(context(records)) if f.name == name)


def rows_of(drawn: Figure) -> list[dict]:
    return drawn.spec["datasets"]["rows"]


def panel(drawn: Figure, name: str) -> list[dict]:
    return [row for row in rows_of(drawn) if row["panel"] == name]


class Opponents(unittest.TestCase):
    def test_a_crowded_figure_gets_a_panel_per_rank_count(self) -> None:
        records = opponents_sweep()
        drawn = figure(records, "latency")
        native = [r for r in records if r["params"]["collective"] == "native"]  # the others have their own figure
        self.assertLess(len(native), len(records))
        self.assertEqual((len(rows_of(drawn)), drawn.count), (len(native), len(native)))
        self.assertEqual(drawn.spec["facet"]["sort"], ["1 rank", "2 ranks", "4 ranks", "8 ranks"])
        self.assertEqual({(r["ranks"], r["panel"]) for r in rows_of(drawn)}, set(zip((1, 2, 4, 8), drawn.spec["facet"]["sort"])))
        whole = figure(full_sweep(), "latency").spec
        self.assertNotIn("facet", whole)
        self.assertIn("skipped", [layer["name"] for layer in whole["layer"]])

    def test_split_keeps_limits_and_says_what_it_leaves_out(self) -> None:
        records = [opponent(8 * K, p, algorithm=a) for p in range(1, 8) for a in ("ring", "ulysses", "usp")]
        for record in records:
            record["memory"]["device_bytes"] = 2 * record["memory"]["predicted_peak_bytes"]
        drawn = figure(records, "memory")
        names = ["1 rank", "3 ranks", "5 ranks", "7 ranks"]
        self.assertEqual(drawn.spec["facet"]["sort"], names)
        limits = [r for r in rows_of(drawn) if r["status"] == "limit"]
        self.assertEqual([r["panel"] for r in limits], [f"{r['ranks']} rank{'s' * (r['ranks'] > 1)}" for r in limits])  # none in another's
        self.assertEqual({r["panel"] for r in limits}, set(names))
        self.assertRegex(limits[0]["label"], r"^limit of the GPU: [\d.]+ MiB$")
        self.assertIn("limit_text", [layer["name"] for layer in drawn.spec["spec"]["layer"]])
        ctx = context([record | {"memory": record["memory"] | {"device_bytes": None}, "source": "simulated"} for record in records])
        ctx.runs[0].record["run"] = {"cluster": {"device": {"memory_bytes": {"value": 1 << 26}}}, "config": {"memory": {"limit_fraction": 0.75}}}
        modelled = [r for r in rows_of(next(f for f in build_figures(ctx) if f.name == "memory")) if r["status"] == "limit"]
        self.assertEqual({(r["panel"], r["label"]) for r in modelled}, {(name, "limit of the device: 48 MiB") for name in names})
        for record in records:
            record["memory"]["device_bytes"] = 1 << 42
        self.assertNotIn("limit", {r["status"] for r in rows_of(figure(records, "memory"))})  # far beyond each peak
        self.assertIn("Panels: 1 rank, 3 ranks, 5 ranks, 7 ranks; the others", drawn.caption)
        self.assertEqual({r["ranks"] for r in rows_of(drawn) if "ranks" in r}, {1, 3, 5, 7})

    def test_few_panels_are_those_whose_points_decide(self) -> None:
        records = [opponent(n * K, p, algorithm=a) for p in range(1, 8) for a in ("ring", "ulysses", "usp") for n in (8, 16)]
        for record in records:
            record["metrics"] = {"usable_cores": 4}
        drawn = figure(records, "latency")
        self.assertEqual(drawn.spec["facet"]["sort"], ["1 rank", "2 ranks", "3 ranks", "4 ranks"])
        self.assertIn("the others are in the table", drawn.caption)

    def test_bytes_of_all_algorithms_lie_on_their_formula(self) -> None:
        rows = panel(figure(opponents_sweep(), "communication_ranks"), "64K tokens")
        exact = {r["series"] for r in rows} - {"dilated", "sparse"}
        self.assertGreaterEqual(len(exact), 9)
        for row in rows:
            self.assertEqual(row["value"], row["predicted_value"])
            self.assertEqual(row["seq_len"], 64 * K)
        ring = {r["ranks"]: r["value"] for r in rows if r["series"] == "ring"}
        self.assertEqual(ring, {p: (p - 1) * 2 * (64 * K // p) * 768 * 4 for p in (2, 4, 8)})  # (P-1)·2cGde

    def test_marks_that_coincide_stand_side_by_side(self) -> None:
        rows = panel(figure(opponents_sweep(), "communication_ranks"), "64K tokens")
        places = [(r["ranks"], round(math.log(r["value"]), 1), r["shift"]) for r in rows]
        self.assertEqual(len(set(places)), len(places))
        single = [r for r in rows if r["series"] == "dilated"]
        self.assertEqual({r["shift"] for r in single}, {0})

    def test_marks_side_by_side_never_reach_the_next_ranks(self) -> None:
        for counts, series in (((1, 2, 4, 8), 30), ((2, 3, 5, 6, 7, 8), 12), ((4,), 40), ((1, 64, 65), 9)):
            rows = [{"series": f"s{i}", "source": "m", "ranks": p, "value": 1.0} for p in counts for i in range(series)]
            space = side_by_side(rows, "ranks", close=lambda a, b: True)["side_space"]
            self.assertLess(space, 360)
            octave = (720 - 2 * space) / max(1.0, math.log2(max(counts) / min(counts)))
            ends = []
            for p in counts:
                shifts = [r["shift"] for r in rows if r["ranks"] == p]
                self.assertEqual(min(shifts), -max(shifts))
                at = space + octave * math.log2(p / min(counts))
                ends.append((at + min(shifts), at + max(shifts)))
            for (_, end), (begin, _) in itertools.pairwise(ends):
                self.assertLess(end, begin)
        few = [{"series": s, "source": "m", "ranks": p, "value": 1.0} for p in (1, 2, 4, 8) for s in "ab"]
        side_by_side(few, "ranks", close=lambda a, b: True)
        self.assertEqual({r["shift"] for r in few}, {-4.5, 4.5})  # the usual distance where there is room
        self.assertEqual(figure(full_sweep(), "latency").spec["width"], PLOT_PX)

    def test_causal_balance(self) -> None:
        records = opponents_sweep()
        drawn = figure(records, "causal_balance")
        rows = [r for r in rows_of(drawn) if "series" in r]
        ring = {r["ranks"]: r["value"] for r in rows if r["series"] == "ring"}
        self.assertEqual({p: round(v, 4) for p, v in ring.items()}, {2: 0.6667, 4: 0.5714, 8: 0.5333})
        self.assertTrue(all(r["value"] >= 0.98 for r in rows if "zigzag" in r["series"]))
        self.assertFalse([r for r in rows if "via" in r["series"] or r["ranks"] == 1])
        curve = [r for r in rows_of(drawn) if r["status"] == "closed form"]
        self.assertEqual((curve[0]["ranks"], round(curve[-1]["ranks"], 9)), (2, 8))
        for row in curve:
            self.assertAlmostEqual(row["value"], row["ranks"] / (2 * row["ranks"] - 1))
        self.assertEqual({r["value"] for r in rows_of(drawn) if r["status"] == "ideal"}, {1})
        self.assertIn("within 0 % of P/(2P − 1)", drawn.caption)
        for record in records:
            record["work"]["balance"] *= 0.9
        self.assertIn("within 10 % of P/(2P − 1)", figure(records, "causal_balance").caption)
        unmasked = [opponent(8 * K, 2, algorithm="ring", causal=False)]
        self.assertTrue(figure(unmasked, "causal_balance").absent)

    def test_ablations(self) -> None:
        record = opponent(8 * K, 4, algorithm="ring")
        times = {"full_s": 1.0, "compute_only_s": 0.75, "communication_only_s": 0.5, "serialised_s": 1.25}
        record["ablations"] = times | {"single_attend_s": 0.5}
        rows = rows_of(figure([record], "ablations"))
        bars = {r["part"]: r["value"] for r in rows}
        wanted = {"full": 1.0, "compute only": 0.75, "communication only": 0.5, "serialised": 1.25}
        self.assertEqual(bars, wanted)
        for row in rows:  # exposed: full − compute only; hidden: the rest of communication only
            self.assertEqual(row["exposed"], "250 ms (25 %)")
            self.assertEqual(row["overlap"], "250 ms (50 % of communication only)")
            self.assertEqual(row["fragmentation"], "1.5×")
        self.assertEqual([r.get("single_share") for r in rows], [None, 0.5, None, None])
        record["ablations"]["compute_only_s"] = 1.125  # noise: slower without communication
        self.assertEqual({r["exposed"] for r in rows_of(figure([record], "ablations"))}, {"-125 ms (-12.5 %)"})
        (in_table,) = [c for c in COLUMNS if c.key == "exposed_communication_s"]
        self.assertEqual(in_table.exact(context([record]).points[0]), -0.125)  # the same rule
        record["ablations"]["compute_only_s"] = 0.75
        for key in ("communication_only_s", "single_attend_s"):
            record["ablations"][key] = None
        drawn = figure([record], "ablations")
        self.assertEqual([r["part"] for r in rows_of(drawn) if "value" in r], ["full", "compute only", "serialised"])
        self.assertEqual([r["untimed"] for r in rows_of(drawn) if "value" not in r], ["not timed"])  # said, not left blank
        self.assertEqual({(r["overlap"], r["fragmentation"]) for r in rows_of(drawn) if "value" in r}, {("–", "–")})
        self.assertEqual([layer["name"] for layer in drawn.spec["layer"]], ["bars", "untimed"])
        record["ablations"] = None
        self.assertTrue(figure([record], "ablations").absent)
        many = [r for r in opponents_sweep() if r["params"]["collective"] == "native"]
        drawn = figure(many, "ablations")
        self.assertEqual(len({r["label"] for r in rows_of(drawn)}), 14)
        self.assertIn(f"14 of {len(many)} points", drawn.caption)
        for record in many:
            record["metrics"] = {"usable_cores": 4}
        labels = list(dict.fromkeys(r["label"].replace("\n", " · ") for r in rows_of(figure(many, "ablations"))))
        self.assertEqual([re.sub(" · causal", "", label) for label in labels[:2]], ["64K · P = 2 · dilated", "64K · P = 4 · dilated"])
        self.assertFalse([label for label in labels if "P = 8" in label])
        for algorithm in {r["params"]["algorithm"] for r in many}:
            self.assertTrue([label for label in labels if re.search(rf"· {algorithm}\b", label)], algorithm)
        phases = dict.fromkeys(r["label"].replace("\n", " · ") for r in rows_of(figure(many, "phases")))
        self.assertEqual(list(phases), labels)

    def test_parts_of_dilated_attention_stand_beside_those_of_its_opponents_at_one_length(self) -> None:
        """Although it reaches lengths that no opponent has."""
        many = [r for r in opponents_sweep() if r["params"]["collective"] == "native"]
        many += [opponent(n * K, 2, algorithm="dilated") for n in (128, 256, 512)]
        for name in ("ablations", "phases"):
            drawn = figure(many, name)
            first = {}  # by algorithm
            for row in rows_of(drawn):
                first.setdefault(row["label"].split("\n")[1].split()[0], row["label"].split(" · ")[0])
            self.assertEqual(first, dict.fromkeys({r["params"]["algorithm"] for r in many}, "64K"))
            self.assertIn(f"14 of {len(many)} points: of each source and algorithm in turn the longest that another algorithm has too", drawn.caption)

    def test_captions_say_what_a_sample_is(self) -> None:
        record, other = (opponent(8 * K, 4, algorithm=a) for a in ("ring", "ulysses"))
        record["timing"]["reduction"] = "span"
        text = figure([record], "phases").source_text
        self.assertIn("Source: measured, 1 point, 10 samples each", text)
        self.assertIn("a sample is from the first rank's begin to the last one's end.", text)
        self.assertNotIn("maximum", text)
        self.assertIn("end or the maximum over ranks.", figure([record, other], "phases").source_text)
        record["timing"]["ci_level"], record["timing"]["reduction"] = 0, None  # one sample has no interval
        text = figure([record], "phases").source_text
        self.assertNotIn("interval", text)
        self.assertNotIn("a sample is", text)

    def test_stacked_phases_add_up_to_the_full_time(self) -> None:
        record = opponent(8 * K, 4, algorithm="ring")
        record["timing"]["median_s"] = 1.1  # another moment than that of the ablations
        record["ablations"] |= {"full_s": 1.0, "compute_only_s": 0.75, "communication_only_s": 0.5}
        record["phases"] = {"compute_s": 0.5, "merge_s": 0.125, "communication_s": 0.5, "exposed_communication_s": 0.25}
        wanted = {"compute": 0.5, "exposed messages": 0.25, "merge": 0.125, "waiting": 0.125}
        drawn = figure([record], "phases")
        shares = {r["phase"]: r["share"] for r in rows_of(drawn)}
        self.assertEqual(shares.pop("all messages"), 0.5)  # a mark, not in the stack
        self.assertEqual(shares, wanted)
        self.assertNotIn("Left out", drawn.caption)
        record["ablations"]["compute_only_s"] = 1.25  # noise
        shares = {r["phase"]: r["share"] for r in rows_of(figure([record], "phases"))}
        self.assertEqual(shares.pop("all messages"), 0.5)
        self.assertEqual(shares["exposed messages"], -0.25)
        self.assertAlmostEqual(sum(shares.values()), 1)
        record["ablations"]["compute_only_s"] = 0.75
        record["phases"]["compute_s"] = 0.75  # contains what communication cost it: counted twice
        other = opponent(8 * K, 2, algorithm="ring")
        drawn = figure([record, other], "phases")
        self.assertEqual(len({r["label"] for r in rows_of(drawn)}), 1)
        self.assertIn("Left out: 1 point whose parts overlap", drawn.caption)

    def test_one_device_in_the_place_of_all_ranks_has_no_messages_among_its_parts(self) -> None:
        walk = opponent(8 * K, 4, algorithm="dilated")
        walk["params"]["mode"] = "virtual"
        walk["ablations"] = None
        walk["timing"]["median_s"] = 1.0
        walk["phases"] = {"compute_s": 0.75, "merge_s": 0.25, "communication_s": None, "exposed_communication_s": None}
        drawn = figure([walk], "phases")
        self.assertEqual({r["phase"]: r["share"] for r in rows_of(drawn)}, {"compute": 0.75, "merge": 0.25})
        self.assertEqual(drawn.finding, "At the median compute 75 %, merge 25 % (measured).")
        self.assertIn("One device in the place of all ranks moves no messages", drawn.caption)
        self.assertEqual(drawn.spec["title"]["subtitle"], "source: measured")
        drawn = figure([walk, opponent(8 * K, 4, algorithm="ring")], "phases")
        self.assertRegex(drawn.finding, "exposed messages .* %, merge")  # the ring alone has any
        self.assertIn("tick: all messages", drawn.spec["title"]["subtitle"])

    def test_error_against_ranks(self) -> None:
        records = [opponent(8 * K, p, algorithm=a) for a in ("ring", "ulysses") for p in (1, 2, 4)]
        records[2] |= {"status": "check_failed", "reason": "beyond the tolerance"}
        records[2]["check"] |= {"status": "fail", "rel_l2_error": 0.3}
        records.append(opponent(16 * K, 8, algorithm="ring"))  # another length: not in the same line
        drawn = figure(records, "error_ranks")
        values = {(r["series"], r["ranks"]): r["value"] for r in rows_of(drawn)}
        wanted = {(r["params"]["algorithm"], r["params"]["ranks"]): r["check"]["rel_l2_error"] for r in records[:6]}
        self.assertEqual(values, wanted)
        self.assertIn("wrong", [layer["name"] for layer in drawn.spec["layer"]])
        self.assertIn("Tokens: 8K.", drawn.caption)
        self.assertNotIn("wrong", [layer["name"] for layer in figure(records[3:6], "error_ranks").spec["layer"]])
        records[0]["check"]["spread_rel_l2_error"] = 5e-7  # over rows that are the same for every P
        values = {(r["series"], r["ranks"]): r["value"] for r in rows_of(figure(records, "error_ranks"))}
        self.assertEqual(values, wanted | {("ring", 1): 5e-7})
        for record in records:
            record["check"] |= {"rel_l2_error": None, "spread_rel_l2_error": None}
        self.assertTrue(figure(records, "error_ranks").absent)

    def test_choice_of_collective(self) -> None:
        choices = ("native", "ring", "bruck")
        native, ring, bruck = (opponent(8 * K, 4, algorithm="all_gather", collective=c) for c in choices)
        other = opponent(8 * K, 4, algorithm="ring")  # runs with one collective only
        for record, seconds in ((native, 2.0), (ring, 1.0), (bruck, 3.0)):
            record["timing"] |= {"median_s": seconds, "ci_low_s": seconds / 2, "ci_high_s": seconds * 2}
        rows = rows_of(figure([native, ring, bruck, other], "collectives"))
        self.assertEqual({r["collective"]: r["value"] for r in rows}, {"native": 1.0, "ring": 0.5, "bruck": 1.5})
        self.assertEqual({r["collective"]: (r["low"], r["high"]) for r in rows}["bruck"], (0.75, 3.0))
        self.assertEqual(len({r["label"] for r in rows}), 1)
        drawn = figure([ring, bruck], "collectives")
        self.assertEqual({r["collective"]: r["value"] for r in rows_of(drawn)}, {"ring": 1.0, "bruck": 3.0})
        self.assertIn("Without a native run", drawn.caption)
        self.assertEqual(figure([native, ring, bruck], "latency").count, 1)  # the native one stands for them
        self.assertEqual(figure([ring, bruck], "latency").count, 2)
        for nodes, record in ((2, ring), (4, bruck)):
            record["params"] |= {"collective": "hierarchical", "node_size": nodes}
        names = {r["collective"] for r in rows_of(figure([ring, bruck], "collectives"))}
        self.assertEqual(names, {"hierarchical, nodes of 2", "hierarchical, nodes of 4"})
        self.assertTrue(figure([native, other], "collectives").absent)
        bruck["params"]["seq_len"] *= 2  # another problem
        self.assertTrue(figure([native, bruck], "collectives").absent)

    def test_lines_of_a_label_end_between_its_parts(self) -> None:
        records = [opponent(8 * K, 4, algorithm=a, collective=c, heads=h, kv_heads=h, dtype=d)
                   for a in ("all_gather", "usp") for c in ("native", "ring", "bruck") for h, d in ((2, "bf16"), (16, "fp32"))]  # fmt: skip
        ctx = context(records)
        for p in ctx.points:
            label = point_label(ctx, p)
            self.assertEqual(label.replace("\n", " · "), f"{point_name(ctx, p)} · {ctx.index.label(p)}")
        labels = {(r["order"], r["label"]) for r in rows_of(figure(records, "collectives"))}
        self.assertEqual(len(labels), 4)  # whatever the name of the collective that each leaves out

    def test_labels_name_layout_degree_and_collective_unless_they_are_the_default(self) -> None:
        records = [
            opponent(8 * K, 4, algorithm="usp", layout="zigzag", ulysses_degree=2),
            opponent(8 * K, 4, algorithm="all_gather", collective="bruck", head_slice=2),
            opponent(8 * K, 4, algorithm="all_gather"),
            point("local", 8 * K, 1),
            point("sparse", 8 * K, 1),
        ]
        for record in records[3:]:
            for name in ("collective", "ulysses_degree", "ring_inner", "head_slice"):
                del record["params"][name]  # as older results have it
        labels = [context(records).index.label(p) for p in context(records).points]
        gathers = ["all_gather · head slice 2 · via bruck", "all_gather"]
        wanted = ["usp zigzag · ulysses degree 2", *gathers, "local (dense)", "sparse"]
        self.assertEqual([label.replace(" · causal", "") for label in labels], wanted)

    def test_degrees_that_follow_the_ranks_name_no_series(self) -> None:
        records = [
            opponent(8 * K, ranks, algorithm="usp", layout="zigzag", ulysses_degree=degree)
            for ranks, degree in ((4, 2), (8, 4))
        ]
        labels = {context(records).index.label(p) for p in context(records).points}
        self.assertEqual({label.replace(" · causal", "") for label in labels}, {"usp zigzag"})
        records.append(opponent(8 * K, 8, algorithm="usp", layout="zigzag", ulysses_degree=2))
        labels = {context(records).index.label(p) for p in context(records).points}
        self.assertEqual(len(labels), 2)

    def test_the_first_screen_names_what_is_asked_at_one_value(self) -> None:
        """One rank keeps no gathered rows, so that the switch follows the ranks and names no series."""
        records = [point("dilated", 8 * K, ranks) for ranks in (1, 2)]
        for record in records:
            record["params"] |= {"pass": "backward", "dtype": "bf16", "threads": 2}
        records[1]["params"]["keep_gathered"] = True
        ctx = context(records)
        self.assertEqual(len({ctx.index.label(p) for p in ctx.points}), 1)
        sweep: dict[str, object] = {"ranks": [1, 2], "pass": ["backward"], "keep_gathered": [True], "ulysses_degree": [2], "seq_len": {"from": 8 * K}}
        config: dict[str, object] = {"sweep": sweep, "model": {"dtype": "bf16", "causal": False, "heads": 4}, "run": {"threads": 2, "kernel": ["cpu"]}}
        ctx.runs[0].record["run"]["config"] = config
        self.assertIn("2 points; rows kept, dtype bf16</p>", header(ctx, "title"))  # no usp ran; the default kernel, in an older form
        sweep |= {"keep_gathered": [False, True], "dtype": ["fp32", "bf16"]}
        self.assertIn("2 points</p>", header(ctx, "title"))
        for odd in (None, [], {"sweep": [], "model": {"dtype": {}}}):
            ctx.runs[0].record["run"]["config"] = odd
            self.assertIn("2 points</p>", header(ctx, "title"))

    def test_replicas_are_an_axis_and_a_group_holds_its_share_of_the_batch(self) -> None:
        records = [
            opponent(tokens, 8, algorithm="usp", ulysses_degree=max(1, 8 // replicas), batch=64 * K // tokens)
            for tokens, replicas in ((8 * K, 8), (16 * K, 4), (64 * K, 1))
        ]
        for record, replicas in zip(records, (8, 4, 1)):
            record["params"] |= {"replicas": replicas} if replicas > 1 else {}
            record["source"] = "simulated"
            record["comm"] |= {"counted_bytes_per_rank": None, "predicted_bytes_per_rank": 1024 if replicas < 8 else 0}
        self.assertEqual(len({context(records).index.label(p) for p in context(records).points}), 1)
        rows = [r for r in rows_of(figure(records, "batch_runtime")) if "value" in r]
        self.assertEqual([r["seq_len"] for r in rows], [8 * K, 16 * K, 64 * K])
        self.assertEqual([r["batch_text"] for r in rows], ["8 in 8 replicas", "4 in 4 replicas", "1"])
        seconds = {r["seq_len"]: r["value"] for r in rows}
        latency = {r["seq_len"]: r["value"] for r in rows_of(figure(records, "latency")) if "value" in r}
        self.assertEqual(latency, seconds)  # a sequence in each group: its time is the batch's
        moved = [r for r in rows_of(figure(records, "communication_tokens")) if "value" in r]
        self.assertEqual({r["seq_len"]: r["value"] for r in moved}, {16 * K: 1024, 64 * K: 1024})
        self.assertEqual([p.group_ranks for p in context(records).points], [1, 2, 8])

    def test_every_series_has_its_own_mark(self) -> None:
        styles = context(opponents_sweep()).index.styles
        self.assertGreater(len(styles), 14)
        self.assertEqual(len(set(styles.values())), len(styles))
        self.assertEqual(styles["ring"].colour, styles["ring zigzag"].colour)


if __name__ == "__main__":
    unittest.main()

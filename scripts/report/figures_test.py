#!/usr/bin/env python3
"""Tests of the figures on SYNTHETIC points: what each shows and leaves out; report_test.py runs them too."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))


from report.answer import both_passes
from report.charts import build_figures, builder_of, check_figure
from report.claims import judge
from report.compare import compared_points
from report.evidence import COMPUTED
from report.model import PASSES
from report.opponents_test import figure, rows_of
from report.page import render_page
from report.rows import GROUP_PX, mark_groups
from report.series import DEFAULTS
from report.specs import encodings, load_json, load_specs
from report.synthetic_fixture import (
    K,
    M,
    batch_sweep,
    comparison,
    context,
    full_sweep,
    of_pass,
    passes_sweep,
    point,
    refused,
)
from report.tables import columns_of, fit_table, skipped_table

PANELS = ["forward", "backward", "forward and backward"]

class Figures(unittest.TestCase):
    def test_every_spec_has_what_the_report_needs(self) -> None:
        specs = load_specs()
        self.assertGreaterEqual(len(specs), 20)
        for name, spec in specs:
            meta = spec["usermeta"]["figure"]
            self.assertTrue(meta["title"] and meta["caption"] and meta["absent"], name)
            self.assertEqual(spec["data"], {"name": "rows"}, name)

    def test_specs_that_cannot_be_drawn_are_refused(self) -> None:
        known = {"ranks": 2}
        check_figure("latency_ranks", {"asks": {"ranks": 2}}, known)
        for name, asks, error in (("latency-ranks", {}, 'write "_"'), ("latency", {"rank": 2}, "asks for rank: known are ranks")):
            with self.assertRaisesRegex(ValueError, error):
                check_figure(name, {"asks": asks}, known)
        with self.assertRaisesRegex(ValueError, 'no row builder "latencies"'):
            builder_of("latencies")

    def test_figures_without_data_say_why(self) -> None:
        absent = {f.name: f.absent for f in build_figures(context([point("dilated", 8 * K, 1)]))}
        for name in ("batch_runtime", "communication_ranks", "strong_scaling", "weak_scaling", "timeline", "crossover"):
            self.assertTrue(absent[name], name)
        self.assertFalse(absent["latency"])

    def test_constant_tokens_per_batch(self) -> None:
        drawn = figure(batch_sweep(), "batch_runtime")
        self.assertEqual(len(rows_of(drawn)), 32)
        self.assertIn("Tokens per batch: 1M", drawn.caption)
        self.assertTrue(figure(full_sweep(), "batch_runtime").absent)
        # Where an algorithm stops: points of the same tokens per batch, and no others.
        stopped = refused("all_gather", 8 * K, 2, "skipped_memory", "too large")
        stopped["params"]["batch"] = 128
        other = refused("all_gather", 8 * K, 1, "skipped_memory", "too large")
        crosses = [r for r in rows_of(figure([*batch_sweep(), stopped, other], "batch_runtime")) if "slot" in r]
        self.assertEqual([(r["ranks"], r["reason"]) for r in crosses], [(2, "too large")])

    def test_batches_of_different_tokens_have_panels_of_their_own(self) -> None:
        smaller = [point("dilated", 1 << e, ranks, batch=M // 4 >> e) for ranks in (1, 2) for e in range(13, 17)]
        for records in ([batch_sweep(), smaller], [batch_sweep() + smaller]):  # two runs, or one
            drawn = next(f for f in build_figures(context(*records)) if f.name == "batch_runtime")
            self.assertEqual(drawn.spec["facet"]["sort"], ["batches of 256K tokens", "batches of 1M tokens"])
            for panel, tokens in zip(drawn.spec["facet"]["sort"], (M // 4, M)):
                self.assertEqual({r["batch_tokens"] for r in rows_of(drawn) if r["panel"] == panel}, {tokens})
            self.assertEqual(len({r["line"] for r in rows_of(drawn) if r["series"].startswith("dilated")}), 4)
            self.assertIn("batches of 1M tokens", drawn.finding)

    def test_simulated_points_have_a_band(self) -> None:
        records = [point("dilated", n * K, 2, source=s) for n in (8, 16) for s in ("measured", "simulated")]
        for record in records:
            time_s = record["timing"]["median_s"]
            record["timing"] |= {"ci_low_s": 0.5 * time_s, "ci_high_s": 2 * time_s}
        drawn = figure(records, "latency")
        rows = rows_of(drawn)
        self.assertEqual({r["source"] for r in rows if "band_colour" in r}, {"simulated"})
        self.assertIn("band", [layer["name"] for layer in drawn.spec["layer"]])
        self.assertIn("simulated, 2 points, a band from no latency", drawn.source_text)
        self.assertNotIn("band", [layer["name"] for layer in figure(records[::2], "latency").spec["layer"]])

    def test_passes_have_panels_of_their_own(self) -> None:
        records = [*passes_sweep(*PASSES), point("ulysses", 8 * K, 2)]
        ctx = context(records)
        figures = {f.name: f for f in build_figures(ctx)}
        for name, drawn in figures.items():
            rows = [] if drawn.absent else [r for r in rows_of(drawn) if "panel" in r and "pass" in r]
            for row in rows:
                self.assertEqual(row["panel"].split(" · ")[0], PANELS[row["pass"]], name)
            if "pass" in load_json(f"{name.split('-')[0]}.vl.json")["usermeta"]["figure"].get("split", []) and not drawn.absent:
                self.assertEqual({r["pass"] for r in rows}, {0, 1, 2}, name)
        self.assertEqual(len(rows_of(figures["latency"])), 73)
        self.assertEqual(figures["latency"].spec["facet"]["sort"], PANELS)
        self.assertIn("time of one pass, per sequence", json.dumps(figures["latency"].spec))
        self.assertEqual(re.findall(r"\(measured, . ranks?, ([a-z ]+)\)", figures["latency"].finding), 2 * PANELS)
        self.assertIn("A backward begins with an output that is there", figures["latency"].caption)
        page = render_page(ctx, list(figures.values()), judge(ctx))
        self.assertRegex(page, r"<p>At 64K tokens on 4 ranks \(measured\) a forward and backward pass of dilated attention takes 3\.5× [^<]* the time of a forward, for 3\.5× its multiply-adds\.</p>")
        self.assertFalse(figures["communication_tokens"].more)
        bars = {r["label"] for r in rows_of(figures["phases"]) if "64K · P = 4" in r["label"] and "ring" in r["label"]}
        self.assertEqual(bars, {f"64K · P = 4{name}\nring" for name in (" · forward", " · backward", "\nforward and backward")})
        self.assertRegex(figures["phases"].finding, r"\(measured, forward\);.*\(measured, backward\);.*\(measured, forward and backward\)")
        self.assertEqual({f.title.split(", ")[-1] for f in figures.values() if f.name.startswith("crossover")}, {"Crossover map over length and ranks: forward", *(f"Crossover map over length and ranks: {p}" for p in PANELS[1:])})
        self.assertEqual(len(rows_of(figures["coverage"])), len(rows_of(figure(passes_sweep("forward"), "coverage"))))
        compared = next(f for f in build_figures(context(records, records), compared=True) if f.name == "latency")
        self.assertEqual(compared.spec["facet"]["sort"], [f"{panel} · run {run}" for run in (1, 2) for panel in PANELS])

    def test_the_first_screen_says_what_both_passes_cost_by_their_own_flops(self) -> None:
        def mixed(record: dict, mix: str, flops: float) -> dict:
            other = json.loads(json.dumps(record))
            other["id"] += mix
            other["params"] |= {"mix": mix}
            other["work"]["flops"] = int(flops * other["work"]["flops"])
            return other

        def said(*records: dict) -> str:
            return " ".join(one.text for one in both_passes(context([*records])))

        ahead = point("dilated", 8 * K, 2, time_s=1.0)
        both = of_pass(ahead, "forward_backward")
        mean = [mixed(ahead, "mean", 1), mixed(both, "mean", 4.5 / 3.5)]
        takes = "At 8K tokens on 2 ranks (measured) a forward and backward pass of dilated attention takes 3.5× [3.5×, 3.5×] the time of a forward"
        self.assertEqual(said(ahead, both), f"{takes}, for 3.5× its multiply-adds.")
        self.assertEqual(said(*mean), f"{takes}, for 4.5× its multiply-adds.")
        others = [point(a, n, p, time_s=1.0) for a, n, p in (("ring", 4 * K, 2), ("ring", 8 * K, 2), ("ring", 8 * K, 4), ("dilated", 4 * K, 4))]
        passes = [of_pass(other, "forward_backward") for other in others]
        for other in passes:
            other["timing"] |= {"median_s": 9.0}
        self.assertEqual(said(*others, ahead, *passes, both), f"{takes}, for 3.5× its multiply-adds.")  # the longest, dilated first
        self.assertRegex(said(*others[:3], *passes[:3]), r"^At 8K tokens on 4 ranks \(measured\) a forward and backward pass of ring attention takes 9×")
        modelled = [r | {"source": "simulated"} for r in (ahead, both)]
        self.assertEqual([p.points[0].source for p in both_passes(context([ahead, both, *modelled]))], ["measured", "simulated"])
        self.assertEqual(said(ahead, both | {"work": {}}), f"{takes}.")
        self.assertEqual(said(both), "")
        kept = both | {"params": both["params"] | {"keep_gathered": True}}
        self.assertEqual(said(ahead, kept), f"{takes}, for 3.5× its multiply-adds.")
        self.assertEqual({context([ahead, kept]).index.label(p) for p in context([ahead, kept]).points}, {"dilated", "dilated · rows kept"})

    def test_tables_name_other_passes_alone(self) -> None:
        gone = of_pass(refused("ring", M, 2, "skipped_memory", "too large"), "backward")
        ctx = context([*passes_sweep("forward", "backward"), gone])
        self.assertEqual([c.key for c in columns_of(ctx.points, False)][:4], ["id", "status", "algorithm", "pass"])
        self.assertNotIn("pass", [c.key for c in columns_of(ctx.of_passes("forward").points, False)])
        for table, row in ((fit_table(ctx), "ring"), (fit_table(ctx), "ring · backward"), (skipped_table(ctx), "ring · backward")):
            self.assertIn(f"<td>{row}</td>", table)
        compared = compared_points(ctx, comparison([p.raw for p in ctx.points]))
        self.assertEqual({c.series for c in compared}, {f"{name}{other}" for name in ("dilated", "ring") for other in ("", " · backward")})

    def test_times_that_decide_nothing_are_named_by_their_pass(self) -> None:
        records = passes_sweep("forward", "backward")
        for record in records:
            if (record["params"]["algorithm"], record["params"]["ranks"], record["params"].get("pass")) == ("ring", 4, "backward"):
                record["metrics"] = {"usable_cores": 2}
        self.assertIn("Lines that decide no claim: ring on 4 ranks (backward) (", figure(records, "latency").source_text)

    def test_a_pass_without_a_result_has_a_panel_of_crosses(self) -> None:
        gone = [of_pass(refused("ring", 16 * K, 2, "skipped_unsupported", "no rows"), "backward")]
        drawn = figure([*passes_sweep("forward"), *gone], "latency")
        self.assertEqual((drawn.title, drawn.spec["facet"]["sort"]), ("Latency against tokens", PANELS[:2]))
        self.assertIn("time of one pass", json.dumps(drawn.spec["spec"]["encoding"]["y"]))

    def test_a_forward_is_never_divided_by_another_pass(self) -> None:
        records = passes_sweep("forward", "backward")
        figures = {f.name: f for f in build_figures(context(records))}
        for name in ("speedup", "strong_scaling", "weak_scaling"):
            values: dict[str, list[float]] = {}
            for row in rows_of(figures[name]):
                if "pass" in row:
                    values.setdefault(f"{row['series']} {row['seq_len']} {row['ranks']}", []).append(row["value"])
            for found in values.values():  # both passes of a problem scale alike
                self.assertEqual(len(found), 2, name)
                self.assertAlmostEqual(found[0], found[1], msg=name)

    def test_a_report_of_backward_passes_alone_is_whole_and_says_so(self) -> None:
        forward = {f.name: f for f in build_figures(context(passes_sweep("forward")))}
        for name, text in (("backward", "backward"), ("forward_backward", "forward and backward")):
            ctx = context(passes_sweep(name))
            figures = build_figures(ctx)
            self.assertEqual({f.name for f in figures if not f.absent}, {n for n, f in forward.items() if not f.absent})
            for drawn in figures:
                if not drawn.absent and drawn.sources != [COMPUTED]:
                    self.assertRegex(drawn.title, f": (.*, )?{text}$")
                    self.assertEqual(drawn.spec["title"]["text"], drawn.title)
            self.assertIn(f"time of one {text}, per sequence", json.dumps(next(f for f in figures if f.name == "latency").spec))
            page = render_page(ctx, figures, judge(ctx))
            self.assertRegex(page, f"At 64K tokens on 4 ranks \\(measured\\) a {text} pass of dilated attention takes ")
            self.assertIn("no point is of a forward pass alone<", page)
            self.assertEqual("no point is of a forward pass alone or with a backward<" in page, name == "backward")
        self.assertFalse([f.title for f in forward.values() if "forward" in f.title])

    def test_latency_shows_points_without_result_as_crosses(self) -> None:
        records = full_sweep()
        rows = rows_of(figure(records, "latency"))
        crosses = [r for r in rows if "slot" in r]
        self.assertEqual(len(crosses), sum(r["status"] != "ok" for r in records))
        self.assertTrue(all("value" not in r for r in crosses))
        for status, said in (("skipped_excluded", "×: 1 left out"), ("check_failed", "×: 1 wrong or failed")):
            ctx = context([*(point("ring", n * K, 1) for n in (8, 16)), point("ring", 32 * K, 1) | {"status": status}])
            drawn = next(f for f in build_figures(ctx) if f.name == "latency")
            self.assertTrue(drawn.spec["title"]["subtitle"].endswith(said), drawn.spec["title"])
            self.assertEqual(ctx.runs[0].extent.endswith("1 of them left out"), status != "check_failed", ctx.runs[0].extent)

    def test_lines_say_where_more_ranks_share_a_sequence(self) -> None:
        records = [point("dilated", n * K, 4, batch=32 // n) for n in (4, 8, 16, 32)]
        for record, replicas in zip(records, (4, 4, 2, 1)):
            record["params"]["replicas"] = replicas
        said = "number: ranks that share a sequence, where it changes"
        for name in ("latency", "batch_runtime"):
            drawn = figure(records, name)
            self.assertEqual([(r["seq_len"] // K, r.get("group_text")) for r in rows_of(drawn)], [(4, None), (8, "1"), (16, "2"), (32, "4")])
            self.assertIn("group", [layer["name"] for layer in drawn.spec["layer"]])
            self.assertTrue(drawn.spec["title"]["subtitle"].endswith(said), drawn.spec["title"])
        self.assertNotIn(said, figure([point("dilated", n * K, 4) for n in (8, 16)], "latency").spec["title"]["subtitle"])

    def test_numbers_of_ranks_never_run_together(self) -> None:
        rows = [{"series": "s", "line": "", "pass": 0, "value": 1.0, "seq_len": 8 * K << i, "group_ranks": 1 << i} for i in range(13)]
        mark_groups(rows, 220)
        shown = [r for r in rows if "group_text" in r]
        self.assertEqual(shown[-1]["group_text"], "4,096")
        self.assertGreater(len(shown), 4)
        for before, after in itertools.pairwise(shown):
            self.assertGreater(220 / 12 * math.log2(after["seq_len"] / before["seq_len"]), GROUP_PX * len(after["group_text"]))

    def test_no_picture_of_one_source_holds_another(self) -> None:
        for drawn in build_figures(context(full_sweep())):
            if drawn.name.startswith("crossover"):
                self.assertEqual(len({r["source"] for r in rows_of(drawn)}), 1)
            if drawn.absent:
                continue
            lines = [
                layer
                for layer in drawn.spec.get("spec", drawn.spec)["layer"]
                if layer["mark"]["type"] == "line" and layer["name"] not in ("ideal", "closed_form")
            ]
            for layer in lines:
                by_line: dict[str, set[str]] = {}
                for row in rows_of(drawn):
                    by_line.setdefault(row.get(layer["encoding"]["detail"]["field"], ""), set()).add(row.get("source", ""))
                self.assertTrue(by_line and all(len(found) == 1 for found in by_line.values()), drawn.name)

    def test_winners_are_told_per_cluster_and_flips_are_marked(self) -> None:
        def on(cluster: str, algorithm: str, seq_len: int, time_s: float) -> dict:
            record = point(algorithm, seq_len, 8, time_s=time_s)
            record["source"] = "simulated"
            record["id"] = f"{abs(hash((cluster, algorithm, seq_len))) % 16**8:08x}"
            record["params"] |= {"cluster": cluster, "mode": "simulated", "kernel": "modelled"}
            return record

        records = [
            on("fast", "ring", 8 * K, 2.0), on("fast", "usp", 8 * K, 1.0),
            on("fast", "ring", 16 * K, 3.0), on("fast", "usp", 16 * K, 6.0),
            on("slow", "ring", 8 * K, 2.0), on("slow", "usp", 8 * K, 5.0),
            on("slow", "ring", 16 * K, 3.0), on("slow", "usp", 16 * K, 9.0),
        ]  # fmt: skip
        maps = {f.title.split("on ")[-1]: rows_of(f) for f in build_figures(context(records)) if f.name.startswith("winners")}
        self.assertEqual(set(maps), {"fast", "slow"})
        fast = {r["seq_len"]: r for r in maps["fast"]}
        self.assertEqual((fast[8 * K]["winner"], fast[8 * K]["value"], fast[8 * K]["flips"]), ("usp", 2.0, "slow: ring"))
        self.assertEqual((fast[16 * K]["winner"], "flips_here" in fast[16 * K]), ("ring", False))
        self.assertEqual([r["winner"] for r in maps["slow"]], ["ring", "ring"])
        self.assertIn("ring · slow", context(records).index.labels.values())

    def test_strong_scaling(self) -> None:
        records = [point("dilated", M, p, time_s=1.0 / p) for p in (1, 2, 4)]
        rows = rows_of(figure(records, "strong_scaling"))
        self.assertEqual({r["ranks"]: r["value"] for r in rows if r["status"] == "ideal"}, {1: 1, 2: 2, 4: 4})
        for row in rows:
            self.assertAlmostEqual(row["value"], row["ranks"], delta=0.3)

    def test_exact_algorithms_share_the_baseline_of_scaling(self) -> None:
        # usp starts on 4 ranks: 1.85 times as fast as one rank, not 4 times.
        records = [point("local", M, 1, time_s=1.85), point("ring", M, 1, time_s=1.9)]
        records += [point("ring", M, p, time_s=1.9 / p) for p in (2, 4)]
        records += [point("usp", M, p, time_s=1.0) for p in (4, 8)]
        records += [point("dilated", M, p, time_s=0.4 / p) for p in (2, 4)]
        rows = {(r["series"], r["ranks"]): r for r in rows_of(figure(records, "strong_scaling")) if r["status"] != "ideal"}
        self.assertAlmostEqual(rows["usp", 4]["value"], 1.85, delta=0.1)
        self.assertIn("local", rows["usp", 4]["baseline"])
        self.assertAlmostEqual(rows["ring", 4]["value"], 4 * 1.85 / 1.9, delta=0.2)
        self.assertAlmostEqual(rows["dilated", 2]["value"], 2, delta=0.1)  # its own

    def test_dependency_depth_shows_never_as_a_cross(self) -> None:
        records = [point("dilated", 8 * K << i, 2) for i in range(4)]
        self.assertTrue(figure(records, "dependency_depth").absent)
        for record, layers in zip(records, (2, 3, -1)):
            record["metrics"] = {"dependency_depth_layers": layers, "dependency_depth_bound_layers": 2.5}
        records[2]["status"] = "skipped_memory"  # the pattern has its depth all the same
        records[3]["metrics"] = {"dependency_depth_layers": None}
        drawn = figure(records, "dependency_depth")
        self.assertEqual([r.get("value") for r in rows_of(drawn)], [2, 3, None])
        self.assertEqual([r["layers"] for r in rows_of(drawn)], ["2", "3", "never"])
        self.assertEqual([layer["name"] for layer in drawn.spec["layer"]], ["line", "bound", "depth", "never"])
        self.assertIn("paper's estimate", drawn.spec["title"]["subtitle"])
        self.assertTrue(drawn.spec["title"]["subtitle"].startswith("source: computed"))
        self.assertEqual((drawn.sources, {r["source"] for r in rows_of(drawn)}), (["computed"], {"computed"}))
        self.assertIn("Source: computed from the patterns of 3 points", drawn.source_text)
        simulated = [{**r, "id": f"5{r['id'][1:]}", "source": "simulated"} for r in records]
        self.assertEqual(len(rows_of(figure([*records, *simulated], "dependency_depth"))), 3)

    def test_axis_names_the_ends_of_the_sweep(self) -> None:
        drawn = figure([point("dilated", 8 * K << i, 1) for i in range(8)], "latency")
        values = next(d["axis"]["values"] for c, d in encodings(drawn.spec) if c == "x" and d.get("field") == "seq_len")
        self.assertEqual((values[0], values[7]), (8 * K, M))

    def test_series_keep_their_style(self) -> None:
        styles = {}
        for drawn in build_figures(context(full_sweep())):
            for channel, definition in encodings(drawn.spec):
                if channel == "color" and definition.get("field") == "series":
                    for label, colour in zip(definition["scale"]["domain"], definition["scale"]["range"]):
                        self.assertEqual(styles.setdefault(label, colour), colour, drawn.name)
        self.assertEqual(styles["dilated"], "#0072B2")

    def test_labels_name_only_what_varies(self) -> None:
        records = [point("ring", 8 * K, 2), point("ring", 8 * K, 2)]
        records[1]["params"] |= {"layout": "zigzag", "causal": True}
        index = context(records).index
        self.assertEqual(sorted(set(index.labels.values())), ["ring", "ring zigzag · causal"])

    def test_labels_name_every_option_whatever_its_default(self) -> None:
        with unittest.mock.patch.dict(DEFAULTS, {"chunk_order": "auto", "chunks": 4}):
            records = [point("ring", 8 * K, 2) for _ in range(3)]
            records[1]["params"] |= {"chunk_order": "inner", "chunks": 4}
            records[2]["params"] |= {"chunk_order": "auto", "chunks": 8}
            index = context(records).index
        self.assertEqual(sorted(set(index.labels.values())), ["ring", "ring · chunk order inner", "ring · chunks 8"])

    def test_threads_name_a_series_only_at_equal_ranks(self) -> None:
        records = [point("dilated", 8 * K, p) for p in (1, 2)]
        for record in records:
            record["params"] |= {
                "threads": 2 // record["params"]["ranks"],
                "phase_parts": record["params"]["ranks"] + 1,
            }
        self.assertEqual(set(context(records).index.labels.values()), {"dilated"})
        again = point("dilated", 8 * K, 2)
        again["params"] |= {"threads": 4, "phase_parts": 3}
        self.assertEqual(len(set(context([*records, again]).index.labels.values())), 3)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Tests of what the report promises its readers, on SYNTHETIC points: report_test.py runs them too."""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report.answer import claims_strip, sentences
from report.charts import MAX_FIGURES, MAX_LINES, build_figures
from report.claims import judge
from report.claims_fixture import equal_work
from report.compare import COLUMNS as COMPARED
from report.compare import compare_section, compared_points, load_comparison
from report.evidence import MEANING
from report.opponents_test import figure, rows_of
from report.rows_cost import MAX_LANE_RANKS
from report.series import DASHES, STYLES, colour_of
from report.shape import ResultError
from report.specs import PHASE_COLOURS, PLOTS, algorithm_scale, encodings, log_ticks
from report.synthetic_fixture import (
    K,
    M,
    batch_sweep,
    context,
    crossover_sweep,
    full_sweep,
    opponent,
    opponents_sweep,
    point,
    refused,
    timeline,
    with_depth,
)
from report.tables import table_data
from report.units import bytes_label, duration_label, listed, number_label, percent_label, spoken_duration


def y_axis(drawn) -> dict:
    return next(d for c, d in encodings(drawn.spec) if c == "y" and d.get("field") == "value")


def ticks(drawn) -> list[str]:
    return json.loads(y_axis(drawn)["axis"]["labelExpr"].split("[indexof")[0])


class Design(unittest.TestCase):
    def test_at_most_twelve_figures_stand_before_more(self) -> None:
        for records in (full_sweep(), opponents_sweep(), crossover_sweep()[:600]):
            drawn = [f for f in build_figures(context(records)) if not f.absent]
            first = [f.name for f in drawn if not f.more]
            self.assertTrue(1 <= len(first) <= MAX_FIGURES, first)
            self.assertGreater(len(drawn), len(first))
        self.assertEqual(build_figures(context(batch_sweep()))[0].name, "batch_runtime")
        self.assertEqual(build_figures(context(crossover_sweep()))[0].name, "winners-simulated-1")
        alone = build_figures(context([point("dilated", 8 * K, 1)]))
        self.assertGreaterEqual(sum(not f.more and not f.absent for f in alone), 1)  # something to look at, whatever was asked

    def test_a_small_spread_does_not_look_like_a_mountain(self) -> None:
        drawn = figure([point("dilated", n * K, 1, time_s=1e-6 * n * K * f) for n, f in ((8, 1), (16, 1.03), (32, 1))], "time_per_token")
        low, high = y_axis(drawn)["scale"]["domain"]
        self.assertGreater(high / low, 10)
        self.assertGreaterEqual(len(ticks(drawn)), 3)

    def test_every_log_axis_has_three_ticks_or_more(self) -> None:
        for records in (full_sweep(), opponents_sweep(), [opponent(8 * K, p, algorithm="ring") for p in (1, 2)]):
            for drawn in build_figures(context(records)):
                axes = [d for c, d in encodings(drawn.spec) if c == "y" and "domain" in (d.get("scale") or {}) and "axis" in d]
                for axis in axes:
                    self.assertTrue(3 <= len(axis["axis"]["values"]) <= 9, f"{drawn.name}: {axis['axis']['values']}")
        for low, high in ((1, 10), (0.3, 3), (1e-9, 1e9), (7, 71)):
            self.assertTrue(3 <= len(log_ticks(low, high, False)) <= 9)
        self.assertEqual(log_ticks(1, 8, True), [1, 2, 4, 8])

    def test_a_rule_at_a_value_lies_inside_the_picture(self) -> None:
        records = [point(a, n * K, 1, time_s=t * n) for n in (8, 16, 32) for a, t in (("dilated", 1e-3), ("local", 40e-3))]
        low, high = y_axis(figure(records, "speedup"))["scale"]["domain"]
        self.assertLess(low, 1.0)  # where both take the same time
        self.assertGreater(high, 40)

    def test_points_without_a_result_have_a_strip_of_their_own(self) -> None:
        some = [point("dilated", n * K, 1, time_s=1e-3 * n) for n in (8, 16, 32)]
        plain = figure(some, "latency")
        drawn = figure([*some, *(refused(a, 64 * K, 1, "skipped_memory", "too large") for a in ("ring", "ulysses"))], "latency")
        low, high = (y_axis(drawn)["scale"]["domain"][i] / y_axis(plain)["scale"]["domain"][i] for i in (0, 1))
        self.assertTrue(0.7 < low <= 1.01, "the strip is above the values, not on both sides")
        self.assertTrue(1.0 < high < 2.0)
        strip = next(p["value"] for p in drawn.spec["params"] if p["name"] == "strip_px")
        self.assertLess(max(r["slot"] for r in rows_of(drawn) if "slot" in r), strip)
        many = [refused(a, 64 * K, 1, "error", a) | {"id": a} for a in map(str, range(60))]
        for number, record in enumerate(many):
            record["params"]["algorithm"] = f"algorithm {number}"
        strip = next(p["value"] for p in figure([*some, *many], "latency").spec["params"] if p["name"] == "strip_px")
        self.assertLess(strip, 150)

    def test_a_line_at_constant_tokens_is_a_line(self) -> None:
        lines = {r["line"] for r in rows_of(figure(batch_sweep(), "share_of_peak")) if r["series"] == "ring"}
        self.assertEqual(len(lines), 2)  # one for each rank count, not for each batch
        two = [point("ring", n * K, 2, batch=b) for n in (8, 16) for b in (1, 2)]
        self.assertEqual(len({r["line"] for r in rows_of(figure(two, "share_of_peak"))}), 2)

    def test_what_was_not_counted_is_drawn_by_formula(self) -> None:
        record = point("dilated", M, 16)
        record["params"]["mode"] = "virtual"
        record["comm"]["counted_bytes_per_rank"] = None
        record["memory"]["measured_peak_bytes"] = None
        longer = record | {"params": record["params"] | {"seq_len": 2 * M}, "id": "longer"}
        for name in ("communication_tokens", "memory"):
            drawn = figure([record, longer], name)
            self.assertEqual([(r.get("value"), r["uncounted"]) for r in rows_of(drawn)], [(None, True)] * 2)
            self.assertIn("by_formula", [layer["name"] for layer in drawn.spec["layer"]])
            self.assertIn("not counted", drawn.spec["title"]["subtitle"])

    def test_what_a_library_moved_is_called_modelled(self) -> None:
        record = point("dilated", M, 16)
        sent = record["comm"]["counted_bytes_per_rank"]
        record["comm"] |= {"counted_bytes_per_rank": 0, "modelled_bytes_per_rank": sent}
        row = rows_of(figure([record, point("dilated", M, 32)], "communication_ranks"))[0]
        self.assertEqual((row["predicted_value"], row.get("value"), row["uncounted"]), (sent, None, True))
        self.assertRegex(row["counted"], "^0 B .* modelled, by a library's collectives$")

    def test_one_number_of_ranks_makes_no_figure_against_ranks(self) -> None:
        lengths = [point(name, n * M, 2) for name in ("dilated", "ring") for n in (1, 2)]
        drawn = [f.name for f in build_figures(context(lengths)) if not f.absent]
        self.assertNotIn("communication_ranks", drawn)
        self.assertIn("communication_tokens", drawn)
        more = rows_of(figure([*lengths, point("ring", M, 4)], "communication_ranks"))
        self.assertEqual({(r["seq_len"], r["ranks"]) for r in more}, {(M, 2), (M, 4)})

    def test_resident_memory_beyond_its_bound_is_said(self) -> None:
        records = [point("dilated", n * M, 2) for n in (1, 2)]
        self.assertNotIn("Resident", figure(records, "memory").caption)
        for record, difference in zip(records, (0.02, -0.3)):
            record["memory"]["resident_difference"] = difference
        said = figure(records, "memory").caption
        self.assertIn("WARNING: of 1 by more than 10 %, 30 % at most", said)

    def test_colour_means_algorithm(self) -> None:
        index = context(opponents_sweep()).index
        colours = {}
        for p in index.points:
            style = index.styles[index.label(p)]
            self.assertEqual(colours.setdefault(p.algorithm, style.colour), style.colour)
        self.assertEqual(len(set(colours.values())), len(colours))
        self.assertEqual(len({(s.colour, s.shape) for s in index.styles.values()}), len(index.styles))
        self.assertNotIn(colour_of("new"), set(colours.values()) | {colour for colour, _ in STYLES.values()})
        names, shown = algorithm_scale(["ring", "ring zigzag", "usp"])
        self.assertEqual(len(set(shown)), len(names))
        self.assertEqual(shown[0], colours["ring"])

    def test_fill_means_source(self) -> None:
        filled = {layer["name"]: layer["mark"]["filled"] for layer in figure(full_sweep(), "latency").spec["layer"] if "filled" in layer["mark"]}
        self.assertEqual((filled["measured"], filled["modelled"]), (True, False))

    def test_dash_means_ranks(self) -> None:
        ranks = ("1 rank", "2 ranks", "4 ranks", "64 ranks", "512 ranks")
        found = set()
        for drawn in build_figures(context(full_sweep())):
            for channel, definition in encodings(drawn.spec):
                if channel == "strokeDash" and definition.get("field") == "ranks_label":
                    scale = definition["scale"]
                    self.assertEqual(scale["range"], [list(DASHES[ranks.index(name)]) for name in scale["domain"]], drawn.name)
                    found.update(scale["domain"])
        self.assertEqual(found, set(ranks))

    def test_dashes_of_one_picture_differ(self) -> None:
        self.assertGreaterEqual(len(DASHES), MAX_LINES)
        drawn = figure([point("dilated", length, 1 << i) for length in (M, 2 * M) for i in range(10)], "latency")
        scale = next(d["scale"] for c, d in encodings(drawn.spec) if c == "strokeDash" and d.get("field") == "ranks_label")
        self.assertEqual(len(scale["domain"]), 10)
        self.assertEqual(len({tuple(dash) for dash in scale["range"]}), 10)

    def test_one_palette_for_the_parts_of_a_step(self) -> None:
        found = set()
        for records in (full_sweep(), opponents_sweep()):
            for drawn in build_figures(context(records)):
                for channel, definition in encodings(drawn.spec):
                    if channel == "color" and (name := definition.get("field")) in ("phase", "part"):
                        scale = definition["scale"]
                        self.assertEqual(scale["range"], [PHASE_COLOURS[part] for part in scale["domain"]], drawn.name)
                        self.assertTrue(scale["domain"], drawn.name)
                        found.add(name)
        self.assertEqual(found, {"phase", "part"})

    def test_a_timeline_is_no_higher_than_its_lanes(self) -> None:
        record = point("dilated", M, 8)
        record["timeline"] = timeline(8, 1.0)
        drawn = figure([record], "timeline-1")
        lanes = next(d["sort"] for c, d in encodings(drawn.spec) if c == "y")
        self.assertEqual(len(lanes), 2 * MAX_LANE_RANKS)  # compute and communication of each rank that is shown
        self.assertEqual({row["lane"] for row in rows_of(drawn) if row["end_s"] > row["begin_s"]}, set(lanes))
        self.assertLessEqual(drawn.spec["height"], 20 * len(lanes))

    def test_cells_too_narrow_for_their_text_have_none(self) -> None:
        for drawn in build_figures(context(crossover_sweep()[:600])):
            if drawn.name.startswith(("crossover", "winners")) and not drawn.absent:
                (text,) = [layer for layer in drawn.spec["layer"] if layer["name"] == "text"]
                self.assertIn("bandwidth('x')", text["encoding"]["opacity"]["condition"]["test"])
                (characters,) = [p["value"] for p in drawn.spec["params"] if p["name"] == "cell_text"]
                self.assertEqual(characters, max(len(row["value_text"]) for row in rows_of(drawn)))

    def test_parts_of_a_step_can_be_told_apart(self) -> None:
        style = json.loads((PLOTS / "style.json").read_text())
        for theme in style["themes"].values():
            for names in (("full", "compute only", "communication only", "serialised"), ("compute", "exposed messages", "merge", "waiting")):
                shown = [theme.get(PHASE_COLOURS[name], PHASE_COLOURS[name]) for name in names]
                channels = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in shown]
                for one, other in itertools.combinations(channels, 2):
                    self.assertGreater(sum(abs(a - b) for a, b in zip(one, other)), 60, names)

    def test_parts_of_one_rank_say_what_small_attends_cost(self) -> None:
        record = opponent(8 * K, 1, algorithm="local")
        record["ablations"] |= {"compute_only_s": 0.5, "single_attend_s": 0.4, "communication_only_s": None}
        self.assertEqual(figure([record], "ablations").finding, "One big attend takes 80 % of compute only (measured).")

    def test_no_number_mixes_sources(self) -> None:
        records = opponents_sweep()[:60] + [point("dilated", n * M, 64, source="simulated") for n in (1, 2, 4)]
        for record in records[60:]:
            record["work"]["share_of_peak"] = 0.001
        for drawn in build_figures(context(records)):
            if drawn.absent:
                continue
            self.assertTrue(drawn.source_text.startswith("Source: "), drawn.name)
            for source in drawn.sources:
                self.assertIn(source, drawn.source_text)
        records[60]["work"]["share_of_peak"] = 1.53  # as in older results: not known, not drawn
        finding = figure(records, "share_of_peak").finding
        self.assertNotIn("153 %", finding)
        self.assertIn("0.1 % of the peak (simulated)", finding)
        self.assertNotIn("0.1 % to", finding)

    def test_every_figure_says_what_it_shows(self) -> None:
        for records in (full_sweep(), opponents_sweep(), batch_sweep()):
            for drawn in build_figures(context(records)):
                if not drawn.absent:
                    self.assertRegex(drawn.finding, r"\d", drawn.name)
                    for odd in ("not described", "None", "at 0 %", "nan", "e-1"):
                        self.assertNotIn(odd, drawn.finding + drawn.source_text + drawn.caption, drawn.name)

    def test_no_source_crowds_another_out(self) -> None:
        records = [opponent(8 * K, p, algorithm="ring") for p in (2, 4)]
        for n in range(20):
            record = opponent(M << (n % 5), 64 << (n // 5), algorithm="ring")
            records.append(record | {"source": "simulated"})
        for name in ("ablations", "phases"):
            found = {r["source"] for r in rows_of(figure(records, name))}
            self.assertEqual(found, {"measured", "simulated"}, name)

    def test_the_sentence_is_in_the_reports_own_numbers(self) -> None:
        records = [point(a, 64 * K, 2, time_s=t) for a, t in (("dilated", 0.25), ("ring", 2.0), ("ulysses", 1.0))]
        records += [point(a, 64 * M, 64, source="simulated", time_s=t) for a, t in (("dilated", 0.001), ("ring", 7200.0))]
        said = [re.sub("<[^>]*>", "", text) for one in sentences(context(records)) for text in (one.text, one.detail)]
        self.assertEqual(
            said,
            [
                "At 64M tokens on 64 ranks (simulated) dilated attention takes 1 ms, exact attention (ring) 2 h: 7.2M× for 32.8k× the pairs.",
                "12 heads; segments of 2K, 1M and 64M tokens at rates 1, 512 and 32,768; "
                "branches that ranks share do 0.00305 % of the FLOPs; "
                "another function, of fewer pairs: this compares cost, not quality.",
                "At 64K tokens on 2 ranks (measured) dilated attention takes 250 ms, exact attention (ulysses) 1 s: 4× [4×, 4×] for 32× the pairs.",
                "12 heads; segments of 2K, 32K and 64K tokens at rates 1, 16 and 32; "
                "branches that ranks share do 2.86 % of the FLOPs; "
                "another function, of fewer pairs: this compares cost, not quality.",
            ],
        )
        (alone,) = sentences(context([point("dilated", M, 1, time_s=1.048576)]))
        self.assertIn("1 µs per token", alone.text)
        records = [point(a, 8 * K, 2, batch=4, time_s=1.0) for a in ("dilated", "ring")]
        self.assertIn("For 32K tokens in sequences of 8K on 2 ranks", sentences(context(records))[0].text)
        self.assertEqual(sentences(context([])), [])

    def test_a_time_beyond_the_kernel_table_is_called_a_guess(self) -> None:
        """In the first sentences, in the picture and below it: exact attention at a length that no kernel was timed at."""
        records = [point(a, n * M, 64, source="simulated", time_s=n) for a in ("dilated", "ring") for n in (16, 64)]
        guess = next(r for r in records if r["params"]["algorithm"] == "ring" and r["params"]["seq_len"] == 64 * M)
        self.assertNotIn("guess", sentences(context(records))[0].text)
        guess["metrics"] = {"beyond_kernel_table": 1}
        self.assertIn("exact attention (ring) <strong>64 s</strong> (a guess, beyond the kernel table): about ", sentences(context(records))[0].text)
        drawn = next(f for f in build_figures(context(records)) if f.name == "latency")
        self.assertEqual([r["id"] for r in rows_of(drawn) if "guess" in r], [guess["id"]])
        self.assertIn("hollow marks: simulated · *: a guess, beyond the kernel table", drawn.spec["title"]["subtitle"])
        self.assertEqual(next(layer for layer in drawn.spec["layer"] if layer["name"] == "guess")["mark"]["text"], "*")
        self.assertIn("64 s at 64M (a guess)", drawn.finding)
        self.assertEqual(drawn.finding.count("a guess"), 1)
        measured = [r | {"source": "measured"} for r in records]
        self.assertNotIn("guess", str([*sentences(context(measured)), *build_figures(context(measured))[0].spec["layer"]]))

    def test_the_sentence_takes_the_paper_s_first_segment(self) -> None:
        """Shorter ones are faster: they speak only where there is no other, with what the paper's would give."""
        def short(record: dict[str, Any]) -> dict[str, Any]:
            branches = [{"segment_length": w, "dilation_rate": r} for w, r in ((256, 1), (64 * K, 256))]
            return record | {"id": f"short {record['id']}", "params": record["params"] | {"branches": branches}}

        exact, paper = point("ring", 64 * K, 2, time_s=10.0), point("dilated", 64 * K, 2, time_s=1.0)
        fast = short(point("dilated", 64 * K, 2, time_s=0.05))
        (said,) = sentences(context([exact, paper, fast]))
        self.assertIn("segments of 2K, 32K and 64K tokens at rates 1, 16 and 32", said.detail)
        self.assertIn("takes <strong>1 s</strong>", said.text)
        self.assertIn("10×", said.text)
        self.assertNotIn("the paper’s first segment", said.detail)
        (said,) = sentences(context([exact, fast]))
        self.assertIn("segments of 256 and 64K tokens at rates 1 and 256", said.detail)
        self.assertIn("takes <strong>50 ms</strong>", said.text)
        self.assertTrue(said.detail.endswith("with the paper’s first segment (2,048 tokens, undilated) at most 32× by count of pairs."), said)
        dilated_first = paper | {"params": paper["params"] | {"branches": [{"segment_length": 64 * K, "dilation_rate": 2}]}}
        self.assertIn("the paper’s first segment", sentences(context([exact, dilated_first]))[0].detail)
        shorter = short(point("dilated", 8 * K, 1, time_s=1e-6))
        self.assertIn("segments of 256 and 8K tokens at rates 1 and 256", sentences(context([shorter]))[0].detail)

    def test_a_ratio_has_the_interval_that_its_samples_allow(self) -> None:
        """Five samples or more: the interval of a median of three has a level of 75 %."""
        exact, dilated = point("ring", 64 * K, 2, time_s=8.0), point("dilated", 64 * K, 2, time_s=1.0)
        for record in (exact, dilated):
            median = record["timing"]["median_s"]
            record["timing"] |= {"ci_low_s": 0.8 * median, "ci_high_s": 1.25 * median}
        drawn = figure([exact, dilated, point("ring", 8 * K, 2, time_s=2.0), point("dilated", 8 * K, 2, time_s=1.0)], "speedup")
        self.assertEqual(
            drawn.finding,
            "Exact attention takes 2× [2×, 2×] the time for 4× the pairs at 8K (ring, 2 ranks) and "
            "8× [5.12×, 12.5×] the time for 32× the pairs at 64K (ring, 2 ranks) (measured).",
        )
        dilated["timing"]["ci_level"] = 0.75
        self.assertTrue(sentences(context([exact, dilated]))[0].text.endswith(": 8× for 32× the pairs."))

    def test_captions_of_scaling_figures_name_the_shortest_and_the_longest_sequence(self) -> None:
        records = [point("dilated", n * K, p, time_s=n / p**(0.5 if n == 8 else 1)) for n in (8, 16, 32) for p in (1, 4)]
        finding = figure(records, "strong_scaling").finding
        self.assertIn("Dilated: 1× at 1 rank to 2× [2×, 2×] at 4 ranks (measured, 8K tokens); dilated: 1× at 1 rank to 4× [4×, 4×] at 4 ranks (measured, 32K tokens).", finding)
        weak = [point("dilated", n * p * K, p, time_s=n) for n in (8, 16, 32) for p in (1, 4)]
        finding = figure(weak, "weak_scaling").finding
        self.assertIn("100 % at 1 rank to 100 % [100 %, 100 %] at 4 ranks (measured, 8K tokens per rank)", finding)
        self.assertIn("(measured, 32K tokens per rank)", finding)

    def test_scaling_over_ranks_that_share_cores_decides_nothing(self) -> None:
        records = [point(a, 64 * K, p, time_s=1 / p) for a in ("ring", "ulysses") for p in (1, 2, 4, 8)]
        records += [point("usp", 64 * K, p, time_s=1 / p) for p in (4, 8)]
        for record in records:
            record["metrics"] = {"usable_cores": 2}
            record["params"]["threads"] = 1
        drawn = figure(records, "strong_scaling")
        self.assertIn("Ring: 1× at 1 rank to 2× [2×, 2×] at 2 ranks (measured, 64K tokens)", drawn.finding)
        self.assertIn("Lines that decide no claim: ring, ulysses, usp on 4 ranks and 8 ranks (4 to 8 threads of its ranks shared 2 cores).", drawn.source_text)
        self.assertNotIn("8 ranks", drawn.finding)

    def test_a_simulated_ratio_has_an_interval_and_says_what_the_pattern_does_not_join(self) -> None:
        exact, dilated = (point(a, 64 * K, 2, source="simulated") for a in ("ring", "dilated"))
        exact["timing"] |= {"median_s": 8.0, "ci_low_s": 6.0, "ci_high_s": 12.0}
        dilated["timing"] |= {"median_s": 1.0, "ci_low_s": 0.5, "ci_high_s": 2.0}
        (said,) = sentences(context([exact, dilated]))
        self.assertTrue(said.text.endswith(": 8× [3×, 24×] for 32× the pairs."), said)
        self.assertNotIn("never hears", said.detail)
        (said,) = sentences(context([exact, with_depth(dilated, -1, 3.0)]))
        self.assertTrue(said.detail.endswith("; some token never hears from some other, however many layers."), said)

    def test_the_longest_run_says_where_its_work_is(self) -> None:
        (said,) = sentences(context([point("dilated", M, 2, time_s=1.0)]))
        self.assertRegex(said.detail, r"; branches that ranks share do [0-9.]+ % of the FLOPs\.$")

    def test_the_figure_on_top_is_of_times_that_decide(self) -> None:
        records = [point("dilated", n * K, 2, batch=64 // n) for n in (8, 16, 32, 64)]
        ctx = context(records)
        self.assertEqual(build_figures(ctx)[0].name, "batch_runtime")
        why = {r["id"]: f"samples are 1.{6 + i} times apart" for i, r in enumerate(records)}
        more = [r | {"id": f"more{i}"} for i, r in enumerate(point("ring", n * K, 2) for n in (8, 16, 32))]
        ctx = context(records + more)
        ctx.runs[0].record |= {"summary": {"disturbed": why}}
        figures = build_figures(ctx)
        self.assertEqual(figures[0].name, "latency")
        self.assertIn("Lines that decide no claim: dilated on 2 ranks (samples are 1.6 to 1.9 times apart).", figures[0].source_text)
        ctx = context(records)
        ctx.runs[0].record |= {"summary": {"disturbed": why}}
        self.assertEqual(build_figures(ctx)[0].name, "batch_runtime")  # none decides: the run's own comes first

    def test_a_line_passes_by_a_point_that_decides_nothing(self) -> None:
        records = [point(a, n * K, 2, time_s=n) for a in ("dilated", "ring") for n in (8, 16, 32)]
        ctx = context(records)
        ctx.runs[0].record |= {"summary": {"disturbed": {records[0]["id"]: "samples are 1.9 times apart"}}}
        drawn = next(f for f in build_figures(ctx) if f.name == "latency")
        self.assertEqual([r["id"] for r in rows_of(drawn) if "doubt" in r], [records[0]["id"]])
        layers = {layer["name"]: layer for layer in drawn.spec["layer"]}
        self.assertIn("!isValid(datum.passed_by)", layers["line"]["transform"][0]["filter"])
        self.assertEqual([r["doubt_text"] for r in rows_of(drawn) if "doubt_text" in r], ["?"])
        self.assertIn("?: decides no claim", drawn.spec["title"]["subtitle"])
        self.assertIn("dilated: 16 s at 16K to 32 s at 32K", drawn.finding.lower().replace("k", "K"))
        days = [point("ring", n * K, 2, time_s=n * 86400.0) for n in (8, 16)]
        self.assertIn("8 days at 8K to 16 days at 16K", next(f for f in build_figures(context(days)) if f.name == "latency").finding)
        self.assertNotIn("Lines that decide", drawn.source_text)
        clean = next(f for f in build_figures(context(records)) if f.name == "latency")
        self.assertNotIn("doubt", [layer["name"] for layer in clean.spec["layer"]])

    def test_a_line_of_disturbed_points_alone_is_drawn_and_marked(self) -> None:
        records = [point(a, n * K, 2, time_s=n) for a in ("dilated", "ring") for n in (8, 16, 32)]
        ids = [r["id"] for r in records[:3]]
        ctx = context([*records, *(point("dilated", n * K, p, time_s=n / p) for n in (8, 16, 32) for p in (1, 4))])
        ctx.runs[0].record |= {"summary": {"disturbed": dict.fromkeys(ids, "samples are 1.9 times apart")}}
        figures = {f.name: f for f in build_figures(ctx)}
        for name in ("latency", "strong_scaling"):
            rows = rows_of(figures[name])
            self.assertEqual({r["id"] for r in rows if "doubt" in r}, set(ids), name)
            self.assertFalse([r for r in rows if "passed_by" in r], name)
            self.assertIn('"name": "doubt"', json.dumps(figures[name].spec), name)
            self.assertIn("?: decides no claim", figures[name].spec["title"]["subtitle"], name)
        self.assertIn("Lines that decide no claim: dilated on 2 ranks (samples are 1.9 times apart).", figures["latency"].source_text)
        ctx.runs[0].record["summary"]["disturbed"] |= {r["id"]: "busy" for r in records[3:]}
        both = [r for r in rows_of(next(f for f in build_figures(ctx) if f.name == "latency")) if "doubt_text" in r]
        self.assertEqual([r["doubt_text"] for r in both], 3 * ["??"])  # at one place of the picture
        self.assertEqual(both[0]["doubt"], "dilated: samples are 1.9 times apart; ring: busy")
        for record in records:  # their setup alone decides: the caption says so, once
            record["metrics"] = {"usable_cores": 1}
        drawn = next(f for f in build_figures(context(records)) if f.name == "latency")
        self.assertFalse([r for r in rows_of(drawn) if "doubt" in r])
        self.assertIn("Lines that decide no claim: dilated, ring on 2 ranks (4 threads", drawn.source_text)

    def test_a_flat_line_without_shared_work_says_so(self) -> None:
        def remark(records: list[dict[str, Any]]) -> str:
            return next(f for f in build_figures(context(records)) if f.name == "batch_runtime").source_text

        records = [point("dilated", n * K, 2, batch=64 // n) for n in (8, 16, 32, 64)]
        self.assertIn("Not counted for a constant latency: dilated on 2 ranks, whose long branches do as little as 2.86 % of the FLOPs.", remark(records))
        self.assertNotIn("Not counted", remark(equal_work(records)))

    def test_points_that_decide_no_claim_do_not_speak_first(self) -> None:
        shared = [point(a, 64 * K, 8, time_s=t) for a, t in (("dilated", 0.25), ("ring", 2.0))]
        for record in shared:
            record["metrics"] = {"usable_cores": 2}
        able = [point(a, 8 * K, 2, time_s=t) for a, t in (("dilated", 0.1), ("ring", 0.3))]
        (said,) = sentences(context(shared + able))
        self.assertIn("At 8K tokens on 2 ranks", said.text)
        self.assertNotIn("decide no claim", said.detail)
        (said,) = sentences(context(shared))
        self.assertTrue(said.detail.endswith("Such times decide no claim: 8 threads of its ranks shared 2 cores."), said)
        throttled = [r | {"metrics": {"device_throttled": 1}} for r in able]
        for words, records, changes in (
            ("1.9 times apart", able, {"summary": {"disturbed": {r["id"]: "samples are 1.9 times apart" for r in able}}}),
            ("machine was busy", able, {"environment": {"busy_share": 0.4}}),
            ("before lnbench looked for disturbed points", able, {"summary": {}}),
            ("slowed its clocks", throttled, {}),
        ):
            ctx = context(records)
            ctx.runs[0].record |= changes
            self.assertIn(words, sentences(ctx)[0].detail.split("Such times decide no claim")[1])

    def test_a_figure_names_its_disturbed_points(self) -> None:
        """A range such as 98 to 101 ms, which a reader takes from it, may hold one."""
        records = [point(a, n * K, 2) for a in ("dilated", "ring") for n in (8, 16)]
        ctx = context(records)
        self.assertNotIn("disturbed", " ".join(f.source_text for f in build_figures(ctx)))
        ctx.runs[0].record |= {"summary": {"disturbed": {records[3]["id"]: "samples are 1.9 times apart"}}}
        texts = {f.name: f.source_text for f in build_figures(ctx)}
        self.assertIn("measured, 4 points, 1 of them disturbed (ring at 16K on 2 ranks), 10 samples", texts["latency"])
        self.assertNotIn("disturbed", texts["memory"])

    def test_the_strip_says_what_its_words_mean(self) -> None:
        for records in (full_sweep(), opponents_sweep(), [point("dilated", 8 * K, 1)]):
            claims = judge(context(records))
            strip = claims_strip(claims)
            found = {c.status for c in claims}
            for status, text in MEANING.items():
                self.assertEqual(f"<b>{status}</b>: {text}" in strip, status in found, status)
            self.assertTrue(found <= set(MEANING))
            for c in claims:
                self.assertEqual(c.deciding is None, c.scale == "")
                self.assertIn(f"{c.title}{f' <span class=by>{c.scale}</span>' if c.scale else ''}</a>", strip.replace("&#x27;", "'"))
        self.assertEqual([status for status in MEANING if not status.isalpha()], [], "one word each")

    def test_numbers_as_people_read_them(self) -> None:
        self.assertEqual([percent_label(v) for v in (4.66e-10, 0.5, 0, 5.9e-17)], ["4.7e-08 %", "50 %", "0 %", "0 %"])
        self.assertEqual([number_label(v) for v in (989.4e12, 8, 0.5, 1e-7)], ["989.4e12", "8", "0.5", "100e-9"])
        self.assertEqual([spoken_duration(v) for v in (11167, 90, 0.0223, 1e9)], ["3.1 h", "90 s", "22.3 ms", "31.7 years"])
        self.assertEqual(listed([4, 1, 2, 3], str), "1 to 4")
        self.assertEqual((duration_label(1.5e-3), bytes_label(6291456)), ("1.5 ms", "6 MiB"))

    def test_two_runs_are_compared(self) -> None:
        records = [point("dilated", n * K, 2) for n in (8, 16)]
        ctx = context(records, records)
        ctx.index.run_names = ["run 1 (synthetic)", "run 2 (later)"]
        sources = [f.source_text for f in build_figures(ctx, compared=True) if f.name == "latency"]
        self.assertRegex(sources[0], r"^Source: run 1 \(synthetic\): measured, 2 points, .*; run 2 \(later\): measured, 2 points, ")
        verdicts = ("same", "slower")
        points = [{"id": r["id"], "verdict": v, "base_s": 1.0, "new_s": 1.5, "ratio": 1.5, "note": "<b>"} for r, v in zip(records, verdicts)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "comparison.json"
            data = {"threshold": 0.05, "summary": "REGRESSION", "environment": [], "points": points}
            path.write_text(json.dumps(data))
            loaded = load_comparison(path)
            page = compare_section(ctx, loaded)
            for text in ("<strong>1</strong> slower", "REGRESSION", "beyond 5 %", "From run 1 (synthetic) to run 2 (later), of 2 points"):
                self.assertIn(text, page)
            shown = [c["shown"] for c in json.loads(table_data(compared_points(ctx, loaded), COMPARED))]
            self.assertEqual(list(zip(*shown)), [(v, "dilated", n, "2", "1 s", "1.5 s", "1.5×", "<b>") for v, n in (("slower", "16K"), ("same", "8K"))])
            for wrong in ("{", "[]", '{"points": [{"verdict": 3}]}', json.dumps({"points": []})):
                path.write_text(wrong)
                with self.assertRaises(ResultError):
                    load_comparison(path)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""The simulator against published measurements, as docs/simulator-accuracy.md and README.md state it: the tables of errors and of
goals are those that `lnbench validate --published` finds now. `--print` prints them for the page. Run by ctest as
`published`; LNBENCH names the program.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import unittest
from typing import Any

from published_refit import readings, refit

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = ("attention", "training steps", "messages, 16 MB and more", "messages, below 16 MB")
Json = dict[str, Any]


@functools.cache
def published() -> Json:
    with tempfile.TemporaryDirectory() as folder:
        lnbench = shutil.copy(os.environ["LNBENCH"], folder)  # away from simgrid_oracle, which takes a minute
        out = pathlib.Path(folder) / "out.json"
        command = [lnbench, "validate", "--published", str(ROOT / "configs/published"), "--json", str(out)]
        said = subprocess.run(command, capture_output=True, text=True)
        if said.returncode not in (0, 1):
            raise RuntimeError(said.stderr)
        valid = subprocess.run([sys.executable, str(ROOT / "scripts/validate_json.py"), str(out)], capture_output=True, text=True)
        if valid.returncode != 0:
            raise RuntimeError(valid.stdout + valid.stderr)
        found: Json = json.loads(out.read_text())["published"]
        return found | {"reached": said.returncode == 0, "said": said.stdout}


def percent(share: float) -> str:
    value = 100 * share
    return f"{value:.1f} %" if abs(value) < 9.95 else f"{value:.0f} %"


def error_row(group: Json, name: str) -> str:
    errors = [percent(group[key]) for key in ("median_rel_error", "p95_rel_error", "bias")]
    return "| " + " | ".join(map(str, [name, group["cases"], *errors, group["inside"]])) + " |"


def error_rows() -> list[str]:
    groups = {g["name"]: g for g in published()["groups"]}
    names = [name for kind in KINDS for name in (kind, f"{kind}, held out", f"{kind}, blind") if name in groups]
    return [error_row(groups[name], name) for name in names]


def source_rows() -> list[str]:
    """Blind cases by source."""
    blind = {f"{c['source']}, blind": c["source"] for c in published()["cases"] if c["blind"]}
    return sorted(error_row(g, blind[g["name"]]) for g in published()["groups"] if g["name"] in blind)


def goal_rows() -> list[str]:
    found, rows = published(), []
    counts = {"pairs": f"{found['pairs_in_order']} of {found['pairs']}, "}
    attention = next(g for g in found["groups"] if g["name"] == "attention")
    counts["attention inside"] = f"{attention['inside']} of {attention['cases']}, "
    for goal in found["goals"]:
        name = goal["name"]
        bound = f"at {'least' if goal['least'] else 'most'} {percent(goal['bound'])}"
        value = next((c for key, c in counts.items() if name.startswith(key)), "") + percent(goal["found"])
        rows.append(f"| {name} | {bound} | {value} | {'reached' if goal['reached'] else 'missed'} |")
    return rows


@functools.cache
def refit_rows() -> list[tuple[str, list[tuple[float, float]]]]:
    return [(kind, errors) for kind, (_, errors) in refit(pathlib.Path(os.environ["LNBENCH"]))[1].items()]


def left_out_rows() -> list[str]:
    """Median and 95th percentile of the error: shipped, fitted to all, its source left out."""
    cells = [[kind, *(f"{100 * m:.1f}, {100 * p95:.1f} %" for m, p95 in errors)] for kind, errors in refit_rows()]
    return ["| " + " | ".join(row) + " |" for row in cells]


def summary() -> str:
    """README.md's sentence on attention."""
    errors = [abs(c["error"]) for c in published()["cases"] if "tokens" in c["size"] and not c["blind"]]
    attention = next(g for g in published()["groups"] if g["name"] == "attention")
    return f"{len(errors)} published times of exact attention on GPUs {percent(attention['median_rel_error'])}, {percent(max(errors))} at most"


class Published(unittest.TestCase):
    def test_every_case_is_predicted(self) -> None:
        self.assertEqual([c["id"] for c in published()["cases"] if c["reason"]], [])

    def test_the_page_states_the_errors_and_goals_of_today(self) -> None:
        page = (ROOT / "docs/simulator-accuracy.md").read_text(encoding="utf-8")
        for rows in (error_rows(), source_rows(), goal_rows(), left_out_rows()):
            table = "|\n" + "\n".join(rows) + "\n\n"
            self.assertIn(table, page, "scripts/published_test.py --print has the rows of today")
        self.assertIn(summary(), (ROOT / "README.md").read_text(encoding="utf-8"))

    def test_a_source_that_is_left_out_is_predicted_nearly_as_well(self) -> None:
        for kind, (_, fitted, left_out) in refit_rows():
            for of_all, of_others in zip(fitted, left_out):
                self.assertLessEqual(of_others, 1.5 * of_all, kind)

    def test_cluster_files_have_the_mean_of_what_several_machines_have(self) -> None:
        keys = {"call inside a node": ("intra", "call_s"), "call between nodes": ("inter", "call_s"), "overhead a message": ("inter", "overhead_s")}
        self.assertEqual(set(keys), set(readings()))
        for path in (ROOT / "configs/clusters").glob("*.json"):
            links = json.loads(path.read_text(encoding="utf-8"))["links"]
            for name, (link, key) in keys.items():
                if key not in links[link]:  # CPU cores have none
                    continue
                of, found = readings()[name].values(), links[link][key]
                self.assertAlmostEqual(found["value"] / statistics.geometric_mean(of), 1, delta=0.01, msg=f"{path.name}: {name}")
                for value in of:
                    self.assertIn(f"{value * 1e6:.2g} us", found["source"], path.name)

    def test_the_table_says_of_each_case_what_the_json_does(self) -> None:
        lines = published()["said"].splitlines()
        self.assertLessEqual(max(map(len, lines)), 120)
        rows = {line.split()[0]: line for line in lines if line and not line.startswith("#")}
        for c in published()["cases"]:
            self.assertEqual(c["inside"], c["low_s"] <= c["published_s"] <= c["high_s"], c["id"])
            row = rows[c["id"]]
            marks = {"blind": c["blind"], "beyond": c["beyond_kernel_table"], "outside": not c["inside"]}
            self.assertEqual({name: f" {name}" in row for name in marks}, marks, row)
            figures = re.match(r"\S+ +(\S+ \S+) +(\S+ %) +(\S+ \S+) +(\S+ \S+) +(\S+ \S+) +(\S+ %)", row).groups()
            keys = ("published_s", "tolerance", "predicted_s", "low_s", "high_s", "error")
            for text, key in zip(figures, keys, strict=True):
                number, unit = text.split()
                factor = {"%": 0.01, "s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
                self.assertAlmostEqual(float(number) * factor, c[key], delta=0.006 * abs(c[key]), msg=row)
                self.assertEqual(number[0] == "+", key == "error" and c[key] > 0, row)
        counts = [[c["inside"] for c in published()["cases"] if c["blind"] == blind] for blind in (False, True)]
        shares = [f"{sum(inside)} of {len(inside)} {kind} cases" for inside, kind in zip(counts, ("development", "blind"))]
        self.assertRegex(published()["said"], rf"# inside their interval: {shares[0]} \(\d+\.?\d* %\), {shares[1]} \(")

    def test_recommend_says_how_far_rings_over_nodes_are_off(self) -> None:
        rings = [c for c in published()["cases"] if c["blind"] and c["family"] == "ring" and c["ranks"] > 8]  # nodes have eight
        mean = f"{-100 * sum(c['error'] for c in rings) / len(rings):.0f} %"
        hopper = sorted(-100 * c["error"] for c in rings if re.search("H[128]00", c["device"]))
        span = f"{hopper[0]:.0f} to {hopper[-1]:.0f} %"
        page = " ".join((ROOT / "docs/simulator-accuracy.md").read_text(encoding="utf-8").split())
        self.assertIn(f"blind rings over nodes of Hopper are {span} too fast", page)
        self.assertIn(f"**Rings between nodes** are {mean} too fast in the mean of {len(rings)} blind cases", page)
        command = [os.environ["LNBENCH"], "recommend", "--cluster", "h800", "--seq-len", "256K", "--ranks", "16", "--causal", "--head-dim", "128"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.replace("\n#   ", " ")
        self.assertIn(f"{len(rings)} blind cases were by {mean} in the mean, those of Hopper by {span} (docs/simulator-accuracy.md#blind-cases)", said)

    def test_the_json_says_what_was_predicted(self) -> None:
        for c in published()["cases"]:
            of_file = json.loads((ROOT / "configs/published" / c["file"]).read_text(encoding="utf-8"))
            self.assertEqual(c["cluster"], of_file["cluster"])
            self.assertEqual(set(c["what_if"].split()), set(filter(None, of_file.get("what_if", "").split(","))))
            (one,) = (case for case in of_file["cases"] if case["id"] == c["id"])
            self.assertEqual(c["setup"], of_file.get("setup", {}) | one["setup"])
            self.assertTrue(c["device"])

    def test_the_command_fails_when_a_goal_is_missed(self) -> None:
        self.assertEqual(published()["reached"], all(goal["reached"] for goal in published()["goals"]))


if __name__ == "__main__":
    if "--print" in sys.argv:
        print("\n".join([*error_rows(), "", *source_rows(), "", *goal_rows(), "", *left_out_rows(), "", summary()]))
    else:
        unittest.main()

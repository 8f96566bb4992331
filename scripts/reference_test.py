#!/usr/bin/env python3
"""The published results hold the values that were measured: each digest in results/reference/values.json was made of a
result's JSON values, whatever their layout: those of results/reference when they were published, those of GPUs
later. `--print` prints the digests of what stands there now.
"""
import hashlib
import json
import re
import statistics
import sys
import unittest
from pathlib import Path

import validate_real

RESULTS = Path(__file__).resolve().parent.parent / "results"
REFERENCE = RESULTS / "reference"


def values_of(path):
    """The values of a validation, or of a result with each timeline in its point."""
    if path.is_file():
        return json.loads(path.read_text())
    result = json.loads((path / "result.json").read_text())
    points = {point["id"]: point for point in result["points"]}
    timelines = path / "timelines.jsonl"
    for line in timelines.read_text().splitlines() if timelines.exists() else []:
        entry = json.loads(line)
        points[entry["id"]]["timeline"] = entry["timeline"]
    return result


def digest_of(path):
    canonical = json.dumps(values_of(path), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def folders():
    return sorted(p.parent for p in REFERENCE.glob("*/result.json"))


def published():
    """Folders of results that are in the repository, and files beside them, by their paths in results/."""
    found = [path for name in ("h100", "h200", "reference") for path in (RESULTS / name).rglob("*.json")]
    runs = {path.parent for path in found if path.name == "result.json"}
    files = {path for path in found if path.parent not in runs and path.name != "values.json"}
    return {path.relative_to(RESULTS).as_posix(): path for path in sorted(runs | files)}


def digests():
    return {name: digest_of(path) for name, path in published().items()}


class Reference(unittest.TestCase):
    def test_values_are_those_that_were_published(self):
        recorded = json.loads((REFERENCE / "values.json").read_text())
        self.assertEqual(digests(), recorded)

    def test_a_published_result_holds_each_point_once(self):
        for folder in folders():
            self.assertFalse({"run.json", "points.jsonl"} & {p.name for p in folder.iterdir()}, folder)
            result = (folder / "result.json").read_text()
            self.assertNotIn('"timeline"', result)
            self.assertLess(result.count("\n"), 250 + len(json.loads(result)["points"]), folder)

    def test_short_samples_are_ten_or_more(self):
        for folder in folders():
            timed = [p for p in json.loads((folder / "result.json").read_text())["points"] if (p.get("timing") or {}).get("samples_s")]
            self.assertTrue(timed, folder)
            for point in timed:
                samples = point["timing"]["samples_s"]
                self.assertTrue(len(samples) >= 10 or statistics.median(samples) >= 10, (folder.name, point["id"], len(samples)))

    def test_a_validation_s_page_is_that_of_its_values(self):
        for path in sorted(REFERENCE.glob("validation*.json")):
            self.assertEqual(validate_real.page(json.loads(path.read_text())), path.with_suffix(".md").read_text(), path)

    def test_the_error_of_clusters_of_cores_holds_the_filed_points(self):
        for cluster, name, kind in (("cpu-2core", "validation-xeon", "attention"), ("cpu-2core-models", "validation-models-xeon", "training steps")):
            file = json.loads((RESULTS.parent / f"configs/clusters/{cluster}.json").read_text())
            points = json.loads((REFERENCE / f"{name}.json").read_text())["real"]["cases"]
            error, source = file["error"]["value"], file["error"]["source"]
            self.assertEqual(error, validate_real.error_of(points))
            self.assertIn(f"results/reference/{name}.json: {validate_real.held_text(points, error)} of {kind}, ", source)

    def test_what_the_simulator_is_held_against_has_ten_samples(self):
        configs = sorted((REFERENCE.parent.parent / "configs").glob("validate-*.json"))
        self.assertEqual(len(configs), 3)
        for config in configs:
            fewest = re.search(r'"min_samples": (\d+)', config.read_text())
            self.assertGreaterEqual(int(fewest[1]) if fewest else 0, 10, config)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print(json.dumps(digests(), indent=1))
    else:
        unittest.main()

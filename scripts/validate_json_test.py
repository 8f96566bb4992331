#!/usr/bin/env python3
"""Tests of validate_json.py, of the schemas, and of every file the suite ships or writes.

  validate_json_test.py [RESULT_FOLDER]     a folder that the tests of src/io wrote
"""
import contextlib
import copy
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

import validate_json

ROOT = Path(__file__).resolve().parent.parent
RESULT = None

MINIMAL = {"schema_version": 1, "sweep": {"algorithm": "ring", "seq_len": "8K"}}


def check(*paths):
    """Exit code and what was printed on stderr."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = validate_json.main([str(p) for p in paths])
    return code, errors.getvalue()


def check_text(text, name="x.json"):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text)
        return check(path)


class Comments(unittest.TestCase):
    def test_strings_stay(self):
        text = '{"a": "http://x", "b": "/* no */", "c": "\\"//" } // gone'
        self.assertEqual(json.loads(validate_json.strip_comments(text)),
                         {"a": "http://x", "b": "/* no */", "c": '"//'})

    def test_lines_keep_their_numbers(self):
        text = '{ /* one\n two */ "a": 1 // three\n}'
        self.assertEqual(validate_json.strip_comments(text).count("\n"), 2)

    def test_open_comment(self):
        self.assertEqual(check_text("{} /* open")[0], 1)


class Configs(unittest.TestCase):
    def test_shipped_configs_are_valid(self):
        files = sorted((ROOT / "configs").glob("*.json"))
        self.assertGreaterEqual(len(files), 9)
        self.assertEqual(check(*files), (0, ""))

    def test_shipped_published_measurements_are_valid(self):
        self.assertEqual(check(*(ROOT / "configs" / "published").glob("*.json")), (0, ""))

    def test_shipped_clusters_are_valid(self):
        files = sorted((ROOT / "configs" / "clusters").glob("*.json"))
        self.assertGreaterEqual(len(files), 4)
        self.assertEqual(check(*files), (0, ""))
        text = files[0].read_text()
        for right, wrong, where in [('"source"', '"sorce"', "sorce"), ('"fat_tree"', '"fat"', "topology"),
                                    ('"links": {', '"links": {"extra": 1,', "extra")]:
            code, output = check_text(text.replace(right, wrong, 1))
            self.assertEqual(code, 1, wrong)
            self.assertIn(where, output)

    def test_variants(self):
        good = [
            {},
            {"sweep": {"algorithm": ["ring"], "seq_len": {"from": 8, "to": "1B", "factor": 2},
                       "ranks": {"from": 1, "to": "world", "step": 1}}},
            {"dilated": {"segments": [2048, "per_rank", "sequence"], "ratio_rule": "list",
                         "ratios": [1, 2, 3]}},
            {"memory": {"limit_bytes": "8GiB"}},
            {"sparse": {"segment": "sqrt", "summary": "match_dilated"}},
            {"sparse": {"segment": "1K", "summary": 32}},
            {"run": {"mode": "virtual", "kernel": "cpu"}},
            {"sweep": {"algorithm": ["ring", "usp"], "seq_len": 8, "layout": ["zigzag"],
                       "collective": "bruck", "ulysses_degree": "divisors",
                       "ring_inner": [0, "divisors"], "head_slice": 2}},
        ]
        bad = [
            ({"modle": {}}, "modle"),
            ({"model": {"head_dim": 60}}, "$.model.head_dim"),
            ({"model": {"dtype": "fp16"}}, "$.model.dtype"),
            ({"sweep": {"algorithm": [], "seq_len": 8}}, "$.sweep.algorithm"),
            ({"sweep": {"algorithm": "ring", "seq_len": "8G"}}, "$.sweep.seq_len"),
            ({"sweep": {"algorithm": "ring", "seq_len": {"from": 1, "to": 8}}}, "$.sweep.seq_len"),
            ({"sweep": {"algorithm": "ring", "seq_len": {"from": 1, "to": 8, "factor": 1}}},
             "$.sweep.seq_len"),
            ({"exclude": [{"where": "ranks > 4"}]}, "reason"),
            ({"schema_version": 2}, "$.schema_version"),
            ({"sparse": {"segment": "root"}}, "$.sparse.segment"),
            ({"sparse": {"summary": 0}}, "$.sparse.summary"),
            ({"run": {"transport": "virtual"}}, "$.run.transport"),
            ({"run": {"mode": "simulated"}}, "$.run.mode"),
            ({"sweep": {"algorithm": "usp", "seq_len": 8, "ulysses_degree": "all"}},
             "$.sweep.ulysses_degree"),
            ({"sweep": {"algorithm": "ring", "seq_len": 8, "head_slice": -1}},
             "$.sweep.head_slice"),
        ]
        for change in good:
            self.assertEqual(check_text(json.dumps(MINIMAL | change)), (0, ""), change)
        for change, part in bad:
            code, errors = check_text(json.dumps(MINIMAL | change))
            self.assertEqual(code, 1, change)
            self.assertIn(part, errors)

    def test_an_heir_may_leave_things_out(self):
        self.assertEqual(check_text('{"extends": "base.json"}')[0], 0)
        self.assertEqual(check_text('{"name": "x"}')[0], 1)

    def test_no_json(self):
        for text in ('{"a": 1, "a": 2}', "{", '{"a": NaN}', ""):
            self.assertEqual(check_text(text)[0], 1, text)
        self.assertEqual(check("/nowhere/at/all.json")[0], 1)


class Results(unittest.TestCase):
    def setUp(self):
        if RESULT is None:
            self.skipTest("no folder of results given")

    def test_written_results_are_valid(self):
        self.assertEqual(check(RESULT), (0, ""))
        for name in ("run.json", "points.jsonl", "timelines.jsonl", "result.json"):
            self.assertEqual(check(RESULT / name), (0, ""))

    def test_damage_is_found(self):
        whole = json.loads((RESULT / "result.json").read_text())

        def without(*path):
            def damage(value):
                for key in path[:-1]:
                    value = value[key]
                del value[path[-1]]
            return damage

        def put(new, *path):
            def damage(value):
                for key in path[:-1]:
                    value = value[key]
                value[path[-1]] = new
            return damage

        damages = [
            without("points", 0, "timing", "median_s"), without("points", 0, "params", "branches"),
            without("environment", "cpu"), without("summary", "verdict"), without("run", "name"),
            without("summary", "counts", "oom"), without("build"),
            put("great", "points", 0, "status"), put("guessed", "points", 0, "source"),
            put("fast", "points", 1, "timing", "median_s"),
            put(None, "points", 1, "timing", "median_s"),
            put(None, "points", 0, "reason"), put("xyz", "points", 0, "id"),
            put(3, "run", "config", "model", "modle"), put(1.5, "points", 0, "params", "seq_len"),
            put(-1, "points", 0, "params", "head_slice"), put(2, "points", 0, "work", "balance"),
            without("points", 1, "ablations", "full_s"), put("all", "run", "planned"),
            put(0, "points", 1, "params", "branches", 1, "summary_tokens"),
            put("walked", "points", 0, "params", "mode"), put("simulation", "run", "mode"),
        ]
        for number, damage in enumerate(damages):
            broken = copy.deepcopy(whole)
            damage(broken)
            self.assertEqual(check_text(json.dumps(broken))[0], 1, f"damage {number} was not found")

    def test_keys_may_be_added(self):
        whole = json.loads((RESULT / "result.json").read_text())
        whole["points"][0]["novel"] = {"x": 1}
        whole["points"][0]["work"]["novel"] = 2
        self.assertEqual(check_text(json.dumps(whole)), (0, ""))

    def test_lines_are_named(self):
        lines = (RESULT / "points.jsonl").read_text()
        code, errors = check_text(lines + '{"id": 3}\n', "points.jsonl")
        self.assertEqual(code, 1)
        self.assertIn(f":{lines.count(chr(10)) + 1}: ", errors)

    def test_a_folder_without_manifest(self):
        with tempfile.TemporaryDirectory() as folder:
            code, errors = check(folder)
        self.assertEqual(code, 1)
        self.assertIn("neither run.json nor result.json", errors)

    def test_timelines_have_lines_of_their_own(self):
        lines = (RESULT / "timelines.jsonl").read_text()
        self.assertEqual(check_text(lines, "timelines.jsonl"), (0, ""))
        self.assertEqual(check_text(lines, "points.jsonl")[0], 1)
        for damaged in (lines.replace('"id"', '"identity"'), lines.replace('"begin_s"', '"begin"')):
            self.assertEqual(check_text(damaged, "timelines.jsonl")[0], 1)


class Published(unittest.TestCase):
    def test_reference_results_are_valid(self):
        reference = ROOT / "results" / "reference"
        self.assertEqual(check(*(p for p in reference.iterdir() if p.is_dir()), *reference.glob("validation*.json")), (0, ""))


class Dependency(unittest.TestCase):
    def test_missing_package_is_explained(self):
        validate_json.load_validators.cache_clear()
        saved = sys.modules.get("jsonschema")
        sys.modules["jsonschema"] = None
        try:
            with self.assertRaises(SystemExit) as stop:
                errors = io.StringIO()
                with contextlib.redirect_stderr(errors):
                    validate_json.main(["x.json"])
            self.assertEqual(stop.exception.code, 2)
            self.assertIn("python3-jsonschema", errors.getvalue())
        finally:
            sys.modules["jsonschema"] = saved


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        RESULT = Path(sys.argv.pop(1))
    unittest.main()

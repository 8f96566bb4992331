#!/usr/bin/env python3
"""Damaged files before the report's loaders: each gives a report, or one error with its file, its place and a hint.

The files are small ones of results/reference, one value, line or byte of which is replaced, left out or cut, at random.
LONGNET_FUZZ=20000 makes so many damaged files of each kind instead of a few.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import re
import sys
import tempfile
import unittest
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import make_report
from report.shape import SEAL
from report.synthetic_fixture import comparison, published
from report.training_fixture import sealed, write_training

REFERENCE = ROOT / "results" / "reference"
MUTANTS = int(os.environ.get("LONGNET_FUZZ", "40"))  # for each kind of files
HUGE = "a number as 1e999"  # its text stands in the file without quotes
ODD = (None, True, -1, 0, 1, 0.5, 1e-320, 1e300, 1 << 70, HUGE, "", "text", "\ud800", "é\u2028</script>", [], {}, [None], [[]], {"a": {}})
ERROR = re.compile(r"make_report\.py: (?P<file>\S+?)(:\d+)?: (?P<what>[^\n]+)\n  hint: [^\n]+\n")
Files = dict[str, Any]  # by name: JSON, a list of JSON lines, or text


def places(node: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:
    """(container, key, path as errors write it) of every value below."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        where = f"{path}[{key}]" if isinstance(node, list) else f"{path}.{key}".removeprefix(".")
        yield node, key, where
        yield from places(child, where)


def damaged(value: Any, rng: random.Random) -> tuple[Any, str]:
    """A copy with one value replaced, left out or said twice, and its path."""
    value = copy.deepcopy(value)
    found = list(places(value))
    if not found or rng.random() < 0.03:
        return rng.choice(ODD), ""
    container, key, path = rng.choice(found)
    kind = rng.random()
    if kind < 0.2:
        del container[key]
    elif kind < 0.25 and isinstance(container, list):
        container.append(container[key])
    else:
        container[key] = rng.choice(ODD)
    return value, path


def text_of(value: Any) -> str:
    return json.dumps(value).replace(json.dumps(HUGE), "1e999")


def cut(text: str, rng: random.Random) -> str:
    """Without its end, or with a line that a power failure or an editor left."""
    if rng.random() < 0.5:
        return text[: rng.randrange(len(text) + 1)]
    lines = text.split("\n")
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(("", "{", "null", "[]", "0", "\x00", "{}", "[" * 5000, lines[0][:50])))
    return "\n".join(lines)


def mutant(name: str, content: Any, rng: random.Random) -> tuple[str, str | None]:
    """Text of a damaged file, and the path of what is damaged, where it still is JSON."""
    lines = content if name.endswith(".jsonl") else [content]
    texts = [(sealed if name == "train.jsonl" else text_of)(line) for line in lines]
    if rng.random() < 0.15:
        return cut("\n".join(texts), rng), None
    place = rng.randrange(len(lines))
    line, path = damaged(lines[place], rng)
    texts[place] = text_of(line)
    if name == "train.jsonl" and isinstance(line, dict):
        texts[place] = sealed(line).replace(json.dumps(HUGE), "1e999")
    return "\n".join(texts), path


def small(name: str, count: int) -> dict[str, Any]:
    """A published result with some of its points, at even distances."""
    record = json.loads((REFERENCE / name / "result.json").read_text(encoding="utf-8"))
    record["points"] = record["points"][:: max(1, len(record["points"]) // count)]
    return record


def timelines(name: str) -> list[Any]:
    lines = (REFERENCE / name / "timelines.jsonl").read_text(encoding="utf-8").splitlines()[:2]
    return [record | {"timeline": record["timeline"][:6]} for record in map(json.loads, lines)]


def interrupted(name: str, count: int) -> Files:
    record = small(name, count)
    manifest = {key: value for key, value in record.items() if key not in ("points", "summary")}
    return {"run.json": manifest, "points.jsonl": record["points"], "timelines.jsonl": timelines(name)}


def training() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        path = write_training(Path(folder), 2, steps=6, planned=6)
        steps = [json.loads(line.split(SEAL)[0] + "}") for line in (path / "train.jsonl").read_text().splitlines()]
        return {"run.json": json.loads((path / "run.json").read_text()), "train.jsonl": steps}


def validation() -> dict[str, Any]:
    record = json.loads((REFERENCE / "validation-xeon.json").read_text(encoding="utf-8"))
    record["real"]["cases"] = record["real"]["cases"][::40]
    for part in ("closed_form", "simgrid"):
        record[part]["cases"] = record[part]["cases"][:1]
    return record | {"published": published()}


class Fuzz(unittest.TestCase):
    """Values that no schema refuses must be drawn: the catch-all of make_report.py is off."""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(unittest.mock.patch.dict(os.environ, {"LONGNET_TRACEBACK": "1"}))
        self.enterContext(unittest.mock.patch("report.make_report.write_pictures", return_value=0))  # the browser's libraries
        self.enterContext(unittest.mock.patch("report.page.chart_library", return_value=""))  # read no result

    def report(self) -> tuple[int, str]:
        extra = [x for option in ("validation", "comparison") if (file := self.folder / f"{option}.json").is_file() for x in (f"--{option}", str(file))]
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
            code = make_report.main([str(self.folder), *extra])
        return code, said.getvalue()

    def fuzz(self, files: Files, aim: str = "") -> None:
        """Damages each file in turn, or that of the name alone."""
        whole = {name: "\n".join(map(text_of, c)) if name.endswith("l") else text_of(c) for name, c in files.items()}
        if "train.jsonl" in files:
            whole["train.jsonl"] = "\n".join(map(sealed, files["train.jsonl"]))
        for name, text in whole.items():
            (self.folder / name).write_text(text)
        self.assertEqual(self.report(), (0, ""))
        refused = 0
        for seed in range(MUTANTS):
            name = aim or list(files)[seed % len(files)]
            text, path = mutant(name, files[name], random.Random(f"{self.id()}/{seed}"))
            (self.folder / name).write_text(text)
            with self.subTest(seed=seed, file=name, damaged=path):
                refused += self.check(name, path)
            (self.folder / name).write_text(whole[name])
        self.assertGreater(refused, 0)

    def check(self, name: str, path: str | None) -> bool:
        (self.folder / "report.html").unlink(missing_ok=True)
        code, said = self.report()
        if code == 0:
            self.assertEqual(said, "")
            self.assertTrue((self.folder / "report.html").is_file())
            return False
        found = ERROR.fullmatch(said)
        self.assertTrue(found, said)
        self.assertEqual(Path(found["file"]).name, name, said)
        named = re.match(r"(\S+) must ", found["what"])
        if path and named and named[1] != "it":  # a parent of what is damaged, or something in it or beside it
            beside = path.rpartition(".")[0] or path
            self.assertTrue(path.startswith(named[1]) or named[1].startswith(beside), f"{said} says nothing of {path}")
        return True

    def test_results(self) -> None:
        self.fuzz({"result.json": small("complexity", 4)} | {"timelines.jsonl": timelines("complexity")})

    def test_an_error_has_no_control_characters(self) -> None:
        record = small("complexity", 1)
        record["points"][0]["metrics"] = {"a\x1b[2J\x7f\x9bb": "text"}
        (self.folder / "result.json").write_text(json.dumps(record))
        code, said = self.report()
        self.assertEqual(code, 2)
        self.assertIn("metrics.a\ufffd[2J\ufffd\ufffdb must be", said)

    def test_results_of_many_algorithms(self) -> None:
        self.fuzz({"result.json": small("opponents-cpu", 8)})

    def test_results_of_backward_passes(self) -> None:
        self.fuzz({"result.json": small("sixty-four-million-backward-cpu", 2)})

    def test_interrupted_runs(self) -> None:
        self.fuzz(interrupted("constant-latency-shared-cpu", 3))

    def test_training_runs(self) -> None:
        self.fuzz(training())

    def test_validations(self) -> None:
        self.fuzz({"validation.json": validation(), "result.json": small("complexity", 1)}, "validation.json")

    def test_comparisons(self) -> None:
        record = small("complexity", 2)
        self.fuzz({"comparison.json": comparison(record["points"]), "result.json": record}, "comparison.json")


if __name__ == "__main__":
    unittest.main()

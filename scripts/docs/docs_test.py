#!/usr/bin/env python3
"""Fails when a document is out of date: generated pages, links inside the repository, listed configs and commands.

Run by ctest as `docs`. Needs nothing but Python; LNBENCH names the program whose commands the documents must name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from generate import ROOT, difference, pages
from schema_tables import SchemaTables, anchor, definition_lines, section_lines

README_LINES = 120
LINK = re.compile(r"\]\(([^)\s]+)\)")
CONFIG_PATH = re.compile(r"\bconfigs/[\w./-]+\.json\b")
SOURCE = re.compile(r"`([\w*./-]+\.(?:h|cpp|cu|cuh|py|sh|txt))`")
EXAMPLE_SOURCES = {"x.h", "x.cpp", "x_test.cpp", "my_algorithm.cpp"}
METRIC = re.compile(r'\b(?:metrics|m)\["(\w+)"\]')
COMMAND = re.compile(r"\blnbench ([a-z]+)\b")


def documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    found = [ROOT / name for name in listed] or [p for p in ROOT.rglob("*.md") if ".venv" not in p.parts]
    # The introductions of generated pages have the links of docs/.
    return [p for p in found if p.is_file() and p.parent.name != "introductions"]


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def headings(text: str) -> set[str]:
    found = {anchor(line.lstrip("#").strip()) for line in without_code(text).splitlines() if line.startswith("#")}
    return found | set(re.findall(r'<a id="([^"]+)">', text))


def dead_links(path: Path, text: str) -> list[str]:
    """Links of a document to files or headings that do not exist."""
    dead = []
    for target in LINK.findall(without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            dead.append(target)
        elif fragment and file.suffix == ".md":
            other = text if file == path else file.read_text(encoding="utf-8")
            if fragment not in headings(other):
                dead.append(target)
    return dead


def unknown_configs(text: str) -> list[str]:
    """Paths under configs/ that a document names and that do not exist."""
    return [name for name in CONFIG_PATH.findall(text) if not (ROOT / name).is_file()]


def unknown_files(path: Path, text: str) -> list[str]:
    """Sources that a room's README names and that stand neither in its folder nor where their path says."""
    names = {name for name in SOURCE.findall(text) if name not in EXAMPLE_SOURCES}
    bases = (path.parent, ROOT / "src", ROOT)
    return sorted(
        name
        for name in names
        if not any(any(base.glob(name)) for base in bases) and not any(path.parent.rglob(name.rpartition("/")[2]))
    )


def rows_without_head(text: str) -> list[str]:
    """First rows of tables without a separator row below them, such as a row that an empty line cuts off."""
    lines = ["", *without_code(text).splitlines(), ""]
    return [
        row
        for above, row, below in zip(lines, lines[1:], lines[2:], strict=False)
        if row.startswith("|") and not above.startswith("|") and not re.fullmatch(r"\|[ :|-]+\|", below)
    ]


def first_words(text: str, heading: str) -> set[str]:
    """First words of the indented lines below a heading, up to the next empty line."""
    return set(re.findall(r"^  ([a-z_]+) +\S", text.partition(heading)[2].partition("\n\n")[0], re.MULTILINE))


class Documents(unittest.TestCase):
    def test_generated_pages_agree_with_the_schemas(self) -> None:
        for path, wanted in pages().items():
            self.assertEqual(difference(path, wanted), "", "run scripts/docs/generate.py")

    def test_links_and_configs_exist(self) -> None:
        self.assertGreater(len(documents()), 10)
        for path in documents():
            text = path.read_text(encoding="utf-8")
            with self.subTest(document=str(path.relative_to(ROOT))):
                self.assertEqual(dead_links(path, text), [])
                self.assertEqual(unknown_configs(text), [])
                self.assertEqual(rows_without_head(text), [])

    def test_rooms_name_files_that_exist(self) -> None:
        rooms = [ROOT / "CONTRIBUTING.md", *(p for p in documents() if p.name == "README.md" and p.parent != ROOT)]
        self.assertGreater(len(rooms), 8)
        for path in rooms:
            with self.subTest(document=str(path.relative_to(ROOT))):
                self.assertEqual(unknown_files(path, path.read_text(encoding="utf-8")), [])

    def test_readme_is_short(self) -> None:
        self.assertLessEqual(len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()), README_LINES)

    def test_the_version_is_the_same_everywhere(self) -> None:
        places = {
            "CMakeLists.txt": r"^project\(longnet_bench VERSION ([0-9.]+)",
            "CITATION.cff": r"^version: (.*)$",
            "CHANGELOG.md": r"^## \[([0-9.]+)\]",
        }
        found = {f: re.findall(r, (ROOT / f).read_text(), re.M) for f, r in places.items()}
        self.assertEqual(len({versions[0] for versions in found.values()}), 1, found)

    def test_every_config_is_listed(self) -> None:
        listed = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
        for config in sorted((ROOT / "configs").glob("*.json")):
            self.assertIn(f"`{config.name}`", listed, "docs/experiments.md lists all configs")
        clusters = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")
        for cluster in sorted((ROOT / "configs/clusters").glob("*.json")):
            self.assertIn(f"configs/clusters/{cluster.name}", clusters, "docs/clusters.md lists all clusters")

    def test_every_metric_is_described(self) -> None:
        page = (ROOT / "docs/measurement.md").read_text(encoding="utf-8")
        table = page.partition("\n## Metrics\n")[2].partition("\n## ")[0]
        results = list((ROOT / "results/reference").glob("*/result.json"))
        self.assertGreater(len(results), 2)
        found = {
            name: result.parent.name
            for result in results
            for point in json.loads(result.read_text(encoding="utf-8"))["points"]
            for name in point.get("metrics", {})
        }
        sources = [p for p in (ROOT / "src/run").glob("*.cpp") if not p.name.endswith("_test.cpp")]
        written = {name: p.name for p in sources for name in METRIC.findall(p.read_text(encoding="utf-8"))}
        self.assertGreater(len(written), 30)
        for metric, place in sorted((found | written).items()):
            self.assertIn(f"`{metric}`", table, f"{place}: docs/measurement.md describes all metrics")

    @unittest.skipUnless("LNBENCH" in os.environ, "LNBENCH is not set")
    def test_commands(self) -> None:
        shown = subprocess.run([os.environ["LNBENCH"], "--help"], capture_output=True, text=True, check=True).stdout
        page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
        self.assertEqual(set(COMMAND.findall(page)), first_words(shown, "Subcommands:"))
        page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| `([a-z_]+)` \| [^|]+ \| [^|]+ \| [^|]*\|$", page, re.MULTILINE)
        self.assertEqual(set(rows), first_words(shown, "Algorithms:"))

    @unittest.skipUnless("LNBENCH" in os.environ, "LNBENCH is not set")
    def test_defaults(self) -> None:
        page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8").partition("## Defaults")[2]
        minimal = re.findall(r"`(\{.*?\})`", page)[0]
        shown = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "defaults.json"
            config.write_text(minimal, encoding="utf-8")
            cluster = ROOT / "configs/clusters/cpu-2core.json"
            command = [os.environ["LNBENCH"], "simulate", config, "--cluster", cluster, "-o", f"{folder}/result"]
            subprocess.run(command, capture_output=True, check=True)
            resolved = json.loads((Path(folder) / "result/run.json").read_text(encoding="utf-8"))["run"]["config"]
        self.assertEqual(shown, resolved)


class Scripts(unittest.TestCase):
    def test_quickstart_keeps_progress_among_the_rows_without_excluded_points(self) -> None:
        lines = (ROOT / "scripts/quickstart.sh").read_text(encoding="utf-8").splitlines()
        used = [line for line in lines if line.startswith(("without_excluded()", "in_order=")) or line.endswith('"$result" | without_excluded')]
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "lnbench"
            program.write_text("#!/bin/sh\nfor s in ok skipped_excluded ok; do echo id $s; echo [1/3] $s >&2; done\n", encoding="utf-8")
            program.chmod(0o755)
            script = ["mpirun() { shift 2; \"$@\"; }", f"lnbench={program} ranks=2 config=c result=r", *used]
            done = subprocess.run(["bash", "-c", "\n".join(script)], capture_output=True, text=True, check=True)
        self.assertEqual((done.stdout, done.stderr), (2 * "id ok\n[1/3] ok\n", ""))

    def test_help_prints_the_comment_at_the_top_and_options_are_not_ignored(self) -> None:
        found = [p for p in (ROOT / "scripts").glob("*.sh") if '/common.sh"\n' in p.read_text(encoding="utf-8")]
        self.assertGreaterEqual(len(found), 8)
        for script in found:
            comment = script.read_text(encoding="utf-8").split("\n")[1].removeprefix("# ")
            for option, code, said in (("--help", 0, comment), ("--no-such-option", 2, "--no-such-option")):
                if (script.name, code) != ("mutants.sh", 2):  # prepares an environment first
                    done = subprocess.run([script, option], capture_output=True, text=True, timeout=30, check=False)
                    self.assertEqual(done.returncode, code, script)
                    self.assertIn(said, done.stdout + done.stderr)

    def test_an_unknown_part_is_refused_before_anything_is_installed(self) -> None:
        for parts in (["nonsense"], ["release", "nonsense"]):
            done = subprocess.run([ROOT / "scripts/test.sh", *parts], capture_output=True, text=True, timeout=30, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertEqual(done.stderr, "error: unknown part 'nonsense': use release, asan, tsan or lint\n")

    def test_a_checkout_that_moved_is_told_which_folder_to_remove(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            moved = Path(folder).resolve()
            shutil.copytree(ROOT / "scripts", moved / "scripts")
            (moved / "build/release").mkdir(parents=True)
            (moved / "build/release/CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/before\n", encoding="utf-8")
            command = ["bash", "-c", "source scripts/common.sh; configure_preset release"]
            done = subprocess.run(command, cwd=moved, capture_output=True, text=True, timeout=30, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"rm -r '{moved}/build/release'", done.stderr)


class PlantedFaults(unittest.TestCase):
    """The checks above find what they are there for."""

    def test_dead_links(self) -> None:
        readme = ROOT / "README.md"
        self.assertEqual(dead_links(readme, "[a](docs/none.md) [b](#none) [c](LICENSE)\n"), ["docs/none.md", "#none"])
        self.assertEqual(dead_links(readme, "## A b\n[a](#a-b) [c](https://example.org/x)\n"), [])
        self.assertEqual(unknown_configs("lnbench run configs/none.json and configs/quick.json"), ["configs/none.json"])

    def test_rows_without_head(self) -> None:
        table = "a\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n"
        self.assertEqual(rows_without_head(f"{table}\n{table}```\n\n| code |\n```\n"), [])
        self.assertEqual(rows_without_head(table + "\n| 3 | 4 |\n"), ["| 3 | 4 |"])

    def test_unknown_files(self) -> None:
        readme = ROOT / "src/schedule/README.md"
        text = "`ring.cpp` `none.cpp` `core/check.h` `scripts/none.py` `x.h` `ring*.h` `no*.h`"
        self.assertEqual(unknown_files(readme, text), ["no*.h", "none.cpp", "scripts/none.py"])

    def test_tables(self) -> None:
        count = {"type": "integer", "minimum": 1}
        schema = {
            "properties": {
                "n": {"$ref": "#/$defs/tokens", "description": "Tokens."},
                "axes": {"anyOf": [count, {"type": "array", "items": count}]},
                "inner": {"type": "array", "items": {"properties": {"a": {"enum": ["x", None]}}, "required": ["a"]}},
            },
            "$defs": {"tokens": count | {"multipleOf": 2}},
        }
        tables = SchemaTables(schema)
        tables.add_object("", schema)
        text = "\n".join(line for s in tables.sections for line in section_lines(s, s.path))
        self.assertIn("| `n` | [tokens](#value-tokens) | Tokens. |", text)
        self.assertIn("| `axes` | integer ≥ 1, or a list of these |  |", text)
        self.assertIn("| `inner` | list of objects: [`inner[]`](#inner) |  |", text)
        self.assertIn('| `a` * | `"x"`, `null` |  |', text)
        self.assertIn("integer ≥ 1, a multiple of 2", "\n".join(definition_lines(tables)))
        with self.assertRaises(ValueError):
            SchemaTables({}).value_text({"not": {}})


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""The table of planted faults against the sources: a fault whose line has changed is found at once, not at the next run.

Run by ctest as `mutants`; needs Python 3.11 and nothing else. Nothing is built and no fault is planted.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import subprocess
import unittest

from mutants import CAUGHT, NOT_RUN, PAGE, ROOT, RUNS, SURVIVED, Mutant, known_rows, page_text, parse_test, read_table

FEWEST = 40
TEST_NAME = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
MUTANTS, SETTINGS = read_table()


def names_of_tests() -> set[str]:
    return {f"{suite}.{name}" for file in ROOT.glob("src/**/*_test.cpp") for suite, name in TEST_NAME.findall(file.read_text())}


class Table(unittest.TestCase):
    def test_every_fault_fits_its_file(self) -> None:
        for m in MUTANTS:
            with self.subTest(id=m.id):
                text = (ROOT / m.file).read_text(encoding="utf-8")
                self.assertNotEqual(m.applied(text), text)

    def test_ids_are_unique_and_there_are_enough(self) -> None:
        self.assertEqual(len({m.id for m in MUTANTS}), len(MUTANTS))
        self.assertGreaterEqual(len(MUTANTS), FEWEST)
        self.assertTrue(all(m.tests and re.fullmatch(r"[a-z0-9-]+", m.id) for m in MUTANTS))

    def test_tests_exist(self) -> None:
        names = names_of_tests()
        self.assertGreater(len(names), 100)
        for text in {t for m in MUTANTS for t in m.tests}:
            with self.subTest(test=text):
                test = parse_test(text, SETTINGS)
                word, _, rest = text.partition(" ")
                if word.endswith(".py"):
                    beside = (ROOT / word).parent.glob("*_test.py")  # which it may import tests from
                    source = "".join(file.read_text(encoding="utf-8") for file in beside)
                    self.assertIn(f"def {rest.rpartition('.')[2]}(" if "." in rest else "", source)
                elif word.endswith("_tests"):
                    for pattern in rest.split(":"):  # as in "Kernels/MergePackTest.*/cpu", "MergePackTest.*"
                        plain = re.sub(r"^\w+/|/\w+$", "", pattern)
                        self.assertTrue(fnmatch.filter(names, plain), pattern)
                self.assertTrue(test.command)

    def test_a_fault_that_fits_twice_is_refused(self) -> None:
        twice = Mutant("x", "", "x.cpp", "a", "b", ("threads exchange",))
        self.assertEqual(twice.applied("cat"), "cbt")
        for text in ("aa", "dog"):
            with self.assertRaises(ValueError):
                twice.applied(text)
        with self.assertRaises(ValueError):
            parse_test("unknown 1", SETTINGS)


class Page(unittest.TestCase):
    def test_hides_no_fault(self) -> None:
        self.assertEqual(set(known_rows(PAGE.read_text(encoding="utf-8"))), {m.id for m in MUTANTS}, "run python3 scripts/mutants.py --page")

    def test_every_fault_ran_and_nearly_all_are_caught(self) -> None:
        rows = known_rows(PAGE.read_text(encoding="utf-8"))
        results = {m.id: rows[m.id][0] for m in MUTANTS if rows[m.id][1] == m.fingerprint}
        self.assertEqual([m.id for m in MUTANTS if not results.get(m.id, NOT_RUN).startswith((CAUGHT, SURVIVED))], [])
        self.assertGreaterEqual(sum(r.startswith(CAUGHT) for r in results.values()), 0.95 * len(MUTANTS))

    def test_explains_every_survivor(self) -> None:
        rows = known_rows(PAGE.read_text(encoding="utf-8"))
        silent = [m.id for m in MUTANTS if rows.get(m.id, [""])[0].startswith(SURVIVED) and not m.why]
        self.assertEqual(silent, [], "mend the tests, or say why in scripts/mutants.toml")

    def test_names_revisions_of_the_history(self) -> None:
        history = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.split()
        if len(history) < 100:
            self.skipTest("the history is not here, or not whole")
        known = {revision[:10] for revision in history}
        self.assertEqual({row[2] for row in known_rows(PAGE.read_text(encoding="utf-8")).values()} - known, set())

    def test_keeps_the_rows_of_earlier_runs(self) -> None:
        page = page_text(MUTANTS, None, "")
        self.assertEqual(page.count(NOT_RUN), len(MUTANTS) + 1)
        first = MUTANTS[0]
        ran = re.sub(rf"(\| `{first.id}` .*) {NOT_RUN} \| - \| - \|", rf"\1 caught by `a \\| b` | {first.fingerprint} | 0123abcd |", page)
        self.assertEqual(known_rows(ran)[first.id], [r"caught by `a \| b`", first.fingerprint, "0123abcd"])
        again = page_text(MUTANTS, None, ran)
        self.assertIn("1 of 1 planted faults", again)
        self.assertEqual(known_rows(again), known_rows(ran))

    def test_rows_of_another_fault_of_that_name_go(self) -> None:
        first = MUTANTS[0]
        page = f"| `{first.id}` | x.cpp | a fault | caught by `a` | {first.fingerprint} | 0123abcd |"
        others = [dataclasses.replace(first, new="another"), dataclasses.replace(first, tests=("threads exchange",)), dataclasses.replace(first, settings=())]
        for m in others:
            self.assertEqual(known_rows(page_text([m], None, page))[first.id], [NOT_RUN, "-", "-"])
        self.assertEqual(known_rows(page_text([first], None, page))[first.id][1:], [first.fingerprint, "0123abcd"])

    def test_runs_stand_apart(self) -> None:
        self.assertTrue(any(t.partition(" ")[0] in RUNS for m in MUTANTS for t in m.tests))


if __name__ == "__main__":
    unittest.main()

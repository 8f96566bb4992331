#!/usr/bin/env python3
"""Plants the faults of scripts/mutants.toml, one at a time, and runs the tests that should catch each.

Example: in a copy of the committed tree, "the causal mask hides the own key" changes one line of key_panels.h,
builds lnbench again, runs a causal sweep, and expects exit code 1 with points of status check_failed.

Started by scripts/mutants.sh. What is finished is not run again while sources, fault and tests stay the same.
docs/mutants.md takes the rows of what ran and keeps the others. Exit codes: 0 every selected fault was caught, or the
table says why not; 1 some were not; 4 stopped by --minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "scripts/mutants.toml"
PAGE = ROOT / "docs/mutants.md"
PLACE = ROOT / "build/mutants"
TREE = PLACE / "tree"
JOURNAL = PLACE / "results.jsonl"
SOURCES = ("src", "bench", "configs", "scripts", "CMakeLists.txt")  # decide how a fault fares; not these scripts
QUICK = ("-DCMAKE_BUILD_TYPE=Quick", "-DCMAKE_CXX_FLAGS_QUICK=-O1", "-DLONGNET_BENCHMARKS=OFF")
CONFIGURATIONS = {
    "cpu": ("-DLONGNET_CUDA=OFF",),
    "gpu": ("-DLONGNET_CUDA=ON", "-DCMAKE_CUDA_FLAGS_QUICK=-O1", "-DCMAKE_CUDA_ARCHITECTURES=80-virtual"),
}
MPIRUN = ("mpirun", "--oversubscribe", "--bind-to", "none", "-np")
SAMPLES = ("measure.warmup=1", "measure.min_samples=3", "measure.max_samples=3")
SLOWER, AT_LEAST_S = 10, 60  # time limit of a test: so many times what it takes without the fault, and so many seconds
RUNS = ("threads", "mpi", "walk", "gpu", "resume")
CAUGHT, SURVIVED, NOT_BUILT, NOT_RUN = "caught", "**survived**", "did not build", "not run yet"


@dataclasses.dataclass(frozen=True)
class Mutant:
    id: str
    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]  # each must catch it
    why: str = ""  # why it may survive
    settings: tuple[tuple[str, ...], ...] = ()  # for its tests that are runs

    def applied(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise ValueError(f"{self.id}: found {text.count(self.old)} times in {self.file}: {self.old!r}")
        return text.replace(self.old, self.new)

    @property
    def fingerprint(self) -> str:
        """A digest of the fault, its tests and their settings: a row of the page stands for these and no other."""
        planted = (self.file, self.old, self.new, self.tests, *self.settings)
        return hashlib.sha256(repr(planted).encode()).hexdigest()[:10]


@dataclasses.dataclass(frozen=True)
class Test:
    """Targets to build, if any, and the command that fails when it catches a fault."""

    command: tuple[str, ...]
    configuration: str = ""
    target: str = ""
    environment: tuple[tuple[str, str], ...] = ()


def read_table(text: str = "") -> tuple[list[Mutant], dict[str, list[str]]]:
    table = tomllib.loads(text or TABLE.read_text(encoding="utf-8"))
    runs = table["runs"]

    def mutant(entry: dict) -> Mutant:
        words = [test.partition(" ") for test in entry["tests"]]
        settings = tuple(tuple(runs[name]) for word, _, name in words if word in RUNS)
        return Mutant(**{**entry, "tests": tuple(entry["tests"]), "settings": settings})

    return [mutant(entry) for entry in table["mutant"]], runs


def lnbench_run(way: str, settings: list[str]) -> Test:
    """Two ranks: threads, processes of MPI (resume: stopped after a point and gone on with), emulated GPUs, or one process
    that walks both."""
    on_gpu = ("model.dtype=bf16", "run.kernel=cuda") if way == "gpu" else ()
    configuration, program, target = "cpu", PLACE / "cpu/bin/lnbench", "lnbench"
    if way == "gpu":
        configuration, program, target = "gpu", PLACE / "gpu/bin/emulated_gpu/lnbench", "emulated_gpu_lnbench"
    command = [str(program), "run", str(TREE / "configs/quick.json"), "-q"]
    for setting in (*SAMPLES, *on_gpu, *settings):
        command += ["--set", setting]
    if way == "walk":
        command += ["--mode", "virtual"]
    command = [*MPIRUN, "2", *command] if way in ("mpi", "resume") else [*command, "--ranks", "2"]
    folder = str(PLACE / "run")
    whole = [*command, "-o", folder]
    if way == "resume":
        stopped, rest = shlex.join([*whole, "--max-time", "0s"]), shlex.join([*command, "--resume", folder])
        whole = ["sh", "-c", f"{stopped}; {rest}"]
    return Test(tuple(whole), configuration, target, (("LONGNET_EMULATED_GPUS", "2"),))


def parse_test(text: str, runs: dict[str, list[str]]) -> Test:
    """Reads "threads RUN", "mpi RUN", "walk RUN", "gpu RUN", "resume RUN" (of the table's runs), "ROOM_tests FILTER",
    "mpi_checks RANKS", "gpu_check PARTS" or "PATH.py TESTS"."""
    word, _, rest = text.partition(" ")
    cpu, gpu = PLACE / "cpu/bin", PLACE / "gpu/bin/emulated_gpu"
    if word in RUNS:
        return lnbench_run(word, runs[rest])
    if word.endswith("_tests"):
        return Test((str(cpu / word), f"--gtest_filter={rest}"), "cpu", word)
    if word == "mpi_checks":
        return Test((*MPIRUN, rest, str(cpu / word)), "cpu", word)
    if word == "gpu_check":
        return Test((str(gpu / word), "--small", "--only", rest), "gpu", "emulated_gpu_check")
    if not word.endswith(".py"):
        raise ValueError(f"unknown test '{text}'")
    command = (sys.executable, str(TREE / word), *rest.split())
    if "/cli_" not in word:
        return Test(command)
    return Test(command, "cpu", "lnbench", (("LNBENCH", str(cpu / "lnbench")), ("MPIRUN", MPIRUN[0])))


# ---- a copy of the committed tree, and its builds ----


def git(*args: str) -> bytes:
    return subprocess.run(["git", *args], cwd=ROOT, check=True, capture_output=True).stdout


def sync_tree() -> None:
    """Makes TREE the committed one. What is right stays untouched, so that nothing is built again for nothing."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as archive:
        files = {TREE / m.name: (m.mode, archive.extractfile(m).read()) for m in archive.getmembers() if m.isfile()}
    for path, (mode, content) in files.items():
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
    for path in TREE.rglob("*"):
        if path.is_file() and path not in files:
            path.unlink()


def build(configuration: str, targets: list[str], jobs: int) -> str:
    """Returns the end of the compiler's output where it fails, else nothing."""
    folder = PLACE / configuration
    # Without a revision: it would change with every fault, and with it a part of the program.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(PLACE)}
    steps = [["cmake", "--build", str(folder), "-j", str(jobs), "--target", *targets]]
    if not (folder / "build.ninja").exists():
        steps.insert(0, ["cmake", "-S", str(TREE), "-B", str(folder), "-G", "Ninja", *QUICK, *CONFIGURATIONS[configuration]])
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            return (done.stdout + done.stderr)[-3000:]
    return ""


def execute(test: Test, limit_s: float) -> tuple[int | None, str]:
    """Exit code, None past the time limit, and the output."""
    shutil.rmtree(PLACE / "run", ignore_errors=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a fault of the same size and second would be taken for what is compiled
    process = subprocess.Popen(
        test.command, cwd=TREE, env={**environment, **dict(test.environment)}, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        for end in (signal.SIGTERM, signal.SIGKILL):  # mpirun ends its ranks itself
            os.killpg(process.pid, end)
            try:
                process.communicate(timeout=5)
                break
            except subprocess.TimeoutExpired:
                continue
        return None, ""


def how_it_failed(test: str, code: int | None) -> str:
    if code is None:
        return "time limit"
    points = PLACE / "run/points.jsonl"
    if test.partition(" ")[0] in RUNS and points.exists():
        bad = [s for s in ("check_failed", "error") if f'"{s}"' in points.read_text(encoding="utf-8")]
        return " and ".join(bad) or f"exit code {code}"
    return ""


# ---- one fault after another ----


class Suite:
    def __init__(self, runs: dict[str, list[str]], jobs: int, until: float):
        self.runs, self.jobs, self.until = runs, jobs, until
        self.revision = git("rev-parse", "--short=10", "HEAD").decode().strip()
        listed = git("ls-tree", "-r", "HEAD", *SOURCES).decode().splitlines()
        self.sources = [line for line in listed if "scripts/mutants" not in line and not line.endswith(".md")]
        self.programs = [line for line in self.sources if "\tscripts/" not in line]
        lines = JOURNAL.read_text(encoding="utf-8").splitlines() if JOURNAL.exists() else []
        self.results = {entry["key"]: entry for entry in map(json.loads, lines)}

    def key(self, what: Mutant | str) -> str:
        tests = what.tests if isinstance(what, Mutant) else (what,)
        settings = [self.runs.get(t.partition(" ")[2], "") for t in tests]
        planted = (what.file, what.old, what.new) if isinstance(what, Mutant) else ()
        sources = self.sources if any(".py" in t for t in tests) else self.programs
        return hashlib.sha256(repr((sources, planted, tests, settings)).encode()).hexdigest()[:20]

    def note(self, what: Mutant | str, **result: object) -> dict:
        entry = {"key": self.key(what), "id": what if isinstance(what, str) else what.id, "revision": self.revision, **result}
        with JOURNAL.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(entry) + "\n")
        self.results[entry["key"]] = entry
        return entry

    def out_of_time(self) -> bool:
        return time.monotonic() > self.until

    def baseline(self, tests: list[str]) -> bool:
        """Every test passes without a fault. False: out of time."""
        todo = [t for t in tests if self.key(t) not in self.results]
        for name in CONFIGURATIONS:
            parsed = [parse_test(t, self.runs) for t in todo]
            targets = sorted({t.target for t in parsed if t.configuration == name})
            if targets and (error := build(name, targets, self.jobs)):
                sys.exit(f"{error}\nerror: the tree does not build without a fault")
        for text in todo:
            if self.out_of_time():
                return False
            begin = time.monotonic()
            code, output = execute(parse_test(text, self.runs), 600)
            if code != 0 or "Running 0 tests" in output:
                sys.exit(f"{output[-3000:]}\nerror: without any fault, '{text}' ends with exit code {code}, or runs nothing")
            self.note(text, seconds=round(time.monotonic() - begin, 1))
            print(f"passes without a fault: {text}, {time.monotonic() - begin:.1f} s", flush=True)
        return True

    def plant(self, mutant: Mutant) -> dict:
        file = TREE / mutant.file
        text = file.read_text(encoding="utf-8")
        begin = time.monotonic()
        try:
            file.write_text(mutant.applied(text), encoding="utf-8")
            return self.note(mutant, **self.verdict(mutant), seconds=round(time.monotonic() - begin, 1))
        finally:
            file.write_text(text, encoding="utf-8")

    def verdict(self, mutant: Mutant) -> dict:
        by, missed = [], []
        for text in mutant.tests:
            test = parse_test(text, self.runs)
            if test.target and (error := build(test.configuration, [test.target], self.jobs)):
                return {"status": NOT_BUILT, "by": [], "missed": [], "error": error[-1000:]}
            code, _ = execute(test, max(AT_LEAST_S, SLOWER * self.results[self.key(text)]["seconds"]))
            how = how_it_failed(text, code)
            (missed if code == 0 else by).append(f"{text}: {how}" if how and code != 0 else text)
        return {"status": SURVIVED if missed else CAUGHT, "by": by, "missed": missed}

    def run(self, mutants: list[Mutant]) -> int:
        sync_tree()
        todo = [m for m in mutants if self.key(m) not in self.results]
        print(f"{len(mutants)} faults, {len(todo)} of them to run at revision {self.revision}", flush=True)
        stopped = not self.baseline(list(dict.fromkeys(t for m in todo for t in m.tests)))
        begin = time.monotonic()
        for i, mutant in enumerate(todo):
            stopped = stopped or self.out_of_time()
            if stopped:
                break
            entry = self.plant(mutant)
            left = (time.monotonic() - begin) / (i + 1) * (len(todo) - i - 1)
            missed = f" ({', '.join(entry['missed'])})" if entry["missed"] else ""
            print(f"[{i + 1}/{len(todo)}] {mutant.id}: {entry['status']}{missed}, {entry['seconds']} s, ETA {left / 60:.0f} min", flush=True)
        if stopped:
            return 4
        return int(any(self.results[self.key(m)]["status"] != CAUGHT and not m.why for m in mutants))


# ---- the page ----


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def known_rows(page: str) -> dict[str, list[str]]:
    """Result, fingerprint and revision of the rows of a page, by id."""
    rows = [line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[-3:] for row in rows}


def result_of(mutant: Mutant, entry: dict) -> str:
    if entry["status"] == CAUGHT:
        return cell(CAUGHT + " by " + "; ".join(f"`{t}`" for t in entry["by"]))
    missed = " by " + "; ".join(f"`{t}`" for t in entry["missed"]) if entry["missed"] else ""
    return cell(entry["status"] + missed + (f". {mutant.why}" if mutant.why else ""))


def has_changed_since(revision: str, file: str) -> bool:
    """Also where the revision is not known here."""
    return subprocess.run(["git", "diff", "--quiet", revision, "HEAD", "--", file], cwd=ROOT, stderr=subprocess.DEVNULL).returncode != 0


def page_text(mutants: list[Mutant], suite: Suite | None, before: str) -> str:
    known, rows = known_rows(before), {}
    for m in mutants:
        entry = suite.results.get(suite.key(m)) if suite else None
        nothing = [NOT_RUN, "-", "-"]
        row = [result_of(m, entry), m.fingerprint, entry["revision"]] if entry else known.get(m.id, nothing)
        rows[m.id] = row if row[1] == m.fingerprint else nothing  # else another fault's, or of other tests, under this id
    count = {s: sum(r[0].startswith(s) for r in rows.values()) for s in (CAUGHT, SURVIVED, NOT_BUILT, NOT_RUN)}
    ran = len(mutants) - count[NOT_RUN]
    changed = sum(rows[m.id][0] != NOT_RUN and has_changed_since(rows[m.id][2], m.file) for m in mutants)
    lines = [
        "# Planted faults", "",
        "Written by `scripts/mutants.sh`, which plants the faults of `scripts/mutants.toml` one at a time, builds what it must and runs",
        "the tests that should catch each: `threads`, `mpi`, `walk` and `gpu` are an `lnbench run` of two ranks (on emulated devices),",
        "`resume` one of MPI that is stopped and resumed, which must end as failed; the others are tests. A fault is caught when every",
        "test named for it fails. `planted` is a digest of the fault, its tests and their settings: a row goes when they change.",
        "`revision` is that of the sources it was planted in, or the commit into which that one was folded: a row says what was so there.",
        f"When this page was written, {changed} of {ran} faults were in files that had changed since; `mutants_test` holds that each",
        "still fits its file.", "",
        f"**{count[CAUGHT]} of {ran} planted faults are caught**" + (f" ({count[CAUGHT] / ran:.0%})" if ran else "")
        + f"; {count[SURVIVED]} survived, {count[NOT_BUILT]} did not build, {count[NOT_RUN]} of {len(mutants)} were not run yet.", "",
    ]  # fmt: skip
    for title, of_run in (("Faults of a run, which the run itself must report", True), ("Faults that tests must catch", False)):
        lines += [f"## {title}", "", "| id | file | fault | result | planted | revision |", "|---|---|---|---|---|---|"]
        some = [m for m in mutants if any(t.partition(" ")[0] in RUNS for t in m.tests) == of_run]
        lines += [f"| `{m.id}` | `{m.file.rpartition('/')[2]}` | {cell(m.fault)} | {' | '.join(rows[m.id])} |" for m in some] + [""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants.sh", description="Plants faults and runs the tests that should catch them.")
    parser.add_argument("--list", action="store_true", help="names the faults and their tests; runs nothing")
    parser.add_argument("--page", action="store_true", help="writes docs/mutants.md again from what is known; runs nothing")
    parser.add_argument("--only", default="", help="faults whose id holds this regular expression")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    options = parser.parse_args()
    mutants, runs = read_table()
    chosen = [m for m in mutants if re.search(options.only, m.id)]
    if options.list:
        for m in chosen:
            print(f"{m.id}: {m.fault} ({m.file})\n    {'; '.join(m.tests)}")
        return 0
    PLACE.mkdir(parents=True, exist_ok=True)
    suite = Suite(runs, options.jobs, time.monotonic() + 60 * options.minutes)
    try:
        return 0 if options.page else suite.run(chosen)
    finally:
        PAGE.write_text(page_text(mutants, suite, PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The command line as a user sees it: help, mistakes, exit codes, plans. Run by ctest."""
import collections
import json
import re
import select
import shutil
import subprocess
import time
import unittest

from cli_case import LNBENCH, MPIRUN, ROOT, SMALL, Case


class Usage(Case):
    def test_help_and_version(self):
        out = self.expect(0, "--help").stdout
        for text in ("Exit codes", "Algorithms:", "dilated", "mpirun -np 2 lnbench run"):
            self.assertIn(text, out)
        self.assertIn("lnbench", self.expect(0, "--version").stdout)
        for command in ("env", "plan", "run", "check", "simulate", "recommend", "validate", "depth", "comm", "calibrate", "compare", "report",
                        "export", "list", "completion"):
            out = self.expect(0, command, "--help").stdout
            self.assertIn("Usage", out)
            self.assertIn("Exit codes", out)
            self.assertNotIn("Examples:", out)
            # Algorithms are listed where a config's algorithms matter.
            self.assertEqual("Algorithms:" in out, command in ("plan", "run", "check", "simulate"), command)
            for line in out.splitlines():
                self.assertLessEqual(len(line), 100, f"{command}: {line}")

    def test_the_example_of_a_command_s_help_works(self):
        for command in ("plan", "depth", "simulate", "train"):
            example = re.search(r"shipped\s+one:\s+(\S+)", self.expect(0, command, "--help").stdout)[1]
            little = ("train.steps=1", "train.warmup_steps=0", "train.held_out=0", "sweep.batch.size=1")
            steps = [word for key in little for word in ("--set", key)] if command == "train" else ()
            output = ("-o", str(self.path / command)) if command in ("simulate", "train") else ()
            self.expect(0, command, example, *steps, *output)
        self.assertNotIn("simulate", self.expect(0, "recommend", "--help").stdout)

    def test_mistakes_on_the_command_line(self):
        for args in ((), ("dance",), ("run",), ("run", self.config, "--ranks", "0"), ("plan", self.config, "--dot"),
                     ("run", self.config, "--progress", "fancy"), ("run", self.config, "--max-time", "soon"),
                     ("plan", self.config, "--cluster", "h100", "--ranks", "2"), ("plan", self.config, "--cluster", "h100", "-v"),
                     ("plan", self.config, "--cluster", "h100", "--mode", "virtual"), ("plan", self.config, "--cluster", "h100", "--transport", "gpu"),
                     ("plan", self.config, "--cluster", "h100", "--schedule", "1"), ("plan", self.config, "--schedule", "1", "--format", "csv"),
                     ("plan", self.config, "--schedule", "1", "--wide"), ("plan", self.config, "--schedule", "1", "-v"),
                     ("comm", "--max-bytes", "much"), ("comm", "--ranks", "1"), ("report", "--compare", "one"), ("--bogus",)):
            done = self.expect(2, *args)
            self.assertTrue(done.stderr.strip(), f"{args}: no message")

    def test_a_mistyped_word_is_told_what_it_may_have_meant(self):
        alone = self.expect(2).stderr
        for text in ("no command was given", "simulate ", "recommend "):
            self.assertIn(text, alone)
        self.assertIn("did you mean 'run'?", self.expect(2, "rnu", self.config).stderr)
        self.assertIn("did you mean --ranks?", self.expect(2, "run", self.config, "--rank", "2").stderr)
        elsewhere = self.expect(2, "simulate", self.config, "--ranks", "2").stderr  # would change nothing there
        self.assertIn("simulate has no option --ranks", elsewhere)
        self.assertIn("hint: --set sweep.ranks=2\n", elsewhere)
        for key, args in {"sweep.ranks=64": ("--ranks=64",), "model.kv_heads=2": ("--kv-heads", "2"), "run.threads=VALUE": ("--threads",)}.items():
            self.assertIn(f"hint: --set {key}\n", self.expect(2, "simulate", self.config, *args).stderr)
        self.assertIn("it is one of: run\n", self.expect(2, "check", self.config, "--replay", "0").stderr)  # no key of configs
        self.assertIn("did you mean 'h100-ndr400'?", self.expect(2, "plan", self.config, "--cluster", "h100-ndr40x").stderr)
        for meant, args in {"quick": ("plan", "configs/qiuck.json"), "algorithms": ("list", "algoritms"),
                            "virtual": ("run", self.config, "--mode", "vitual"), "plain": ("run", self.config, "--progress", "plian")}.items():
            self.assertIn(f"did you mean '{meant}'?", self.expect(2, *args).stderr)
        for text, args in {"--progress does not take 'fancy'\n  hint: it takes auto, plain, none": ("run", self.config, "--progress", "fancy"),
                           "--ranks: Value x not in range": ("run", self.config, "--ranks", "x"),
                           "lnbench run takes no 'more'": ("run", self.config, "more"),
                           "hint: lnbench run --help": ("run", self.config, "-o")}.items():
            said = self.expect(2, *args).stderr
            self.assertIn(text, said)
            self.assertRegex(said, r"^error: [^\n]*\n  hint: [^\n]*\n$")
        self.assertRegex(self.expect(2, "--bogus").stderr, r"^error: [^\n]*\n  hint: lnbench --help ")

    def test_a_checkout_that_was_moved_after_its_build_finds_its_files(self):
        moved = self.path / "moved/build/release/bin/lnbench"
        moved.parent.mkdir(parents=True)
        shutil.copy(LNBENCH, moved)
        shutil.copytree(ROOT / "configs", self.path / "moved/configs")
        command = [moved, "simulate", "quick-cluster", "--filter", "seq_len==256K && ranks==64", "-o", self.path / "of-moved"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.path, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(str(self.path / "moved"), (self.path / "of-moved/run.json").read_text())
        shutil.rmtree(self.path / "moved/configs")
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.path, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "^error: .*\n  hint: ")

    def test_control_characters_of_a_file_s_name_are_not_printed(self):
        config = self.path / "a\x1b[31mred\x9b.json"
        config.write_text(json.dumps(dict(SMALL, cluster={"file": "configs/clusters/h100-ndr400.json"})))  # a run prints a note of it
        for command in ("plan", "run", "depth"):
            done = self.expect(0, command, str(config), *(("-o", str(self.path / "hostile")) if command == "run" else ()))
            self.assertNotIn("\x1b", done.stdout + done.stderr, command)

    def test_list(self):
        listed = self.rows("list")
        names = collections.defaultdict(set)
        for row in listed:
            names[row["kind"]].add(row["name"])
            self.assertTrue(row["about"], row)
        self.assertEqual(names["config"], {p.stem for p in (ROOT / "configs").glob("*.json")})
        self.assertEqual(names["cluster"], {p.stem for p in (ROOT / "configs/clusters").glob("*.json")})
        self.assertTrue({"dilated", "ring"} <= names["algorithm"] and {"cpu", "cuda"} <= names["kernel"])
        words = json.loads((ROOT / "configs/schema/config.schema.json").read_text())["properties"]["run"]["properties"]["transport"]
        self.assertEqual(names["transport"], {*words["enum"], "threads", "mpi"})
        self.assertEqual([row["about"][-12:] for row in listed if row["name"] == "geometric-cpu"], ["on one rank."])
        text = self.expect(0, "list", "clusters").stdout
        self.assertEqual(sum(not line.startswith("#") for line in text.splitlines()), len(names["cluster"]))
        self.assertLessEqual(max(map(len, self.expect(0, "list").stdout.splitlines())), 100)

    def test_a_shipped_config_finds_its_cluster_from_anywhere(self):
        for config in ("quick-cluster", "longest-sequence-cluster"):
            done = subprocess.run([LNBENCH, "simulate", config, "--filter", "seq_len==256K && ranks==64", "-o", str(self.path / config)],
                                  capture_output=True, text=True, cwd=self.path, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_quickstart_shows_each_row_when_it_is_there(self):
        (filtered,) = re.findall(r"^without_excluded\(\) .*", (ROOT / "scripts/quickstart.sh").read_text(), re.M)
        with subprocess.Popen(["bash", "-c", filtered + "; without_excluded"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdin.write(b"a row\n")
            process.stdin.flush()
            self.assertTrue(select.select([process.stdout], [], [], 5)[0], "kept until the end")
            self.assertEqual(process.communicate(b"0 skipped_excluded\n#      why\n# note\n")[0], b"a row\n# note\n")

    def test_completion(self):
        def completed(*words):
            line = " ".join(f"'{w}'" for w in words)
            script = f"source <('{LNBENCH}' completion); COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _lnbench; echo ${{COMPREPLY[@]}}"
            return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()

        self.assertEqual(completed("lnbench", "re"), ["recommend", "report"])
        self.assertEqual(completed("lnbench", "run", "--ra"), ["--ranks"])
        self.assertEqual(completed("lnbench", "run", "--mode", ""), ["real", "virtual"])
        self.assertEqual(completed("lnbench", "simulate", "--cluster", "h1"), ["h100-ndr400"])
        self.assertEqual(completed("lnbench", "plan", "quick"), ["quick", "quick-cluster"])
        self.assertEqual(completed("lnbench", "list", "k"), ["kernels"])
        self.assertEqual(completed("lnbench", "plan", "./no-such"), [])

    def test_config_errors_say_what_where_and_what_to_do(self):
        cases = {
            '{ "schema_version": 1,\n  "swep": {} }': ("swep", "sweep", ":2"),
            '{ "schema_version": 1,\n "model": { "heads": "many" } }': ("model.heads", ":2"),
            '{ "schema_version": 1,': (":1",),
        }
        for text, wanted in cases.items():
            error = self.expect(2, "plan", self.write("bad.json", text)).stderr
            for part in ("bad.json", *wanted):
                self.assertIn(part, error)
        self.assertIn("nowhere.json", self.expect(2, "plan", "nowhere.json").stderr)
        self.assertIn("seq_len", self.expect(2, "plan", self.config, "--filter", "seq_lne<=1K").stderr)
        self.expect(2, "plan", self.config, "--filter", "seq_len>1M")
        self.expect(2, "plan", self.config, "--set", "sweep.ranks=0")

    def test_another_mpi_is_noticed(self):
        if not MPIRUN:
            self.skipTest("no MPI in this build")
        done = self.expect(3, "run", self.config, PMI_SIZE="8")
        self.assertIn("another MPI", done.stderr)


class Plan(Case):
    def test_lists_points_and_programs(self):
        rows = self.rows("plan", self.config)
        self.assertEqual(len(rows), 12)
        self.assertIn("local runs on one rank", rows[-1]["note"])
        text = self.expect(0, "plan", self.config).stdout
        self.assertEqual(sum(not line.startswith("#") for line in text.splitlines()), 12)
        self.assertIn("local runs on one rank", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        said, head = text.splitlines()[1:3]
        self.assertEqual(said, "# all points: batch 1, d=16")
        self.assertFalse({"batch", "options"} & set(head.split()))
        wide = self.expect(0, "plan", self.config, "--wide").stdout
        self.assertGreater(len(wide.splitlines()[1]), 100)
        self.assertIn(" batch ", wide.splitlines()[1])
        self.assertEqual([row["id"] for row in json.loads(self.expect(0, "plan", self.config, "--format", "json").stdout)],
                         [row["id"] for row in rows])
        self.assertTrue(self.expect(0, "plan", self.config, "--format", "md").stdout.startswith("| no | id |"))
        text = self.expect(0, "plan", self.config, "--schedule", "4", "--rank", "1").stdout
        self.assertIn("all_gather", text)
        self.assertIn("check_schedule: correct", text)
        dot = self.expect(0, "plan", self.config, "--schedule", rows[7]["id"], "--dot").stdout
        self.assertTrue(dot.startswith("digraph"))
        self.assertIn("style=dashed", dot)
        self.assertIn("no point 'x'", self.expect(2, "plan", self.config, "--schedule", "x").stderr)
        self.assertIn("ranks 0 to 1", self.expect(2, "plan", self.config, "--schedule", "4", "--rank", "2").stderr)

    def test_options_that_an_algorithm_chooses_are_shown_and_make_no_points_of_their_own(self):
        rows = self.rows("plan", self.config, "--set", "sweep.algorithm=usp,double_ring,all_gather", "--set", "sweep.ranks=4",
                         "--set", "sweep.seq_len=1K", "--set", "sweep.ulysses_degree=0,2,4", "--set", "sweep.ring_inner=0,2",
                         "--set", "sweep.head_slice=0,1,2,9")
        self.assertEqual([(row["algorithm"], row["options"].split()[0]) for row in rows], [("usp", "Pu=2"), ("usp", "Pu=4"), ("double_ring", "Pi=2"),
                                                               ("all_gather", "d=16"), ("all_gather", "slice=1")])

    def test_a_point_that_does_not_fit_names_the_cheapest_change(self):
        out = self.expect(0, "plan", self.config, "--set", "sweep.seq_len=64K", "--set", "memory.limit_bytes=24000000").stdout
        self.assertIn("skipped_memory", out)
        self.assertIn("fits with", out)

    def test_ranks_beyond_those_there_are_are_named(self):
        more = ("--set", "sweep.ranks=1,7", "--filter", "ranks == 7")
        self.assertIn("4 points need more ranks than the", self.expect(0, "plan", self.config, *more).stdout)
        self.assertIn("2 there are: --ranks 7, or mpirun -np 7", self.expect(0, "plan", self.config, *more, "--ranks", "2").stdout)
        self.assertNotIn("need more", self.expect(0, "plan", self.config, "--ranks", "2").stdout)
        error = self.expect(2, "run", self.config, *more, "--ranks", "2", "-o", str(self.path / "out")).stderr
        self.assertIn("hint: --ranks 7, or mpirun -np 7", error)

    def test_plans_of_sizes_nobody_has_are_quick(self):
        begin = time.monotonic()
        out = self.expect(0, "plan", self.config, "--set", "sweep.seq_len=1B", "--set", "sweep.ranks=64,1024",
                          "--set", "sweep.algorithm=dilated,ring,all_gather,usp", "--set", "model.heads=12",
                          "--set", "model.head_dim=64").stdout
        self.assertIn(" seq_len 1B,", out)
        self.assertLess(time.monotonic() - begin, 60)

    def test_depth(self):
        self.assertIn("layers", self.expect(0, "depth", self.config).stdout)
        longest = self.rows("depth", "figure5-cluster", "--filter", "algorithm == dilated && seq_len == 1B")
        self.assertEqual([(row["ranks"], row["layers"]) for row in longest], [("256", "5"), ("1024", "5"), ("4096", "never")])
        self.assertTrue(all(int(row["layers"]) > 0 for row in self.rows("depth", self.config, "--filter", "algorithm == dilated")))

    def test_on_a_cluster_it_tells_time_memory_and_gpu_hours(self):
        args = ("plan", self.config, "--cluster", "h100", "--set", "model.dtype=bf16", "--set", "model.head_dim=64", "--set", "sweep.ranks=8")
        done = self.expect(0, *args)
        self.assertIn("of 6 points fit", done.stdout)
        self.assertIn("GPU-hours", done.stdout)
        self.assertIn("GPU-h: to measure it, ranks x (runs x time + check); runs: ", done.stdout.replace("\n#   ", " "))
        for row in self.rows(*args):
            if row["status"] == "ok":
                seconds = float(row["runs"]) * float(row["estimate_s"]) + float(row["check_s"])
                self.assertAlmostEqual(float(row["gpu_hours"]) / (8 * seconds / 3600), 1)
                self.assertGreater(int(row["memory_bytes"]), 0)
        (row,) = self.rows(*args, "--set", "sweep.algorithm=ring", "--set", "sweep.seq_len=1B", code=1)
        self.assertEqual(row["status"], "skipped_memory")
        self.assertTrue(row["note"].endswith("fits with ranks=64"), row["note"])
        on_a100 = self.rows("plan", self.config, "--cluster", "a100", *args[4:], "--set", "sweep.algorithm=ring", "--set", "sweep.seq_len=64K")
        self.assertEqual({row["note"] for row in on_a100}, {"by estimated kernel speeds"})


class Configs(Case):
    def test_every_shipped_config_can_be_planned(self):
        for config in sorted((ROOT / "configs").glob("*.json")):
            # those for clusters have thousands of programs to look at: some of them will do
            some = "scope == attention && (ranks <= 512 && seq_len <= 1M || seq_len == 1B && ranks == 64) || ranks <= 8 && seq_len <= 1M"
            self.expect(0, "plan", str(config), "--ranks", "2", *(["--filter", some] if "cluster" in config.name else []))


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""The command line as a user sees it: exit codes, errors, files, plans, simulations, calibration. Run by ctest."""
import collections
import itertools
import json
import os
import pathlib
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
        self.assertIn("one of: plan, run", elsewhere)
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
        config.write_text(json.dumps(dict(SMALL, cluster={"file": "configs/clusters/h100-ndr400.json"})))  # of which a run prints a note
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
        self.assertEqual(names["transport"], set(words["enum"]))
        text = self.expect(0, "list", "clusters").stdout
        self.assertEqual(sum(not line.startswith("#") for line in text.splitlines()), len(names["cluster"]))
        self.assertLessEqual(max(map(len, self.expect(0, "list").stdout.splitlines())), 100)

    def test_a_shipped_config_finds_its_cluster_from_anywhere(self):
        for config in ("quick-cluster", "longest-sequence-cluster"):
            done = subprocess.run([LNBENCH, "simulate", config, "--filter", "seq_len==256K && ranks==64", "-o", str(self.path / config)],
                                  capture_output=True, text=True, cwd=self.path, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)

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
        self.assertGreater(len(self.expect(0, "plan", self.config, "--wide").stdout.splitlines()[1]), 100)
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

    def test_plans_of_sizes_nobody_has_are_quick(self):
        begin = time.monotonic()
        out = self.expect(0, "plan", self.config, "--set", "sweep.seq_len=1B", "--set", "sweep.ranks=64,1024",
                          "--set", "sweep.algorithm=dilated,ring,all_gather,usp", "--set", "model.heads=12",
                          "--set", "model.head_dim=64").stdout
        self.assertIn(" 1B ", out)
        self.assertLess(time.monotonic() - begin, 60)

    def test_depth(self):
        self.assertIn("layers", self.expect(0, "depth", self.config).stdout)
        self.assertTrue(all(int(row["layers"]) > 0 for row in self.rows("depth", self.config, "--filter", "algorithm == dilated")))

    def test_on_a_cluster_it_tells_time_memory_and_gpu_hours(self):
        args = ("plan", self.config, "--cluster", "h100", "--set", "model.dtype=bf16", "--set", "model.head_dim=64", "--set", "sweep.ranks=8")
        done = self.expect(0, *args)
        self.assertIn("of 6 points fit", done.stdout)
        self.assertIn("GPU-hours", done.stdout)
        for row in self.rows(*args):
            if row["status"] == "ok":
                self.assertGreater(float(row["gpu_hours"]), 8 * float(row["estimate_s"]) / 3600)
                self.assertGreater(int(row["memory_bytes"]), 0)
        (row,) = self.rows(*args, "--set", "sweep.algorithm=ring", "--set", "sweep.seq_len=1B", code=1)
        self.assertEqual(row["status"], "skipped_memory")
        self.assertTrue(row["note"].endswith("fits with ranks=64"), row["note"])


class Configs(Case):
    def test_every_shipped_config_can_be_planned(self):
        for config in sorted((ROOT / "configs").glob("*.json")):
            # those for clusters have thousands of programs to look at: some of them will do
            some = "scope == attention && (ranks <= 512 && seq_len <= 1M || seq_len == 1B && ranks == 64) || ranks <= 8 && seq_len <= 1M"
            self.expect(0, "plan", str(config), "--ranks", "2", *(["--filter", some] if "cluster" in config.name else []))


class Simulate(Case):
    CLUSTER = str(ROOT / "configs" / "clusters" / "h100-ndr400.json")

    def simulate(self, *args, code=0, **more):
        return self.expect(code, "simulate", self.config, "--cluster", self.CLUSTER, "--set", "model.dtype=bf16", *args, **more)

    def test_points_of_a_cluster(self):
        folder = self.path / "out"
        out = self.simulate("--set", "sweep.ranks=8,512", "--what-if", "", "--what-if", "bandwidth=0.5", "-o", str(folder)).stdout
        self.assertIn("messages_per_s", out)
        result = self.result(folder)
        self.assertEqual(result["summary"]["verdict"], "pass")
        points = [p for p in result["points"] if p["status"] == "ok"]
        self.assertEqual({p["source"] for p in points}, {"simulated"})
        self.assertEqual({p["params"]["cluster"] for p in points}, {"h100-ndr400", "h100-ndr400 bandwidth=0.5"})
        self.assertEqual(len({p["id"] for p in points}), len(points))
        for p in points:
            timing, phases = p["timing"], p["phases"]
            whole = sum(phases[k] for k in ("compute_s", "merge_s", "exposed_communication_s"))
            self.assertAlmostEqual(whole / p["ablations"]["full_s"], 1, places=9)  # parts that do not overlap
            self.assertLessEqual(timing["ci_low_s"], timing["median_s"])
            self.assertLessEqual(timing["median_s"], timing["ci_high_s"])
            self.assertGreater(p["memory"]["predicted_peak_bytes"], 0)
        self.assert_valid(str(folder))

    def test_one_of_equal_groups_stands_for_all(self):
        names = ["dilated", "ring", "ulysses", "local"]
        config = self.write("groups.json", SMALL | {
            "model": {"heads": 4, "head_dim": 64, "dtype": "bf16"},
            "sweep": {"algorithm": names, "seq_len": "16K", "ranks": 8, "batch": {"rule": "fixed", "size": 8},
                      "replicas": [1, 2, "auto", 3]}})
        def simulate(out, *sets, code=0):
            args = [word for s in sets for word in ("--set", s)]
            self.expect(code, "simulate", config, "--cluster", self.CLUSTER, *args, "-o", str(self.path / out))
            self.assert_valid(str(self.path / out))
            return {(p["params"]["algorithm"], p["params"].get("replicas", 1)): p for p in self.result(self.path / out)["points"]}
        groups, alone = simulate("groups"), simulate("alone", "sweep.ranks=4", "sweep.batch.size=4", "sweep.replicas=1")
        for name in ("dilated", "ring", "ulysses"):
            both, one = groups[name, 2], alone[name, 1]
            self.assertEqual((both["params"]["ranks"], both["params"]["batch"]), (8, 8))
            self.assertEqual(both["timing"], one["timing"])
            self.assertEqual(both["comm"], one["comm"])
            self.assertEqual(both["memory"], one["memory"])
            self.assertEqual(both["work"]["flops"], 2 * one["work"]["flops"])
            self.assertEqual(both["work"]["tokens"], 2 * one["work"]["tokens"])
            self.assertEqual(both["work"]["paper_macs"], 2 * one["work"]["paper_macs"])
            self.assertAlmostEqual(both["work"]["flops_per_s"] / one["work"]["flops_per_s"], 2, places=9)
            self.assertAlmostEqual(both["work"]["share_of_peak"] / one["work"]["share_of_peak"], 1, places=9)
            self.assertEqual(both["work"]["balance"], one["work"]["balance"])
            self.assertIn("must divide the ranks", groups[name, 3]["reason"])
        # A rank for each sequence: nothing to exchange, every exact algorithm is the local one.
        self.assertEqual(groups["ring", 8]["timing"], groups["local", 8]["timing"])
        self.assertEqual(groups["ring", 8]["comm"]["predicted_bytes_per_rank"], 0)
        self.assertEqual(groups["local", 2]["status"], "skipped_unsupported")
        # All ranks must be there, though one group is simulated; slow ranks are looked for in that group.
        many = simulate("many", "sweep.ranks=8192", "sweep.batch.size=8192", "sweep.replicas=8192", code=1)  # not one point
        self.assertIn("has 4096", many["ring", 8192]["reason"])
        late = self.expect(0, "simulate", config, "--cluster", self.CLUSTER, "--what-if", "straggler=1@5", "--set",
                           "sweep.replicas=2,1", "-o", str(self.path / "late")).stdout
        self.assertIn("of 2 replicas the first is simulated, ranks 0 to 3", late)
        # Real ranks have no groups: run and check leave such points out, and run says why.
        sets = ("model.dtype=fp32", "sweep.seq_len=256", "sweep.algorithm=ring", "sweep.ranks=2", "sweep.replicas=1,2")
        args = ["--ranks", "2", *[word for s in sets for word in ("--set", s)]]
        done = self.expect(0, "run", config, *args, "-o", str(self.path / "run"))
        self.assertIn("only `lnbench simulate` has them", done.stdout)
        self.assertIn("1 left out", self.expect(0, "check", config, *args).stdout)
        self.assertIn("only `lnbench simulate` has them", self.expect(0, "plan", config, *args).stdout)
        ran = {p["params"].get("replicas", 1): p["status"] for p in self.result(self.path / "run")["points"]}
        self.assertEqual(ran, {1: "ok", 2: "skipped_unsupported"})

    def test_passes_are_points_of_their_own(self):
        folder = self.path / "out"
        sets = ["--set", "sweep.pass=forward,backward,forward_backward", "--set", "sweep.algorithm=ring", "--set", "sweep.ranks=8",
                "--set", "sweep.seq_len=64K"]
        self.simulate(*sets, "-o", str(folder))
        points = {p["params"].get("pass", "forward"): p for p in self.result(folder)["points"]}
        self.assertEqual({p["status"] for p in points.values()}, {"ok"})
        flops, seconds = ({name: value(p) for name, p in points.items()}
                          for value in (lambda p: p["work"]["flops"], lambda p: p["timing"]["median_s"]))
        self.assertEqual([flops["backward"], flops["forward_backward"]], [2.5 * flops["forward"], 3.5 * flops["forward"]])
        self.assertGreater(seconds["backward"], 1.5 * seconds["forward"])
        self.assertAlmostEqual(seconds["forward_backward"] / (seconds["forward"] + seconds["backward"]), 1, places=1)
        self.assert_valid(str(folder))
        # A cluster without rows of backward passes is refused, not guessed.
        cluster = json.loads(pathlib.Path(self.CLUSTER).read_text())
        rows = cluster["device"]["attend"]
        cluster["device"]["attend"] = [row for row in rows if not row.get("backward")]
        plain = self.write("plain.json", cluster)
        none = self.path / "none"
        self.expect(1, "simulate", self.config, "--cluster", plain, "--set", "model.dtype=bf16", *sets[2:], "--set", "sweep.pass=backward",
                    "-o", str(none))
        (point,) = self.result(none)["points"]
        self.assertRegex(point["reason"], "no speed of the backward pass of attention in bf16.*sweep.pass=forward")

    def test_what_cannot_run_says_why(self):
        folder = self.path / "out"
        self.simulate("--set", "sweep.ranks=8,8192", "--set", "sweep.seq_len=16K", "-o", str(folder))
        reasons = {p["reason"] for p in self.result(folder)["points"] if p["status"] == "skipped_unsupported"}
        self.assertTrue(any("has 4096" in r for r in reasons), reasons)
        text = self.expect(2, "simulate", self.config, "--cluster", self.config).stderr
        self.assertIn("unknown key", text)
        self.assertIn("did you mean 'bandwidth'", self.simulate("--what-if", "bandwith=2", code=2).stderr)

    def test_a_config_names_its_cluster_and_what_ifs(self):
        folder, config = self.path / "out", self.path / "asks.json"
        block = {"file": self.CLUSTER, "what_if": ["", "latency=2,straggler=0.5@3"]}

        def write(cluster):
            config.write_text(json.dumps({"extends": self.config, "model": {"dtype": "bf16"}, "cluster": cluster}))

        write(block)
        args = [str(config), "--set", "sweep.ranks=4", "--set", "sweep.seq_len=8K", "--filter", "algorithm == ring"]
        self.expect(0, "simulate", *args, "-o", str(folder))
        found = {p["params"]["cluster"]: p["timing"]["median_s"] for p in self.result(folder)["points"]}
        self.assertEqual(set(found), {"h100-ndr400", "h100-ndr400 latency=2 straggler=0.5@3"})
        self.assertLess(found["h100-ndr400"], found["h100-ndr400 latency=2 straggler=0.5@3"])
        self.assert_valid(str(folder))
        # The command line goes before it; other commands do not look.
        other = str(ROOT / "configs" / "clusters" / "gb200-nvl72.json")
        self.expect(0, "simulate", *args, "--cluster", other, "--what-if", "bandwidth=2", "-o", str(self.path / "two"))
        self.assertEqual({p["params"]["cluster"] for p in self.result(self.path / "two")["points"]}, {"gb200-nvl72 bandwidth=2"})
        self.assertNotIn("h100", self.expect(0, "plan", *args).stdout)
        for cluster, message in (
            ({"fil": "x"}, "cluster.fil: unknown key"),
            ({"file": self.CLUSTER, "what_if": ["bandwith=2"]}, "cluster.what_if: what if 'bandwith=2'"),
            ({"file": self.CLUSTER, "what_if": [2]}, "cluster.what_if: must be a string"),
            ({"file": self.CLUSTER, "what_if": ["", ""]}, "stands there twice"),
            ({"file": ""}, "cluster.file: is empty"),
            ({"what_if": ["latency=2"]}, "no cluster to simulate"),
        ):
            write(cluster)
            self.assertIn(message, self.expect(2, "simulate", *args).stderr)

    def test_what_nccl_would_not_do_is_skipped(self):
        args = ["--set", "sweep.ranks=16", "--set", "sweep.seq_len=64K", "--set", "sweep.algorithm=all_gather", "--set",
                "sweep.collective=nccl_pat"]
        self.simulate(*args, "--what-if", "", "--what-if", "gpus_per_node=1", "-o", str(self.path / "out"))
        shared, alone = self.result(self.path / "out")["points"]
        self.assertIn("needs one GPU per node, h100-ndr400 has 8", shared["reason"])
        self.assertEqual(alone["status"], "ok")
        late = self.simulate("--set", "sweep.ranks=4", "--what-if", "straggler=1@16", "-o", str(self.path / "late"), code=1).stdout
        self.assertIn("verdict: incomplete", late)
        self.assertIn("there is no rank 16 of 4", late)

    def test_a_cluster_takes_what_a_gpu_measured(self):
        point = {"section": "sweep", "kernel": "cuda", "head_dim": 64, "rows": 2048, "dilation_rate": 1, "causal": False, "flops_per_s": 1e13}
        report = {"program": "gpu_kernels_benchmark", "device": {"name": "Some GPU"},
                  "points": [point, point | {"rows": 8192, "flops_per_s": 2e13}, point | {"section": "dilation", "rows": 512},
                             point | {"causal": True, "flops_per_s": None}, point | {"kernel": "cudnn", "shape": "", "default": True, "flops_per_s": 5e14},
                             point | {"rows": 4096, "shape": "64x64q-4", "default": False},
                             {"section": "gemm", "dtype": "bf16", "m": 10, "n": 20, "k": 30, "flops_per_s": 4e14},
                             {"section": "gemm", "dtype": "bf16", "m": 10, "n": 20, "k": 90, "flops_per_s": 8e14},
                             {"section": "gemm", "dtype": "fp32", "m": 10, "n": 20, "k": 30, "status": "error"}]}
        kernels, made = self.write("kernels.json", report), self.path / "measured.json"
        args = ("calibrate", "--cluster", self.CLUSTER, "--gpu-kernels")
        self.expect(0, *args, kernels, "-o", str(made))
        device = json.loads(made.read_text())["device"]  # measured rows are those of their own kernel, which the cluster takes
        rows = device["attend"]
        self.assertAlmostEqual(device["gemm_flops"]["bf16"]["value"] / 6.4e14, 1)  # 4 parts of FLOPs in 2.5 of time
        self.assertNotIn("fp32", device["gemm_flops"])

        def replaced(r):
            return r["head_dim"] == 64 and not r["causal"] and r["kernel"] == device["kernel"]

        plain = [r for r in rows if replaced(r)]
        self.assertEqual([(r["rows"], r["flops_per_s"]) for r in plain], [(2048, 1e13), (8192, 2e13)])
        self.assertIn("measured on Some GPU", plain[0]["source"])
        published = json.loads(pathlib.Path(self.CLUSTER).read_text())["device"]["attend"]
        self.assertEqual([r for r in rows if r not in plain], [r for r in published if not replaced(r)])
        self.expect(0, "simulate", self.config, "--cluster", str(made), "--set", "model.dtype=bf16", "--set", "sweep.ranks=4",
                    "-o", str(self.path / "out"))
        self.assertIn("it has cuda, cudnn", self.expect(2, *args, kernels, "--kernel", "gather", "-o", str(made)).stderr)
        self.assertIn("no figures of kernels", self.expect(2, *args, self.CLUSTER, "-o", str(made)).stderr)
        self.expect(2, "calibrate", "--gpu-kernels", kernels)

    def test_a_cluster_takes_a_link_that_gpus_measured(self):
        row = {"operation": "exchange", "median_s": None}
        report = {"program": "lnbench comm", "transport": "nccl",
                  "places": [{"rank": r, "hostname": "one", "device": f"{r}: Some GPU", "gpu": f"uuid {r}"} for r in range(2)],
                  "rows": [row | {"bytes": n, "median_s": 1e-5 + n / 2e11} for n in (1024, 65536, 1 << 24)] +
                          [row | {"bytes": 4}, row | {"bytes": 1024, "operation": "send_recv", "median_s": 1e-3}]}
        made = self.path / "measured.json"
        args = ("calibrate", "--cluster", self.CLUSTER, "-o", str(made), "--gpu-comm")
        published = json.loads(pathlib.Path(self.CLUSTER).read_text())
        for link, hostname in (("intra", "one"), ("inter", "two")):
            report["places"][1]["hostname"] = hostname
            self.assertIn("nodes measured with nccl", self.expect(0, *args, self.write("comm.json", report)).stdout)
            links = json.loads(made.read_text())["links"]
            alpha = links[link]["alpha_s"]
            self.assertIn("0: Some GPU and 1: Some GPU", alpha.pop("source"))
            for value in alpha.values() if len(alpha) > 1 else [alpha["value"]]:
                self.assertAlmostEqual(value, 1e-5, delta=1e-10)
            self.assertAlmostEqual(links[link]["bandwidth_bytes_per_s"]["value"] / 2e11, 1, delta=1e-6)
            other = "inter" if link == "intra" else "intra"
            self.assertEqual(links[other], published["links"][other])
            self.assertEqual(json.loads(made.read_text())["device"], published["device"])
        shared = [{"hostname": "one", "device": "0: Some GPU", "gpu": "uuid 0"}] * 2
        self.assertIn("shared a GPU", self.expect(2, *args, self.write("comm.json", report | {"places": shared})).stderr)
        for wrong in (report | {"transport": "mpi"}, report | {"program": "other"}):
            self.assertIn("no times of messages between GPUs", self.expect(2, *args, self.write("comm.json", wrong)).stderr)
        self.assertIn("fewer than two sizes", self.expect(2, *args, self.write("comm.json", report | {"rows": []})).stderr)
        self.assertIn("--gpu-kernels or --gpu-comm", self.expect(2, "calibrate", "--cluster", self.CLUSTER).stderr)

    def test_the_result_holds_its_cluster(self):
        out = self.path / "out"
        self.simulate("--set", "sweep.ranks=4", "--set", "sweep.seq_len=8K", "-o", str(out))
        run = self.result(out)["run"]
        kept = self.write("kept.json", run["cluster"])
        again = self.path / "again"
        self.expect(0, "simulate", self.config, "--cluster", kept, "--set", "model.dtype=bf16", "--set", "sweep.ranks=4", "--set",
                    "sweep.seq_len=8K", "-o", str(again))
        other = self.result(again)
        self.assertEqual(other["run"]["cluster_sha256"], run["cluster_sha256"])
        self.assertEqual([p["timing"]["median_s"] for p in other["points"]],
                         [p["timing"]["median_s"] for p in self.result(out)["points"]])

    def test_trace(self):
        trace = self.path / "trace.json"
        self.simulate("--set", "sweep.ranks=4", "--set", "sweep.seq_len=8K", "--filter", "algorithm == ring", "--trace", str(trace),
                      "-o", str(self.path / "out"))
        events = json.loads(trace.read_text())["traceEvents"]
        self.assertEqual({e["pid"] for e in events}, {0, 1, 2, 3})
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        tracks = collections.defaultdict(list)
        for e in events:
            if e["ph"] == "X":
                tracks[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
                if e["name"] in ("send", "recv"):
                    self.assertEqual(abs(e["args"]["peer"] - e["pid"]) % 2, 1)  # a neighbour of four in a ring
                    self.assertGreater(e["args"]["bytes"], 0)
        steps = collections.Counter((e["pid"], e["args"]["branch"]) for e in events if e["name"] == "attend")
        self.assertEqual(steps, {(rank, 0): 4 for rank in range(4)})  # one branch, a step of the ring each
        self.assertEqual({e["args"]["step"] for e in events if e["name"] == "attend"}, {0, 1, 2, 3})
        self.assertEqual(set(names), set(tracks))
        self.assertTrue({"compute", "send", "receive"} <= set(names.values()))
        for done in tracks.values():  # nothing overlaps on a track
            for (_, end, _), (begin, _, _) in itertools.pairwise(sorted(done)):
                self.assertLessEqual(end, begin + 1e-6)
        self.assertTrue({"attend", "send", "recv", "wait"} <= {name for done in tracks.values() for _, _, name in done})
        self.assertIn("--trace shows one point", self.simulate("--set", "sweep.ranks=1,4", "--trace", "x", code=2).stderr)

    def test_recommend(self):
        out = self.expect(0, "recommend", "--cluster", self.CLUSTER, "--seq-len", "1M", "--ranks", "64", "--causal").stdout
        self.assertIn("zigzag", out.split("# exact attention\n")[1].splitlines()[0])
        self.assertIn("not possible: ulysses", out)
        self.assertLessEqual(max(map(len, out.splitlines())), 100)
        rows = self.rows("recommend", "--cluster", "h100", "--seq-len", "1M", "--ranks", "64", "--top", "2")
        self.assertEqual([(row["attention"], row["place"]) for row in rows], [("exact", "1"), ("exact", "2"), ("dilated", "1"), ("dilated", "2")])
        rows = self.rows("recommend", "--cluster", "h100", "--seq-len", "1M", "--ranks", "64", "--pass", "forward_backward", "--top", "20")
        self.assertTrue(any(row["algorithm"].startswith("query_ring") for row in rows), rows)
        self.assertIn("one --what-if", self.expect(2, "recommend", "--cluster", "h100", "--seq-len", "1M", "--ranks", "64", "--what-if",
                                                   "latency=2", "--what-if", "taper=2").stderr)
        self.assertIn("has 4096 GPUs", self.expect(2, "recommend", "--cluster", self.CLUSTER, "--seq-len", "1M", "--ranks", "5000").stderr)


class Calibrate(Case):
    def calibrated(self, *args, **more):
        path = self.path / "here.json"
        self.expect(0, "calibrate", "--quick", "-q", "-o", str(path), *args, **more)
        self.assert_valid(str(path))
        return path, json.loads(path.read_text())

    def test_a_cluster_file_that_simulate_takes(self):
        path, cluster = self.calibrated("--ranks", "2")
        self.assertEqual((cluster["name"], cluster["gpus_per_node"]["value"]), ("here", 2))
        self.assertIn("measured by lnbench calibrate, 20", cluster["device"]["launch_s"]["source"])
        self.assertNotIn(os.uname().nodename + " ", path.read_text())
        self.assertFalse(cluster["async_progress"]["value"])
        models = {(m["dtype"], m["causal"]) for m in cluster["device"]["attend_model"]}
        self.assertEqual(models, {(d, c) for d in ("fp32", "bf16") for c in (False, True)})
        folder = self.path / "out"
        self.expect(0, "simulate", self.config, "--cluster", str(path), "-o", str(folder))
        seconds = [p["timing"]["median_s"] for p in self.result(folder)["points"] if p["status"] == "ok"]
        self.assertEqual(len(seconds), 10)
        self.assertTrue(all(s > 0 for s in seconds))

    def test_on_mpi_ranks(self):
        if not MPIRUN:
            self.skipTest("no MPI in this build")
        _, cluster = self.calibrated(ranks=2)
        self.assertIn("2 ranks (mpi)", cluster["links"]["intra"]["bandwidth_bytes_per_s"]["source"])

    def test_mistakes(self):
        error = self.expect(2, "calibrate", "--quick", "--ranks", "1", "-o", str(self.path / "no" / "where.json")).stderr
        self.assertIn("there is no folder", error)
        error = self.expect(2, "calibrate", "--quick", "--ranks", "1", "-o", str(self.path)).stderr  # before it measures
        self.assertIn("that is a folder", error)
        for option in ("--real", "--published"):  # refused before the minute that SimGrid takes
            error = self.expect(2, "validate", option, str(self.path / "none")).stderr
            self.assertIn("none", error)
            self.assertNotIn("SimGrid", error)


if __name__ == "__main__":
    unittest.main()

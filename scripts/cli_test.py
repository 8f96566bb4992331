#!/usr/bin/env python3
"""The command line as a user meets it: exit codes, errors, files. Needs LNBENCH=path of the program.

With MPIRUN=path the same is tried on MPI ranks. Run by ctest.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
LNBENCH = os.environ["LNBENCH"]
MPIRUN = os.environ.get("MPIRUN", "")
CANARY = "c4n4ry-value-of-a-secret"
SMALL = {
    "schema_version": 1,
    "name": "small",
    "model": {"heads": 2, "head_dim": 16, "dtype": "fp32"},
    "dilated": {"segments": [64, "per_rank", "sequence"]},
    "sweep": {"algorithm": ["dilated", "ring", "local"], "seq_len": [256, "1K"], "ranks": [1, 2]},
    "measure": {"warmup": 1, "min_samples": 3, "max_samples": 3},
}


def lnbench(*args, ranks=0, **variables):
    env = dict(os.environ, LONGNET_TEST_TOKEN=CANARY, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMP_NUM_THREADS="1", **variables)
    launcher = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] if ranks else []
    done = subprocess.run([*launcher, LNBENCH, *args], capture_output=True, text=True, env=env, timeout=300, cwd=ROOT)
    assert CANARY not in done.stdout + done.stderr, "a secret was printed"
    return done


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        self.config = self.write("small.json", SMALL)

    def write(self, name, value):
        path = self.path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))
        return str(path)

    def expect(self, code, *args, **more):
        done = lnbench(*args, **more)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}\n{done.stderr}")
        return done

    def result(self, folder):
        return json.loads((pathlib.Path(folder) / "result.json").read_text())

    def assert_valid(self, *paths):
        done = subprocess.run([sys.executable, str(ROOT / "scripts/validate_json.py"), *paths], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Usage(Case):
    def test_help_and_version(self):
        out = self.expect(0, "--help").stdout
        for text in ("Exit codes", "Algorithms:", "dilated", "mpirun -np 2 lnbench run"):
            self.assertIn(text, out)
        self.assertIn("lnbench", self.expect(0, "--version").stdout)
        for command in ("env", "plan", "run", "check", "simulate", "recommend", "validate", "depth", "comm", "calibrate", "compare", "report"):
            out = self.expect(0, command, "--help").stdout
            self.assertIn("Usage", out)
            self.assertIn("Exit codes", out)
            self.assertNotIn("Examples:", out)
            # Algorithms are listed where a config's algorithms matter.
            self.assertEqual("Algorithms:" in out, command in ("plan", "run", "check", "simulate"), command)

    def test_mistakes_on_the_command_line(self):
        for args in ((), ("dance",), ("run",), ("run", self.config, "--ranks", "0"), ("plan", self.config, "--dot"),
                     ("run", self.config, "--progress", "fancy"), ("run", self.config, "--max-time", "soon"),
                     ("comm", "--max-bytes", "much"), ("comm", "--ranks", "1"), ("--bogus",)):
            done = self.expect(2, *args)
            self.assertTrue(done.stderr.strip(), f"{args}: no message")

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
        out = self.expect(0, "plan", self.config).stdout
        rows = [line for line in out.splitlines() if not line.startswith("#")]
        self.assertEqual(len(rows), 12)
        self.assertIn("local runs on one rank", out)
        text = self.expect(0, "plan", self.config, "--schedule", "4", "--rank", "1").stdout
        self.assertIn("all_gather", text)
        self.assertIn("check_schedule: correct", text)
        dot = self.expect(0, "plan", self.config, "--schedule", rows[7].split()[1], "--dot").stdout
        self.assertTrue(dot.startswith("digraph"))
        self.assertIn("style=dashed", dot)
        self.assertIn("no point 'x'", self.expect(2, "plan", self.config, "--schedule", "x").stderr)
        self.assertIn("ranks 0 to 1", self.expect(2, "plan", self.config, "--schedule", "4", "--rank", "2").stderr)

    def test_options_that_an_algorithm_chooses_are_shown_and_make_no_points_of_their_own(self):
        out = self.expect(0, "plan", self.config, "--set", "sweep.algorithm=usp,double_ring,all_gather", "--set", "sweep.ranks=4",
                          "--set", "sweep.seq_len=1K", "--set", "sweep.ulysses_degree=0,2,4", "--set", "sweep.ring_inner=0,2",
                          "--set", "sweep.head_slice=0,1,2,9").stdout
        rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
        self.assertEqual([(row[2], row[11]) for row in rows], [("usp", "Pu=2"), ("usp", "Pu=4"), ("double_ring", "Pi=2"),
                                                              ("all_gather", "-"), ("all_gather", "slice=1")])

    def test_a_point_that_does_not_fit_names_the_cheapest_change(self):
        out = self.expect(0, "plan", self.config, "--set", "sweep.seq_len=64K", "--set", "memory.limit_bytes=24000000").stdout
        self.assertIn("skipped_memory", out)
        self.assertIn("fits with", out)

    def test_plans_of_sizes_nobody_has_are_quick(self):
        begin = time.monotonic()
        out = self.expect(0, "plan", self.config, "--set", "sweep.seq_len=1B", "--set", "sweep.ranks=64,1024",
                          "--set", "sweep.algorithm=dilated,ring,all_gather,usp", "--set", "model.heads=12",
                          "--set", "model.head_dim=64").stdout
        self.assertIn("1073741824", out)
        self.assertLess(time.monotonic() - begin, 60)

    def test_depth(self):
        self.assertIn("layers", self.expect(0, "depth", self.config).stdout)

    def test_every_shipped_config_can_be_planned(self):
        for config in sorted((ROOT / "configs").glob("*.json")):
            # those for clusters have thousands of programs to look at: some of them will do
            some = ["--filter", "ranks <= 512 && seq_len <= 1M || seq_len == 1B && ranks == 64"] if "cluster" in config.name else []
            self.expect(0, "plan", str(config), "--ranks", "2", *some)


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
        def simulate(out, *sets):
            args = [word for s in sets for word in ("--set", s)]
            self.expect(0, "simulate", config, "--cluster", self.CLUSTER, *args, "-o", str(self.path / out))
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
        many = simulate("many", "sweep.ranks=8192", "sweep.batch.size=8192", "sweep.replicas=8192")
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

    def test_what_cannot_run_says_why(self):
        folder = self.path / "out"
        self.simulate("--set", "sweep.ranks=8,8192", "-o", str(folder))
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
        late = self.simulate("--set", "sweep.ranks=4", "--what-if", "straggler=1@16", "-o", str(self.path / "late")).stdout
        self.assertIn("there is no rank 16 of 4", late)

    def test_trace(self):
        trace = self.path / "trace.json"
        self.simulate("--set", "sweep.ranks=4", "--set", "sweep.seq_len=8K", "--filter", "algorithm == ring", "--trace", str(trace),
                      "-o", str(self.path / "out"))
        events = json.loads(trace.read_text())["traceEvents"]
        self.assertEqual({e["pid"] for e in events}, {0, 1, 2, 3})
        self.assertTrue({"attend", "send", "recv"} <= {e["name"] for e in events})
        self.assertIn("--trace shows one point", self.simulate("--set", "sweep.ranks=1,4", "--trace", "x", code=2).stderr)

    def test_recommend(self):
        out = self.expect(0, "recommend", "--cluster", self.CLUSTER, "--seq-len", "1M", "--ranks", "64", "--causal").stdout
        self.assertIn("zigzag", out.split("# exact attention\n")[1].splitlines()[0])
        self.assertIn("not possible: ulysses", out)
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
        self.assertIn("cannot write", error)
        self.assertIn("real.json", self.expect(2, "validate", "--real", str(self.path / "real.json")).stderr)


class Run(Case):
    def run_small(self, *args, code=0, out="out", **more):
        folder = str(self.path / out)
        done = self.expect(code, "run", self.config, "-o", folder, "--ranks", "2", *args, **more)
        return folder, done

    def test_a_sweep_on_threads(self):
        folder, done = self.run_small()
        result = self.result(folder)
        self.assertEqual(result["summary"]["verdict"], "pass")
        ok = [p for p in result["points"] if p["status"] == "ok"]
        self.assertEqual(len(ok), 10)
        for p in ok:
            self.assertEqual(p["params"]["transport"], "threads")
            self.assertEqual(p["check"]["status"], "pass")
            self.assertGreaterEqual(p["check"]["queries"], 64)
            self.assertEqual(p["comm"]["counted_bytes_per_rank"], p["comm"]["predicted_bytes_per_rank"])
            self.assertEqual(p["memory"]["measured_peak_bytes"], p["memory"]["predicted_peak_bytes"])
            self.assertEqual(len(p["timing"]["samples_s"]), 3)
        self.assertEqual({p["reason"] is None for p in ok}, {True})
        rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
        self.assertEqual(len(rows), 12)
        self.assertNotIn("\x1b", done.stdout + done.stderr)
        self.assert_valid(folder)
        for file in pathlib.Path(folder).iterdir():
            self.assertNotIn(CANARY, file.read_text())
        # The same points from disk, again and again: nothing is left to do.
        before = (pathlib.Path(folder) / "points.jsonl").read_text()
        self.expect(0, "run", self.config, "--ranks", "2", "--resume", folder)
        self.assertEqual(before, (pathlib.Path(folder) / "points.jsonl").read_text())
        error = self.expect(2, "run", self.config, "--ranks", "2", "--resume", folder, "--set", "model.heads=4").stderr
        self.assertIn("config", error)

    def test_more_ranks_than_cores(self):
        folder = str(self.path / "out")
        done = self.expect(0, "run", self.config, "-o", folder, "--ranks", "8", "--set", "sweep.ranks=1,8",
                           "--set", "sweep.seq_len=1K", "--set", "sweep.algorithm=ring", "--set", "run.threads=1")
        cores = len(os.sched_getaffinity(0))
        number, prefix = re.search(r"peak ([0-9.]+) ([kMGT])FLOP/s per rank", done.stdout).groups()
        peak = float(number) * {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[prefix]
        for p in self.result(folder)["points"]:
            used = min(p["params"]["ranks"], cores)  # eight ranks on two cores have the peak of two
            self.assertEqual(p["status"], "ok", p["reason"])
            self.assertEqual(p["timing"]["reduction"], "span")
            self.assertEqual(p["metrics"]["usable_cores"], used)
            phases, parts = p["phases"], p["ablations"]
            self.assertEqual(phases["exposed_communication_s"], parts["full_s"] - parts["compute_only_s"])  # signed
            self.assertEqual(phases["communication_s"], parts["communication_only_s"])
            self.assertLessEqual(phases["compute_s"] + phases["merge_s"], parts["compute_only_s"])
            if p["params"]["ranks"] == 1:
                self.assertEqual((phases["exposed_communication_s"], phases["communication_s"]), (0, 0))
            for part in ("full_s", "compute_only_s", "serialised_s", "single_attend_s"):  # never faster than the cores
                self.assertLess(p["work"]["flops"] / p["ablations"][part], 1.06 * peak * used, part)
            self.assertAlmostEqual(p["work"]["flops_per_s"] / p["work"]["share_of_peak"] / used / peak, 1, delta=0.02)

    def test_a_wrong_result_is_never_accepted(self):
        folder, _ = self.run_small("--set", "check.tolerance=1e-12", code=1)
        result = self.result(folder)
        self.assertEqual(result["summary"]["verdict"], "fail")
        failed = [p for p in result["points"] if p["status"] == "check_failed"]
        self.assertEqual(len(failed), 10)
        self.assertIn("relative L2 error", failed[0]["reason"])
        self.assert_valid(folder)

    def test_stopping_early_and_going_on(self):
        folder, done = self.run_small("--max-time", "0s", code=4)
        self.assertIn("--resume", done.stderr)
        self.assertEqual(self.result(folder)["summary"]["verdict"], "incomplete")
        self.expect(0, "run", self.config, "--ranks", "2", "--resume", folder)
        self.assertEqual(self.result(folder)["summary"]["verdict"], "pass")

    def test_a_signal_finishes_the_point_and_keeps_it(self):
        long = dict(SMALL, measure={"warmup": 0, "min_samples": 2000, "max_samples": 2000})
        config, folder = self.write("long.json", long), self.path / "out"
        process = subprocess.Popen([LNBENCH, "run", config, "-o", str(folder), "--ranks", "2"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        points = folder / "points.jsonl"
        for _ in range(600):
            if points.exists() and points.read_text().count("\n") >= 1:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.wait(timeout=120), 4)
        finished = [json.loads(line)["id"] for line in points.read_text().splitlines()]
        self.assertGreaterEqual(len(finished), 1)
        self.assertLess(len(finished), 12)

    def test_points_that_do_not_fit_are_skipped_with_a_reason(self):
        folder, _ = self.run_small("--set", "memory.limit_bytes=1500000")
        skipped = [p for p in self.result(folder)["points"] if p["status"] == "skipped_memory"]
        self.assertTrue(skipped)
        self.assertIn("are allowed", skipped[0]["reason"])
        self.assert_valid(folder)

    def test_check_alone(self):
        out = self.expect(0, "check", self.config, "--ranks", "2").stdout
        self.assertIn("10 points checked", out)
        self.expect(1, "check", self.config, "--ranks", "2", "--set", "check.tolerance=1e-12")
        self.expect(2, "check", self.config, "--ranks", "2", "--set", "check.max_seq_len=16")

    def test_compare(self):
        folder, _ = self.run_small()
        self.expect(0, "compare", folder, folder)
        slower = self.result(folder)
        for p in slower["points"]:
            if p["status"] == "ok":
                for key in ("median_s", "ci_low_s", "ci_high_s", "min_s", "p95_s"):
                    p["timing"][key] *= 2
                p["timing"]["samples_s"] = [2 * s + 1e-3 * i for i, s in enumerate(p["timing"]["samples_s"] * 5)]
        fast = self.result(folder)
        for p in fast["points"]:
            p["timing"]["samples_s"] = p["timing"]["samples_s"] * 5
        done = lnbench("compare", self.write("fast.json", fast), self.write("slow.json", slower))
        self.assertEqual(done.returncode, 5, done.stdout + done.stderr)
        self.expect(2, "compare", folder, str(self.path / "nothing"))

    def test_env(self):
        file = self.path / "env.json"
        out = self.expect(0, "env", "--json", str(file)).stdout
        self.assertIn("fma peak", out)
        self.assertNotIn(CANARY, file.read_text())
        self.assertIn("cpu", json.loads(file.read_text()))


class Virtual(Case):
    """One process in the place of all ranks."""

    def setUp(self):
        super().setUp()
        self.config = self.write("small.json", dict(SMALL, run={"threads": 1},
                                                    measure={"warmup": 0, "min_samples": 1, "max_samples": 1}))

    def walk(self, *args, out="virtual", code=0, config=None):
        folder = str(self.path / out)
        done = self.expect(code, "run", config or self.config, "--transport", "virtual", "-o", folder, *args)
        return folder, done

    def points(self, folder):
        return {(p["params"]["algorithm"], p["params"]["ranks"], p["params"]["seq_len"]): p for p in self.result(folder)["points"]}

    def assert_same_content(self, a, b, what):
        self.assertEqual(a["input_digest"], b["input_digest"], what)
        self.assertEqual((a["rows"], a["absent_rows"], a["nan_values"]), (b["rows"], b["absent_rows"], 0), what)
        for key in ("sum", "sum_squares", "min", "max", "lse_sum"):  # fp32 rounds sums in another order
            self.assertAlmostEqual(a[key], b[key], delta=1e-5 * (abs(a["sum_squares"]) + abs(a["lse_sum"])), msg=f"{what} {key}")

    def test_any_number_of_ranks_gives_the_same_as_real_ones(self):
        sweep = ("--set", "sweep.algorithm=dilated,ring", "--set", "dilated.segments=[64,256,\"sequence\"]",
                 "--filter", "algorithm==dilated || ranks<=16")
        folder, done = self.walk(*sweep, "--set", "sweep.ranks=1,2,16,64,128")
        self.assertIn("(virtual)", done.stdout)
        virtual = self.points(folder)
        self.assertEqual({p["status"] for p in virtual.values()}, {"ok"})
        for (algorithm, ranks, seq_len), p in virtual.items():
            self.assertEqual((p["params"]["transport"], p["source"]), ("virtual", "measured"))
            self.assertEqual(p["memory"]["measured_peak_bytes"], p["memory"]["predicted_peak_bytes"])
            self.assertGreaterEqual(p["check"]["queries"], 64)
            self.assertEqual(len(p["per_rank"]), ranks)
            self.assert_same_content(virtual[algorithm, 1, seq_len]["content"], p["content"], (algorithm, ranks))
        run = ("run", self.config, *sweep, "-o")
        real = {"threads": self.expect(0, *run, str(self.path / "threads"), "--ranks", "2")}
        if MPIRUN:
            real["mpi"] = self.expect(0, *run, str(self.path / "mpi"), ranks=2)
        for transport in real:
            for key, p in self.points(self.path / transport).items():
                self.assertEqual(p["params"]["transport"], transport)
                self.assert_same_content(virtual[key]["content"], p["content"], (transport, key))
        Run.assert_valid(self, folder, str(self.path / "threads"))

    def test_a_killed_walk_goes_on_where_it_was(self):
        config = self.write("walk.json", dict(SMALL, run={"threads": 1}, sweep={"algorithm": "dilated", "seq_len": "64K", "ranks": 64},
                                              measure={"warmup": 0, "min_samples": 2, "max_samples": 2}))
        whole, _ = self.walk(config=config, out="whole")
        folder = self.path / "cut"
        process = subprocess.Popen([LNBENCH, "run", config, "--transport", "virtual", "-o", str(folder)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))
        lines = 0
        while process.poll() is None and lines < 5:
            journal = list(folder.glob("shards-*.jsonl"))
            lines = journal[0].read_text().count("\n") if journal else 0
            time.sleep(0.002)
        process.kill()
        process.wait()
        journal = next(folder.glob("shards-*.jsonl"))
        before = journal.read_text()
        self.assertLess(before.count("\n"), 129, "it was too fast to be killed")
        self.expect(4, "run", config, "--transport", "virtual", "--resume", str(folder), "--max-time", "0s")
        self.expect(0, "run", config, "--transport", "virtual", "--resume", str(folder))
        after = journal.read_text()
        self.assertTrue(after.startswith(before[: before.rfind("\n") + 1]), "finished shards were walked again")
        self.assertEqual(after.count("\n"), 129)
        (a,), (b,) = self.points(whole).values(), self.points(folder).values()
        self.assertEqual(a["content"], b["content"])  # every bit, the output's digest included
        self.assertEqual(a["check"], b["check"])
        self.assertIn("another plan", self.expect(2, "run", config, "--transport", "virtual", "--resume", str(folder),
                                                  "--allow-changed-machine", "--replay", "3").stderr
                      if self.forget(folder) else "")

    def test_an_extrapolated_walk_goes_on_where_it_was(self):
        # Its share follows from the peak that is measured at each start.
        config = self.write("share.json", dict(SMALL, run={"threads": 1}, sweep={"algorithm": "ring", "seq_len": "64K", "ranks": 64},
                                               virtual={"exact_point_s": 0.5}, measure={"warmup": 0, "min_samples": 1, "max_samples": 1}))
        folder = self.path / "cut"
        process = subprocess.Popen([LNBENCH, "run", config, "--transport", "virtual", "-o", str(folder)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))
        while process.poll() is None and not any(f.read_text().count("\n") for f in folder.glob("shards-*.jsonl")):
            time.sleep(0.001)
        process.kill()
        process.wait()
        self.forget(folder)
        for _ in range(3):
            self.expect(0, "run", config, "--transport", "virtual", "--resume", str(folder))
            (p,) = self.points(folder).values()
            self.assertEqual(p["source"], "extrapolated")
            self.forget(folder)

    def test_ctrl_c_says_what_it_waits_for_and_ends_at_once_when_pressed_again(self):
        config = self.write("long.json", dict(SMALL, run={"threads": 1}, sweep={"algorithm": "ring", "seq_len": "512K", "ranks": 2},
                                              measure={"warmup": 0, "min_samples": 1, "max_samples": 1}))
        folder = self.path / "stopped"
        process = subprocess.Popen([LNBENCH, "run", config, "--transport", "virtual", "-o", str(folder)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        while not list(folder.glob("shards-*.jsonl")):
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=10), -signal.SIGINT)
        self.assertIn("Ctrl-C again", process.stderr.read())
        process.stderr.close()

    @staticmethod
    def forget(folder):
        (folder / "points.jsonl").write_text("")
        return True

    def test_replayed_ranks(self):
        one = ("--set", "sweep.algorithm=dilated", "--set", "sweep.seq_len=64K", "--ranks", "64", "--replay", "63,0,17")
        folder, _ = self.walk(*one)
        (p,) = self.points(folder).values()
        self.assertEqual((p["source"], p["status"], p["params"]["ranks"]), ("replayed", "ok", 64))
        self.assertEqual([r["rank"] for r in p["per_rank"]], [0, 17, 63])
        self.assertEqual(p["timing"]["median_s"], max(r["median_s"] for r in p["per_rank"]))
        self.assertIsNone(p["phases"]["communication_s"])
        self.assertEqual(p["memory"]["measured_peak_bytes"], p["memory"]["predicted_peak_bytes"])
        modelled, _ = self.walk(*one, "--set", "virtual.latency_s=0.5", "--set", "virtual.bytes_per_s=1e9", out="modelled")
        (q,) = self.points(modelled).values()
        self.assertGreater(q["phases"]["communication_s"], 0.5)
        self.assertAlmostEqual(q["timing"]["median_s"], sum(q["phases"][k] for k in ("compute_s", "merge_s", "communication_s")))
        Run.assert_valid(self, folder, modelled)
        self.assertIn("--transport virtual", self.expect(2, "run", self.config, "--replay", "0").stderr)
        self.assertIn("0 to 1", self.walk("--ranks", "2", "--replay", "2", out="x", code=2)[1].stderr)
        self.walk("--replay", "1,x", out="y", code=2)
        self.assertIn("bytes_per_s", self.walk(*one, "--set", "virtual.latency_s=1", out="z", code=2)[1].stderr)

    def test_an_extrapolated_point_beside_a_measured_one(self):
        exact = ("--set", "sweep.algorithm=ring,all_gather,dilated", "--set", "sweep.seq_len=8K", "--set", "sweep.ranks=8")
        whole = self.points(self.walk(*exact)[0])
        folder, _ = self.walk(*exact, "--set", "virtual.sample_share=0.25", out="some")
        for (algorithm, *_), q in self.points(folder).items():
            p = whole[algorithm, 8, 8192]
            self.assertEqual(p["work"]["flops"], q["work"]["flops"])
            self.assertEqual(q["status"], "ok")
            if algorithm == "dilated":  # never sampled
                self.assertEqual(q["source"], "measured")
                continue
            self.assertEqual(q["source"], "extrapolated")
            self.assertAlmostEqual(q["metrics"]["measured_share"], 0.25, delta=0.05)
            self.assertNotIn("content", q)
            self.assertEqual(q["check"]["status"], "not_run")
            self.assertGreater(q["timing"]["median_s"], 0)
        Run.assert_valid(self, folder)

    def test_memory_decides_how_many_sequences_walk_at_once(self):
        batch = ("--set", "sweep.algorithm=dilated", "--set", "sweep.seq_len=1K", "--set", "sweep.ranks=2",
                 "--set", "sweep.batch={\"rule\": \"constant_tokens\", \"tokens_per_batch\": \"20K\"}")
        whole, _ = self.walk(*batch)
        # Slots of 20 sequences take 3.8 MB, those of 5 a quarter; the kernel's workspace 2.5 MB.
        parts, _ = self.walk(*batch, "--set", "memory.limit_bytes=4MB", "--set", "run.threads=1", out="parts")
        (a,), (b,) = self.points(whole).values(), self.points(parts).values()
        self.assertEqual(a["metrics"]["walk_batches_at_once"], 20)
        self.assertLess(b["metrics"]["walk_batches_at_once"], 20)
        self.assertLessEqual(b["memory"]["measured_peak_bytes"], 4e6)
        self.assertEqual(a["content"]["input_digest"], b["content"]["input_digest"])
        self.assertEqual(a["content"]["output_digest"], b["content"]["output_digest"])

    def test_what_cannot_be_walked_says_why(self):
        folder, _ = self.walk("--set", "sweep.algorithm=query_gather,all_gather,dilated", "--set", "sweep.seq_len=64K",
                              "--set", "sweep.ranks=4", "--set", "memory.limit_bytes=16MB", "--set", "run.threads=1")
        p = self.points(folder)
        self.assertEqual(p["query_gather", 4, 65536]["status"], "skipped_unsupported")
        self.assertIn("exchange results", p["query_gather", 4, 65536]["reason"])
        self.assertEqual(p["all_gather", 4, 65536]["status"], "skipped_memory")
        self.assertIn("needs", p["all_gather", 4, 65536]["reason"])
        self.assertEqual(p["dilated", 4, 65536]["status"], "ok")

    def test_check_and_no_mpirun(self):
        self.assertIn("wrong", self.expect(0, "check", self.config, "--transport", "virtual", "--ranks", "3").stdout)
        if MPIRUN:
            done = lnbench("run", self.config, "--transport", "virtual", ranks=2)
            self.assertEqual(done.returncode, 2)
            self.assertIn("without mpirun", done.stderr)


@unittest.skipUnless(MPIRUN, "no MPI in this build")
class Mpi(Case):
    def test_a_sweep_under_mpirun(self):
        folder = str(self.path / "mpi")
        done = self.expect(0, "run", self.config, "-o", folder, "--set", "sweep.ranks=1,2,3", ranks=3)
        result = self.result(folder)
        self.assertEqual(result["summary"]["verdict"], "pass")
        ok = [p for p in result["points"] if p["status"] == "ok"]
        self.assertEqual(len(ok), 14)
        self.assertEqual({p["params"]["transport"] for p in ok}, {"mpi"})
        self.assertEqual(done.stdout.count("# result:"), 1)
        self.assertIn("mpirun -np 3", result["run"]["argv"] if isinstance(result["run"].get("argv"), str)
                      else json.dumps(result["run"]))

    def test_errors_speak_once_and_keep_their_exit_code(self):
        done = lnbench("run", "nowhere.json", ranks=2)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count("nowhere.json"), 1, done.stderr)

    def test_an_error_on_one_rank_ends_all(self):
        full = self.path / "full"
        full.mkdir()
        (full / "something").write_text("x")
        for args in (("run", self.config, "-o", str(full)), ("run", self.config, "--resume", str(self.path / "none")),
                     ("check", self.config, "--set", "check.max_seq_len=16")):
            done = lnbench(*args, ranks=2)
            self.assertEqual(done.returncode, 2, f"{args}: {done.stderr}")
            self.assertIn("error:", done.stderr)

    def test_a_signal_to_mpirun_finishes_the_point(self):
        long = dict(SMALL, measure={"warmup": 0, "min_samples": 2000, "max_samples": 2000})
        config, folder = self.write("long.json", long), self.path / "out"
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1")
        process = subprocess.Popen([MPIRUN, "--oversubscribe", "--bind-to", "none", "-np", "2", LNBENCH, "run", config, "-o",
                                    str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        points = folder / "points.jsonl"
        for _ in range(600):
            if points.exists() and points.read_text().count("\n") >= 1:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.wait(timeout=120), 4)
        self.assertEqual(json.loads((folder / "result.json").read_text())["summary"]["verdict"], "incomplete")

    def test_comm(self):
        out = self.expect(0, "comm", "--max-bytes", "64KiB", ranks=3).stdout
        rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
        self.assertEqual({row[0] for row in rows}, {"send_recv", "all_gather", "all_to_all"})
        for row in rows:
            self.assertGreater(float(row[2]), 0)

    def test_check_on_more_ranks_than_cores(self):
        self.assertIn("wrong", self.expect(0, "check", self.config, "--set", "sweep.ranks=5", ranks=5).stdout)


if __name__ == "__main__":
    unittest.main()

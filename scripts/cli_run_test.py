#!/usr/bin/env python3
"""Real runs by the command line, on threads and on MPI ranks: results, stops, resumes, errors. Run by ctest."""
import base64
import csv
import fcntl
import gzip
import json
import os
import pathlib
import pty
import re
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import termios
import unittest

from cli_case import LNBENCH, MPIRUN, ROOT, SMALL, Case, lnbench

# Two branches: their gradients of a query have the same sum in either order.
PASSES = ("--set", "sweep.pass=forward,backward,forward_backward", "--set", "sweep.keep_gathered=false,true",
          "--set", "sweep.seq_len=256", "--set", "dilated.segments=64,sequence")


def read_terminal(process, master):
    text = b""
    while process.poll() is None or select.select([master], [], [], 0)[0]:
        if select.select([master], [], [], 0.1)[0]:
            text += os.read(master, 65536)
    return text.decode()


class SmallRun(Case):
    def run_small(self, *args, code=0, out="out", **more):
        folder = str(self.path / out)
        done = self.expect(code, "run", self.config, "-o", folder, "--ranks", "2", *args, **more)
        return folder, done


    def assert_right_passes(self, folder, count):
        """Every algorithm computes the same on the same ranks. Rows that are kept change what is sent, and no gradient."""
        names = {"algorithm": None, "pass": "forward", "keep_gathered": False}
        points = {tuple(p["params"].get(*name) for name in names.items()): p for p in self.result(folder)["points"]}
        self.assertEqual(len(points), count)
        for (algorithm, name, kept), p in points.items():
            self.assertEqual(p["status"], "ok", p["reason"])
            self.assert_right_pass(p, points[algorithm, "forward", False], name)
            if kept:
                again = points[algorithm, name, False]
                self.assertEqual(p["content"], again["content"])
                self.assertLess(p["comm"]["predicted_bytes_per_rank"], again["comm"]["predicted_bytes_per_rank"])

    def assert_right_pass(self, p, forward, name):
        """`forward`: the point of the same problem."""
        factor = {"forward": 1, "backward": 2.5, "forward_backward": 3.5}[name]
        self.assertEqual(p["work"]["flops"], factor * forward["work"]["flops"])
        self.assertEqual(p["comm"]["closed_form_bytes_per_rank"], p["comm"]["predicted_bytes_per_rank"])
        self.assertEqual(p["memory"]["measured_peak_bytes"], p["memory"]["predicted_peak_bytes"])
        self.assertEqual(p["content"]["output_digest"], forward["content"]["output_digest"])
        gradients = p["check"].get("gradients")
        self.assertEqual(gradients is None, name == "forward")
        if gradients:
            for law in ("sum_dk", "q_dq_k_dk", "v_dv_o_do"):
                self.assertLessEqual(gradients[law], gradients["law_tolerance"])
            self.assertLessEqual(gradients["dk_rel_l2_error"], p["check"]["tolerance"])
            self.assertTrue(p["content"]["dq_digest"])


class Measured(SmallRun):
    """Compares times: with every core to itself."""

    def test_a_disturbed_point_is_measured_again(self):
        """Two other programs take half of each core: every time is measured three times, and decides nothing."""
        others = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in os.sched_getaffinity(0)]
        try:
            folder, done = self.run_small("--set", "sweep.algorithm=local", "--set", "sweep.seq_len=4K", "--set", "sweep.ranks=1",
                                          "--set", "measure.max_samples=30", "--set", "measure.min_samples=30",
                                          "--set", "measure.disturbed_budget=100")
        finally:
            for other in others:
                other.kill()
                other.wait()
        result = self.result(folder)
        (point,) = result["points"]
        self.assertEqual(point["metrics"]["times_measured"], 3)
        self.assertEqual(list(result["summary"]["disturbed"]), [point["id"]])
        self.assertEqual(done.stderr.count("measured again"), 2)
        self.assertIn("# disturbed, decides no claim about time: " + point["id"], done.stdout)
        self.assert_valid(folder)

    def test_more_ranks_than_cores(self):
        folder = str(self.path / "out")
        done = self.expect(0, "run", self.config, "-o", folder, "--ranks", "8", "--set", "sweep.ranks=1,8",
                           "--set", "sweep.seq_len=1K", "--set", "sweep.algorithm=ring", "--set", "run.threads=1")
        cores = len(os.sched_getaffinity(0))
        number, prefix = re.search(r"peak of a core ([0-9.]+) ([kMGT])FLOP/s", done.stdout).groups()
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
            self.assertLess(p["work"]["peak_flops_per_s"], 1.5 * peak * used)  # the cores', not the ranks'
            self.assertNotEqual(0, p["work"]["share_of_peak"])  # null beside a busy program


class Run(SmallRun):
    @classmethod
    def setUpClass(cls):
        """One run of the small sweep, for every test that reads one and changes nothing in it."""
        super().setUpClass()
        kept = tempfile.TemporaryDirectory()
        cls.addClassCleanup(kept.cleanup)
        config, cls.finished = pathlib.Path(kept.name) / "small.json", pathlib.Path(kept.name) / "out"
        config.write_text(json.dumps(SMALL))
        cls.done = lnbench("run", str(config), "-o", str(cls.finished), "--ranks", "2")

    def test_a_sweep_on_threads(self):
        folder, done = self.finished, self.done
        self.assertEqual(done.returncode, 0, done.stderr)
        result = self.result(folder)
        self.assertEqual(result["summary"]["verdict"], "pass")
        ok = [p for p in result["points"] if p["status"] == "ok"]
        self.assertEqual(len(ok), 10)
        for p in ok:
            self.assertEqual(p["params"]["transport"], "threads")
            self.assertEqual(p["check"]["status"], "pass")
            self.assertGreaterEqual(p["check"]["queries"], 64)
            self.assertEqual(p["comm"]["counted_bytes_per_rank"], p["comm"]["predicted_bytes_per_rank"])
            self.assertEqual(p["comm"]["closed_form_bytes_per_rank"], p["comm"]["predicted_bytes_per_rank"])
            self.assertEqual(p["comm"]["closed_form_messages_per_rank"], p["comm"]["predicted_messages_per_rank"])
            self.assertNotIn("modelled_bytes_per_rank", p["comm"])
            self.assertEqual(p["memory"]["measured_peak_bytes"], p["memory"]["predicted_peak_bytes"])
            self.assertLessEqual(p["memory"]["closed_form_bytes"], p["memory"]["predicted_peak_bytes"])
            self.assertEqual(len(p["timing"]["samples_s"]), 3)
        self.assertEqual({p["reason"] is None for p in ok}, {True})
        self.assertEqual(sum(not line.startswith("#") for line in done.stdout.splitlines()), 12)
        self.assertLessEqual(max(map(len, done.stdout.splitlines()[:-1])), 100)  # the last one is a path
        self.assertNotIn("\x1b", done.stdout + done.stderr)
        self.assert_valid(folder)
        self.assert_no_secret(pathlib.Path(folder))
        # The same points from disk, again and again: nothing is left to do.
        before = (pathlib.Path(folder) / "points.jsonl").read_text()
        self.expect(0, "run", self.config, "--ranks", "2", "--resume", folder)
        self.assertEqual(before, (pathlib.Path(folder) / "points.jsonl").read_text())
        error = self.expect(2, "run", self.config, "--ranks", "2", "--resume", folder, "--set", "model.heads=4").stderr
        self.assertIn("config", error)
        error = self.expect(2, "run", "--ranks", "2", "--resume", folder).stderr
        self.assertRegex(error, rf'CONFIG is required\n  hint: [^\n]*"command" of {re.escape(str(folder))}/run\.json\n$')

    def test_passes(self):
        folder, done = self.run_small(*PASSES, "--set", "sweep.algorithm=dilated,ring,ulysses", "--set", "sweep.ranks=2")
        self.assert_right_passes(folder, 11)
        self.assertIn("backward", done.stdout)
        self.assert_valid(folder)

    def test_a_wrong_gradient_is_never_accepted(self):
        folder, _ = self.run_small("--set", "check.tolerance=1e-12", "--set", "sweep.pass=backward", "--set", "sweep.seq_len=256",
                                   "--set", "sweep.algorithm=ring", code=1)
        self.assertEqual({p["status"] for p in self.result(folder)["points"]}, {"check_failed"})

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
        lines = (self.path / "out/points.jsonl").read_text().splitlines()
        ids = [json.loads(line)["id"] for line in lines]
        self.assertEqual(len(set(ids)), len(ids), "what was finished is not measured again")

    def test_a_signal_finishes_the_point_and_keeps_it(self):
        long = dict(SMALL, measure={"warmup": 0, "min_samples": 400, "max_samples": 400})
        config, folder = self.write("long.json", long), self.path / "out"
        process = subprocess.Popen([LNBENCH, "run", config, "-o", str(folder), "--ranks", "2"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        points = self.stopped_after_a_point(process, folder)
        finished = [json.loads(line)["id"] for line in points.read_text().splitlines()]
        self.assertGreaterEqual(len(finished), 1)
        self.assertLess(len(finished), 12)

    def test_points_that_do_not_fit_are_skipped_with_a_reason(self):
        folder, _ = self.run_small("--set", "memory.limit_bytes=1500000")
        skipped = [p for p in self.result(folder)["points"] if p["status"] == "skipped_memory"]
        self.assertTrue(skipped)
        self.assertIn("are allowed", skipped[0]["reason"])
        self.assert_valid(folder)

    def test_a_dumb_terminal_gets_no_escape_sequences(self):
        for kind, expected in (("dumb", False), ("xterm", True)):
            master, slave = pty.openpty()
            process = subprocess.Popen([LNBENCH, "run", self.config, "--ranks", "2", "-o", str(self.path / kind)], stdout=slave, stderr=slave, cwd=ROOT,
                                       env={k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": kind})
            text = read_terminal(process, master)
            self.assertEqual(process.returncode, 0, text)
            self.assertEqual("\x1b" in text, expected, text)
            self.assertEqual("\r" in text.replace("\r\n", "\n"), expected, text)
            self.assertIn("verdict: pass", text)
            os.close(master)
            os.close(slave)

    def test_progress_and_rows_have_lines_of_their_own(self):
        # Both on one terminal of 90 columns, which progress must not fill.
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
        for command in (["run", self.config, "--ranks", "2", "-o", str(self.path / "pty")],
                        ["simulate", self.config, "--cluster", "h100", "--set", "model.dtype=bf16", "-o", str(self.path / "sim")],
                        ["compare", str(self.path / "sim"), str(self.path / "sim")],
                        ["plan", self.config], ["depth", self.config],
                        ["recommend", "--cluster", "h100", "--seq-len", "64K", "--ranks", "8"]):
            process = subprocess.Popen([LNBENCH, *command], stdout=slave, stderr=slave, cwd=ROOT, env=os.environ | {"TERM": "xterm"})
            text = read_terminal(process, master)
            self.assertEqual(process.returncode, 0, text)
            shown = re.sub("\x1b\\[[0-9]*m", "", text)
            self.assertGreater(shown.count("\r\x1b[K[") + shown.count("\r\x1b[K#"), 0, "no progress was shown")
            for line in shown.split("\n"):
                for part in line.rstrip("\r").split("\r\x1b[K"):  # each is taken away before the next
                    if part.startswith("["):
                        self.assertIsNone(re.search("[0-9a-f]{8} ", part), f"{command[0]}: {part!r}")
                        self.assertTrue(len(part) < 90 or part == line.rstrip("\r").split("\r\x1b[K")[-1], part)
                    else:
                        self.assertNotRegex(part, r"\[[0-9]+/[0-9]+\]", command[0])
        os.close(master)
        os.close(slave)

    def test_every_write_ends_its_line(self):
        # A launcher merges both streams write by write. A packet is one write.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen([LNBENCH, "run", self.config, "--ranks", "2", "-o", str(self.path / "writes")],
                                       stdout=theirs, stderr=theirs, cwd=ROOT)
        with ours:
            writes = [packet.decode() for packet in iter(lambda: ours.recv(1 << 16), b"")]
        self.assertEqual(process.wait(60), 0)
        self.assertTrue(any(re.search(r"^\[[0-9]+/[0-9]+\]", w) for w in writes) and any(re.search("^ *[0-9a-f]{8} ", w) for w in writes), writes)
        self.assertEqual([w for w in writes if not w.endswith("\n")], [])

    def test_what_a_sweep_needs_and_this_machine_lacks_is_one_error(self):
        if "none: " in self.expect(0, "env").stdout:
            error = self.expect(2, "run", "h100-8", "--ranks", "8", "-o", str(self.path / "x")).stderr
            self.assertIn("need GPUs", error)
            self.assertLess(error.count("\n"), 4)
        error = self.expect(2, "run", "quick-cluster", "--ranks", "2", "-o", str(self.path / "x")).stderr
        self.assertIn("lnbench simulate", error)
        self.assertFalse((self.path / "x").exists())
        config = self.write("both.json", dict(SMALL, cluster={"file": "configs/clusters/h100-ndr400.json"}))
        self.assertIn("names the cluster", self.expect(0, "check", config, "--ranks", "2").stderr)

    def test_export(self):
        folder = str(self.finished)
        points = self.result(folder)["points"]
        rows = list(csv.DictReader(self.expect(0, "export", folder).stdout.splitlines()))
        self.assertEqual([row["id"] for row in rows], [p["id"] for p in points])
        for row, p in zip(rows, points, strict=True):
            self.assertEqual(row["params.seq_len"], str(p["params"]["seq_len"]))
            if p["status"] == "ok":
                self.assertEqual(float(row["timing.median_s"]), p["timing"]["median_s"])
        file = self.path / "both.jsonl"
        self.expect(0, "export", folder, folder, "--format", "jsonl", "-o", str(file))
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        self.assertEqual(len(lines), 2 * len(points))
        self.assertEqual(lines[0]["timing.samples_s"], points[0]["timing"]["samples_s"])
        self.expect(2, "export", str(self.path / "nothing"))

    def test_check_alone(self):
        out = self.expect(0, "check", self.config, "--ranks", "2").stdout
        self.assertIn("10 points checked", out)
        self.expect(1, "check", self.config, "--ranks", "2", "--set", "check.tolerance=1e-12")
        self.expect(2, "check", self.config, "--ranks", "2", "--set", "check.max_seq_len=16")

    def test_compare(self):
        folder = str(self.finished)
        self.assertIn("cannot decide", self.expect(1, "compare", folder, folder).stdout)  # three samples a point
        slower = self.result(folder)
        for p in slower["points"]:
            if p["status"] == "ok":
                for key in ("median_s", "ci_low_s", "ci_high_s", "min_s", "p95_s"):
                    p["timing"][key] *= 2
                p["timing"]["samples_s"] = [2 * s + 1e-3 * i for i, s in enumerate(p["timing"]["samples_s"] * 5)]
        fast = self.result(folder)
        for p in fast["points"]:
            p["timing"]["samples_s"] = p["timing"]["samples_s"] * 5
        fast["summary"]["disturbed"] = slower["summary"]["disturbed"] = {}
        self.expect(0, "compare", self.write("fast.json", fast), self.write("fast.json", fast))
        done = lnbench("compare", self.write("fast.json", fast), self.write("slow.json", slower))
        self.assertEqual(done.returncode, 5, done.stdout + done.stderr)
        self.expect(2, "compare", folder, str(self.path / "nothing"))

    def test_a_report_of_two_runs_has_the_verdicts_of_compare(self):
        base, later = str(self.finished), self.path / "later"
        shutil.copytree(base, later)
        result = self.result(later)
        for p in result["points"]:
            if p["status"] == "ok":
                for key in ("median_s", "ci_low_s", "ci_high_s", "min_s", "p95_s"):
                    p["timing"][key] *= 2
                p["timing"]["samples_s"] = [2 * s for s in p["timing"]["samples_s"]]
        (later / "result.json").write_text(json.dumps(result))
        page = self.path / "two" / "report.html"
        self.expect(0, "report", "--compare", base, str(later), "-o", str(page))
        packed = re.search('id="points-compared">([^<]*)<', page.read_text())[1]
        verdicts = json.loads(gzip.decompress(base64.b64decode(packed)))[0]
        shown = verdicts["exact"]
        self.assertEqual(verdicts["key"], "verdict")
        said = json.loads(lnbench("compare", base, str(later), "--format", "json").stdout)
        self.assertEqual(sorted(shown), sorted(row["class"] for row in said))
        beside = json.loads((page.parent / "comparison.json").read_text())["points"]
        self.assertEqual([(p["id"], p["verdict"]) for p in beside], [(row["id"], row["class"]) for row in said])
        self.expect(2, "report", "--compare", base)
        self.assertIn("nothing to report on", self.expect(2, "report").stderr)

    def test_env(self):
        file = self.path / "env.json"
        out = self.expect(0, "env", "--json", str(file)).stdout
        self.assertIn("fma peak", out)
        self.assert_no_secret(self.path)
        self.assertIn("cpu", json.loads(file.read_text()))


@unittest.skipUnless(MPIRUN, "no MPI in this build")
class Mpi(SmallRun):
    def test_a_sweep_under_mpirun(self):
        folder = str(self.path / "mpi")
        done = self.expect(0, "run", self.config, "-o", folder, "--set", "sweep.ranks=1,2,3", ranks=3)
        result = self.result(folder)
        self.assertEqual(result["summary"]["verdict"], "pass")
        ok = [p for p in result["points"] if p["status"] == "ok"]
        self.assertEqual(len(ok), 14)
        self.assertEqual({p["params"]["transport"] for p in ok}, {"mpi"})
        for p in ok:  # dilated gathers by MPI_Iallgatherv, which nobody can count; ring sends
            comm, moved = p["comm"], "modelled" if p["params"]["algorithm"] == "dilated" else "counted"
            for what in ("bytes", "messages"):
                sent = {k: comm.get(f"{k}_{what}_per_rank", 0) for k in ("modelled", "counted")}
                self.assertEqual(sent, {"modelled": 0, "counted": 0} | {moved: comm[f"predicted_{what}_per_rank"]})
                self.assertEqual(comm[f"closed_form_{what}_per_rank"], comm[f"predicted_{what}_per_rank"])
        self.assert_no_secret(self.path / "mpi")
        self.assertEqual(done.stdout.count("# result:"), 1)
        self.assertIn("mpirun -np 3", result["run"]["argv"] if isinstance(result["run"].get("argv"), str)
                      else json.dumps(result["run"]))

    def test_passes_under_mpirun(self):
        folder = str(self.path / "mpi")
        self.expect(0, "run", self.config, "-o", folder, *PASSES, "--set", "sweep.algorithm=dilated,ring", "--set", "sweep.ranks=3", ranks=3)
        self.assert_right_passes(folder, 8)

    def test_a_model_under_mpirun(self):
        folder = str(self.path / "mpi")
        model = ["scope=model", "pass=step", "ranks=2", "seq_len=256", "algorithm=dilated,ring"]
        settings = [f"sweep.{s}" for s in model] + ["model.layers=2", "model.ffn_width=96", "model.vocabulary=61"]
        self.expect(0, "run", self.config, "-o", folder, *(x for s in settings for x in ("--set", s)), ranks=2)
        points = self.result(folder)["points"]
        self.assertEqual([p["status"] for p in points], ["ok", "ok"])
        for p in points:
            heads, branches = p["params"]["heads"], len(p["params"]["branches"])
            self.assertEqual(p["check"]["strata"], branches * heads + 2 * heads + 2 * branches)
            self.assertEqual(p["check"]["strata_left_out"], 0)
            self.assertLess(p["metrics"]["attention_rel_l2_error"], 1e-6)
            self.assertEqual(p["comm"]["closed_form_bytes_per_rank"], p["comm"]["predicted_bytes_per_rank"])

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
        long = dict(SMALL, measure={"warmup": 0, "min_samples": 400, "max_samples": 400})
        config, folder = self.write("long.json", long), self.path / "out"
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1")
        process = subprocess.Popen([MPIRUN, "--oversubscribe", "--bind-to", "none", "-np", "2", LNBENCH, "run", config, "-o",
                                    str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        self.stopped_after_a_point(process, folder)
        self.assertEqual(json.loads((folder / "result.json").read_text())["summary"]["verdict"], "incomplete")

    def test_a_choice_that_cannot_be_had_is_said(self):
        args = ("check", self.config, "--ranks", "2", "--set", "sweep.algorithm=ring", "--set", "sweep.ranks=2")
        self.assertIn("note: sweep.collective=linear does not apply to ring", self.expect(0, *args, "--set", "sweep.collective=linear").stderr)
        self.assertNotIn("note", self.expect(0, *args, "--set", "sweep.collective=native,linear").stderr)
        self.assertIn("works on the CPU", self.expect(2, "run", self.config, "--transport", "nccl", "-o", str(self.path / "x")).stderr)
        self.assertFalse((self.path / "x").exists())

    def test_comm(self):
        file = self.path / "comm.json"
        rows = self.rows("comm", "--max-bytes", "64KiB", "--json", file, ranks=3)
        self.assertEqual({row["operation"] for row in rows}, {"send_recv", "exchange", "all_gather", "all_to_all"})
        written = json.loads(file.read_text())
        self.assertEqual((written["transport"], written["ranks"]), ("mpi", 3))
        self.assertEqual([p["rank"] for p in written["places"]], [0, 1, 2])
        for row, kept in zip(rows, written["rows"], strict=True):
            self.assertEqual((row["operation"], int(row["bytes"])), (kept["operation"], kept["bytes"]))
            self.assertEqual(float(row["median_s"]), kept["median_s"])
            self.assertGreater(kept["median_s"], 0)
            bus = kept["bus_bytes_per_s"] / kept["algorithm_bytes_per_s"]
            self.assertAlmostEqual(bus, 1 if row["operation"] in ("send_recv", "exchange") else 2 / 3)
        refused = self.expect(2, "comm", "--json", self.path / "absent" / "comm.json")
        self.assertIn("there is no folder", refused.stderr)

    def test_check_on_more_ranks_than_cores(self):
        self.assertIn("wrong", self.expect(0, "check", self.config, "--set", "sweep.ranks=5", ranks=5).stdout)


if __name__ == "__main__":
    unittest.main()

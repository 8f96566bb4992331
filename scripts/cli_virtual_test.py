#!/usr/bin/env python3
"""Virtual ranks by the command line: the same as real ones, resumes, replays, shares. Run by ctest."""
import hashlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import time
import unittest

from cli_case import LNBENCH, MPIRUN, SMALL, Case, lnbench


class Virtual(Case):
    """One process in the place of all ranks."""

    def setUp(self):
        super().setUp()
        self.config = self.write("small.json", dict(SMALL, run={"threads": 1},
                                                    measure={"warmup": 0, "min_samples": 1, "max_samples": 1}))

    def walk(self, *args, out="virtual", code=0, config=None):
        for attempt in ("", "-again", "-once-more"):  # a neighbour may have slowed the machine while its peak was measured
            folder = str(self.path / (out + attempt))
            done = lnbench("run", config or self.config, "--mode", "virtual", "-o", folder, *args)
            if done.returncode != 1 or "faster than the machine's peak" not in done.stdout:
                break
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}\n{done.stderr}")
        return folder, done

    def points(self, folder):
        return {(p["params"]["algorithm"], p["params"]["ranks"], p["params"]["seq_len"]): p for p in self.result(folder)["points"]}

    def assert_same_content(self, a, b, what):
        self.assertEqual(a["input_digest"], b["input_digest"], what)
        self.assertEqual((a["rows"], a["absent_rows"], a["nan_values"]), (b["rows"], b["absent_rows"], 0), what)
        for key in ("sum", "sum_squares", "min", "max", "lse_sum"):  # fp32 rounds sums in another order
            self.assertAlmostEqual(a[key], b[key], delta=1e-5 * (abs(a["sum_squares"]) + abs(a["lse_sum"])), msg=f"{what} {key}")

    def assert_same_gradients(self, a, b, what):
        self.assert_same_content(a["content"], b["content"], what)
        for key in ("q_dq_terms", "k_dk_terms", "v_dv_terms"):
            expected = a["check"]["gradients"][key]
            self.assertGreater(expected, 0, what)
            self.assertAlmostEqual(b["check"]["gradients"][key], expected, delta=1e-5 * expected, msg=f"{what} {key}")

    def test_one_wrong_row_and_one_wrong_lse_are_seen(self):
        sweep = ("--set", "sweep.algorithm=dilated", "--set", "sweep.ranks=4", "--set", "sweep.seq_len=1K")
        folder, _ = self.walk(*sweep, out="sound")
        (point,) = self.result(folder)["points"]
        journal = next(pathlib.Path(folder).glob("shards-*.jsonl"))
        lines = journal.read_text().splitlines()
        self.assertEqual(point["check"]["max_rel_error"], max(json.loads(line)["worst_row"] for line in lines[1:]))
        for key in ("max_rel_error", "rel_l2_error", "spread_rel_l2_error"):
            self.assertTrue(0 < point["check"][key] < 1e-5, key)
        for key in ("worst_row", "worst_lse"):
            line = json.loads(lines[2])
            del line["sha256"]
            line[key] = 0.01
            body = json.dumps(line, separators=(",", ":"))[:-1]
            seal = hashlib.sha256(body.encode()).hexdigest()[:16]
            journal.write_text("\n".join([*lines[:2], f'{body},"sha256":"{seal}"}}', *lines[3:]]) + "\n")
            (pathlib.Path(folder) / "points.jsonl").write_text("")
            self.expect(1, "run", self.config, "--mode", "virtual", *sweep, "--resume", folder)
            (wrong,) = self.result(folder)["points"]
            self.assertEqual((wrong["status"], wrong["check"]["status"]), ("check_failed", "fail"), key)

    def test_any_number_of_ranks_gives_the_same_as_real_ones(self):
        sweep = ("--set", "sweep.algorithm=dilated,ring", "--set", "dilated.segments=[64,256,\"sequence\"]",
                 "--filter", "algorithm==dilated || ranks<=16")
        folder, done = self.walk(*sweep, "--set", "sweep.ranks=1,2,16,64,128")
        self.assertIn("(virtual)", done.stdout)
        virtual = self.points(folder)
        self.assertEqual({p["status"] for p in virtual.values()}, {"ok"})
        for (algorithm, ranks, seq_len), p in virtual.items():
            self.assertEqual((p["params"]["mode"], p["params"]["transport"], p["source"]), ("virtual", None, "measured"))
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
        self.assert_valid(folder, str(self.path / "threads"))

    def killed_walk(self, config, folder, *options):
        """Ends a walk once five of its shards stand in the journal, and returns the journal."""
        process = subprocess.Popen([LNBENCH, "run", config, "--mode", "virtual", "-o", str(folder), *options],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))
        lines = 0
        while process.poll() is None and lines < 5:
            journal = list(folder.glob("shards-*.jsonl"))
            lines = journal[0].read_text().count("\n") if journal else 0
            time.sleep(0.002)
        process.kill()
        process.wait()
        (journal,) = folder.glob("shards-*.jsonl")
        return journal

    def test_a_killed_walk_goes_on_where_it_was(self):
        config = self.write("walk.json", dict(SMALL, run={"threads": 1}, sweep={"algorithm": "dilated", "seq_len": "64K", "ranks": 64},
                                              measure={"warmup": 0, "min_samples": 2, "max_samples": 2}))
        whole, _ = self.walk(config=config, out="whole")
        folder = self.path / "cut"
        journal = self.killed_walk(config, folder)
        os.truncate(journal, journal.stat().st_size - 7)  # torn
        before = journal.read_text()
        self.assertLess(before.count("\n"), 129, "it was too fast to be killed")
        stopped = self.expect(4, "run", config, "--mode", "virtual", "--resume", str(folder), "--max-time", "0s")
        (line,) = re.findall("go on with: lnbench (.*)", stopped.stderr)
        self.expect(0, *shlex.split(line))
        after = journal.read_text()
        self.assertTrue(after.startswith(before[: before.rfind("\n") + 1]), "finished shards were walked again")
        self.assertEqual(after.count("\n"), 129)
        (a,), (b,) = self.points(whole).values(), self.points(folder).values()
        self.assertEqual(a["content"], b["content"])  # every bit, the output's digest included
        checks = [{k: v for k, v in p["check"].items() if not k.endswith("_s")} for p in (a, b)]
        self.assertEqual(*checks)
        self.assertEqual(b["metrics"]["walk_resumed_units"], before.count("\n") - 1)
        self.assertNotIn("walk_resumed_units", a["metrics"])
        self.forget(folder)
        lines = after.splitlines(keepends=True)
        journal.write_text("".join(lines[:3]) + '{"walk": "much"\n' + "".join(lines[3:]))
        self.assertIn(f"'{journal}', line 4", self.expect(2, "run", config, "--mode", "virtual", "--resume", str(folder)).stderr)
        journal.write_text(after)
        self.assertIn("another plan", self.expect(2, "run", config, "--mode", "virtual", "--resume", str(folder),
                                                  "--allow-changed-machine", "--replay", "3").stderr
                      if self.forget(folder) else "")

    def test_gradients_are_those_of_real_ranks_and_go_on_after_a_kill(self):
        sweep = {"algorithm": "dilated", "seq_len": "8K", "ranks": [1, 2, 16], "pass": ["backward", "forward_backward"]}
        config = self.write("backward.json", dict(SMALL, run={"threads": 1}, sweep=sweep, dilated={"segments": [64, 256, "sequence"]},
                                                  measure={"warmup": 0, "min_samples": 1, "max_samples": 1}))
        folder, _ = self.walk(config=config, out="whole")
        self.expect(0, "run", config, "-o", str(self.path / "threads"), "--ranks", "2")
        points = self.result(folder)["points"]
        real = [p for p in self.result(self.path / "threads")["points"] if p["status"] == "ok"]
        self.assertEqual((len(points), len(real)), (6, 4))
        for p in points:
            self.assertEqual(p["status"], "ok", p["reason"])
            self.assertEqual(p["memory"]["measured_peak_bytes"], p["memory"]["predicted_peak_bytes"])
            gradients = p["check"]["gradients"]
            self.assertGreater(gradients["keys"], 4)
            self.assertLess(max(gradients[k] for k in ("dq_rel_l2_error", "dk_rel_l2_error", "dv_rel_l2_error")), 2e-6)
            self.assertLess(max(gradients[k] for k in ("sum_dk", "q_dq_k_dk", "v_dv_o_do")), 1e-6)
            self.assert_same_gradients(points[0], p, (p["params"]["ranks"], p["params"]["pass"]))
            self.assertEqual("shared_gradients" in p["memory"]["by_tag"], p["params"]["ranks"] > 1)
        for p in real:
            self.assert_same_gradients(points[0], p, "threads")
        alone = [p for p in points + real if p["params"]["ranks"] == 1]  # the same bits wherever nothing is shared
        for key in ("output_digest", "dq_digest", "dk_digest", "dv_digest"):
            self.assertEqual(len({p["content"][key] for p in alone}), 1, key)
        self.assert_valid(folder)
        cut = pathlib.Path(folder)
        self.assertFalse(list(cut.glob("*.sums*")))  # nothing is left to add to
        some, _ = self.walk("--replay", "1,6", "--filter", "ranks == 16", config=config, out="replayed")
        for p in self.points(some).values():
            self.assertEqual((p["source"], p["status"], len(p["per_rank"])), ("replayed", "ok", 2), p["reason"])
            self.assertGreater(p["check"]["gradients"]["keys"], 4)
        self.assert_valid(some)
        out = self.path / "cut"
        journal = self.killed_walk(config, out, "--filter", "ranks == 16")
        before = journal.read_text()
        self.assertLess(before.count("\n"), 17, "it was too fast to be killed")
        self.assertTrue(list(out.glob("*.sums*")))
        self.expect(0, "run", config, "--mode", "virtual", "--resume", str(out), "--filter", "ranks == 16")
        self.assertTrue(journal.read_text().startswith(before[: before.rfind("\n") + 1]), "finished shards were walked again")
        whole = {p["id"]: p for p in points}
        for p in self.result(out)["points"]:
            self.assertEqual(p["content"], whole[p["id"]]["content"])  # every bit
            self.assertEqual(p["check"]["gradients"], whole[p["id"]]["check"]["gradients"])

    def test_an_extrapolated_walk_goes_on_where_it_was(self):
        # Its share follows from the peak that is measured at each start.
        config = self.write("share.json", dict(SMALL, run={"threads": 1}, sweep={"algorithm": "ring", "seq_len": "64K", "ranks": 64},
                                               virtual={"exact_point_s": 0.5}, measure={"warmup": 0, "min_samples": 1, "max_samples": 1}))
        folder = self.path / "cut"
        process = subprocess.Popen([LNBENCH, "run", config, "--mode", "virtual", "-o", str(folder)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))
        while process.poll() is None and not any(f.read_text().count("\n") for f in folder.glob("shards-*.jsonl")):
            time.sleep(0.001)
        process.kill()
        process.wait()
        self.forget(folder)
        for _ in range(3):
            self.expect(0, "run", config, "--mode", "virtual", "--resume", str(folder))
            (p,) = self.points(folder).values()
            self.assertEqual(p["source"], "extrapolated")
            self.forget(folder)

    def test_ctrl_c_says_what_it_waits_for_and_ends_at_once_when_pressed_again(self):
        # On a busy machine it would be expected to take longer than a point may.
        config = self.write("long.json", dict(SMALL, run={"threads": 1}, sweep={"algorithm": "ring", "seq_len": "512K", "ranks": 2},
                                              measure={"warmup": 0, "min_samples": 1, "max_samples": 1, "point_timeout_s": 1e5}))
        folder = self.path / "stopped"
        process = subprocess.Popen([LNBENCH, "run", config, "--mode", "virtual", "-o", str(folder)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not list(folder.glob("shards-*.jsonl")):
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        said = []
        while "Ctrl-C again" not in "".join(said[-1:]):  # two signals that wait are one
            said.append(process.stderr.readline())
            self.assertTrue(said[-1], f"it ended before it was stopped: {said}")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=10), -signal.SIGINT)
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
        self.assertLessEqual(max(r["memory_bytes"] for r in p["per_rank"]), p["memory"]["measured_peak_bytes"])
        self.assertGreater(min(r["memory_bytes"] for r in p["per_rank"]), 0)
        self.assertGreater(min(r["pairs"] for r in p["per_rank"]), 0)
        self.assertIsNone(p["phases"]["communication_s"])
        self.assertEqual(p["memory"]["measured_peak_bytes"], p["memory"]["predicted_peak_bytes"])
        modelled, _ = self.walk(*one, "--set", "virtual.latency_s=0.5", "--set", "virtual.bytes_per_s=1e9", out="modelled")
        (q,) = self.points(modelled).values()
        self.assertGreater(q["phases"]["communication_s"], 0.5)
        self.assertAlmostEqual(q["timing"]["median_s"], sum(q["phases"][k] for k in ("compute_s", "merge_s", "communication_s")))
        self.assert_valid(folder, modelled)
        self.assertIn("use --mode virtual", self.expect(2, "run", self.config, "--transport", "virtual").stderr)
        self.assertIn('"mode": "virtual"', self.expect(2, "plan", self.config, "--set", "run.transport=virtual").stderr)
        self.assertIn("--mode virtual", self.expect(2, "run", self.config, "--replay", "0").stderr)
        self.assertIn("0 to 1", self.walk("--ranks", "2", "--replay", "2", out="x", code=2)[1].stderr)
        self.assertFalse((self.path / "x").exists())  # refused before anything is made
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
        self.assert_valid(folder)

    def test_an_extrapolated_backward_pass(self):
        exact = ("--set", "sweep.algorithm=ring,all_gather", "--set", "sweep.seq_len=8K", "--set", "sweep.ranks=8",
                 "--set", "sweep.pass=backward,forward_backward", "--set", "virtual.sample_share=0.25")
        folder, _ = self.walk(*exact)
        points = self.result(folder)["points"]
        self.assertEqual(len(points), 4)
        for p in points:  # two ranks: nothing is kept from one for the other
            self.assertEqual((p["source"], p["status"], p["check"]["status"]), ("extrapolated", "ok", "not_run"), p["reason"])
            self.assertEqual(len(p["per_rank"]), 2)
            self.assertAlmostEqual(p["metrics"]["measured_share"], 0.25, delta=0.05)
            self.assertNotIn("shared_gradients", p["memory"]["by_tag"])
            self.assertGreater(p["metrics"]["walk_attend_backward_s"], 0)
        self.assertFalse(list(pathlib.Path(folder).glob("*.sums*")))
        self.assert_valid(folder)

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
        self.assertIn("wrong", self.expect(0, "check", self.config, "--mode", "virtual", "--ranks", "3").stdout)
        if MPIRUN:
            done = lnbench("run", self.config, "--mode", "virtual", ranks=2)
            self.assertEqual(done.returncode, 2)
            self.assertIn("without a launcher", done.stderr)


if __name__ == "__main__":
    unittest.main()

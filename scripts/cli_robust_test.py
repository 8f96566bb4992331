#!/usr/bin/env python3
"""Unkind surroundings: closed streams, full disks, few threads, two at once, devices in the place of files. Run by ctest."""
import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

from cli_case import LNBENCH, MPIRUN, ROOT, SMALL, Case, lnbench

CLUSTER = str(ROOT / "configs/clusters/h100-ndr400.json")


def in_shell(script, *args, timeout=60):
    """The program and `args` as "$@" of a shell."""
    return subprocess.run(["bash", "-c", script, "bash", LNBENCH, *args], capture_output=True, text=True, timeout=timeout,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))


class Robust(Case):
    def test_closed_streams_leave_the_journal_alone(self):
        for closed in (">&-", "2>&-", ">&- 2>&- <&-"):
            folder = self.path / closed.replace(">", "o").replace("<", "i").replace("&", "")
            done = in_shell(f'"$@" {closed}', "simulate", self.config, "--set", "model.dtype=bf16", "--cluster", CLUSTER, "-o", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = (folder / "points.jsonl").read_text().splitlines()
            self.assertEqual(len({json.loads(line)["id"] for line in lines}), len(lines))
            self.assertEqual(len(lines), len(self.result(folder)["points"]))

    def test_a_full_disk_is_said(self):
        done = in_shell('"$@" >/dev/full', "plan", self.config)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("standard output could not be written", done.stderr)

    def test_what_is_too_deep_is_refused(self):
        deep = self.write("deep.json", "[" * 100_000 + "]" * 100_000)
        for args in (("plan", deep), ("recommend", "--cluster", deep, "--seq-len", "1M", "--ranks", "8"), ("compare", deep, deep),
                     ("validate", "--real", deep)):
            self.assertIn("nested deeper", self.expect(2, *args).stderr)
        self.assertLess(len(self.expect(2, "plan", self.config, "--set", "sweep.ranks=" + "[" * 60_000).stderr), 1000)

    def test_bytes_that_are_no_text_are_refused_with_the_file(self):
        folder = self.path / "result"
        self.expect(0, "simulate", self.config, "--set", "model.dtype=bf16", "--cluster", CLUSTER, "-o", str(folder))
        file = folder / "result.json"
        file.write_bytes(file.read_bytes().replace(b'"algorithm"', b'"algorithm\xff"', 1))
        for args in (("export", str(folder)), ("compare", str(folder), str(folder)), ("validate", "--real", str(file))):
            self.assertRegex(self.expect(2, *args).stderr, rf"^error: {file}:[0-9]+: not valid JSON.*UTF-8")

    def test_devices_and_pipes_are_no_files(self):
        fifo = str(self.path / "fifo")
        os.mkfifo(fifo)
        for name in (fifo, "/dev/zero"):
            self.assertIn("no regular file", self.expect(2, "plan", name).stderr)
        self.expect(2, "compare", "x" * 5000, "y")

    def test_an_output_that_cannot_be_written_is_refused_before_any_work(self):
        kept, new, fifo = (self.path / name for name in ("kept.json", "new.json", "fifo"))
        kept.write_text("kept")
        os.mkfifo(fifo)
        closed = self.path / "closed"
        closed.mkdir(mode=0o555)
        for where in ("/proc/x", "/sys/x", str(kept / "x"), *([] if os.geteuid() == 0 else [str(closed / "x")])):
            for args in (("calibrate", "--quick", "-o"), ("validate", "--json"), ("env", "--json")):
                done = self.expect(2, *args, where)
                self.assertIn(f"cannot write {where}: ", done.stderr)
                self.assertEqual(done.stdout, "")
        for where in (kept, new, fifo):  # another mistake ends the command
            self.assertNotIn("cannot write", self.expect(2, "validate", "--json", str(where), "--real", str(self.path / "none")).stderr)
        self.assertEqual(kept.read_text(), "kept")
        self.assertFalse(new.exists())

    def test_a_result_in_the_place_of_a_file_is_refused(self):
        kept = self.path / "kept"
        kept.write_text("kept")
        simulate = ("simulate", self.config, "--set", "model.dtype=bf16", "--cluster", CLUSTER, "-o")
        for where in (kept, "/dev/null"):
            for args in (simulate, ("run", self.config, "--ranks", "2", "-o")):
                done = self.expect(2, *args, str(where))
                self.assertIn(f"'{where}' is a file, not a folder\n", done.stderr)
                self.assertNotIn("--resume", done.stderr)
        self.assertEqual(kept.read_text(), "kept")
        self.assertIn("or delete it", self.expect(2, *simulate, str(self.path)).stderr)

    def test_threads_that_cannot_start_are_errors(self):
        started = time.monotonic()
        done = in_shell('ulimit -v 400000; "$@"', "run", self.config, "--ranks", "64", "--set", "sweep.ranks=64", "-o", self.path / "a")
        self.assertIn(done.returncode, (1, 3), done.stderr)
        self.assertIn("could", done.stderr)
        self.assertLess(time.monotonic() - started, 30)
        done = in_shell('ulimit -v 1500000; "$@"', "run", self.config, "--ranks", "1", "--set", "run.threads=4000", "--set",
                        "sweep.ranks=1", "--filter", "algorithm==local && seq_len==256", "-o", self.path / "b")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("threads could start", self.result(self.path / "b")["points"][0]["reason"])

    def test_tasks_that_do_not_see_each_other(self):
        done = lnbench("run", self.config, "-o", str(self.path / "x"), SLURM_STEP_NUM_TASKS="4")
        self.assertEqual(done.returncode, 2)
        self.assertIn("srun started 4 tasks that do not see each other", done.stderr)

    @unittest.skipUnless(MPIRUN, "no MPI in this build")
    def test_a_rank_that_does_not_start_is_named(self):
        stopped = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then kill -STOP $$; exit 1; fi; exec "$@"'
        ranks = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-np", "2", "bash", "-c", stopped, "bash", LNBENCH]
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TMPDIR=str(self.path))
        commands = (("run", self.config, "--set", "measure.point_timeout_s=1", "-o", str(self.path / "out")),
                    ("comm",), ("calibrate", "-o", str(self.path / "c.json")))
        started = [subprocess.Popen([*ranks, *c], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
                   for c in commands]
        for process in started:
            error = process.communicate(timeout=120)[1]
            self.assertEqual(process.returncode, 3, error)
            self.assertIn("rank 0 waited too long in 'the start'; rank 1 has not come so far", error)
        self.assertEqual(list(self.path.glob("*.alive")), [])

    def start_long(self, folder):
        config = self.write("long.json", dict(SMALL, measure={"warmup": 0, "min_samples": 100000, "max_samples": 100000}))
        process = subprocess.Popen([LNBENCH, "run", config, "-o", str(folder), "--ranks", "2"], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        for line in process.stdout:  # the table's head comes with the first point
            if line.startswith("# id"):
                break
        time.sleep(0.5)
        return process, config

    def test_a_folder_has_one_run(self):
        process, config = self.start_long(self.path / "out")
        done = self.expect(2, "run", config, "--ranks", "2", "--resume", str(self.path / "out"))
        self.assertIn("is in use", done.stderr)
        process.kill()
        process.wait()

    def test_a_second_sigterm_means_now(self):
        process, _ = self.start_long(self.path / "out")
        process.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=10), -signal.SIGTERM)

    def test_an_edited_median_is_refused(self):
        folder = self.path / "out"
        self.expect(0, "run", self.config, "-o", str(folder), "--ranks", "2")
        points = folder / "points.jsonl"
        text = points.read_text()
        points.write_text(text.replace('"median_s":', '"median_s":1', 1))
        error = self.expect(2, "run", self.config, "--ranks", "2", "--resume", str(folder)).stderr
        self.assertIn("damaged line", error)
        for damaged in ("", "{", "[]", '{"schema_version": 1, "run": 3}'):
            pathlib.Path(folder, "run.json").write_text(damaged)
            self.assertIn("run.json", self.expect(2, "run", self.config, "--ranks", "2", "--resume", str(folder)).stderr)


if __name__ == "__main__":
    unittest.main()

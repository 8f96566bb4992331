#!/usr/bin/env python3
"""The job scripts: Slurm's under a real Slurm of one node, PBS's with a stand-in for qsub, mpirun's as it is.

  LNBENCH=build/release/bin/lnbench scripts/slurm/one_node.sh scripts/slurm/job_test.py Slurm
  LNBENCH=build/release/bin/lnbench scripts/slurm/job_test.py SlurmSignal Pbs Mpirun
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = """\
NODES=1 RANKS_PER_NODE=2 GPUS_PER_NODE=0 CPUS_PER_RANK=1 MPIRUN_BIND="--bind-to none --oversubscribe" ACCOUNT=physics
export NCCL_ALGO=Ring
module() { echo "module $*"; }
MODULES="openmpi/4.1 nccl"
source scripts/slurm/site.env
"""
QSUB = """\
#!/usr/bin/env python3
# A stand-in: runs the job at once, from a copy, in another folder, with the variables named by -v alone.
import os, shutil, subprocess, sys
log = open(os.environ["QSUB_LOG"], "a")
print(*sys.argv[1:], file=log, flush=True)
job = sum(1 for _ in open(os.environ["QSUB_LOG"]))
names = sys.argv[sys.argv.index("-v") + 1].split(",")
env = {n: os.environ[n] for n in names + ["PATH", "HOME", "QSUB_LOG", "LONGNET_HOME", "LONGNET_PYTHON"]
       + [n for n in os.environ if n.startswith("OMPI_")] if n in os.environ}
script = shutil.copy(sys.argv[-1], f"{os.environ['QSUB_LOG']}.{job}")
nodes = f"{script}.nodes"
open(nodes, "w").write("localhost\\nlocalhost\\n")
env |= {"PBS_JOBID": f"{job}.stand-in", "PBS_O_WORKDIR": os.getcwd(), "PBS_NODEFILE": nodes}
subprocess.run(["bash", script], env=env, cwd="/")
"""


class JobCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.result = self.folder / "result"
        self.env = os.environ | {
            "LNBENCH": os.path.abspath(os.environ["LNBENCH"]), "CONFIG": "config.json",
            "RESULT": "result", "SITE": "site.env",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        (self.folder / "site.env").write_text(SITE)

    def write_config(self, points, seconds):
        """One point of two ranks and the rest of one, each of which samples for this long. The slow kernel, because on a
        machine at work a fast one can seem to pass the peak that was measured before, which makes a point an error."""
        (self.folder / "config.json").write_text(json.dumps({
            "schema_version": 1, "name": "job-test", "model": {"heads": 1, "head_dim": 64, "dtype": "fp32"},
            "sweep": {"algorithm": ["ring"], "seq_len": [64 * (i + 1) for i in range(points - 1)], "ranks": [1, 2]},
            "exclude": [{"where": "ranks == 2 && seq_len > 64", "reason": "one is enough", "omit": True}],
            "run": {"kernel": "reference"},
            "measure": {"warmup": 1, "min_samples": 3, "max_samples": 1000000, "target_ci": 1e-9, "point_timeout_s": seconds}}))

    def submit(self, script, *options, code=0, **variables):
        done = subprocess.run([ROOT / "scripts/slurm" / script, *options], env=self.env | variables, cwd=self.folder,
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def check_result(self, points, least_starts):
        """All points are there once and ok, measured in several starts, each after a preflight, and reported."""
        result = json.loads((self.result / "result.json").read_text())
        self.assertEqual([p["status"] for p in result["points"]], ["ok"] * points)
        self.assertEqual(result["summary"]["verdict"], "pass")
        self.assertIn("NCCL_ALGO", (self.result / "run.json").read_text())
        self.assertIn("LongNet-Bench report", (self.result / "report.html").read_text())
        said = pathlib.Path(f"{self.result}.job.txt").read_text()
        starts = said.count("\n== ")
        self.assertGreaterEqual(starts, least_starts)
        for what in ("NUMA node0 CPU(s)", "fma peak", "# 2 ranks (mpi)", "--bind-to none"):
            self.assertEqual(said.count(what), starts, f"{what} in {said}")


class Slurm(JobCase):
    def job(self):
        shown = subprocess.run(["scontrol", "-o", "show", "job"], capture_output=True, text=True, timeout=30).stdout
        return dict(re.findall(r"([\w/]+)=(\S*)", shown))

    def test_time_limit_signal_requeue_resume_report(self):
        # A minute is Slurm's shortest limit, and it looks for jobs near theirs every half a minute, first thirty
        # seconds after its start: the points take longer than that, those left for the second start a few seconds.
        points = 14
        self.write_config(points, 2)
        output = self.folder / "output"
        self.submit("lnbench.sbatch", f"--output={output}", MINUTES="1", MARGIN_S="30", PARTITION="debug")
        deadline = time.monotonic() + 200  # on a loaded machine it takes more starts
        while (job := self.job())["JobState"] not in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"):
            self.assertLess(time.monotonic(), deadline, job)
            time.sleep(0.5)
        said = output.read_text()
        self.assertEqual(job["JobState"], "COMPLETED", said + pathlib.Path(f"{self.result}.job.txt").read_text())
        for key, value in {"Account": "physics", "Partition": "debug", "NumTasks": "2", "CPUs/Task": "1",
                           "OverSubscribe": "NO", "TimeLimit": "00:01:00"}.items():  # not shared: exclusive
            self.assertEqual(job[key], value, key)
        self.assertGreaterEqual(int(job["Restarts"]), 1)
        self.assertIn("lnbench run ended with 4", said)
        self.assertIn("module load openmpi/4.1", said)
        self.check_result(points, 2)


class SlurmSignal(JobCase):
    """With a stand-in for srun, which a signal ends before it has run a command of this name, and one for scontrol."""

    SRUN = """\
#!/bin/bash
while [[ ${1:-} == --* ]]; do shift; done
[[ " $* " != *" $SIGNALLED "* ]] || exit 138
[[ $1 != echo ]] || "$@"  # two ranks
exec "$@"
"""

    def job(self, signalled, code, **variables):
        for name, text in {"srun": self.SRUN, "scontrol": '#!/bin/sh\necho "$@" >>requeued\n'}.items():
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        (self.folder / "lnbench").write_text("#!/bin/sh\n[ $1 != run ] || exit 4\n")
        (self.folder / "lnbench").chmod(0o755)
        (self.folder / "config.json").write_text("{}")
        requeued = self.folder / "requeued"
        requeued.unlink(missing_ok=True)
        self.submit("lnbench.sbatch", code=code, PATH=f"{self.folder}:{os.environ['PATH']}", LONGNET_TREE=str(self.folder),
                    SIGNALLED=signalled, LNBENCH=str(self.folder / "lnbench"), SLURM_JOB_ID="7", SLURM_JOB_NUM_NODES="1",
                    **variables)
        return requeued.read_text() if requeued.exists() else ""

    def setUp(self):
        super().setUp()
        shutil.copytree(ROOT / "scripts/slurm", self.folder / "scripts/slurm")

    def test_during_the_preflight_or_the_start_of_the_run_requeues(self):
        for signalled in ("bash", "env", "echo", "comm", "run"):
            with self.subTest(signalled=signalled):
                self.job("nothing", code=4)  # a preflight that passes
                self.assertEqual(self.job(signalled, code=138), "requeue 7\n")
        self.assertEqual(self.job("nothing", code=4), "requeue 7\n")

    def test_the_second_preflight_in_a_row_that_is_stopped_ends_the_job(self):
        self.result.mkdir()
        (self.result / "run.json").touch()  # earlier starts have measured
        self.assertEqual(self.job("comm", code=138), "requeue 7\n")
        self.assertEqual(self.job("env", code=3), "")
        self.assertEqual(self.job("comm", code=138), "requeue 7\n")  # by a user who has raised the limit


class Pbs(JobCase):
    def test_time_limit_submit_again_resume_report(self):
        points = 2
        self.write_config(points, 1)
        (self.folder / "qsub").write_text(QSUB)
        (self.folder / "qsub").chmod(0o755)
        log = self.folder / "log"
        log.touch()
        self.submit("lnbench.pbs", MINUTES="1", MARGIN_S="59", PARTITION="batch", QSUB_LOG=str(log),
                    PATH=f"{self.folder}:{os.environ['PATH']}")
        submitted = log.read_text().splitlines()
        self.assertEqual(len(submitted), points)  # the limit lets one point through each time
        for line in submitted:
            self.assertIn("-A physics -q batch -l place=scatter:excl -l walltime=60 -l select=1:ncpus=2:mpiprocs=2 ", line)
        self.check_result(points, points)


class Mpirun(JobCase):
    def test_limit_resume_report(self):
        self.write_config(2, 1)
        (self.folder / "hosts").write_text("localhost slots=2\n")
        said = self.submit("lnbench_mpirun.sh", MINUTES="0", HOSTFILE="hosts")
        self.assertEqual(said.count("lnbench run ended with 4"), 1)
        self.check_result(2, 2)

    def test_a_rank_alone_has_none_to_speak_to(self):
        self.write_config(2, 1)
        self.submit("lnbench_mpirun.sh", RANKS="1", code=0, RESULT=str(self.result))
        result = json.loads((self.result / "result.json").read_text())
        self.assertEqual(sorted(p["status"] for p in result["points"]), ["ok", "skipped_unsupported"])
        self.assertNotIn("ranks (mpi)", pathlib.Path(f"{self.result}.job.txt").read_text())

    def test_nothing_is_measured_where_ranks_cannot_speak(self):
        said = self.submit("lnbench_mpirun.sh", code=3, LNBENCH="/bin/false")
        self.assertIn(f"preflight failed, see {self.result}.job.txt", said)
        self.assertFalse(self.result.exists())

    def test_without_a_program_it_says_where_one_is_built(self):
        tree = self.folder / "tree"
        shutil.copytree(ROOT / "scripts/slurm", tree / "scripts/slurm")
        shutil.copy(ROOT / "scripts/help.sh", tree / "scripts")
        self.submit(tree / "scripts/slurm/lnbench_mpirun.sh", code=3, LNBENCH="")
        self.assertIn(f"{tree}/build/release/bin/lnbench", pathlib.Path(f"{self.result}.job.txt").read_text())


if __name__ == "__main__":
    unittest.main()

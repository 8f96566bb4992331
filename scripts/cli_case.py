"""For tests of the command line: LNBENCH=path of the program, a folder per test, results read and validated.

With MPIRUN=path what is asked for on ranks runs there.
"""
import csv
import json
import os
import pathlib
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
SECRETS = ("LONGNET_TEST_TOKEN", "NCCL_COOKIE", "NCCL_PROXY_AUTH", "OMPI_MCA_btl_pwd")  # and, where no launcher sets it:
LAUNCHERS_ADDRESS = "OMPI_MCA_orte_hnp_uri"
SMALL = {
    "schema_version": 1,
    "name": "small",
    "model": {"heads": 2, "head_dim": 16, "dtype": "fp32"},
    "dilated": {"segments": [64, "per_rank", "sequence"]},
    "sweep": {"algorithm": ["dilated", "ring", "local"], "seq_len": [256, 512], "ranks": [1, 2]},
    "measure": {"warmup": 1, "min_samples": 3, "max_samples": 3, "disturbed_budget": 0},
}


def lnbench(*args, ranks=0, **variables):
    secrets = dict.fromkeys(SECRETS if ranks else (*SECRETS, LAUNCHERS_ADDRESS), CANARY)
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1", **secrets, **variables)
    launcher = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] if ranks else []
    done = subprocess.run([*launcher, LNBENCH, *args], capture_output=True, text=True, env=env, timeout=300, cwd=ROOT)
    assert CANARY not in done.stdout + done.stderr, "a secret was printed"
    return done


def sanitized():
    """Whether the program has a sanitizer, which makes some code slower than other."""
    said = lnbench("env")
    return "-fsanitize" in said.stdout + said.stderr


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

    def rows(self, *args, code=0, **more):
        """The table that a command prints, a dictionary a row."""
        return list(csv.DictReader(self.expect(code, *args, "--format", "csv", **more).stdout.splitlines()))

    def stopped_after_a_point(self, process, folder):
        """Sends SIGUSR1 once a point is on the disk; the run must end as stopped early. Returns points.jsonl."""
        points = folder / "points.jsonl"
        for _ in range(600):
            if points.exists() and points.read_text().count("\n") >= 1:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.wait(timeout=120), 4)
        return points

    def result(self, folder):
        return json.loads((pathlib.Path(folder) / "result.json").read_text())

    def assert_no_secret(self, folder):
        for file in folder.iterdir():
            text = file.read_text()
            for secret in (CANARY, LAUNCHERS_ADDRESS, *SECRETS):
                self.assertNotIn(secret, text, file)

    def assert_valid(self, *paths):
        done = subprocess.run([sys.executable, str(ROOT / "scripts/validate_json.py"), *paths], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

#!/usr/bin/env python3
"""An installed tree can be moved and used from the PATH, with no trace of where it was built, and its Python environment
is made without a network.

  install_test.py BUILD_FOLDER
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BUILD = os.path.abspath(sys.argv[1])

# LAYER SOURCE FOLDER COMMANDS: the commands, in SOURCE, over the root folder with changes kept in LAYER until they end.
CHROOT = ["unshare", "--mount", "bash", "-euc", """
mount -t tmpfs layer "$0"
mkdir "$0"/upper "$0"/work "$0"/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" "$0/root"
for name in /proc /dev "$1" "$2/wheels"; do mkdir -p "$0/root$name"; mount --rbind "$name" "$0/root$name"; done
chroot "$0/root" bash -euc "cd '$1'; $3"
"""]


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        prefix = cls.folder / "first"
        wheels = cls.folder / "wheels"
        wheels.mkdir()
        subprocess.run([SOURCE / "scripts/install/wheelhouse.sh", wheels], check=True)
        cls.offline = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "LONGNET_BUILD": BUILD}
        subprocess.run([SOURCE / "scripts/install/install.sh", prefix], env=cls.offline, check=True, stdout=subprocess.DEVNULL)
        cls.tree = prefix.rename(cls.folder / "second")
        cls.share = cls.tree / "share" / "longnet-bench"
        cls.path = cls.folder / "path"
        cls.path.mkdir()
        (cls.path / "lnbench").symlink_to(cls.tree / "bin" / "lnbench")

    def lnbench(self, *args, code=0, **variables):
        env = {k: v for k, v in os.environ.items() if k not in ("LONGNET_HOME", "LONGNET_PYTHON")}
        env |= {"PATH": f"{self.path}:{env['PATH']}"} | variables
        done = subprocess.run(["lnbench", *map(str, args)], cwd=self.folder, env=env, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}\n{done.stderr}")
        return done

    def files(self):
        return [f for f in self.tree.rglob("*") if f.is_file() and ".venv" not in f.parts]

    def test_no_file_names_the_source_or_the_build(self):
        files = self.files()
        self.assertGreater(len(files), 60)
        for file in files:
            content = file.read_bytes()
            for path in (str(SOURCE), BUILD, str(self.folder / "first")):
                self.assertNotIn(path.encode(), content, file)

    def test_pages_link_to_installed_pages(self):
        pages = [f for f in self.files() if f.suffix == ".md"]
        links = [(page, link) for page in pages for link in re.findall(r"\]\(((?!https?:)[^)#]+)", page.read_text())]
        self.assertGreater(len(pages), 25)
        self.assertGreater(len(links), 80)
        self.assertEqual([f"{page.relative_to(self.share)}: {link}" for page, link in links if not (page.parent / link).exists()], [])

    def test_bash_completes_the_commands(self):
        file = self.tree / "share/bash-completion/completions/lnbench"
        said = subprocess.run(["bash", "-c", f"source '{file}'; COMP_WORDS=(lnbench reco); COMP_CWORD=1; _lnbench; echo ${{COMPREPLY[@]}}"],
                              env=os.environ | {"PATH": f"{self.path}:{os.environ['PATH']}"}, capture_output=True, text=True)
        self.assertEqual(said.stdout.strip(), "recommend", said.stderr)

    def test_tests_are_not_installed(self):
        self.assertEqual([f for f in self.files() if f.name.endswith(("_test.py", "_fixture.py"))], [])

    def test_version_plan_simulate_and_report(self):
        self.assertIn("lnbench", self.lnbench("--version").stdout)
        self.assertIn("dilated", self.lnbench("plan", self.share / "configs" / "quick.json").stdout)
        self.lnbench("simulate", self.share / "configs" / "quick-cluster.json", "--cluster",
                     self.share / "configs" / "clusters" / "h100-ndr400.json", "-o", "result", "--progress", "none")
        self.lnbench("report", "result")
        self.assertIn("LongNet-Bench report", (self.folder / "result" / "report.html").read_text())
        self.assertTrue(list((self.folder / "result" / "plots").glob("*.svg")))

    def test_job_scripts_run_what_is_installed(self):
        user = self.folder / "user"
        user.mkdir()
        config = user / "job.json"
        config.write_text(json.dumps({
            "schema_version": 1, "name": "job", "model": {"heads": 1, "head_dim": 64, "dtype": "fp32"},
            "sweep": {"algorithm": ["ring"], "seq_len": [64], "ranks": [1]},
            "run": {"kernel": "reference"}, "measure": {"warmup": 0, "min_samples": 3, "max_samples": 3}}))
        kit = self.share / "scripts" / "slurm"
        before = self.files()
        env = {k: v for k, v in os.environ.items() if k not in ("LNBENCH", "LONGNET_HOME", "LONGNET_PYTHON", "SITE")} | {
            "CONFIG": "job.json", "RESULT": "job", "RANKS": "1", "GPUS_PER_NODE": "0", "MPIRUN_BIND": "--bind-to none",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        done = subprocess.run([kit / "lnbench_mpirun.sh"], cwd=user, env=env, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        self.assertTrue((user / "job" / "report.html").exists(), done.stdout)
        self.assertEqual([f for f in self.files() if f not in before and "__pycache__" not in f.parts], [])
        for script in ("lnbench_mpirun.sh", "lnbench.sbatch", "lnbench.pbs"):
            said = subprocess.run([kit / script, "-h"], env=env, capture_output=True, text=True)
            self.assertIn("twin" if script != "lnbench.sbatch" else "under Slurm", said.stdout)
            self.assertNotRegex(said.stdout, "SBATCH -|PBS -")

    def test_a_python_without_the_packages_is_told_what_to_do(self):
        bare = self.folder / "bare_python"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
        bare.chmod(0o755)
        venv = self.share / ".venv"
        aside = venv.rename(self.folder / "venv")
        self.addCleanup(aside.rename, venv)
        said = self.lnbench("report", "result", code=1, LONGNET_PYTHON=str(bare)).stderr
        self.assertIn(f"{self.share}/scripts/python_env.sh", said)
        self.assertTrue((self.share / "scripts" / "python_env.sh").exists())
        said = self.lnbench("report", "result", code=2, LONGNET_PYTHON="no-such-python").stderr
        self.assertIn("cannot run 'no-such-python'", said)

    def test_without_its_files_lnbench_says_where_it_looked(self):
        alone = self.folder / "alone" / "lnbench"
        alone.parent.mkdir()
        alone.write_bytes((self.tree / "bin" / "lnbench").read_bytes())
        alone.chmod(0o755)
        done = subprocess.run([alone, "report", "result"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"in any folder above {alone.parent}", done.stderr)
        self.assertIn("holds no scripts/report", self.lnbench("report", "result", code=2, LONGNET_HOME="/nowhere").stderr)

    def test_commands_of_the_containers(self):
        """The Dockerfile's commands, which are the Apptainer recipe's, in a chroot over this machine's files that keeps no
        change: all but the image they start from, and with what is built already."""
        layer = self.folder / "layer"
        layer.mkdir()
        chroot = [*CHROOT, layer, SOURCE, self.folder]
        if os.geteuid() != 0 or subprocess.run([*chroot, "true"], capture_output=True).returncode != 0:
            self.skipTest("needs root, and a kernel with overlay mounts")
        steps = re.findall(r"^RUN (.*)", (SOURCE / "scripts/install/Dockerfile").read_text(), re.MULTILINE)
        used = ["cd /root", "export PATH=/opt/longnet-bench/bin:$PATH configs=/opt/longnet-bench/share/longnet-bench/configs",
                "lnbench simulate $configs/quick-cluster.json --cluster $configs/clusters/h100-ndr400.json -o result -q",
                "lnbench report result"]
        done = subprocess.run([*chroot, "\n".join(["set -o pipefail", *steps, *used])], env=self.offline, capture_output=True,
                              text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertFalse(pathlib.Path("/opt/longnet-bench").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

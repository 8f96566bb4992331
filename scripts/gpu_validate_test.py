#!/usr/bin/env python3
"""gpu_validate.sh with stand-ins for the programs: what it does when stages fail, hang or stop early."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "gpu_validate.sh"

NVIDIA_SMI = """#!/usr/bin/env bash
case "$*" in *compute_cap*) echo "$PLAYED_CAPABILITY" ;; *name*) echo "NVIDIA H200" ;; esac
"""
CMAKE = """#!/usr/bin/env bash
[ "$PLAYED_BUILD" = fails ] && { echo "error: no compiler"; exit 1; }
mkdir -p build/gpu/bin
cp "$PLAYED_PROGRAM" build/gpu/bin/gpu_check
cp "$PLAYED_PROGRAM" build/gpu/bin/gpu_kernels_benchmark
"""
# Exit codes by a word of the command line: PLAYED="programs,virtual=1 ...".
PROGRAM = """#!/usr/bin/env bash
name=$(basename "$0")
for ((i = 1; i <= $#; i++)); do
  [ "${!i}" = --json ] && { j=$((i + 1)); echo '{ "program": "'"$name"'" }' >"${!j}"; }
done
[ $name = gpu_kernels_benchmark ] && echo "# TFLOP/s of cuda, d = 64   280.000  goal 270.000 met"
case "$*" in *--sm90a*) echo "# fastest own kernel, d = 64, 2048 rows: cuda_sm90a" ;; esac
for rule in $PLAYED; do
  case "$name $*" in *"${rule%=*}"*)
    [ "${rule#*=}" = hangs ] && exec sleep 1000
    exit "${rule#*=}" ;;
  esac
done
exit 0
"""


SANITIZERS = [
    f"sanitizer_{run}"
    for run in ("attend_memcheck", "backward_memcheck", "attend_racecheck", "rows_memcheck", "sm90a_memcheck", "sm90a_backward_memcheck",
                "sm90a_backward_racecheck")
]


class GpuValidateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        (self.path / "scripts").mkdir()
        shutil.copy(SCRIPT, self.path / "scripts")
        shutil.copy(SCRIPT.parent / "help.sh", self.path / "scripts")
        self.tools = self.path / "tools"
        self.tools.mkdir()
        for name, text in (("nvidia-smi", NVIDIA_SMI), ("cmake", CMAKE), ("nvcc", "#!/bin/sh\n"), ("program", PROGRAM), ("ncu", "#!/bin/sh\necho $*\n"),
                           ("timeout", f"#!/usr/bin/env bash\necho \"$3\" >>'{self.path}/limits'\nshift 3\nexec {shutil.which('timeout')} -k 1 5 \"$@\"\n"),  # 5 s, not 40
                           ("compute-sanitizer", "#!/bin/sh\necho 'Device not supported'\nexit 1\n")):
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o755)
        self.out = self.path / "out"

    def validate(self, *args, minutes="1", **played):
        environment = os.environ | {"PATH": f"{self.tools}:{os.environ['PATH']}", "PLAYED_PROGRAM": str(self.tools / "program"),
                                    "PLAYED": "", "PLAYED_BUILD": "", "PLAYED_CAPABILITY": "9.0"} | played
        return subprocess.run([str(self.path / "scripts/gpu_validate.sh"), "-o", str(self.out), "--minutes", minutes, *args],
                              capture_output=True, text=True, timeout=120, env=environment)

    def stages(self):
        return json.loads((self.out / "result.json").read_text())["stages"]

    def lnbench(self, version_code, run_code):
        bundle = self.path / "build/gpu_deps/bin"
        bundle.mkdir(parents=True)
        (bundle / "lnbench").write_text(f"#!/bin/sh\n[ $1 = --version ] && exit {version_code}\n[ $1 = comm ] && exit 0\necho $*\nexit {run_code}\n")
        (bundle / "lnbench").chmod(0o755)

    def test_all_passes(self):
        self.lnbench(version_code=0, run_code=0)
        archive = self.path / "all.tar.gz"
        done = self.validate("--archive", str(archive))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(set(self.stages().values()), {0})
        for stage in ("check_kernels", "check_sm90a", "kernels_sm90a", "profile", "programs_sm90a", "check_branches", "lnbench_figure5",
                      "lnbench_walk", "lnbench_backward"):
            self.assertIn(stage, self.stages())
        self.assertLess(list(self.stages()).index("lnbench_walk"), list(self.stages()).index("lnbench_ranks"))
        for stage in ("lnbench_figure5", "lnbench_walk"):
            self.assertIn("run.kernel=cuda_sm90a", (self.out / f"{stage}.log").read_text())
        self.assertTrue(archive.stat().st_size > 0)
        summary = (self.out / "summary.txt").read_text()
        self.assertIn("## goals\n# TFLOP/s of cuda", summary)
        self.assertIn("left out: compute-sanitizer: it refuses this device", summary)

    def test_limits_share_the_time(self):
        self.lnbench(version_code=0, run_code=0)
        self.validate("--skip", ",".join(SANITIZERS), minutes="9")
        limits = [int(line) for line in (self.path / "limits").read_text().split()]
        self.assertGreater(limits[0], 200, "the build")
        self.assertLess(max(limits[1:5]), 120)
        self.assertGreater(limits[-1], 480, "the last stage may take all that is left")
        self.assertLess(limits[-1], 521)

    def test_three_parts_run_every_stage_once(self):
        self.lnbench(version_code=0, run_code=0)
        self.assertEqual(self.validate().returncode, 0)
        whole = set(self.stages())
        shutil.rmtree(self.out)
        seen = []
        for part in "123":
            done = self.validate("--part", part)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            seen += [line.split()[1] for line in done.stdout.splitlines() if line.startswith("== ")]
        self.assertEqual(sorted(s for s in seen if s != "build"), sorted(whole - {"build"}))
        self.assertEqual(set(self.stages()), whole)
        self.assertIn("run.kernel=cuda_sm90a", (self.out / "lnbench_walk.log").read_text())

    def test_a_wrong_kernel_of_an_earlier_part_is_not_taken(self):
        self.lnbench(version_code=0, run_code=0)
        self.assertEqual(self.validate("--part", "1", PLAYED="check_sm90a.json=1").returncode, 1)
        self.assertEqual(self.validate("--part", "2").returncode, 1)
        self.assertIn("run.kernel=cuda\n", (self.out / "lnbench_walk.log").read_text())

    def test_programs_of_the_bundle_are_not_built_again(self):
        self.lnbench(version_code=0, run_code=0)
        for name in ("gpu_check", "gpu_kernels_benchmark"):
            shutil.copy(self.tools / "program", self.path / "build/gpu_deps/bin" / name)
        (self.path / "build/gpu_deps/built.txt").write_text("programs: from 1234\n")
        self.assertEqual(self.validate(PLAYED_BUILD="fails").returncode, 0)
        self.assertNotIn("build", self.stages())
        self.assertEqual(self.stages()["check_kernels"], 0)

    def test_a_wrong_kernel_is_timed_and_not_taken(self):
        self.lnbench(version_code=0, run_code=0)
        self.assertEqual(self.validate(PLAYED="check_sm90a.json=1").returncode, 1)
        self.assertEqual((self.stages()["check_sm90a"], self.stages()["kernels_sm90a"]), (1, 0))
        self.assertIn("run.kernel=cuda\n", (self.out / "lnbench_walk.log").read_text())

    def test_a_failure_is_one(self):
        self.assertEqual(self.validate(PLAYED="programs,virtual=1").returncode, 1)
        self.assertEqual(self.stages()["check_programs"], 1)
        self.assertEqual(self.stages()["check_cudnn"], 0, "the stages after it did not run")
        self.assertIn("left out: lnbench: no build/gpu_deps", (self.out / "summary.txt").read_text())

    def test_a_kernel_that_hangs_costs_its_own_stage(self):
        done = self.validate("--skip", "kernels", PLAYED="sm90a=hangs")
        self.assertEqual(done.returncode, 1)
        self.assertIn(self.stages()["check_sm90a"], (124, 137))
        self.assertNotIn("kernels_sm90a", self.stages())
        self.assertEqual(self.stages()["check_kernels"], 0)

    def test_another_architecture_leaves_the_kernel_for_hopper_out(self):
        self.assertEqual(self.validate(PLAYED_CAPABILITY="8.0").returncode, 0)
        self.assertNotIn("check_sm90a", self.stages())
        self.assertIn("this GPU has 8.0", (self.out / "summary.txt").read_text())

    def test_a_sweep_that_stops_in_time_is_no_failure(self):
        self.lnbench(version_code=0, run_code=4)
        self.assertEqual(self.validate().returncode, 0)
        self.assertIn("lnbench_ranks: it was stopped in time", (self.out / "summary.txt").read_text())
        self.assertEqual({self.stages()[s] for s in ("lnbench", "lnbench_figure5", "lnbench_ranks", "comm", "lnbench_walk")}, {0})

    def test_a_bundle_that_does_not_start_is_said(self):
        self.lnbench(version_code=127, run_code=0)
        self.assertEqual(self.validate().returncode, 0)
        self.assertIn("it does not start here", (self.out / "summary.txt").read_text())

    def test_a_slow_sanitizer_is_said_and_no_failure(self):
        for found, code in (("nothing", 0), ("========= Invalid __global__ read of size 4", 1)):
            (self.tools / "compute-sanitizer").write_text(f"#!/bin/sh\necho '{found}'\nexec sleep 1000\n")
            self.assertEqual(self.validate("--skip", ",".join(("kernels", *SANITIZERS[2:]))).returncode, code, found)
            self.assertEqual("was too slow for its time" in (self.out / "summary.txt").read_text(), code == 0)

    def test_minutes_are_whole(self):
        self.assertEqual(self.validate(minutes="4.2").returncode, 2)
        self.assertFalse(self.out.exists())

    def test_a_failed_build_ends_it(self):
        done = self.validate(PLAYED_BUILD="fails")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: no compiler", done.stdout)

    def test_wrong_arguments(self):
        done = self.validate("--fast")
        self.assertEqual(done.returncode, 2)
        self.assertIn("gpu_validate.sh [-o DIR]", done.stdout)


if __name__ == "__main__":
    unittest.main()

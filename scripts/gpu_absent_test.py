#!/usr/bin/env python3
"""The GPU programs start on any machine: nothing of a GPU is linked, and without one they say so and exit with 3.

gpu_absent_test.py BIN_FOLDER: the folder that lnbench and the gpu_* programs were built into.
"""
import pathlib
import re
import subprocess
import sys

bin_folder = pathlib.Path(sys.argv[1])
root = pathlib.Path(__file__).resolve().parent.parent


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120, cwd=root)


programs = [bin_folder / p for p in ("gpu_check", "gpu_kernels_benchmark")]
for program in [*programs, bin_folder / "lnbench"]:
    linked = run("ldd", program).stdout
    found = re.findall(r"lib(?:cuda|cudart|cudnn|nccl|nvidia)\S*", linked)
    assert not found, f"{program.name} is linked with {found}: it would not start without a driver"
    assert "not found" not in linked, linked

env = run(bin_folder / "lnbench", "env").stdout
for line in ("gpu ", "cuda ", "cudnn ", "nccl "):
    assert re.search(rf"^{line}", env, re.M), f"lnbench env says nothing of {line}: {env}"
if not re.search(r"^gpu +none: ", env, re.M):
    print("this machine has a GPU: what happens without one was not tested")
    sys.exit(77)

for program in programs:
    done = run(program)
    assert done.returncode == 3 and "no GPU to use" in done.stderr, (program.name, done)
done = run(root / "scripts/gpu_validate.sh")
assert done.returncode == 3 and "no GPU on this machine" in done.stdout, done
print("without a GPU: programs start, say so and exit with 3")

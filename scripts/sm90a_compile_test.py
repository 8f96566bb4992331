#!/usr/bin/env python3
"""cuda_sm90a as ptxas makes it: no spilled register, and no wgmma that had to be serialised (C7510 and its neighbours,
which ptxas reports as information, not as warnings).

sm90a_compile_test.py BUILD_FOLDER
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

build = pathlib.Path(sys.argv[1])
# The other one holds PTX alone, for tests.
[entry] = [e for e in json.loads((build / "compile_commands.json").read_text())
           if e["file"].endswith("attend_sm90a.cu") and "--no-compress" not in e["command"]]
command = re.sub(r"\S*ccache ", "", entry["command"])
command = re.sub(r" -o \S+", "", re.sub(r"-M[DTF] \S*", "", command)).replace(" -c ", " -cubin ")
with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run(f"{command} -Xptxas -v -o {folder}/kernel.cubin", shell=True, cwd=entry["directory"],
                          capture_output=True, text=True, timeout=280)
text = done.stdout + done.stderr
assert done.returncode == 0, text
kernels = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
assert len(kernels) >= 4, text
assert all(k == ("0", "0") for k in kernels), text
serialised = re.findall(r".*C75\d\d.*", text)
assert not serialised, serialised
print(f"{len(kernels)} kernels without spills and without serialised wgmma")

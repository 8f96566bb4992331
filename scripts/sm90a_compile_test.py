#!/usr/bin/env python3
"""The own kernels as ptxas makes them: no spilled register for sm_90 in the shapes that are taken by themselves and, in
cuda_sm90a, no wgmma that had to be serialised (C7510 and its neighbours, which ptxas reports as information, not as warnings).

sm90a_compile_test.py BUILD_FOLDER
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

build = pathlib.Path(sys.argv[1])
entries = json.loads((build / "compile_commands.json").read_text())


def compiled(name, least):
    """What ptxas says of a file's kernels; its other entry holds PTX alone, for tests."""
    [entry] = [e for e in entries if e["file"].endswith(f"/{name}") and "--no-compress" not in e["command"]]
    command = re.sub(r"\S*ccache ", "", entry["command"])
    command = re.sub(r" -o \S+", "", re.sub(r"-M[DTF] \S*", "", command)).replace(" -c ", " -fatbin ")
    command = re.sub(r"\S*--generate-code=arch=compute_80\S*", "", command)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(f"{command} -Xptxas -v -o {folder}/kernels.fatbin", shell=True, cwd=entry["directory"],
                              capture_output=True, text=True, timeout=280)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    spills = re.findall(r"entry function '\S+' for 'sm_90a?'.*?(\d+) bytes spill stores, (\d+) bytes spill loads", text, re.S)
    assert len(spills) >= least, text
    assert all(s == ("0", "0") for s in spills), text
    print(f"{name}: {len(spills)} kernels without spills")
    return text


for name, least in (("attend_sm90a.cu", 5), ("attend_backward_sm90a.cu", 8)):
    serialised = re.findall(r".*C75\d\d.*", compiled(name, least))
    assert not serialised, serialised
compiled("attend.cu", 6)

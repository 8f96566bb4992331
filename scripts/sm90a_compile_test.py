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


def command_of(name):
    """How the build compiles a file, and where."""
    [entry] = [e for e in entries if e["file"].endswith(f"/{name}")]
    return entry["directory"], re.sub(r"\S*ccache ", "", entry["command"])


def assembled(name, arch):
    """ptxas's report on the PTX that the build has left in a file's object."""
    folder, command = command_of(name)
    [ptx] = re.findall(rb"\.version [^\0]*", (pathlib.Path(folder) / re.search(r" -o (\S+)", command)[1]).read_bytes())
    with tempfile.TemporaryDirectory() as out:
        file = pathlib.Path(out) / "kernels.ptx"
        file.write_bytes(ptx)
        ptxas = pathlib.Path(command.split()[0]).parent / "ptxas"
        done = subprocess.run([ptxas, "-arch", arch, "-v", file, "-o", file.with_suffix(".cubin")], capture_output=True, text=True, timeout=280)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    return text


def check_spills(name, text, least):
    spills = re.findall(r"entry function '\S+' for 'sm_90a?'.*?(\d+) bytes spill stores, (\d+) bytes spill loads", text, re.S)
    assert len(spills) >= least, text
    assert all(s == ("0", "0") for s in spills), text
    print(f"{name}: {len(spills)} kernels without spills")


for name, least in (("attend_sm90a.cu", 3), ("attend_backward_sm90a.cu", 4)):
    text = assembled(name, "sm_90a")
    check_spills(name, text, least)
    serialised = re.findall(r".*C75\d\d.*", text)
    assert not serialised, serialised
check_spills("attend.cu", assembled("attend.cu", "sm_90"), 3)

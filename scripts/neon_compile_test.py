#!/usr/bin/env python3
"""The kernels of cpu/ for Arm's NEON: every source compiles with Debian's cross compiler, and the register tile of attention
is made of vector multiply-adds. Nothing of it is executed.

neon_compile_test.py BUILD_FOLDER
"""
import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TOOLS = "aarch64-linux-gnu-"
if not shutil.which(TOOLS + "g++"):
    print(f"skipped: {TOOLS}g++ is not installed (Debian: g++-aarch64-linux-gnu)")
    sys.exit(77)
commands = {}
for entry in json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text()):
    source = pathlib.Path(entry["file"])
    if source.parent.name == "cpu" and "kernels/cpu/highway_targets.h" in source.read_text():
        command = re.sub(r"\S*ccache |-fopenmp |-M[DTF] \S* ", "", entry["command"])
        if source.stem != "attend_simd":  # its code is looked at
            command = command.replace(" -O3 ", " -O0 ")
        # The host's folder of headers comes last, for Highway alone.
        commands[source] = re.sub(r"^\S+", TOOLS + "g++ -idirafter /usr/include", re.sub(r" -o \S+", "", command))
assert len(commands) >= 6, sorted(commands)

with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
    def compiled(source):
        done = subprocess.run(f"{commands[source]} -o {folder}/{source.stem}.o", shell=True, cwd=folder, capture_output=True,
                              text=True, timeout=280)
        assert done.returncode == 0, done.stderr
    list(pool.map(compiled, commands))
    code = subprocess.run([TOOLS + "objdump", "-d", "-C", "--no-show-raw-insn", f"{folder}/attend_simd.o"], check=True,
                          capture_output=True, text=True).stdout
[tile] = re.findall(r"<void longnet::N_NEON::multiply_tile<6, 4, false>\(.*?>:\n(.*?)\n\n", code, re.DOTALL)
multiply_adds = len(re.findall(r"\tfmla\t", tile))
assert multiply_adds >= 24, tile
print(f"{len(commands)} sources; {multiply_adds} multiply-adds in a tile")

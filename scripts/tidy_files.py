#!/usr/bin/env python3
"""Prints the files of a compile_commands.json that clang-tidy reads: the product's C++, each once."""
import json
import re
import sys

TESTS = re.compile(r"_tests?\.|/testing/|/emulation/|emulated|mpi_checks")

with open(sys.argv[1]) as file:
    files = {entry["file"] for entry in json.load(file)}
for name in sorted(files):
    if name.endswith((".cpp", ".cxx")) and not TESTS.search(name):
        print(name)

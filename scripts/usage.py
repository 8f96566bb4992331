#!/usr/bin/env python3
"""usage.py FILE COMMAND...: runs the command and writes what it took, {"cpu_s": 1.5, "max_rss_bytes": 39000000}.

Seconds are of the processor, user and system together, so that other work on the machine counts little.
"""
import json
import pathlib
import resource
import subprocess
import sys

file, *command = sys.argv[1:]
code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
if code == 0:
    taken = {"cpu_s": used.ru_utime + used.ru_stime, "max_rss_bytes": used.ru_maxrss * 1024}
    pathlib.Path(file).write_text(json.dumps(taken))
sys.exit(code)

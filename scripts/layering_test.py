#!/usr/bin/env python3
"""Fails when a file includes what its module may not know (see src/README.md).

Run by ctest; `layering_test.py --self-test` shows that it finds planted faults.
"""
import pathlib
import re
import sys

MAY_INCLUDE = {
    "core": set(),
    "json": {"core"},
    "pattern": {"core"},
    "schedule": {"core", "pattern"},
    "kernels": {"core"},
    "comm": {"core"},
    "execute": {"core", "pattern", "schedule", "kernels", "comm"},
    "simulate": {"core", "json", "pattern", "schedule"},
    "measure": {"core"},
    "io": {"core", "json", "pattern", "measure"},
    "run": {"core", "json", "pattern", "schedule", "kernels", "comm", "execute", "simulate", "measure", "io"},
    "emulation": {"core", "kernels", "comm"},  # test machinery: only tests may include it
}
# A library's header belongs to one place.
LIBRARY_HOMES = {
    r"mpi\.h": r"src/comm/mpi/mpi_world\.cpp",
    r"nccl\.h": r"src/(comm/nccl|emulation)/.*",
    r"hwy/.*": r"src/kernels/cpu/.*",
    r"nlohmann/.*": r"src/json/[^/]+\.cpp",
    r"hwloc\.h": r"src/io/environment\.cpp",
    r"openssl/.*": r"src/io/sha256\.cpp",
    r"cuda.*|cudnn.*": r"src/([a-z]+/cuda|emulation)/.*",
    r"gpu/.*": r"bench/gpu/.*",
    r"benchmark/.*": r"bench/.*",
    r"CLI/.*": r"bench/.*",
    r"lnbench/.*": r"bench/.*",
    r"simgrid/.*": r"bench/simgrid_oracle/[^/]+\.cpp",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)
BACKEND_SWITCH = re.compile(r"^\s*#\s*if.*\b(LONGNET_MPI|LONGNET_CUDA|LONGNET_NCCL)\b", re.M)


def is_test(path):
    return path.startswith("src/") and (path.endswith("_test.cpp") or "/testing/" in path)


def faults_of(path, text):
    """path: relative to the repository, with slashes."""
    found = []
    module = path.split("/")[1] if path.startswith("src/") else None
    for header in INCLUDE.findall(text):
        for pattern, home in LIBRARY_HOMES.items():
            if re.fullmatch(pattern, header) and not re.fullmatch(home, path):
                found.append(f"{path}: includes <{header}>, which only {home} may")
        other = header.split("/")[0]
        if other == "emulation" and is_test(path):
            continue
        if module in MAY_INCLUDE and other in MAY_INCLUDE and other != module and other not in MAY_INCLUDE[module]:
            found.append(f"{path}: module {module} may not include {other} ({header})")
    if BACKEND_SWITCH.search(text):
        found.append(f"{path}: a switch on a backend belongs into CMake or a registry")
    return found


def self_test():
    planted = [
        ("src/schedule/ring.cpp", '#include "comm/communicator.h"'),
        ("src/core/check.h", '#include "pattern/dilated_pattern.h"'),
        ("src/execute/x.cpp", "#include <mpi.h>"),
        ("src/io/config.h", "#include <nlohmann/json.hpp>"),
        ("src/kernels/reference/x.cpp", "#include <hwy/highway.h>"),
        ("src/schedule/ring.cpp", "#if defined(LONGNET_MPI)"),
        ("src/io/x.cpp", '#include "execute/program_executor.h"'),
        ("src/execute/x.cpp", "#include <cuda_runtime.h>"),
        ("src/io/x.cpp", '#include "run/plan_point.h"'),
        ("bench/gpu/check_main.cpp", "#include <cudnn.h>"),
        ("src/comm/cuda/device_transport.cpp", "#include <nccl.h>"),
        ("src/comm/cuda/x.cpp", '#include "kernels/cuda/rows.h"'),
        ("src/execute/cuda/x.cpp", '#include "emulation/emulated_device.h"'),
        ("src/emulation/x.cpp", '#include "execute/cuda/device_executor.h"'),
    ]
    for path, text in planted:
        assert faults_of(path, text), f"missed: {path}: {text}"
    assert not faults_of("src/execute/x.cpp", '#include "comm/communicator.h"\n#include <vector>\n')
    assert not faults_of("src/comm/mpi/mpi_world.cpp", "#include <mpi.h>")
    assert not faults_of("src/execute/cuda/x_test.cpp", '#include "emulation/emulated_device.h"')
    assert not faults_of("src/kernels/cuda/rows.cu", "#include <cuda_runtime.h>")


def main():
    self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    files = [p for folder in ("src", "bench") for p in (root / folder).rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"}]
    assert len(files) > 20, "found too few sources: wrong folder?"
    found = [f for p in files for f in faults_of(p.relative_to(root).as_posix(), p.read_text())]
    print("\n".join(found) or f"layering is kept in {len(files)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

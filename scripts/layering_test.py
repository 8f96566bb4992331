#!/usr/bin/env python3
"""Fails when a file includes what its room may not know (see src/README.md), when CMake compiles another room's source,
when no page names a header, or when a file or a function of the product is too long.

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
    "model": {"core", "pattern", "schedule"},
    "kernels": {"core"},
    "comm": {"core"},
    "execute": {"core", "pattern", "schedule", "model", "kernels", "comm"},
    "simulate": {"core", "json", "pattern", "schedule"},
    "measure": {"core"},
    "io": {"core", "json", "pattern", "measure"},
    "run": {"core", "json", "pattern", "schedule", "kernels", "comm", "execute", "model", "simulate", "measure", "io"},
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
    r"cuda.*|cudnn.*|cublas.*": r"src/([a-z]+/cuda|emulation)/.*",
    r"gpu/.*": r"bench/gpu/.*",
    r"benchmark/.*": r"bench/.*",
    r"CLI/.*": r"bench/.*",
    r"lnbench/.*": r"bench/.*",
    r"simgrid/.*": r"bench/simgrid_oracle/[^/]+\.cpp",
}
# The references of outputs and of counts, and what each may include: of the code that they judge they may read structs,
# and call nothing.
DEFINITION_MAY_INCLUDE = {
    "execute/definition.h",
    "core/problem.h",
    "core/random.h",
    "kernels/reference/row_oracle.h",
    "pattern/dilated_pattern.h",
}
CLOSED_FORMS = ("src/schedule/closed_form_counts.h", "src/schedule/closed_form_counts.cpp", "src/schedule/message_costs.h")
CLOSED_FORMS_MAY_INCLUDE = {"schedule/closed_form_counts.h", "schedule/message_costs.h", "schedule/lower_collectives.h", "core/check.h"}
# The check of gradients finds the rows that a run has left with RowMap, and otherwise calls the definition.
GRADIENT_CHECK_MAY_INCLUDE = {
    "execute/gradient_check.h", "execute/sample_check.h", "execute/tolerances.h", "execute/executor.h",
    "execute/program_rows.h", "kernels/row_worker.h", "schedule/row_map.h", "core/random.h", "comm/communicator.h",
}  # fmt: skip
MAY_USE = {f"src/execute/gradient_check.{end}": {"RowMap", "shard"} for end in ("h", "cpp")}
LONGEST_FILE, LONGEST_FUNCTION = 400, 80  # lines, of the product
STANDS_ALONE = {f"src/execute/definition.{end}": DEFINITION_MAY_INCLUDE for end in ("h", "cpp")}
STANDS_ALONE |= dict.fromkeys(MAY_USE, GRADIENT_CHECK_MAY_INCLUDE)
STANDS_ALONE |= dict.fromkeys(CLOSED_FORMS, CLOSED_FORMS_MAY_INCLUDE)
JUDGED = ("src/core/token_range.h", "src/core/rank_group.h", "src/pattern", "src/schedule")
FREE_FUNCTION_OR_CLASS = re.compile(r"^(?:inline |constexpr |template[^\n]*\n)*(?:class (\w+)|[A-Za-z][\w:<>,& ]* [&*]?(\w+)\()", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)
FOREIGN_SOURCE = re.compile(r"[^\s\"()]*(?:\bsrc/|\.\./)[^\s\"()]*\.(?:cpp|cuh?|h)\b")  # in another folder
BACKEND_SWITCH = re.compile(r"^\s*#\s*if.*\b(LONGNET_MPI|LONGNET_CUDA|LONGNET_NCCL)\b", re.M)


def judged_names(root):
    """Functions and classes that a reference must not use: what it judges is computed with them."""
    headers = [h for place in JUDGED for h in ([root / place] if place.endswith(".h") else sorted((root / place).glob("*.h")))]
    headers = [h for h in headers if h.relative_to(root).as_posix() not in STANDS_ALONE]
    names = {a or b for h in headers for a, b in FREE_FUNCTION_OR_CLASS.findall(h.read_text())} | {"kv_head_of", "shard"}
    names.discard("to_text")  # many types have one
    assert {"head_offset", "num_offsets", "part_begin", "account", "row_bytes", "BranchRows", "RowMap"} <= names, "headers are not read"
    return names


def faults_of_reference(path, text, judged):
    found = [f"{path}: the reference may not include {h}" for h in INCLUDE.findall(text) if "/" in h and h not in STANDS_ALONE[path]]
    code = re.sub(r"//.*|^\s*#.*", "", text, flags=re.M)
    return found + [f"{path}: the reference may not use {word}" for word in sorted(judged & set(re.findall(r"\w+", code)) - MAY_USE.get(path, set()))]


def is_test(path):
    return path.startswith("src/") and (path.endswith("_test.cpp") or "/testing/" in path)


def longest_function(text):
    """Lines of the longest function, from the last line that clang-format has indented as its closing brace."""
    begin, longest = {}, 0
    for number, line in enumerate(text.splitlines()):
        indent, code = len(line) - len(line.lstrip()), line.strip()
        if code == "}":
            longest = max(longest, number + 1 - begin.get(indent, number))
        elif code and code[0] != "#":
            begin[indent] = number
    return longest


def faults_of(path, text):
    """path: relative to the repository, with slashes."""
    found = []
    room = path.split("/")[1] if path.startswith("src/") else None
    for header in INCLUDE.findall(text):
        for pattern, home in LIBRARY_HOMES.items():
            if re.fullmatch(pattern, header) and not re.fullmatch(home, path):
                found.append(f"{path}: includes <{header}>, which only {home} may")
        other = header.split("/")[0]
        if other == "emulation" and is_test(path):
            continue
        if other == "emulation" and path.startswith("bench/"):
            found.append(f"{path}: programs may not include the test machinery ({header})")
        if room in MAY_INCLUDE and other in MAY_INCLUDE and other != room and other not in MAY_INCLUDE[room]:
            found.append(f"{path}: room {room} may not include {other} ({header})")
    if BACKEND_SWITCH.search(text):
        found.append(f"{path}: a switch on a backend belongs into CMake or a registry")
    if not is_test(path) and room != "emulation":
        if (lines := text.count("\n")) > LONGEST_FILE:
            found.append(f"{path}: {lines} lines; more than {LONGEST_FILE} are two files")
        if (lines := longest_function(text)) > LONGEST_FUNCTION:
            found.append(f"{path}: a function of {lines} lines; more than {LONGEST_FUNCTION} are two functions")
    return found


def faults_of_build(path, text):
    """A room links the libraries of others, and compiles no source of theirs."""
    code = re.sub(r"#.*", "", text)
    return [f"{path}: names {source}, a source of another room" for source in FOREIGN_SOURCE.findall(code)]


def faults_of_pages(header, page, text):
    """The page of a header's room, or src/README.md, says what the header is for."""
    named = any(re.search(rf"\b{re.escape(header.stem)}\b", span) for span in re.findall(r"`[^`\n]*`", text))
    return [] if named else [f"{page}: does not name {header}"]


def self_test(judged):
    page = "| `core` | `check.h`, `x` and row.h |"
    assert faults_of_pages(pathlib.Path("src/core/row.h"), "src/README.md", page), "missed: a header that no page names"
    assert not faults_of_pages(pathlib.Path("src/core/check.h"), "src/README.md", page)
    for text in ("add_executable(x x.cpp ${PROJECT_SOURCE_DIR}/src/execute/testing/y.cpp)", "target_sources(x PRIVATE ../comm/y.cu)"):
        assert faults_of_build("bench/CMakeLists.txt", text), f"missed: {text}"
    assert not faults_of_build("src/comm/CMakeLists.txt", "add_library(x testing/y.cpp)  # see ../kernels/z.cpp")
    for text in ("x = head_offset(a, b);", "p.kv_head_of(3)", "BranchRows rows;", '#include "schedule/program.h"'):
        assert all(faults_of_reference(path, text, judged) for path in STANDS_ALONE), f"missed: {text}"
    planted = [
        ("src/schedule/ring.cpp", '#include "comm/communicator.h"'),
        ("src/core/check.h", '#include "pattern/dilated_pattern.h"'),
        ("src/execute/x.cpp", "#include <mpi.h>"),
        ("src/model/x_test.cpp", '#include "execute/model_memory.h"'),
        ("src/io/config.h", "#include <nlohmann/json.hpp>"),
        ("src/kernels/reference/x.cpp", "#include <hwy/highway.h>"),
        ("src/schedule/ring.cpp", "#if defined(LONGNET_MPI)"),
        ("src/io/x.cpp", '#include "execute/program_executor.h"'),
        ("src/execute/x.cpp", "#include <cuda_runtime.h>"),
        ("src/io/x.cpp", '#include "run/plan_point.h"'),
        ("src/io/x.cpp", "\n" * (LONGEST_FILE + 1)),
        ("src/io/x.cpp", "void f(int a,\n       int b) {\n" + "  g();\n" * (LONGEST_FUNCTION - 2) + "}\n"),
        ("bench/gpu/check_main.cpp", "#include <cudnn.h>"),
        ("bench/gpu/check_main.cpp", '#include "emulation/ptx_machine.h"'),
        ("src/comm/cuda/device_transport.cpp", "#include <nccl.h>"),
        ("src/comm/cuda/x.cpp", '#include "kernels/cuda/rows.h"'),
        ("src/execute/cuda/x.cpp", '#include "emulation/emulated_device.h"'),
        ("src/emulation/x.cpp", '#include "execute/cuda/device_executor.h"'),
    ]
    for path, text in planted:
        assert faults_of(path, text), f"missed: {path}: {text}"
    assert not faults_of("src/execute/x.cpp", '#include "comm/communicator.h"\n#include <vector>\n')
    assert longest_function("int f() {\n  if (a) {\n    g();\n  }\n}\n\nint h() {\n}\n") == 5
    assert not faults_of("src/comm/mpi/mpi_world.cpp", "#include <mpi.h>")
    assert not faults_of("src/execute/cuda/x_test.cpp", '#include "emulation/emulated_device.h"')
    assert not faults_of("src/kernels/cuda/rows.cu", "#include <cuda_runtime.h>")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    judged = judged_names(root)
    self_test(judged)
    files = [p for folder in ("src", "bench") for p in (root / folder).rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"}]
    assert len(files) > 20, "found too few sources: wrong folder?"
    found = [f for p in files for f in faults_of(p.relative_to(root).as_posix(), p.read_text())]
    builds = [p for folder in ("src", "bench") for name in ("CMakeLists.txt", "*.cmake") for p in (root / folder).rglob(name)]
    assert len(builds) > 12, "found too few build files"
    found += [f for p in builds for f in faults_of_build(p.relative_to(root).as_posix(), p.read_text())]
    for header in (p.relative_to(root) for p in files if p.suffix in {".h", ".cuh"} and p.is_relative_to(root / "src")):
        page = next(p for p in (f"src/{header.parts[1]}/README.md", "src/README.md") if (root / p).exists())
        if "testing" not in header.parts:
            found += faults_of_pages(header, page, (root / page).read_text())
    for path in STANDS_ALONE:
        found += faults_of_reference(path, (root / path).read_text(), judged)
    print("\n".join(found) or f"layering is kept in {len(files)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

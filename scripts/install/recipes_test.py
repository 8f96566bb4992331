#!/usr/bin/env python3
"""The recipes agree with each other and with CMakeLists.txt. What they run is run by scripts/install_test.py."""
import pathlib
import re
import subprocess
import sys
import types
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SPACK = HERE / "spack/packages/longnet-bench/package.py"


class Containers(unittest.TestCase):
    docker = (HERE / "Dockerfile").read_text()
    apptainer = (HERE / "lnbench.def").read_text()

    def section(self, name):
        return re.search(rf"^%{name}.*\n((?:    .*\n|\n)*)", self.apptainer, re.MULTILINE)[1].split("\n")

    def test_both_start_from_one_image_and_run_the_same_commands(self):
        base = re.search(r"^ARG BASE=(.*)", self.docker, re.MULTILINE)[1]
        self.assertIn(f"Bootstrap: docker\nFrom: {base}\n", self.apptainer)
        steps = [line.strip() for line in self.section("post") if line.strip()]
        self.assertEqual([s for s in steps if not s.startswith("cd ")], re.findall(r"^RUN (.*)", self.docker, re.MULTILINE))

    def test_commands_exist_and_are_correct_shell(self):
        for step in re.findall(r"^RUN (.*)", self.docker, re.MULTILINE):
            subprocess.run(["bash", "-n", "-c", step], check=True)
            for script in re.findall(r"scripts/\S+\.sh", step):
                self.assertTrue((ROOT / script).is_file(), script)
        # The first step without installing: the list that it would install.
        listed = subprocess.run(["bash", "-euc", 'source scripts/common.sh; printf "%s\\n" "${build_packages[@]}"'], cwd=ROOT,
                                capture_output=True, text=True, check=True).stdout.split()
        self.assertLessEqual({"g++", "cmake", "libopenmpi-dev", "python3-venv"}, set(listed))

    def test_sections_are_apptainers(self):
        self.assertEqual(re.findall(r"^%(\w+)", self.apptainer, re.MULTILINE),
                         ["setup", "post", "environment", "runscript", "test"])


class Spack(unittest.TestCase):
    """Runs the recipe with a stand-in for Spack's module: names, variants and options, no resolution."""

    def setUp(self):
        self.depends, self.variants = {}, set()
        module = types.ModuleType("spack.package")
        values = {"mpi", "openmp"}

        class Base:
            spec = types.SimpleNamespace(satisfies=lambda what: what.lstrip("+") in values)
            define = staticmethod(lambda name, value: f"-D{name}={value}")
            define_from_variant = staticmethod(lambda name, variant: f"-D{name}={variant in values}")

        module.CMakePackage, module.CudaPackage = Base, type("CudaPackage", (), {})
        module.depends_on = lambda spec, **where: self.depends.setdefault(re.split(r"[@ +]", spec)[0], where)
        module.variant = lambda name, **_: self.variants.add(name)
        module.version = module.license = module.generator = lambda *_, **__: None
        sys.modules |= {"spack": types.ModuleType("spack"), "spack.package": module}
        scope = {}
        exec(compile(SPACK.read_text(), SPACK, "exec"), scope)
        self.recipe = scope["LongnetBench"]()

    def test_options_are_cmakes(self):
        known = set(re.findall(r"^(?:option|set)\((LONGNET_\w+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE))
        given = dict(re.fullmatch(r"-D(\w+)=(.*)", argument).groups() for argument in self.recipe.cmake_args())
        self.assertLessEqual(set(given), known)
        self.assertEqual(given["LONGNET_CUDA"], "OFF")
        self.assertEqual(given["LONGNET_MPI"], "True")
        self.assertEqual(self.variants, {"mpi", "openmp"})

    def test_libraries_that_cmake_requires_are_dependencies(self):
        names = {"nlohmann_json": "nlohmann-json", "CLI11": "cli11", "GTest": "googletest", "MPI": "openmpi", "HWY": "highway",
                 "HWLOC": "hwloc", "PkgConfig": "pkgconfig", "OpenSSL": "openssl"}
        text = (ROOT / "CMakeLists.txt").read_text() + (ROOT / "src/io/CMakeLists.txt").read_text()
        found = set(re.findall(r"(?:find_package|pkg_check_modules)\((\w+)[^)]*REQUIRED", text)) - {"Threads", "OpenMP"}
        self.assertEqual(found, set(names))
        self.assertLessEqual(set(names.values()), set(self.depends))
        minimum = re.search(r"cmake_minimum_required\(VERSION (\S+)\)", text)[1]
        self.assertIn(f'"cmake@{minimum}:"', SPACK.read_text())


if __name__ == "__main__":
    unittest.main()

# Spack's recipe: spack repo add scripts/install/spack; spack dev-build longnet-bench@main
# Reports need a Python environment besides: PREFIX/share/longnet-bench/scripts/python_env.sh
# ruff: noqa: F403, F405
from spack.package import *


class LongnetBench(CMakePackage, CudaPackage):
    """Benchmark and cluster simulator for LongNet's dilated attention."""

    license("MIT")
    version("main")

    variant("mpi", default=True, description="Ranks as processes of Open MPI")
    variant("openmp", default=True, description="Threads inside a rank")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("googletest@1.12: +gmock", type="build")
    depends_on("nlohmann-json@3.11:", type="build")
    depends_on("cli11@2.1:", type="build")
    depends_on("highway")
    depends_on("hwloc@2:")
    depends_on("openssl")
    depends_on("openmpi@4.1:", when="+mpi")
    depends_on("cuda@12.5:", when="+cuda")
    depends_on("nccl", when="+cuda")
    depends_on("cudnn", when="+cuda")
    depends_on("python@3.11:", type="run")

    generator("ninja")
    build_targets = ("lnbench",)

    def cmake_args(self):
        return [
            self.define("LONGNET_WERROR", False),
            self.define("LONGNET_BENCHMARKS", False),
            self.define("LONGNET_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define_from_variant("LONGNET_MPI", "mpi"),
            self.define_from_variant("LONGNET_OPENMP", "openmp"),
        ]

#!/usr/bin/env bash
# Builds lnbench and installs it below PREFIX, with the Python environment of reports. Needs no root: compilers, MPI and
# libraries come from where they are (packages, modules, Spack).
#
#   scripts/install/install.sh PREFIX [-D...]     (-D...: options of CMake; LONGNET_BUILD: a folder built already)
#
# Without a network, from a folder of wheels (scripts/install/wheelhouse.sh):
#   PIP_NO_INDEX=1 PIP_FIND_LINKS=WHEELS scripts/install/install.sh PREFIX
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../help.sh"
[ $# -gt 0 ] || { bash "$0" --help; exit 2; }
prefix=$(realpath -m "$1")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${LONGNET_BUILD:-build/install}
if [ -z "${LONGNET_BUILD:-}" ]; then
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLONGNET_WERROR=OFF "$@"
  cmake --build "$build" --target lnbench
fi
cmake --install "$build" --prefix "$prefix"
"$prefix/share/longnet-bench/scripts/python_env.sh"
"$prefix/bin/lnbench" --version

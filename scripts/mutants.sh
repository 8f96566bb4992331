#!/usr/bin/env bash
# Plants the faults of scripts/mutants.toml, one at a time, and runs the tests that should catch each; writes
# docs/mutants.md. Takes hours on two cores and goes on where it was stopped; not part of the tests.
# Faults are planted in the committed sources.
#   scripts/mutants.sh [--list] [--page] [--only REGEX] [--jobs N] [--minutes M]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_packages "${build_packages[@]}"
scripts/python_env.sh
if command -v ccache >/dev/null; then  # most of a build is as it was before the fault
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache CCACHE_SLOPPINESS=pch_defines,time_macros
fi
exec .venv/bin/python scripts/mutants.py "$@"

#!/usr/bin/env bash
# Installs what is missing and builds the programs into build/release/bin, with the Python environment of reports.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_options 0 "$@"
install_packages "${build_packages[@]}"
say "preparing the Python environment"
scripts/python_env.sh
build_preset release
printf '\nprograms: %s\n' "$root/build/release/bin"

#!/usr/bin/env bash
# Checks sources with tools of fixed versions (scripts/lint_requirements.txt) and fails on any finding:
#   scripts/lint.sh [format|ruff|shellcheck|hadolint|tidy ...]     (default: all five)
# format: C++ and CUDA files are as clang-format leaves them. Comments, which it leaves alone, have 100 columns at most.
# Comments, of scripts too, say what the thing is: none begins with "Of", "What", "Who" or "Whose".
# ruff: Python. shellcheck: shell scripts. hadolint: the Dockerfile.
# tidy: clang-tidy over the product's C++ and its headers, not over tests, test machinery and .cu files.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parts=("$@")
[ $# -eq 0 ] && parts=(format ruff shellcheck hadolint tidy)
for part in "${parts[@]}"; do
  [[ $part =~ ^(format|ruff|shellcheck|hadolint|tidy)$ ]] ||
    usage_error "unknown part '$part': use format, ruff, shellcheck, hadolint or tidy"
done

lint_format() {
  git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -P "$(nproc)" -n 100 "$tools/clang-format" --dry-run --Werror &&
    ! LC_ALL=C.UTF-8 git grep -nE -e '.{101}' --and -e '^ *//' -- '*.h' '*.cpp' '*.cu' '*.cuh' &&
    ! git grep -nE '(//|#|""") ?(Of|What|Who|Whose) |[^ /#] +(//|#) ?(of|what|who|whose) ' -- \
      '*.h' '*.cpp' '*.cu' '*.cuh' '*.py' '*.sh' '*.env' '*.cmake' '*CMakeLists.txt'
}

lint_ruff() { "$tools/ruff" check --quiet .; }

lint_shellcheck() {
  git ls-files '*.sh' '*.sbatch' '*.pbs' '*.env' .ci/run | xargs "$tools/shellcheck"
}

lint_hadolint() { git ls-files '*Dockerfile' | xargs "$tools/hadolint"; }

lint_tidy() {
  install_packages "${build_packages[@]}"
  scripts/python_env.sh
  configure_preset lint
  cmake --build build/lint --target longnet_revision >/dev/null
  scripts/tidy_files.py build/lint/compile_commands.json |
    xargs -P "$(nproc)" -n 1 "$tools/clang-tidy" --quiet -p build/lint 2>/dev/null
}

scripts/python_env.sh build/lint-env scripts/lint_requirements.txt
tools=$root/build/lint-env/bin
failed=()
for part in "${parts[@]}"; do
  say "checking: $part"
  "lint_$part" || failed+=("$part")
done
[ ${#failed[@]} -eq 0 ] || fail "findings of: ${failed[*]}"

#!/usr/bin/env bash
# Installs what is missing, builds and runs all tests: release, then the address and undefined-behaviour
# sanitizers, then the thread sanitizer over the threads transport. 
#   scripts/test.sh [release|asan|tsan ...]     (default: all three)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
presets=("${@:-release}")
[ $# -eq 0 ] && presets=(release asan tsan)

install_packages "${build_packages[@]}" "${test_packages[@]}"
say "preparing the Python environment"
scripts/python_env.sh

# The thread sanitizer is for code that shares memory between ranks; the rest has no threads.
declare -A targets=([release]="all" [asan]="all" [tsan]="comm_tests execute_tests measure_tests")
declare -A tests=([release]="." [asan]="." [tsan]="^(comm|execute|measure)\.")
# What other languages do, and what simulates or measures for long, runs once, in release.
declare -A left_out=([release]="^$" [asan]="^(report_|netns|validate_|command_line_(simulate|calibrate|virtual))" [tsan]="^$")
failed=()
for preset in "${presets[@]}"; do
  [ -n "${targets[$preset]:-}" ] || fail "unknown preset '$preset': use release, asan or tsan"
  # shellcheck disable=SC2086
  build_preset "$preset" ${targets[$preset]} || { failed+=("$preset (build)"); continue; }
  say "testing preset $preset"
  # Chromium is installed above, so a report that no browser has seen is a failure.
  LONGNET_REQUIRE_BROWSER=1 ctest --test-dir "build/$preset" -R "${tests[$preset]}" -E "${left_out[$preset]}" \
    --output-on-failure -j "$(nproc)" || failed+=("$preset")
done
[ ${#failed[@]} -eq 0 ] || fail "tests failed in: ${failed[*]}"
say "all tests passed: ${presets[*]}"

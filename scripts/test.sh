#!/usr/bin/env bash
# Installs what is missing, checks the sources, builds and runs all tests: release, then the address and
# undefined-behaviour sanitizers, then the thread sanitizer over the threads transport.
#   scripts/test.sh [lint|release|asan|tsan ...]     (default: all four)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parts=("$@")
[ $# -eq 0 ] && parts=(lint release asan tsan)
for part in "${parts[@]}"; do
  [[ $part =~ ^(lint|release|asan|tsan)$ ]] || fail "unknown part '$part': use lint, release, asan or tsan"
done

install_packages "${build_packages[@]}" "${test_packages[@]}"
say "preparing the Python environment"
scripts/python_env.sh

# The thread sanitizer is for code that shares memory between ranks; the rest has no threads.
declare -A targets=([release]="all" [asan]="all" [tsan]="comm_tests execute_tests measure_tests")
declare -A tests=([release]="." [asan]="." [tsan]="^(comm|execute|measure)\.")
# Tests of other languages, long simulations and measurements, checks of numbers alone, and tests that limit memory or
# kill processes run once, in release; the reference kernel, which takes the same rows as the fast one, in its room;
# backward programs where they are executed.
left_out_asan="report_|netns|validate_|reference_results|layering|docs|python_env|command_line_(configs|simulate|calibrate|virtual|robust)|kills|kernels.AccuracyTest|kernels.Backward.*CentralDifferences|measure.ResidentGrowth|pattern.DependencyDepth.(Irregular|OneBillion)|schedule.BackwardPrograms.(AreCorrect|OfEvery)|execute.*TheReferenceKernel|execute.Stratify"
# Walks and the choice of samples run on one thread; kernels do so there; lowered collectives race forward as backward.
left_out_tsan="measure.ResidentGrowth|execute.(Stratify|VirtualWalk|Executor.*TheReferenceKernel|Backward.(EveryLayout|SameBits))"
declare -A left_out=([release]="^$" [asan]="^($left_out_asan)" [tsan]="^($left_out_tsan)")
failed=() times=()

# take_time WHAT: notes the seconds since the call before.
take_time() { times+=("$(printf '%5d s  %s' $((SECONDS - noted)) "$1")"); noted=$SECONDS; }
noted=0
take_time "packages and Python"
for part in "${parts[@]}"; do
  if [ "$part" = lint ]; then
    scripts/lint.sh || failed+=(lint)
    take_time lint
    continue
  fi
  # shellcheck disable=SC2086  # a list of targets
  build_preset "$part" ${targets[$part]} || { failed+=("$part (build)"); continue; }
  take_time "$part: build"
  say "testing preset $part"
  # Chromium is installed above, so a report that no browser has seen is a failure. One test more than cores: many
  # wait for a scheduler, a browser or each other.
  LONGNET_REQUIRE_BROWSER=1 ctest --test-dir "build/$part" -R "${tests[$part]}" -E "${left_out[$part]}" \
    --output-on-failure -j $(($(nproc) + 1)) || failed+=("$part")
  take_time "$part: tests"
done
say "where the time went"
printf '%s\n' "${times[@]}"
[ ${#failed[@]} -eq 0 ] || fail "failed: ${failed[*]}"
say "all passed: ${parts[*]}"

#!/usr/bin/env bash
# Installs what is missing, builds and runs all tests: release, then the address and undefined-behaviour sanitizers, then
# the thread sanitizer over the threads transport; then checks the sources.
#   scripts/test.sh [release|asan|tsan|lint ...]     (default: all four)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parts=("$@")
[ $# -eq 0 ] && parts=(release asan tsan lint)
for part in "${parts[@]}"; do
  [[ $part =~ ^(release|asan|tsan|lint)$ ]] || usage_error "unknown part '$part': use release, asan, tsan or lint"
done

install_packages "${build_packages[@]}" "${test_packages[@]}"
say "preparing the Python environment"
scripts/python_env.sh

# Not in release: tests of rooms (core, emulation, io, json) that all run, and as they are, under the address sanitizer.
# The thread sanitizer is for code that shares memory between ranks; the rest has no threads.
declare -A targets=(
  [release]="all comm_tests device_tests execute_tests kernels_tests measure_tests model_tests pattern_tests run_tests schedule_tests simulate_tests"
  [asan]="all unit_tests" [tsan]="comm_tests execute_tests measure_tests")
declare -A tests=([release]="." [asan]="." [tsan]="^(comm|execute|measure)\.")
# Under the address sanitizer, which looks at rows and indices: not what is of another language, simulates or measures
# for long, limits memory or kills processes; nor plans and steps by command, which Usage and Run start, too, and whose
# work is in tests of rooms, nor errors of all published cases, of which run.Published predicts those of eight ranks and
# fewer; nor what compares numbers of code that other tests run over more shapes
# (central differences, formulas, strata, the same bits on any threads, presets, faults of a walk) or counts allocations.
# (A regular expression of ctest holds nine groups in brackets, and is none with more.)
left_out_asan="report_|validate_real|reference_results|published|layering|docs|mutants|python_env|install_recipes|kills"
left_out_asan+="|command_line_(plan|configs|simulate|calibrate|measured|virtual|mpi|robust|steps)"
left_out_asan+="|kernels.AccuracyTest|kernels.Backward.*CentralDifferences|kernels.CpuBackwardTest.(LongSums|SeveralBlocks)"
left_out_asan+="|measure.ResidentGrowth|pattern.DependencyDepth.(Irregular|OneBillion|IsTheDiameter)"
left_out_asan+="|execute.Model.(GradientsAreThose|TheSameWhere|AStepAllocates)|run.ModelPoint.(Coll|E|RanksThat|Replicas|RowsOf)"
left_out_asan+="|schedule.BackwardPrograms.(AreCorrect|OfEvery|OfRows)|schedule.Formulas.(UnequalShares|Dilated)"
left_out_asan+="|run.PlanPoint.AModelWithout|run.SimulatePoint.AProgramThatIs|schedule.Ring.RefusesAProgram"
left_out_asan+="|simulate.Period.RanksAPeriod|run.WalkPoint.(WhatOneUnit|GoesOn)|run.Configs.Flagships"
left_out_asan+="|execute.*TheReferenceKernel|execute.Stratify|execute.*Preset|execute.*SameBits|execute.Executor.Allocates|execute.VirtualWalk.AShareStands"
# Under the thread sanitizer, which looks at what threads share: not walks and choices of samples, which run on one;
# kernels do so there; lowered collectives race forward as backward; presets and long queries are shapes among others,
# and 32 ranks, whose memory is counted, race as eight; a model's step is an attention's passes and ops of one rank.
left_out_tsan="measure.ResidentGrowth|execute.(Stratify|VirtualWalk|.*TheReferenceKernel|.*Preset|GradientCheck.Passes"
left_out_tsan+="|Backward.(EveryLayout|SameBits)|ManyRanks|Model.|Executor.LongQueries)"
# Damaged inputs are for the address sanitizer.
declare -A left_out=([release]="^(fuzz_|sample_result|validate_json)|_NOT_BUILT$" [asan]="^($left_out_asan)" [tsan]="^($left_out_tsan)")
failed=() times=() all_failed=""

# take_time WHAT: notes the seconds since the call before.
take_time() { times+=("$(printf '%5d s  %s' $((SECONDS - noted)) "$1")"); noted=$SECONDS; }

# prepare PART: what its tests need; lint has none.
prepare() {
  if [ "$1" = lint ]; then
    scripts/lint.sh
  else
    # shellcheck disable=SC2086  # a list of targets
    build_preset "$1" ${targets[$1]}
  fi
}

# run_tests PART OPTION...: Chromium is installed above, so a report that no browser has seen is a failure. MPI's ranks and
# OpenMP's threads, which would poll, leave their cores to others.
run_tests() {
  env LONGNET_REQUIRE_BROWSER=1 OMPI_MCA_mpi_yield_when_idle=1 OMP_WAIT_POLICY=passive \
    ctest --test-dir "build/$1" --output-on-failure "${@:2}"
}
# pass_tests PART OPTION...: those of release may pass alone, for another program's load can pass their limits of time; a
# sanitizer's report is never to be run away from.
pass_tests() {
  run_tests "$@" && return
  local failed_tests
  failed_tests=$(sed "s/^[0-9]*:/  $1: /" "build/$1/Testing/Temporary/LastTestsFailed.log")
  say "failed in preset $1, and run again alone if it is release:"$'\n'"$failed_tests"
  all_failed+="$failed_tests"$'\n'
  [ "$1" = release ] && run_tests "$1" --rerun-failed -j 1
}

noted=0
take_time "packages and Python"
for part in "${parts[@]}"; do
  prepared=true
  prepare "$part" || prepared=false
  if [ "$part" = lint ]; then take_time lint; else take_time "$part: build"; fi
  if ! $prepared; then
    failed+=("$part${targets[$part]:+ (build)}")
    continue
  fi
  [ "$part" != lint ] || continue
  say "testing preset $part"
  selected=(-R "${tests[$part]}" -E "${left_out[$part]}") passed=true
  pass_tests "$part" "${selected[@]}" -L every_core || passed=false
  # More tests than cores: many wait for a scheduler, a browser, a limit of time or each other.
  pass_tests "$part" "${selected[@]}" -LE every_core -j $((3 * $(nproc))) || passed=false
  $passed || failed+=("$part")
  take_time "$part: tests"
done
say "where the time went"
printf '%s\n' "${times[@]}"
[ -z "$all_failed" ] || say "tests that failed at least once:"$'\n'"${all_failed%$'\n'}"
[ ${#failed[@]} -eq 0 ] || fail "failed: ${failed[*]}"
say "all passed: ${parts[*]}"

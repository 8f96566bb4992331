#!/usr/bin/env bash
# Builds and proves the GPU backends on a machine with a GPU and no network, in under nine minutes.
#
#   scripts/gpu_validate.sh [-o DIR] [--archive FILE.tar.gz] [--minutes 9] [--build-only] [--skip STAGES]
#                           [--part 1|2|3]
#
# Where a job may take ten minutes: the three parts one after the other with
# one DIR. 1: all checks, and the baseline; 2: cuda_sm90a, a billion tokens, figure 5; 3: sweeps,
# ranks that share the GPU, sanitizers. Without --part: all stages.
#
# Programs come from scripts/gpu_bundle.sh where they start, else they are built: with nvcc, CMake and a
# C++20 compiler. Everything else is used when it is there, and named when it is not. Each stage has a time limit and writes its result at once, the most valuable ones first, so
# that a stage that fails or hangs loses nothing but itself; the limits sum to the time given. DIR (default: results/<utc>-<gpu>) gets
# one log and one JSON per stage, result.json with all of them, and summary.txt. --archive: DIR as one
# file, written again after every stage, for machines that give back only a few files, or end without
# a warning.
#
# Exit codes: 0 all stages passed, 1 one failed, 2 usage, 3 no GPU (nothing was run).
set -u
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "$0")/.." || exit 2
begin=$SECONDS
minutes=9
out=""
archive=""
build_only=0
skip=","
part=""
while [ $# -gt 0 ]; do
  case "$1" in
    -o) out=$2; shift 2 ;;
    --archive) archive=$2; shift 2 ;;
    --minutes) minutes=$2; shift 2 ;;
    --build-only) build_only=1; shift ;;
    --skip) skip=",$2,"; shift 2 ;;
    --part) part=$2; shift 2 ;;
    *) sed -n '2,21p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
  esac
done
[ -z "$part" ] || [ -n "$out" ] || { echo "gpu_validate: --part needs -o DIR, the same for all parts" >&2; exit 2; }
[[ $minutes =~ ^[1-9][0-9]*$ ]] || { echo "gpu_validate: --minutes $minutes: a whole number of minutes" >&2; exit 2; }
[[ $part =~ ^[123]?$ ]] || { echo "gpu_validate: --part $part: there are 1, 2 and 3" >&2; exit 2; }
deadline=$((begin + minutes * 60 - 20))
build=build/gpu
bundle=build/gpu_deps

say() { printf '%s\n' "$*"; }
remaining() { echo $((deadline - SECONDS)); }

# ---- is there a GPU? -------------------------------------------------------------------------------
# Containers bring the driver's programs and libraries here.
driver=/usr/local/nvidia
[ -d $driver/bin ] && PATH="$PATH:$driver/bin"
gpu_name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 | tr ' /' '--')
if [ -z "$gpu_name" ] && ls /dev/nvidia[0-9]* >/dev/null 2>&1; then gpu_name=gpu; fi
if [ -z "$gpu_name" ] && [ "$build_only" = 0 ]; then
  say "gpu_validate: no GPU on this machine (nvidia-smi lists none, there is no /dev/nvidia*)."
  say "Nothing was built or run. Use --build-only to see whether the GPU programs build here."
  exit 3
fi
[ -n "$out" ] || out="results/$(date -u +%Y%m%dT%H%M%SZ)-${gpu_name:-build}"
mkdir -p "$out"
left_out=()
status=()

# ---- what is here ----------------------------------------------------------------------------------
for dir in ${CUDA_HOME:+"$CUDA_HOME/bin"} /usr/local/cuda/bin /usr/local/cuda-*/bin /opt/cuda/bin; do
  case ":$PATH:" in *":$dir:"*) ;; *) [ -d "$dir" ] && PATH="$PATH:$dir" ;; esac
done
built=0  # the bundle's programs run here: nothing is to be built
if [ "$build_only" = 0 ] && LD_LIBRARY_PATH=$PWD/$bundle/lib:${LD_LIBRARY_PATH:-} $bundle/bin/gpu_check --help >/dev/null 2>&1; then
  built=1
  export LD_LIBRARY_PATH="$PWD/$bundle/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
else
  command -v nvcc >/dev/null || { say "gpu_validate: nvcc was not found: set PATH or CUDA_HOME"; exit 2; }
  command -v cmake >/dev/null || { say "gpu_validate: cmake was not found"; exit 2; }
fi
# Python's wheels bring cuDNN, cuBLASLt and NCCL to machines that have no packages of them.
for library in cudnn cublasLt nccl; do
  upper=${library^^}
  home=$(python3 - "$library" 2>/dev/null <<'PY'
import glob, importlib.util, os, sys
spec = importlib.util.find_spec("nvidia")
for place in (spec.submodule_search_locations if spec else []):
    for folder in sorted(glob.glob(os.path.join(place, "*"))):
        if os.path.exists(os.path.join(folder, "include", sys.argv[1] + ".h")):
            print(folder); raise SystemExit
PY
)
  if [ -n "$home" ]; then
    export "${upper}_HOME=$home"
    # Wheels name libraries by their version only, which is what is opened at run time. What cuDNN
    # opens itself (nvrtc, cublasLt) is in the toolkit, or in the wheels beside it.
    export LD_LIBRARY_PATH="$home/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    wheels=$(dirname "$home")
  fi
done
nvcc=$(command -v nvcc)
for dir in ${nvcc:+"$(dirname "$(dirname "$(readlink -f "$nvcc")")")/lib64"} $driver/lib64 $driver/lib \
  ${wheels:+"$wheels"/cu1*/lib "$wheels/cuda_nvrtc/lib" "$wheels/cublas/lib"}; do
  [ -d "$dir" ] && export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$dir"
done
for tool in compute-sanitizer ncu; do command -v $tool >/dev/null || left_out+=("$tool: not found"); done
left_out+=("ranks as processes: the programs here are built without MPI, ranks are threads; check_ipc shares memory and events between two processes")
{
  date -u +%Y-%m-%dT%H:%M:%SZ
  git rev-parse HEAD 2>/dev/null
  uname -srm; nproc; nvcc --version | tail -2; cmake --version | head -1; c++ --version | head -1
  [ "$built" = 0 ] || cat $bundle/built.txt
  nvidia-smi 2>/dev/null
} >"$out/environment.txt" 2>&1

# ---- stages ----------------------------------------------------------------------------------------
keep() {
  [ -n "$archive" ] || return 0
  tar czf "$archive.part" -C "$out" . && mv "$archive.part" "$archive"
}
# Shares of the time: a stage's limit is its share of what is left, among the stages that are left. What
# one does not need goes to those after it, and together they take no more than the time given. The build
# may take nearly half.
declare -A share=([build]=500
  [check_kernels]=65 [kernels]=80 [kernels_model]=20 [check_sm90a]=25 [kernels_sm90a]=45 [profile]=15 [programs_sm90a]=20
  [check_programs]=40 [check_cudnn]=30 [check_branches]=40 [lnbench_walk]=90 [lnbench_figure5]=40
  [lnbench]=25 [lnbench_backward]=25 [lnbench_ranks]=15 [check_ipc]=10 [comm]=10
  [sanitizer_attend_memcheck]=20 [sanitizer_attend_racecheck]=20 [sanitizer_rows_memcheck]=15
  [sanitizer_backward_memcheck]=20 [sanitizer_sm90a_memcheck]=20
  [sanitizer_sm90a_backward_memcheck]=20 [sanitizer_sm90a_backward_racecheck]=20)
# The stages of each part; all of them, where no part was asked for.
declare -A stages_of=(
  [1]="check_kernels check_sm90a programs_sm90a check_programs check_cudnn check_branches kernels kernels_model"
  [2]="kernels_sm90a profile lnbench_walk lnbench_figure5"
  [3]="lnbench lnbench_backward lnbench_ranks check_ipc comm sanitizer_attend_memcheck sanitizer_attend_racecheck
    sanitizer_rows_memcheck sanitizer_backward_memcheck sanitizer_sm90a_memcheck sanitizer_sm90a_backward_memcheck
    sanitizer_sm90a_backward_racecheck")
wanted() { [ -z "$part" ] || [ "$1" = build ] || [[ " ${stages_of[$part]//$'\n'/ } " == *" $1 "* ]]; }
limit_of() {  # NAME
  local all=0 other
  for other in "${!share[@]}"; do all=$((all + share[$other])); done
  echo $(($(remaining) * ${share[$1]:-0} / (all > 0 ? all : 1)))
}
# Seconds that a program may plan with: the stage's limit, less 12 to start and end.
plan() {
  local limit
  limit=$(limit_of "$1")
  echo $((limit > 16 ? limit - 12 : 4))
}
# Stages that will not run leave their time to the others.
drop() {
  local name
  for name in "$@"; do unset "share[$name]"; done
}
# stage NAME COMMAND...: runs within its limit.
stage() {
  local name=$1 limit
  shift
  limit=$(limit_of "$name")
  drop "$name"
  wanted "$name" || return 1
  case "$skip" in *",$name,"*) left_out+=("$name: skipped on request"); return 1 ;; esac
  if [ "$(remaining)" -lt 10 ]; then
    left_out+=("$name: no time left")
    return 1
  fi
  [ "$limit" -ge 1 ] || limit=1
  say "== $name (at most $limit s)"
  local at=$SECONDS code
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  tail -40 "$out/$name.log"
  say "-- $name: exit $code after $((SECONDS - at)) s"
  status+=("$name=$code")
  keep
  return $code
}

# Stages of earlier parts, in the order in which they ran.
if [ -n "$part" ] && [ -f "$out/stages.txt" ]; then
  read -ra earlier <"$out/stages.txt"
  for s in "${earlier[@]}"; do wanted "${s%%=*}" || status+=("$s"); done
fi
passed() { [[ " ${status[*]} " == *" $1=0 "* ]]; }
hung() { [[ " ${status[*]} " =~ " $1="(124|137)" " ]]; }

# forgive NAME REASON: the last stage's exit code is not a failure, but is said.
forgive() {
  status[-1]="$1=0"
  left_out+=("$2")
}

# shellcheck disable=SC2329  # the stage "build" runs it in a shell of its own
configure_and_build() {
  local generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  local arch=${LONGNET_CUDA_ARCH:-}
  if [ -z "$arch" ]; then
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
    arch=${arch:-90}-real
  fi
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DLONGNET_GPU_ONLY=ON \
    -DLONGNET_CUDA=ON -DLONGNET_MPI=OFF -DLONGNET_OPENMP=OFF -DLONGNET_WERROR=OFF \
    -DCMAKE_CUDA_FLAGS=-lineinfo -DCMAKE_CUDA_ARCHITECTURES="$arch" &&
    cmake --build "$build" --parallel "$(nproc)"
}
export -f configure_and_build
export build

bin=$build/bin
for name in "${!share[@]}"; do wanted "$name" || drop "$name"; done
for name in ${skip//,/ }; do [ "$name" = build ] || drop "$name"; done
if [ "$built" = 1 ]; then
  bin=$bundle/bin
  drop build
elif ! stage build bash -c configure_and_build; then
  say "gpu_validate: the build failed; see $out/build.log"
  grep -m 20 -iE 'error|fatal' "$out/build.log"
  exit 1
fi
if [ "$build_only" = 1 ]; then
  say "built: $(cd "$bin" && echo *)"
  [ -n "$gpu_name" ] || { say "no GPU on this machine: nothing was run"; exit 3; }
  exit 0
fi
for library in cudnn cublasLt nccl; do
  [ "$built" = 1 ] || grep -qi "$library ON" "$out/build.log" || left_out+=("$library: its header was not found")
done

sanitize() {  # SECTION TOOL
  command -v compute-sanitizer >/dev/null || return 0
  wanted "sanitizer_$1_$2" || return 0
  case " ${left_out[*]} " in *"compute-sanitizer: it"*) return 0 ;; esac
  stage "sanitizer_$1_$2" compute-sanitizer --tool "$2" --error-exitcode 9 \
    $bin/gpu_check --small --only "$1" --json "$out/sanitizer_$1_$2.json" && return 0
  [ -f "$out/sanitizer_$1_$2.log" ] || return 0 # it was left out, which stage said
  if grep -qiE 'device not supported|not supported on this|cannot attach' "$out/sanitizer_$1_$2.log"; then
    forgive "sanitizer_$1_$2" "compute-sanitizer: it refuses this device (sanitizer_$1_$2.log)"
  elif [[ ${status[-1]} =~ =(124|137)$ ]] && ! grep -qE '=========.*(Error|Invalid|[Rr]ace|hazard)' "$out/sanitizer_$1_$2.log"; then
    forgive "sanitizer_$1_$2" "compute-sanitizer: $2 of $1 was too slow for its time, and had found nothing so far"
  fi
}
compute_capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1)

if [ "$compute_capability" != 9.0 ]; then
  left_out+=("cuda_sm90a: needs compute capability 9.0, this GPU has ${compute_capability:-an unknown one}")
  drop check_sm90a kernels_sm90a profile programs_sm90a sanitizer_sm90a_memcheck sanitizer_sm90a_backward_memcheck \
    sanitizer_sm90a_backward_racecheck
fi
command -v ncu >/dev/null || drop profile
command -v compute-sanitizer >/dev/null || for name in "${!share[@]}"; do
  case $name in sanitizer_*) drop "$name" ;; esac
done
# lnbench needs libraries that a GPU machine may lack: scripts/gpu_bundle.sh brings them.
lnbench=(env "LD_LIBRARY_PATH=$PWD/$bundle/lib:${LD_LIBRARY_PATH:-}" "$bundle/bin/lnbench")
if [ ! -x $bundle/bin/lnbench ]; then
  left_out+=("lnbench: no $bundle (scripts/gpu_bundle.sh makes it)")
  lnbench=()
elif ! "${lnbench[@]}" --version >"$out/lnbench_version.log" 2>&1; then
  left_out+=("lnbench: it does not start here (lnbench_version.log)")
  lnbench=()
fi
[ ${#lnbench[@]} -gt 0 ] || drop lnbench lnbench_backward lnbench_figure5 lnbench_ranks lnbench_walk comm
run_config() {  # NAME CONFIG OPTIONS...; exit 4: stopped in time, with what it has
  [ ${#lnbench[@]} -gt 0 ] || return 0
  local name=$1 config=$2
  shift 2
  wanted "$name" || return 0
  stage "$name" "${lnbench[@]}" run "configs/$config.json" --max-time "$(plan "$name")s" --progress plain \
    -o "$out/$name" "$@" ||
    { [ "${status[-1]}" = "$name=4" ] && forgive "$name" "$name: it was stopped in time"; }
  [ -f "$out/$name/result.json" ] && cp "$out/$name/result.json" "$out/$name.json"
}

stage check_kernels $bin/gpu_check --only generator,rows,summaries,gemm,model,attend,backward --json "$out/check_kernels.json"
stage kernels $bin/gpu_kernels_benchmark --seconds "$(plan kernels)" --json "$out/kernels.json"
stage kernels_model $bin/gpu_kernels_benchmark --section model --seconds "$(plan kernels_model)" --json "$out/kernels_model.json"
# The kernel that may hang where a barrier is wrong: in processes of its own, which costs its time alone.
# One that computes something wrong is timed all the same.
fastest=cuda
if [ "$compute_capability" = 9.0 ]; then
  stage check_sm90a $bin/gpu_check --only sm90a,sm90a_backward --json "$out/check_sm90a.json"
  if hung check_sm90a; then
    drop kernels_sm90a profile programs_sm90a
  else
    stage kernels_sm90a $bin/gpu_kernels_benchmark --sm90a --seconds "$(plan kernels_sm90a)" \
      --json "$out/kernels_sm90a.json"
    # One launch, dense, 2048 rows of head_dim 64, with all of the profiler's counters.
    [ -n "${share[profile]:-}" ] && stage profile ncu --clock-control none --set full --import-source no --page details \
      -k regex:attend_group --launch-skip 2 -c 1 -f -o "$out/profile" \
      $bin/gpu_kernels_benchmark --sm90a --quick --rows 2048 --shape 192x128-4 --seconds 1
    stage programs_sm90a $bin/gpu_check --only programs_sm90a --json "$out/programs_sm90a.json"
    if passed check_sm90a && passed kernels_sm90a && passed programs_sm90a; then
      faster=$(sed -n 's/^# fastest own kernel[^:]*: //p' "$out/kernels_sm90a.log")
      fastest=${faster:-cuda}
    fi
  fi
fi
stage check_programs $bin/gpu_check --only programs,virtual,refusals,programs_backward,programs_model --json "$out/check_programs.json"
stage check_cudnn $bin/gpu_check --only cudnn,cudnn_backward --json "$out/check_cudnn.json"
stage check_branches $bin/gpu_check --only branches --json "$out/check_branches.json"
# The record, by the fastest kernel that is right: a billion tokens, shard by shard, as far as the time
# goes, and figure 5.
run_config lnbench_walk one-billion-gpu --set "run.kernel=$fastest"
run_config lnbench_figure5 figure5-gpu --ranks 1 --set "run.kernel=$fastest"
run_config lnbench kernels-gpu --ranks 1 --filter 'algorithm == dilated && seq_len <= 64K'
run_config lnbench_backward kernels-gpu --ranks 1 --set sweep.pass=forward_backward --set "sweep.kernel=$fastest,cudnn" \
  --filter 'algorithm == dilated && seq_len <= 64K'
# Two ranks that share the GPU: what every transport's program does, and what sharing costs.
run_config lnbench_ranks h100-8 --ranks 2 --filter 'ranks == 2 && seq_len <= 256K'
stage check_ipc $bin/gpu_check --only ipc --json "$out/check_ipc.json"
# Where there are several GPUs, lnbench calibrate --gpu-comm takes the link between them from this.
[ ${#lnbench[@]} -gt 0 ] && stage comm "${lnbench[@]}" comm --transport gpu --max-bytes 64MiB --json "$out/comm.json"
sanitize attend memcheck
sanitize backward memcheck
sanitize attend racecheck
sanitize rows memcheck
if [ "$compute_capability" = 9.0 ]; then
  sanitize sm90a memcheck
  sanitize sm90a_backward memcheck
  sanitize sm90a_backward racecheck
fi

echo "${status[*]}" >"$out/stages.txt"

# ---- all in one ------------------------------------------------------------------------------------
{
  printf '{ "schema_version": 1, "stages": {'
  comma=""
  for s in "${status[@]}"; do
    printf '%s "%s": %s' "$comma" "${s%%=*}" "${s#*=}"
    comma=","
  done
  printf ' }'
  for f in "$out"/*.json; do
    [ "$(basename "$f")" = result.json ] && continue
    [ -s "$f" ] && printf ',\n"%s": %s' "$(basename "$f" .json)" "$(cat "$f")"
  done
  printf ' }\n'
} >"$out/result.json.part" && mv "$out/result.json.part" "$out/result.json"
{
  say "# GPU validation: $gpu_name, $(head -1 "$out/environment.txt")"
  say "# stages (exit codes): ${status[*]}"
  for line in "${left_out[@]}"; do say "# left out: $line"; done
  for log in check_kernels check_sm90a check_programs check_ipc check_cudnn check_branches kernels kernels_model kernels_sm90a programs_sm90a \
    lnbench lnbench_backward lnbench_ranks lnbench_figure5 comm lnbench_walk profile; do
    [ -f "$out/$log.log" ] && { say; say "## $log"; grep -v FAILED "$out/$log.log"; grep -m 10 FAILED "$out/$log.log"; }
  done
  say
  say "## goals"
  cat "$out"/*.log | grep -E '^# .* goal ' || say "none was measured"
  say "# stages (exit codes): ${status[*]}"
} >"$out/summary.txt"
keep
say
cat "$out/summary.txt"
say "# stages (exit codes): ${status[*]}"
say "# $((SECONDS - begin)) s in all; results: $out"
for s in "${status[@]}"; do [ "${s#*=}" = 0 ] || exit 1; done
exit 0

#!/usr/bin/env bash
# Measures what the suite holds itself to and prints each ratio beside its goal: kernels against the machine's peak,
# a dilated forward against its attends, two ranks against one. About seven minutes on two quiet cores.
#   scripts/goals.sh [FOLDER]      (default: build/goals; finished runs in it are used again)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
folder=${1:-build/goals}
mkdir -p "$folder"
build_preset release lnbench kernels_benchmark
bin=build/release/bin
[ -e "$folder/kernels.json" ] ||
  $bin/kernels_benchmark --benchmark_filter='attend/.*d:64/rows:2048' --benchmark_out="$folder/kernels.json" \
    --benchmark_out_format=json >/dev/null 2>&1
[ -e "$folder/forward/result.json" ] || mpirun -np 2 $bin/lnbench run configs/goals.json -o "$folder/forward"
[ -e "$folder/tokens/result.json" ] ||
  mpirun -np 2 $bin/lnbench run configs/figure5-cpu.json -o "$folder/tokens" \
    --filter 'algorithm == dilated && ranks == 2 && (seq_len == 8K || seq_len == 1M)' --set measure.max_samples=5
exec .venv/bin/python scripts/goals.py "$folder"

#!/usr/bin/env bash
# Measures what the suite holds itself to and prints each ratio beside its goal: kernels against the machine's peak,
# a dilated forward against its attends, two ranks against one, a walk over virtual ranks against its attends. About
# nine minutes on two quiet cores.
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
[ -e "$folder/walk/result.json" ] || $bin/lnbench run configs/sixteen-million.json -o "$folder/walk"
ring=(configs/goals.json --transport virtual --ranks 4 --filter 'algorithm == ring' --set measure.warmup=0
  --set measure.min_samples=1 --set measure.max_samples=1)
[ -e "$folder/ring/result.json" ] || $bin/lnbench run "${ring[@]}" -o "$folder/ring"
[ -e "$folder/ring-share/result.json" ] ||
  $bin/lnbench run "${ring[@]}" --set virtual.sample_share=0.2 -o "$folder/ring-share"
exec .venv/bin/python scripts/goals.py "$folder"

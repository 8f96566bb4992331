#!/usr/bin/env bash
# Measures what the suite holds itself to and prints each ratio beside its goal: kernels against the machine's peak,
# a dilated forward against its attends, both passes against a forward, two ranks against one, also of a training step,
# and its ops against it, a walk over virtual ranks against its attends, the simulator's seconds and memory.
# About 25 minutes on two quiet cores.
#   scripts/goals.sh [FOLDER]      (default: build/goals/REVISION; finished runs in it are used again, and named)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_options 1 "$@"
folder=${1:-build/goals/$(git describe --always --dirty --exclude '*')}
mkdir -p "$folder"
for kept in "$folder"/*.json "$folder"/*/result.json; do
  [ -e "$kept" ] && say "used again: $kept of $(date -u -r "$kept" +%Y-%m-%dT%H:%M:%SZ)"
done
build_preset release lnbench kernels_benchmark
bin=build/release/bin
[ -e "$folder/kernels.json" ] ||
  $bin/kernels_benchmark --benchmark_min_time=0.25 --benchmark_out="$folder/kernels.json" --benchmark_out_format=json \
    --benchmark_filter='((attend|backward)/..../d:64|backward/..../d:128)/rows:2048/stride:1/.*threads:1$|gemm/.*n:768/k:3072' \
    >/dev/null 2>&1
[ -e "$folder/exact/result.json" ] ||
  mpirun -np 2 $bin/lnbench run configs/goals.json -o "$folder/exact" --filter 'algorithm != dilated'
once=(--set measure.warmup=0 --set measure.min_samples=1 --set measure.max_samples=1)
for round in 1 2 3 4 5; do  # one sample of each pass on each number of ranks, in turn
  [ -e "$folder/passes-$round/result.json" ] ||
    mpirun -np 2 $bin/lnbench run configs/goals.json -o "$folder/passes-$round" --filter 'algorithm == dilated' \
      --set sweep.pass=forward,forward_backward --set check.sampled_queries=1 "${once[@]}"
done
[ -e "$folder/gradients/result.json" ] ||
  mpirun -np 2 $bin/lnbench run configs/goals.json -o "$folder/gradients" --filter 'algorithm == ring && ranks == 2' \
    --set sweep.pass=backward "${once[@]}"
[ -e "$folder/tokens/result.json" ] ||
  mpirun -np 2 $bin/lnbench run configs/figure5-cpu.json -o "$folder/tokens" \
    --filter 'algorithm == dilated && ranks == 2 && (seq_len == 8K || seq_len == 1M)' --set measure.max_samples=5
[ -e "$folder/step/result.json" ] ||
  mpirun -np 2 $bin/lnbench run configs/step-cpu.json -o "$folder/step" --filter 'algorithm == dilated && seq_len == 64K'
[ -e "$folder/walk/result.json" ] || $bin/lnbench run configs/sixteen-million.json -o "$folder/walk"
ring=(configs/goals.json --mode virtual --ranks 4 --filter 'algorithm == ring' "${once[@]}")
[ -e "$folder/ring/result.json" ] || $bin/lnbench run "${ring[@]}" -o "$folder/ring"
[ -e "$folder/ring-share/result.json" ] ||
  $bin/lnbench run "${ring[@]}" --set virtual.sample_share=0.2 -o "$folder/ring-share"
# The simulator: a ring with every rank walked, a whole sweep, and more ranks than anyone has.
simulate() {  # NAME ARGUMENT...
  local name=$1
  shift
  [ -e "$folder/$name.usage.json" ] ||
    { rm -rf "${folder:?}/$name" && scripts/usage.py "$folder/$name.usage.json" $bin/lnbench simulate "$@" -q -o "$folder/$name"; }
}
h100=configs/clusters/h100-ndr400.json
simulate simulate-ring configs/crossover-cluster.json --what-if '' --set sweep.algorithm=ring --set sweep.ranks=4096 \
  --set sweep.seq_len=1M --no-collapse --alpha ideal
simulate simulate-figure5 configs/figure5-cluster.json --cluster $h100
simulate simulate-crossover configs/crossover-cluster.json
simulate simulate-131072 configs/figure5-cluster.json --cluster $h100 --what-if nodes=16384 --set sweep.ranks=131072 \
  --set sweep.seq_len=1B --set sweep.algorithm=dilated,ring,usp --set sweep.causal=false --set sweep.layout=contiguous
exec .venv/bin/python scripts/goals.py "$folder"

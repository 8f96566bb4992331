#!/usr/bin/env bash
# From a bare Debian 12 to a finished report: installs what is missing, builds, measures for real under mpirun on
# the CPU, takes the paper's figure 5 in small, walks sixteen million tokens on virtual ranks, simulates what is not here
# (64 GPUs), and prints where the report is (docs/commands.md says how long it takes). Run it again at any time.
#   scripts/quickstart.sh [CONFIG]        (default: configs/quick.json)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_options 1 "$@"
config=${1:-configs/quick.json}
ranks=${RANKS:-2}

install_packages "${build_packages[@]}"
say "preparing the Python environment"
scripts/python_env.sh
[ -x build/release/bin/lnbench ] || say "the first build takes about 400 seconds of one core, 3 to 4 minutes on two"
build_preset release lnbench
lnbench=build/release/bin/lnbench

say "this machine (lnbench env)"
"$lnbench" env
# Leaves out points that the config excludes, and the reasons below their rows.
without_excluded() { grep --line-buffered -vE '^[^#].* skipped_excluded|^#      '; }
# mpirun forwards two streams in no order: progress takes the way of the rows, and stands among them.
in_order=(bash -c 'exec "$@" 2>&1' bash)
say "what will run (lnbench plan $config)"
"$lnbench" plan "$config" | without_excluded
say "correctness first (mpirun -np $ranks lnbench check, points up to 16K tokens)"
mpirun -np "$ranks" "$lnbench" check "$config" --set check.max_seq_len=16K --filter 'seq_len<=16K'
result=results/$(date -u +%Y%m%dT%H%M%SZ)-$(basename "$config" .json)
say "the sweep (mpirun -np $ranks lnbench run $config)"
mpirun -np "$ranks" "${in_order[@]}" "$lnbench" run "$config" -o "$result" | without_excluded
figure5=results/$(date -u +%Y%m%dT%H%M%SZ)-figure5-small
# Each branch does a third to a half of the work at each of these lengths: what the claim of a constant latency is about.
say "figure 5 in small: 32K tokens per batch, sequences of 2K to 32K (lnbench run configs/figure5-cpu.json)"
mpirun -np "$ranks" "${in_order[@]}" "$lnbench" run configs/figure5-cpu.json --set sweep.batch.tokens_per_batch=32K --set sweep.ranks="$ranks" \
  --set dilated.segments=512,sequence --set dilated.ratio_rule=sqrt --set sweep.seq_len=2K,4K,8K,16K,32K \
  --filter 'algorithm == dilated || seq_len <= 8K' --set measure.min_samples=10 --set measure.max_samples=10 -o "$figure5"
walk=results/$(date -u +%Y%m%dT%H%M%SZ)-sixteen-million
say "sixteen million tokens on one device in the place of 16 ranks (lnbench run configs/sixteen-million.json)"
"$lnbench" run configs/sixteen-million.json -o "$walk"
say "the same up to 1B tokens on 64 GPUs, simulated (lnbench simulate configs/quick-cluster.json)"
"$lnbench" simulate configs/quick-cluster.json --cluster configs/clusters/h100-ndr400.json -o "$result-simulated"
say "report: measured marks are filled, simulated ones hollow"
"$lnbench" report "$result" "$figure5" "$walk" "$result-simulated" -o "$result/report.html"
printf '\nreport: %s\n' "$root/$result/report.html"

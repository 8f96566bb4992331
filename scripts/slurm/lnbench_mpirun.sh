#!/usr/bin/env bash
# The twin of lnbench.sbatch without a batch system: on one node, or with a HOSTFILE on several.
#
#   CONFIG=configs/h100-8.json RANKS=8 scripts/slurm/lnbench_mpirun.sh
#
# MINUTES ends each run early (exit 4); it is then resumed until everything is done.
set -u
cd "$(dirname "$0")/../.." || exit
config=${CONFIG:-configs/h100-8.json}
lnbench=${LNBENCH:-build/release/bin/lnbench}
result=${RESULT:-results/$(date -u +%Y%m%dT%H%M%SZ)-$(basename "$config" .json)}
# Bound to one core, which is what Open MPI does with two ranks, NCCL's own thread would share it.
launch=(mpirun -np "${RANKS:-8}" --map-by "${MAP_BY:-slot}" --bind-to "${BIND_TO:-none}")
[ -n "${HOSTFILE:-}" ] && launch+=(--hostfile "$HOSTFILE")
while true; do
  where=(-o "$result")
  [ -e "$result/run.json" ] && where=(--resume "$result")
  "${launch[@]}" "$lnbench" run "$config" "${where[@]}" ${MINUTES:+--max-time "${MINUTES}m"}
  code=$?
  [ $code -eq 4 ] || exit $code
done

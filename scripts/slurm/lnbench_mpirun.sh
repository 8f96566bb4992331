#!/usr/bin/env bash
# The twin of lnbench.sbatch without a batch system: on one node, or with a HOSTFILE on several.
#
#   CONFIG=configs/h100-8.json RANKS=8 scripts/slurm/lnbench_mpirun.sh
#
# MINUTES ends each run early (exit 4); it is then resumed until everything is done.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/../help.sh"
LONGNET_TREE=$(realpath "$(dirname "$0")/../..") || exit
[ -n "${MINUTES:-}" ] && limit_s=$((MINUTES * 60))
export CONFIG=${CONFIG:-$LONGNET_TREE/configs/h100-8.json}
source "$LONGNET_TREE/scripts/slurm/job.sh" || exit
RANKS=${RANKS:-$RANKS_PER_NODE}
export RESULT=${RESULT:-results/$(date -u +%Y%m%dT%H%M%SZ)-$(basename "$CONFIG" .json)}
again() { exec scripts/slurm/lnbench_mpirun.sh; }
job

# shellcheck shell=bash
# The common part of lnbench.sbatch, lnbench.pbs and lnbench_mpirun.sh, which source it in the folder that they are
# called from: settings, preflight, the run or its resumption, the report. Variables besides those of site.env:
#   CONFIG    the JSON to run        (default: configs/slurm-64.json)
#   LNBENCH   the program            (default: build/release/bin/lnbench; of an installed tree, its own)
#   RESULT    folder of the result   (each twin has its default)
#   SITE      the site's settings    (default: scripts/slurm/site.env)
#   HOSTFILE  hosts of lnbench_mpirun.sh
# A relative CONFIG, LNBENCH, SITE or HOSTFILE is looked up in the folder of the call, then in LONGNET_TREE, the checkout or
# installed share/longnet-bench that the script stands in; a relative RESULT is in the folder of the call.
# Beside the result stand RESULT.job.txt (what the preflight said at each start) and, with GPUs,
# RESULT.nccl-topology.xml (what NCCL sees on rank 0's node).
from=$PWD
for name in CONFIG SITE LNBENCH HOSTFILE; do
  [[ ${!name:-} != /* && -f ${!name:-} ]] && printf -v "$name" %s "$from/${!name}"
done
cd "$LONGNET_TREE" || exit
export LONGNET_TREE CONFIG=${CONFIG:-$LONGNET_TREE/configs/slurm-64.json} SITE=${SITE:-$LONGNET_TREE/scripts/slurm/site.env}
# shellcheck source=site.env
source "$SITE" || exit
built=$LONGNET_TREE/build/release/bin/lnbench
installed=$(realpath -m ../../bin/lnbench)
[ ! -e "$built" ] && [ -e "$installed" ] && built=$installed
export LNBENCH=${LNBENCH:-$built}

# launch COMMAND... runs it on all ranks, on_each_node COMMAND... once per node. The sbatch twin has its own.
hosts=(${HOSTFILE:+--hostfile "$HOSTFILE"})
launch() {
  # shellcheck disable=SC2086  # a list of options
  mpirun -np "$RANKS" $MPIRUN_BIND "${hosts[@]}" "$@"
}
on_each_node() { mpirun --map-by ppr:1:node --bind-to none "${hosts[@]}" "$@"; }

# shellcheck disable=SC2016  # expanded on the node
topology='hostname; lscpu | grep -E "^(Model name|Thread|Core|Socket|NUMA)"
for tool in "numactl --hardware" "nvidia-smi topo -m" "ibv_devinfo -l"; do
  command -v "${tool%% *}" >/dev/null && echo "\$ $tool" && $tool
done; true'

load_modules() {
  [ -n "$MODULES" ] || return 0
  set +u  # neither profiles nor modules are written for it
  [ -n "$(type -t module)" ] || source /etc/profile
  local name
  for name in $MODULES; do module load "$name" || exit; done
  set -u
}

# Exit code of a step that Slurm's signal before the time limit has ended: 128 + SIGUSR1.
signalled=138
# Runs one step of the preflight, and ends that (a subshell) where the signal has ended the step.
step() {
  local code=0
  "$@" || code=$?
  [ $code -ne $signalled ] || exit $signalled
  return $code
}

preflight() {
  local gpu=()
  [ "$GPUS_PER_NODE" -gt 0 ] && gpu=(--transport gpu)
  printf '\n== %s: job %s, %s on %s\n' "$(date -u +%FT%TZ)" "${SLURM_JOB_ID:-${PBS_JOBID:-none}}" "$CONFIG" "$(hostname)"
  echo "srun: $SRUN_BIND; mpirun: $MPIRUN_BIND"
  step on_each_node bash -c "$topology"
  step on_each_node "$LNBENCH" env --check || [ "$STRICT" != 1 ] || return 3
  local said
  said=$(step launch echo rank) || [ $? -ne $signalled ] || exit $signalled
  [ "$(grep -c rank <<<"$said")" = 1 ] && return  # a rank alone has none to speak to
  launch "$LNBENCH" comm --max-bytes 1MiB "${gpu[@]}"
}

# One start of `lnbench run`, from preflight to report; no point is begun that would end later than limit_s, if set, after
# the start of the script. `again`, which each twin defines, goes on after a run that was stopped early.
job() {
  load_modules
  [[ $RESULT = /* ]] || RESULT=$from/$RESULT
  mkdir -p "$(dirname "$RESULT")"
  local where=(-o "$RESULT") code=0
  (preflight) >>"$RESULT.job.txt" 2>&1 || code=$?
  if [ $code -eq $signalled ]; then
    # Two in a row: it takes longer than a job may, and would be requeued for ever.
    rm "$RESULT.preflight-stopped" 2>/dev/null &&
      { echo "error: the time limit came during the preflight again: raise MINUTES" >&2; exit 3; }
    touch "$RESULT.preflight-stopped"
    echo "the time limit came during the preflight: starting again"
    again
    exit $code
  fi
  rm -f "$RESULT.preflight-stopped"
  [ $code -eq 0 ] || { echo "error: preflight failed, see $RESULT.job.txt" >&2; exit 3; }
  [ "$GPUS_PER_NODE" -gt 0 ] && export NCCL_TOPO_DUMP_FILE=$RESULT.nccl-topology.xml
  [ -e "$RESULT/run.json" ] && where=(--resume "$RESULT" --allow-changed-machine)  # other nodes, as a rule
  [ -n "${limit_s:-}" ] && where+=(--max-time "$((limit_s > SECONDS ? limit_s - SECONDS : 1))s")
  launch "$LNBENCH" run "$CONFIG" "${where[@]}" || code=$?
  if [ $code -eq 4 ] || [ $code -eq $signalled ]; then  # the latter before it looks for signals
    echo "lnbench run ended with $code: stopped early, going on with $RESULT"
    again
  else
    # srun has returned 0 for ranks that it could not start.
    [ $code -ne 0 ] || grep -q '"verdict": "pass"' "$RESULT/result.json" || code=1
    "$LNBENCH" report "$RESULT"
  fi
  exit $code
}

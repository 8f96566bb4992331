#!/usr/bin/env bash
# Calibrates this machine, predicts points that no calibration has seen, measures them for real and
# compares: attention and training steps of models on one host, and attention on two network
# namespaces with limited links (scripts/netns.sh) where root allows it. For a quiet machine: 23 minutes
# on two cores.
#   scripts/validate_real.sh [-o DIR] [--quick] [--parts "one-host models hosts"]
#                            (default: results/<utc>-validation, all parts)
# Writes DIR/{validation.json, validation.md, of models validation-models.*, one-host.json, hosts.json
# (clusters), *-measured, *-simulated}. Exit 1: an error is larger than its goal.
#   CALIBRATED=400 RATES="800 400 200"   Mbit/s of the hosts' links: calibrated once, predicted for all
#   CLUSTER_NAME=cpu-2core               the one host's cluster file
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
calibrated=${CALIBRATED:-400} rates=${RATES:-800 400 200}
output=results/$(date -u +%Y%m%dT%H%M%SZ)-validation quick=()
one_host_filter='seq_len>0' hosts_filter='seq_len>0' models_filter='seq_len>0'
parts='one-host models hosts'
while [ $# -gt 0 ]; do
  case $1 in
    -o) output=$2; shift ;;
    --parts) parts=$2; shift ;;
    # To see that it works: the figures mean nothing.
    --quick) quick=(--quick)
      one_host_filter='dtype==fp32 && causal==false && (seq_len<=1536 || algorithm==dilated && seq_len==8K)'
      hosts_filter="$one_host_filter" models_filter='seq_len<=4K && head_dim==32 && pass==step' ;;
    *) usage_error "unknown option '$1': use -o DIR, --quick, --parts" ;;
  esac
  shift
done
lnbench=${LNBENCH:-build/release/bin/lnbench}
if [ -z "${LNBENCH:-}" ]; then
  build_preset release lnbench
  [ ! -x build/release/bin/simgrid_oracle ] || build_preset release simgrid_oracle
fi
mkdir -p "$output"
one_host="$output/${CLUSTER_NAME:-one-host}.json" hosts="$output/hosts.json"
cases=() met=0
begin=$SECONDS

predict() { # CONFIG CLUSTER FILTER WHAT_IF DIR
  "$lnbench" simulate "$1" --cluster "$2" --filter "$3" ${4:+--what-if "$4"} --alpha ideal -q -o "$5" >/dev/null
}

has() { [[ " $parts " == *" $1 "* ]]; }

predict_and_measure() { # WHAT CONFIG FILTER: one host
  say "$1: predict, then measure"
  predict "configs/validate-$2.json" "$one_host" "$3" "" "$output/$2-simulated"
  mpirun -np 2 --bind-to none "$lnbench" run "configs/validate-$2.json" --filter "$3" -q -o "$output/$2-measured"
}

compare() { # NAME ARGUMENTS...: of validate_real.py compare; writes NAME.json and NAME.md
  local name=$1
  shift
  say "compared: $name"
  python3 scripts/validate_real.py compare "$@" -o "$output/real.json" || met=$?
  [ -s "$output/real.json" ] || fail "nothing was compared"
  "$lnbench" validate --real "$output/real.json" --json "$output/$name.json" >"$output/$name.txt" || true
  python3 scripts/validate_real.py page "$output/$name.json" -o "$output/$name.md"
}

# A load average remembers minutes: what this script's user did before is not to be blamed on the
# machine.
for ((waited = 0; waited < 240; waited += 5)); do
  awk -v cpus="$(nproc)" '{ exit $1 > 0.25 * cpus }' /proc/loadavg && break
  [ "$waited" -gt 0 ] || say "waiting until the machine is quiet, four minutes at most"
  sleep 5
done
if has one-host || has models; then
  say "one host: calibrate"
  mpirun -np 2 --bind-to none "$lnbench" calibrate "${quick[@]}" -o "$one_host"
fi
if has one-host; then
  predict_and_measure "one host" one-host "$one_host_filter"
  cases+=("one host=$output/one-host-measured:$output/one-host-simulated")
fi
if has models; then
  predict_and_measure "models on one host" model "$models_filter"
  compare validation-models --goals 0.08 0.15 "one host=$output/model-measured:$output/model-simulated"
fi

if ! has hosts; then
  :
elif why=$(scripts/netns.sh check 2>&1); then
  trap 'scripts/netns.sh down' EXIT
  trap 'exit 130' INT TERM
  scripts/netns.sh down
  say "two hosts at $calibrated Mbit/s: calibrate"
  scripts/netns.sh up "${calibrated}mbit" 2
  scripts/netns.sh run "$lnbench" calibrate "${quick[@]}" -o "$hosts"
  for rate in $rates; do
    say "two hosts at $rate Mbit/s: predict, then measure"
    factor=$(awk -v a="$rate" -v b="$calibrated" 'BEGIN { printf "%.10g", a / b }')
    name=hosts-${rate}mbit
    predict configs/validate-hosts.json "$hosts" "$hosts_filter" "inter_bandwidth=$factor" "$output/$name-simulated"
    scripts/netns.sh rate "${rate}mbit"
    scripts/netns.sh run "$lnbench" run configs/validate-hosts.json --filter "$hosts_filter" -q -o "$output/$name-measured"
    cases+=("two hosts, $rate Mbit/s=$output/$name-measured:$output/$name-simulated")
  done
  scripts/netns.sh down
else
  say "two hosts: $why"
fi

[ ${#cases[@]} -eq 0 ] || compare validation "${cases[@]}"
say "$((SECONDS - begin)) s; see $output/validation*.md"
exit "$met"

#!/usr/bin/env bash
# Calibrates this machine, predicts points that no calibration has seen, measures them for real and
# compares: on one host, and on two network namespaces with limited links (scripts/netns.sh) where
# root allows it. For a quiet machine: ten to fifteen minutes on two cores.
#   scripts/validate_real.sh [-o DIR] [--quick]     (default: results/<utc>-validation)
# Writes DIR/{validation.json, validation.md, one-host.json, hosts.json (clusters), *-measured,
# *-simulated}. Exit 1: an error is larger than its goal.
#   CALIBRATED=400 RATES="800 400 200"   Mbit/s of the hosts' links: calibrated once, predicted for all
#   CLUSTER_NAME=cpu-2core               the one host's cluster file
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
calibrated=${CALIBRATED:-400} rates=${RATES:-800 400 200}
output=results/$(date -u +%Y%m%dT%H%M%SZ)-validation quick=()
one_host_filter='seq_len>0' hosts_filter='seq_len>0'
while [ $# -gt 0 ]; do
  case $1 in
    -o) output=$2; shift ;;
    # To see that it works: the figures mean nothing.
    --quick) quick=(--quick)
      one_host_filter='dtype==fp32 && causal==false && (seq_len<=1536 || algorithm==dilated && seq_len==8K)'
      hosts_filter="$one_host_filter" ;;
    *) fail "unknown option '$1': use -o DIR, --quick" ;;
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
cases=()
begin=$SECONDS

predict() { # CONFIG CLUSTER FILTER WHAT_IF DIR
  "$lnbench" simulate "$1" --cluster "$2" --filter "$3" ${4:+--what-if "$4"} --alpha ideal -q -o "$5" >/dev/null
}

# A load average remembers minutes: what this script's user did before is not to be blamed on the
# machine.
for ((waited = 0; waited < 240; waited += 5)); do
  awk -v cpus="$(nproc)" '{ exit $1 > 0.25 * cpus }' /proc/loadavg && break
  [ "$waited" -gt 0 ] || say "waiting until the machine is quiet, four minutes at most"
  sleep 5
done
say "one host: calibrate"
mpirun -np 2 --bind-to none "$lnbench" calibrate "${quick[@]}" -o "$one_host"
say "one host: predict, then measure"
predict configs/validate-one-host.json "$one_host" "$one_host_filter" "" "$output/one-host-simulated"
mpirun -np 2 --bind-to none "$lnbench" run configs/validate-one-host.json --filter "$one_host_filter" -q -o "$output/one-host-measured"
cases+=("one host=$output/one-host-measured:$output/one-host-simulated")

if why=$(scripts/netns.sh check 2>&1); then
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

say "compared"
met=0
python3 scripts/validate_real.py compare "${cases[@]}" -o "$output/real.json" || met=$?
[ -s "$output/real.json" ] || fail "nothing was compared"
"$lnbench" validate --real "$output/real.json" --json "$output/validation.json" >"$output/validation.txt" || true
python3 scripts/validate_real.py page "$output/validation.json" -o "$output/validation.md"
printf '\n%s s; validation: %s/validation.md\n' "$((SECONDS - begin))" "$output"
exit "$met"

#!/usr/bin/env bash
# Several "hosts" on one machine: network namespaces, each with a cable (veth pair) to a switch (a
# bridge in a namespace of its own) and a rate limit (tc tbf) on its way out. Real messages over
# links of known bandwidth. Needs root, iproute2 and a kernel with veth, bridge and sch_tbf; nothing
# is added to the machine's own network, and no packet leaves these namespaces.
#
#   scripts/netns.sh check                      exit 0, or 77 with the reason why it cannot work here
#   scripts/netns.sh up [RATE [HOSTS]]          default: 800mbit, 2 hosts
#   scripts/netns.sh rate RATE                  changes the limit of all hosts
#   scripts/netns.sh run COMMAND...             mpirun COMMAND over TCP, one rank per host
#   scripts/netns.sh down                       removes all; harmless when there is nothing
#   scripts/netns.sh with RATE COMMAND...       up, run, down: also after a failure or Ctrl-C
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

prefix=${NETNS_PREFIX:-lnbench}
switch=$prefix-switch
subnet=10.77.0
folder=/tmp/$prefix-netns
# Small, because what fits into the bucket travels at the speed of memory; not below a frame.
burst=${NETNS_BURST:-16k}
hosts() { ip netns list 2>/dev/null | awk -v p="^$prefix-h[0-9]+$" '$1 ~ p { print $1 }' | sort -V; }

cannot() { printf 'skipped: %s\n' "$*" >&2; exit 77; }
require() {
  [ "$(id -u)" -eq 0 ] || cannot "network namespaces need root"
  local tool
  for tool in ip tc; do
    command -v "$tool" >/dev/null || cannot "no '$tool' here: install iproute2"
  done
}
check() {
  require
  local probe=$prefix-probe-$$ why=
  ip netns add "$probe" 2>/dev/null || cannot "the kernel allows no network namespaces here"
  if ! ip -n "$probe" link add name sw type bridge 2>/dev/null; then why="the kernel has no bridges"
  elif ! ip -n "$probe" link add name cable type veth peer name end 2>/dev/null; then why="the kernel has no veth pairs"
  elif ! tc -n "$probe" qdisc add dev cable root tbf rate 1mbit burst 16k latency 50ms 2>/dev/null; then
    why="the kernel has no token bucket (sch_tbf)"
  fi
  ip netns del "$probe"
  [ -z "$why" ] || cannot "$why"
}

limit() { tc -n "$1" qdisc replace dev eth0 root tbf rate "$2" burst "$burst" latency 100ms; }

add_host() {
  local name=$prefix-h$1 rate=$2
  ip netns add "$name"
  # Large frames: a frame of 1500 bytes costs the processor about 10 us here, which is computing
  # time that no network card of a cluster takes from its ranks.
  ip -n "$switch" link add name "port$1" mtu 9000 type veth peer name eth0 mtu 9000 netns "$name"
  ip -n "$switch" link set "port$1" master sw up
  ip -n "$name" addr add "$subnet.$(($1 + 1))/24" dev eth0
  ip -n "$name" link set lo up
  ip -n "$name" link set eth0 up
  # Rates without surprises: no probing for bandwidth, no forgetting of windows between samples.
  local setting
  for setting in tcp_congestion_control=reno tcp_slow_start_after_idle=0 tcp_no_metrics_save=1; do
    ip netns exec "$name" sysctl -qw "net.ipv4.$setting" 2>/dev/null || true
  done
  limit "$name" "$rate"
}

# A cable takes a moment: a host that starts before it is up waits for a connection in vain.
wait_for_cable() {
  local tries
  for ((tries = 0; tries < 100; ++tries)); do
    ip -n "$switch" link show "port$1" | grep -q "state UP" &&
      ip -n "$prefix-h$1" link show eth0 | grep -q "state UP" && return
    sleep 0.05
  done
  echo "error: the cable of host $1 does not come up" >&2
  return 1
}

up() {
  local rate=$1 count=$2 i
  require
  [ -z "$(hosts)" ] || { echo "error: hosts are up already; scripts/netns.sh down first" >&2; exit 2; }
  trap down ERR
  ip netns add "$switch"
  ip -n "$switch" link add name sw type bridge
  ip -n "$switch" link set sw up
  for ((i = 0; i < count; ++i)); do add_host "$i" "$rate"; done
  for ((i = 0; i < count; ++i)); do wait_for_cable "$i"; done
  trap - ERR
}

# Ends the processes that still run in a namespace, by SIGTERM, then SIGKILL. A launcher whose daemons
# are gone waits for ever.
end_processes() {
  local signal tries pids
  for signal in TERM KILL; do
    for ((tries = 0; tries < 20; ++tries)); do
      pids=$(for name in "$@"; do ip netns pids "$name" 2>/dev/null; done)
      [ -n "$pids" ] || return 0
      # shellcheck disable=SC2086
      [ "$tries" -gt 0 ] || kill "-$signal" $pids 2>/dev/null || true
      sleep 0.1
    done
  done
}

down() {
  local name names
  names=$(ip netns list 2>/dev/null | awk -v p="^$prefix-(h[0-9]+|switch)$" '$1 ~ p { print $1 }')
  # shellcheck disable=SC2086
  end_processes $names
  for name in $names; do ip netns del "$name"; done
  rm -rf "$folder"
}

# Open MPI starts its daemon on a host by `AGENT HOST command...`.
agent() {
  local host=$1
  shift
  # A folder of its own: two daemons that start at once in one trip over each other's files.
  export TMPDIR=$folder/$host
  mkdir -p "$TMPDIR"
  exec ip netns exec "$host" bash -c "$*"
}

run() {
  require
  local list count
  list=$(hosts | sed 's/$/:1/' | paste -sd,)
  count=$(hosts | wc -l)
  [ "$count" -gt 0 ] || { echo "error: no hosts; scripts/netns.sh up first" >&2; exit 2; }
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  local self
  self=$(realpath "${BASH_SOURCE[0]}")
  # Without --bind-to none every "host" binds its rank to the machine's first core.
  ip netns exec "$(hosts | head -1)" mpirun --host "$list" -np "$count" --bind-to none \
    --mca plm_rsh_agent "$self agent" --mca plm_rsh_no_tree_spawn 1 \
    --mca btl tcp,self --mca btl_tcp_if_include "$subnet.0/24" --mca oob_tcp_if_include "$subnet.0/24" "$@"
}

with() {
  local rate=$1
  shift
  check
  trap down EXIT
  local child='' code=0
  # Waited for, so that a signal is heard at once; a job in the background does not hear Ctrl-C.
  trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 130' INT TERM
  up "$rate" "${NETNS_HOSTS:-2}"
  run "$@" &
  child=$!
  wait "$child" || code=$?
  exit "$code"
}

command=${1:-}
[ $# -gt 0 ] && shift
case $command in
  check) check ;;
  up) up "${1:-800mbit}" "${2:-2}" ;;
  rate) require; for host in $(hosts); do limit "$host" "${1:?RATE, e.g. 400mbit}"; done ;;
  run) run "$@" ;;
  down) down ;;
  with) with "$@" ;;
  agent) agent "$@" ;;
  *) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; [ -z "$command" ] && exit 0 || exit 2 ;;
esac

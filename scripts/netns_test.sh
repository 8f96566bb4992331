#!/usr/bin/env bash
# Test of netns.sh: messages pass at no more than the rate set, and nothing stays behind, also after
# SIGINT. Exit 77 with the reason where it cannot work. Needs LNBENCH=path of the program.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { printf 'failed: %s\n' "$*" >&2; exit 1; }
# NETNS_PREFIX keeps this test apart from hosts that somebody uses.
export NETNS_PREFIX=lnbtest$$
scripts/netns.sh check || exit $?
command -v mpirun >/dev/null || { echo "skipped: no mpirun here" >&2; exit 77; }
trap 'scripts/netns.sh down' EXIT
none_left() { ! ip netns list | grep -q "^$NETNS_PREFIX" || fail "namespaces stay behind $1"; }

output=$(timeout 150 scripts/netns.sh with 200mbit "$LNBENCH" comm --max-bytes 256KiB --format csv 2>/dev/null)
none_left "after a run"
# 25 MB/s; the bucket lets 16 KB pass at once.
awk -F, '$1 == "send_recv" && $2 == 262144 { found = 1; if ($4 > 30e6) exit 2 } END { if (!found) exit 3 }' <<<"$output" ||
  fail "256 KiB should take at least as long as the limit asks for: $output"

scripts/netns.sh with 200mbit sleep 30 &
child=$!
for _ in $(seq 100); do ip netns list | grep -q "^$NETNS_PREFIX-h1" && break; sleep 0.1; done
sleep 0.5
kill -TERM "$child"
wait "$child" && fail "an interrupted run ends with 0"
none_left "after SIGTERM"
echo "messages keep to the rate, nothing stays behind"

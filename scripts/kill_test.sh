#!/usr/bin/env bash
# Ends runs in every unkind way and goes on with --resume: no finished point may be lost, none measured twice.
# Prints the table of docs/robustness.md. Exit codes: 0 all held · 1 something was lost · 2 usage.
#   LNBENCH=build/release/bin/lnbench scripts/kill_test.sh [KILLS] [SEED]     (default: 100 kills of each kind, seed 1)
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/mpi_env.sh"
lnbench=$(realpath "${LNBENCH:-build/release/bin/lnbench}") && [ -x "$lnbench" ] || exit 2
kills=${1:-100} RANDOM=${2:-1} mpirun=${MPIRUN:-mpirun}
work=$(mktemp -d)
trap 'umount "$work/disk" 2>/dev/null; rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
failures=0

# The slow kernel: its times pass no peak, however busy the machine is.
cat >"$work/points.json" <<'JSON'
{"schema_version": 1, "model": {"heads": 2, "head_dim": 16}, "dilated": {"segments": [64, "sequence"]},
 "sweep": {"algorithm": ["dilated", "ring", "all_gather"], "seq_len": [64, 96, 128, 192], "ranks": [1, 2]}, "run": {"kernel": "reference"},
 "measure": {"warmup": 1, "min_samples": 3, "max_samples": 3, "point_timeout_s": 5, "disturbed_budget": 0}}
JSON
cat >"$work/walk.json" <<'JSON'
{"schema_version": 1, "model": {"heads": 2, "head_dim": 16}, "dilated": {"segments": [64, "sequence"]}, "run": {"mode": "virtual"},
 "sweep": {"algorithm": ["dilated"], "seq_len": ["32K", "64K"], "ranks": [32]}, "measure": {"warmup": 0, "min_samples": 3, "max_samples": 3}}
JSON

# start KIND FOLDER: the run, or its continuation.
start() {
  local where=(-o "$2") config=points.json
  [ -e "$2/run.json" ] && where=(--resume "$2")
  [ "$1" = walk ] && config=walk.json
  local command=("$lnbench" run "$work/$config" "${where[@]}" --quiet)
  case $1 in
    threads) exec "${command[@]}" --ranks 2 ;;
    mpi) exec "$mpirun" --oversubscribe --bind-to none -np 2 "${command[@]}" ;;
    walk) exec "${command[@]}" ;;
  esac
}

# whole FOLDER: the whole lines of its journals, each behind the file's name.
whole() { for f in "$1"/points.jsonl "$1"/shards-*.jsonl; do [ -e "$f" ] && head -n "$(wc -l <"$f")" "$f" | sed "s|^|${f##*/} |"; done; }
# keys FOLDER: what its lines are of: a point, or a unit of a walk; a point that failed is measured again.
keys() { whole "$1" | grep -v '"status":"error"' | grep -oE '^[^ ]* \{("id":"[0-9a-f]*"|"walk":[0-9]*,"rank":[0-9]*,"first_batch":[0-9]*)'; }

lost=0 twice=0
# judge FOLDER: every line of $work/before is still there as it was, and no key stands twice.
judge() {
  whole "$1" | sort >"$work/after"
  lost=$((lost + $(sort "$work/before" | comm -23 - "$work/after" | wc -l)))
  twice=$((twice + $(keys "$1" | sort | uniq -d | wc -l)))
}

# finish KIND FOLDER: resumes until the end; left-over ranks may hold the folder for a moment.
finish() {
  local code
  for _ in $(seq 50); do
    (start "$1" "$2") >"$work/out" 2>"$work/err" </dev/null
    code=$?
    grep -q 'in use' "$work/err" || break
    sleep 0.2
  done
  judge "$2"
  [ $code -eq 0 ] && grep -q '"verdict": "pass"' "$2/result.json" && return
  failures=$((failures + 1))
  { echo "$1: the resumed run did not pass (exit $code)"; tail -3 "$work/err"; grep -oE '"status":"[a-z_]*","reason":"[^"]*' "$2/points.jsonl"; } >&2
}

# await PID: waits for its end, a minute at most: at times mpirun (Open MPI 4.1.4) never ends when a rank was killed, for it
# waits for a lock that it holds (in PMIx_server_finalize), after all ranks have gone.
await() {
  stood=false
  { timeout 60 tail --pid="$1" -s 0.1 -f /dev/null || stood=true; } 2>/dev/null # bash says who was killed
  $stood && { echo "process $1 stood still, and was killed, too" >&2; kill -9 "$1"; }
  wait "$1" 2>/dev/null
}

# row CASE TIMES: a line of the table, and the counts begin anew.
row() {
  printf '| %-46s | %5d | %4d | %5d |\n' "$1" "$2" "$lost" "$twice"
  failures=$((failures + lost + twice)) lost=0 twice=0
}

# sleep_some MILLISECONDS: a random part of them.
sleep_some() { local ms=$((RANDOM % $1)); sleep "$((ms / 1000)).$(printf '%03d' $((ms % 1000)))"; }

echo "| what ended the run | times | lost | twice |"
echo "|---|---|---|---|"
for kind in threads mpi walk; do
  [ $kind = mpi ] && ! command -v "$mpirun" >/dev/null && continue
  done=0 folder=$work/$kind-0
  while [ $done -lt "$kills" ]; do
    whole "$folder" >"$work/before" 2>/dev/null
    start $kind "$folder" >/dev/null 2>"$work/err" </dev/null &
    pid=$!
    sleep_some "${WITHIN_MS:-3000}"
    victim=$pid
    if [ $kind = mpi ] && [ $((RANDOM % 2)) -eq 0 ]; then victim=$(pgrep -P $pid | tail -1); fi
    kill -9 "${victim:-$pid}" 2>/dev/null
    await $pid
    code=$?
    if grep -q 'in use' "$work/err"; then # ranks that a killed mpirun left over
      sleep 0.2
      continue
    fi
    if [ $code -eq 0 ]; then # it had ended before: the next one
      judge "$folder"
      rm -rf "$folder"
      folder=$work/$kind-$done
      continue
    fi
    [ -e "$folder/run.json" ] && judge "$folder"
    done=$((done + 1))
  done
  whole "$folder" >"$work/before" 2>/dev/null
  finish $kind "$folder"
  row "kill -9, $kind" "$kills"
done

# no_room KIND FOLDER: what a run says that could not write, and the lines that stand.
no_room() {
  grep -q 'cannot write' "$work/err" || { echo "$1, no room: not said, but: $(tail -1 "$work/err")" >&2; failures=$((failures + 1)); }
  whole "$2" >"$work/before"
}

some=$(((kills + 9) / 10))
for i in $(seq $some); do
  (trap '' XFSZ; ulimit -f $((8 + RANDOM % 24)); start threads "$work/full-$i") >/dev/null 2>"$work/err" </dev/null
  no_room threads "$work/full-$i"
  finish threads "$work/full-$i"
done
row "a file that may not grow (ulimit -f)" "$some"

mkdir "$work/disk" # 1 MiB, on which another file leaves 16 to 76 KiB until the run has ended
if mount -t tmpfs -o size=1m kill_test "$work/disk" 2>/dev/null; then
  for kind in threads walk; do
    for i in $(seq $some); do
      folder=$work/disk/$kind-$i
      head -c $(((252 - RANDOM % 16) * 4096)) /dev/zero >"$work/disk/other"
      (start $kind "$folder") >/dev/null 2>"$work/err" </dev/null
      no_room $kind "$folder"
      rm "$work/disk/other"
      finish $kind "$folder"
      rm -rf "$folder"
    done
    row "a full disk (ENOSPC), $kind" "$some"
  done
else
  echo "no full disk: only root may mount a small one" >&2
fi

for i in $(seq $some); do # cut at any byte: the line that was hit is measured again
  journal=$work/full-$i/points.jsonl
  truncate -s $((1 + RANDOM * 3 % $(stat -c %s "$journal"))) "$journal"
  rm "$work/full-$i/result.json"
  whole "$work/full-$i" >"$work/before"
  finish threads "$work/full-$i"
done
row "a journal cut at a random byte" "$some"

for i in $(seq $some); do # killed in the middle of a walk, whose last line is then torn
  folder=$work/torn-$i
  start walk "$folder" >/dev/null 2>&1 </dev/null &
  pid=$!
  for _ in $(seq 3000); do [ "$(cat "$folder"/shards-*.jsonl 2>/dev/null | wc -l)" -ge 4 ] && break; sleep 0.01; done
  kill -9 $pid 2>/dev/null
  wait $pid 2>/dev/null
  journal=$(find "$folder" -name 'shards-*.jsonl' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d ' ' -f 2)
  size=$(stat -c %s "$journal") last=$(tail -n 1 "$journal" | wc -c)
  truncate -s $((size - 1 - RANDOM % last)) "$journal"
  rm -f "$folder/result.json"
  whole "$folder" >"$work/before"
  finish walk "$folder"
done
row "the last line of a walk's journal torn" "$some"

if [ "$kills" -ge 10 ] && command -v "$mpirun" >/dev/null; then # takes 40 s
  folder=$work/stopped
  start mpi "$folder" >/dev/null 2>"$work/err" </dev/null &
  pid=$!
  for _ in $(seq 300); do [ "$(wc -l 2>/dev/null <"$folder/points.jsonl")" -ge 2 ] 2>/dev/null && break; sleep 0.05; done
  kill -STOP "$(pgrep -P $pid | tail -1)"
  stopped=$SECONDS
  await $pid
  code=$? took=$((SECONDS - stopped))
  $stood && code=3 took=0 # its ranks had ended: what they said decides
  if [ $code -ne 3 ] || [ $took -gt 45 ] || ! grep -qE 'rank 1 (gave no sign of life|has not come so far)' "$work/err"; then
    { echo "a stopped rank: exit $code after $took s"; tail -3 "$work/err"; } >&2
    failures=$((failures + 1))
  fi
  whole "$folder" >"$work/before"
  finish mpi "$folder"
  row "a rank stopped, given up after $took s" 1
fi
[ $failures -eq 0 ]

#!/usr/bin/env bash
# Creates or updates a Python environment from a list of requirements: without arguments the project's,
# .venv in the repository root, from scripts/requirements.txt. Idempotent, safe to call from several
# processes at once, and silent when there is nothing to do:
#   scripts/python_env.sh [FOLDER REQUIREMENTS]
#   scripts/python_env.sh && .venv/bin/python scripts/report/make_report.py RESULT_DIR
# PYTHON selects the interpreter (default /usr/bin/python3, else python3 on the path; 3.11 or newer).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/${1:-.venv}"
requirements="$root/${2:-scripts/requirements.txt}"

fail() { printf 'python_env.sh: %s\n' "$1" >&2; exit 1; }

python=${PYTHON:-/usr/bin/python3}
[ -x "$python" ] || python=$(command -v python3) || fail "no python3 found: apt-get install python3 python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$python is $("$python" -V 2>&1); 3.11 or newer is needed (set PYTHON)"
want="$(sha256sum "$requirements" | cut -d ' ' -f 1) $("$python" -V 2>&1) $root"

up_to_date() {
  [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.requirements" 2>/dev/null)" = "$want" ]
}
# The charts' program of the project's own environment, which else each report makes anew.
has_charts() {
  [ "$requirements" != "$root/scripts/requirements.txt" ] || compgen -G "$venv/charts-*.js" >/dev/null
}

up_to_date && has_charts && exit 0
exec 9<"$requirements"
flock 9 # a second caller waits here, then finds the work done
if ! up_to_date; then
  echo "python_env.sh: preparing $venv" >&2
  rm -rf "$venv"
  "$python" -m venv "$venv" || { rm -rf "$venv"; fail "venv failed: apt-get install python3-venv"; }
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: \
    --requirement "$requirements" || { rm -rf "$venv"; fail "pip failed: is a package index reachable?"; }
  printf '%s\n' "$want" >"$venv/.requirements"
fi
if ! has_charts; then
  said=$(PYTHONPATH=$root/scripts "$venv/bin/python" -B -P -c 'from report.pictures import keep_library; keep_library()' 2>&1) ||
    echo "python_env.sh: the charts' program is not kept, each report makes it anew: ${said##*EngineError: }" >&2
fi

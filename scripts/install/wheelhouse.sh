#!/usr/bin/env bash
# Downloads what the report needs into a folder of wheels, for a machine of the same kind without a network:
#   scripts/install/wheelhouse.sh FOLDER
# and there: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER scripts/python_env.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../help.sh"
folder=$(realpath -m "${1:?FOLDER}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scripts/python_env.sh
.venv/bin/python -m pip download --quiet --disable-pip-version-check --only-binary :all: --requirement scripts/requirements.txt \
  --dest "$folder"

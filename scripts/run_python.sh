#!/usr/bin/env bash
# Runs a script of this folder with $PYTHON, else the checkout's .venv, else python3, from the checkout's root.
# Usage: scripts/run_python.sh SCRIPT.py [ARGUMENT ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export TOKENIZERS_PARALLELISM=false PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"

python="${PYTHON:-python3}"
if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then
  python=.venv/bin/python
fi
exec "$python" "scripts/$1" "${@:2}"

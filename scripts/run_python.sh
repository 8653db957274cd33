#!/usr/bin/env bash
# Runs a script of this folder with $PYTHON, else the checkout's .venv, else python3; paths are the caller's.
# Usage: scripts/run_python.sh SCRIPT.py [ARGUMENT ...]
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
exec </dev/null
export TOKENIZERS_PARALLELISM=false PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"

python="${PYTHON:-python3}"
if [ -z "${PYTHON:-}" ] && [ -x "$root/.venv/bin/python" ]; then
  python="$root/.venv/bin/python"
fi
exec "$python" "$root/scripts/$1" "${@:2}"

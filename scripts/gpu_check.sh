#!/usr/bin/env bash
# Measures one accelerator within 8 minutes and writes gpu_check.json; needs no weights and no network.
# Usage: scripts/gpu_check.sh [--out FILE] [--seconds N] [--shapes llama-3.1-8b|tiny]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export TOKENIZERS_PARALLELISM=false PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"

python="${PYTHON:-python3}"
if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then
  python=.venv/bin/python
fi
exec "$python" scripts/gpu_check.py "$@"

#!/usr/bin/env bash
# Answers, cache, training and export within one stretch of time on one GPU; needs no network, leaves files of at most 16 MiB.
# Usage: scripts/gpu_train.sh --prompts FILE --out FOLDER [--seconds 540] [--target smollm2-135m] [--work FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export TOKENIZERS_PARALLELISM=false PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"

python="${PYTHON:-python3}"
if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then
  python=.venv/bin/python
fi
exec "$python" scripts/gpu_train.py "$@"

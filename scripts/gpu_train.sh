#!/usr/bin/env bash
# Answers, cache, training and export within one stretch of time on one GPU; needs no network, leaves files of at most 16 MiB.
# Usage: scripts/gpu_train.sh --prompts FILE --out FOLDER [--seconds 540] [--target smollm2-135m] [--work FOLDER]
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/run_python.sh" gpu_train.py "$@"

#!/usr/bin/env bash
# Measures one accelerator within 8 minutes and writes gpu_check.json; needs no weights and no network.
# Usage: scripts/gpu_check.sh [--out FILE] [--seconds N] [--shapes llama-3.1-8b|tiny]
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/run_python.sh" gpu_check.py "$@"

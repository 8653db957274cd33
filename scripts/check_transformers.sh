#!/usr/bin/env bash
# Runs the generation contract on several transformers versions, each in a fresh environment, and prints a table.
# Usage: scripts/check_transformers.sh [VERSION ...]   (5.4.0 5.13.1 5.24.0 and the newest when none is named)
# Everything but transformers and what it pins is borrowed from the environment of `python3`, so torch is not copied.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false

PYTHON="${PYTHON:-python3}"
versions=("$@")
if [ ${#versions[@]} -eq 0 ]; then
  versions=(5.4.0 5.13.1 5.24.0 newest)
fi
borrowed="$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
table="| transformers | result |"$'\n'"|---|---|"
failed=0
for version in "${versions[@]}"; do
  place="$folder/$version"
  "$PYTHON" -m venv "$place"
  own="$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  printf '%s\n%s\n' "$PWD/src" "$borrowed" >"$own/borrowed.pth"
  wanted="transformers==$version"
  if [ "$version" = newest ]; then
    wanted="transformers<6"
  fi
  "$place/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --upgrade "$wanted"
  found="$("$place/bin/python" -c 'import transformers; print(transformers.__version__)')"
  if [[ "$table" == *"| $found |"* ]]; then
    continue # The newest is one of the others.
  fi
  log="$folder/$version.log"
  # Left out: minutes of the real target, and of a C++ compiler; neither has to do with transformers' version.
  "$place/bin/python" -m pytest -q -p no:cacheprovider -m contract -k "not embedded_target and not compiled_flex" \
    ${PYTEST_ARGS:-} >"$log" 2>&1 || failed=1
  tail -n 40 "$log"
  table+=$'\n'"| $found | $(tail -n 1 "$log") |"
  rm -rf "$place"
done
printf '\n%s\n' "$table"
exit "$failed"

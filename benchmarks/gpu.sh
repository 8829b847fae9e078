#!/usr/bin/env bash
# The tests that need a GPU, then one table of what things cost there. Under 6 minutes on one H200.
#
#     bash benchmarks/gpu.sh [DEVICE [SIZE]]      (cuda base; `cpu tiny` shows within minutes that all of it runs)
#
# Runs from the checkout with the machine's own Python (PYTHON), torch and transformers. Installs and fetches nothing.
# Leaves gpu.md and tests.txt in OUT (runs/gpu).
set -euo pipefail
cd "$(dirname "$0")/.."

device=${1:-cuda} size=${2:-base} python=${PYTHON:-python3} out=${OUT:-runs/gpu}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false GPU_TESTS_ON=${device%%:*}

"$python" - <<'PYTHON_CODE'
import re, sys, tomllib
from importlib.metadata import PackageNotFoundError, version

missing = []
for needed in [*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], "pytest"]:
    name = re.match(r"[\w.-]+", needed)[0]
    try:
        version(name)
    except PackageNotFoundError:
        missing.append(name)
if missing:
    names = " ".join(missing)
    sys.exit(f"missing here: {names}; install with `{sys.executable} -m pip install --no-deps {names}` and run again")
PYTHON_CODE

mkdir -p "$out"
failed=0
"$python" -m pytest tests/gpu -q -W default -p no:cacheprovider 2>&1 | tee "$out/tests.txt" || failed=1
"$python" -m benchmarks.gpu "$out" "$device" "$size" || failed=1
exit $failed

#!/usr/bin/env bash
# Families of models on a GPU against transformers' numbers (tests/integration/families_test.py), four at a time; with one rank and
# with two that share the GPU.
#   tests/gpu/families.sh BUILD
# TRIREME_FAMILY=NAME: one of them. TRIREME_TINY_DEVICE=cpu rehearses it where there is no GPU.
set -euo pipefail
TRIREME_BINARY_DIR=$(readlink -f "$1")
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
export TRIREME_BINARY_DIR TRIREME_BACKENDS=torch TRIREME_TEST_DEVICE=${TRIREME_TINY_DEVICE:-cuda}

one() {
  local said
  if ! said=$(TRIREME_FAMILY=$1 python3 tests/integration/families_test.py 2>&1); then
    printf '%s\n%s: failed\n' "$said" "$1"
    return 1
  fi
  echo "$1: passed"
}
export -f one
find tests/gold/families -path "*/${TRIREME_FAMILY:-*}/cases.json" -printf '%h\n' | xargs -n 1 basename | sort |
  xargs -P 4 -I {} bash -c 'one {}'

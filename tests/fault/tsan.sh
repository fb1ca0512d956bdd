#!/usr/bin/env bash
# The unit tests of the modules with threads (base, trace, job, comm, checkpoint) under ThreadSanitizer, at one rank and, where they talk, at two;
# mailboxes at eight. Findings in libraries of others are suppressed by name (tsan.supp); any other ends a program with exit code 66. Builds what it
# needs, nothing with LibTorch, in build/tsan.
set -eu
cd "$(dirname "$0")/../.."
cmake --preset tsan >/dev/null
cmake --build --preset tsan

export TSAN_OPTIONS="exitcode=66 die_after_fork=0 suppressions=$PWD/tests/fault/tsan.supp"
export TRIREME_SOURCE_DIR=$PWD TRIREME_BINARY_DIR=$PWD/build/tsan
export OMPI_MCA_io=romio321 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none OMP_NUM_THREADS=1
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# The exhaustive ones do one thing thousands of times.
exhaustive='Commit.EveryFailedCall*:Commit.OldOrNewAfterACrash*:Damage.EveryFlippedBit*'

bad=0
check() {  # ranks, module, filter of cases
  local ranks=$1 program=build/tsan/tests/$2_unit log=build/tsan/$2-$1.log began=$SECONDS
  local launch=(setarch "$(uname -m)" -R)  # a fixed layout of addresses: the shadow memory has its place in it
  [ "$ranks" = 1 ] || launch+=(mpirun --oversubscribe --bind-to none -n "$ranks")
  "${launch[@]}" "$program" --gtest_filter="$3" >"$log" 2>&1 || bad=1
  echo "$2, ranks $ranks: $(grep -c 'WARNING: ThreadSanitizer' "$log" || true) findings, $((SECONDS - began)) s ($log)"
}
for module in base trace job comm checkpoint; do check 1 "$module" "*:-$exhaustive"; done
check 2 comm '*'
TRIREME_MAILBOX_MESSAGES=10000 TRIREME_TEST_LIMIT=600 check 8 comm 'Mailbox.*:Barrier.*'
check 2 checkpoint "*:-$exhaustive"
exit $bad

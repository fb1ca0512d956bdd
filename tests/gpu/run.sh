#!/usr/bin/env bash
# Builds and runs the tests of label `gpu` in one go, on a machine with nvcc 13, g++, CMake and a Python that has torch 2.11+cu130;
# no network needed. MPI and the other libraries come from the .deb files that tests/gpu/pack.sh collected, unpacked into a folder
# of their own; where the system has all of them, the pack may be left out.
#
#   tests/gpu/run.sh [--pack FOLDER] [--build FOLDER] [--built] [--target NAME] [--budget SECONDS] [ctest arguments: -R NAME, -V, ...]
#
# Each step and each test is a part with a time of its own within the budget (570 s: an interactive job often has ten minutes). As it ends, its line
# is added to parts.jsonl in $OUT, else in FOLDER-results, and its output to log.txt there: what was done is known however the run ends. A part for which no
# time is left counts as failed. --built: the build folder as it is, for other tests than those of label gpu (ctest arguments); CI rehearses it so.
#   tests/gpu/run.sh --ranks N COMMAND...    the command at N ranks on one GPU, over NCCL: it takes ranks with a NCCL_HOSTID of their own for those of
#                                            several machines, which talk through sockets (slow: the GPU gives each process a slice of its time);
#                                            from 2.30.3 on, with NCCL_MULTI_RANK_GPU_ENABLE=1, it takes them as they are
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
cd "$(dirname "$self")/../.."
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if [ "${1:-}" = --ranks ]; then
  count=$2
  shift 2
  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} NCCL_IB_DISABLE=1 NCCL_MAX_CTAS=2 NCCL_DEBUG=WARN
  # shellcheck disable=SC2016  # each rank's shell puts its own number in
  apart='export NCCL_HOSTID=rank-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}; exec "$@"'
  [ "${NCCL_MULTI_RANK_GPU_ENABLE:-0}" = 0 ] || apart='exec "$@"'
  exec "${TRIREME_MPIEXEC:-mpirun}" --oversubscribe --bind-to none -n "$count" \
    sh -c "$apart" ranks "$@"
fi
pack=build/gpu-pack
build=build/gpu
built=0
budget=570
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --pack) pack=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --built) built=1; shift ;;
    --budget) budget=$2; shift 2 ;;
    --target) targets+=(--target "$2"); shift 2 ;;
    *) break ;;
  esac
done

say() { printf '==> %s\n' "$*" >&2; }
fail() { printf 'tests/gpu/run.sh: %s\n' "$*" >&2; exit 1; }

find_tools() {
  PATH=$PATH:/usr/local/cuda/bin
  command -v nvcc >/dev/null || fail "nvcc was not found: set PATH to the CUDA 13 toolkit"
  command -v cmake >/dev/null || fail "cmake was not found"
  torch=${TRIREME_TORCH_ROOT:-$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null || true)}
  [ -e "${torch:-/none}/include/ATen/core/Tensor.h" ] || fail "python3 has no torch with headers: set TRIREME_TORCH_ROOT to the folder with LibTorch's include/ and lib/"
  say "nvcc $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'), torch in $torch"
}

# Makes the unpacked packages look installed: programs, headers, libraries, pkg-config, Open MPI's plugins.
use_pack() {
  local root lib deb
  root=$(pwd)/$build-root
  lib=$root/usr/lib/x86_64-linux-gnu
  if [ ! -e "$root/.complete" ]; then
    say "unpacking $pack"
    mkdir -p "$root"
    for deb in "$pack"/*.deb; do dpkg-deb -x "$deb" "$root" || fail "cannot unpack $deb"; done
    mkdir -p "$root/hdf5/include" "$root/hdf5/lib" "$root/bin"
    cp -rs "$root/usr/include/hdf5/openmpi/." "$root/hdf5/include/"
    cp -rs "$lib/hdf5/openmpi/." "$root/hdf5/lib/"
    ln -sf "$(basename "$(find "$lib" -maxdepth 1 -name 'libhdf5_openmpi.so.*' | sort | tail -n 1)")" "$lib/libhdf5.so"
    ln -sfn ../include/trilinos "$root/usr/lib/include"  # where a relocated KokkosConfig.cmake looks
    ln -sf "$root/usr/bin/mpirun.openmpi" "$root/bin/mpirun"
    ln -sf "$root/usr/bin/orted" "$root/bin/orted"
    # Packages name their program pkg-config and mpicc through the alternatives of an installed system.
    ln -sf "$root/usr/bin/pkgconf" "$root/bin/pkg-config"
    cat >"$root/bin/mpicc" <<SCRIPT
#!/bin/sh
case \$1 in
  -showme:compile | --showme:compile) echo "-I$lib/openmpi/include" ;;
  -showme:link | --showme:link) echo "-L$lib/openmpi/lib -Wl,-rpath,$lib/openmpi/lib -lmpi" ;;
  -showme:* | --showme:*) exit 1 ;;
  *) exec cc -I$lib/openmpi/include "\$@" -L$lib/openmpi/lib -Wl,-rpath,$lib/openmpi/lib -lmpi ;;
esac
SCRIPT
    chmod +x "$root/bin/mpicc"
    [ -e "$lib/openmpi/lib/libmpi.so" ] || ln -sf "$(find "$lib" -name 'libmpi.so.40*' | sort | head -n 1)" "$lib/openmpi/lib/libmpi.so"
    touch "$root/.complete"
  fi
  export PATH=$root/bin:$root/usr/bin:$PATH
  export LD_LIBRARY_PATH=$lib:$root/lib/x86_64-linux-gnu:$lib/openmpi/lib:$lib/pmix2/lib:$root/hdf5/lib:$lib/ucx:${LD_LIBRARY_PATH:-}
  export LIBRARY_PATH=$lib:${LIBRARY_PATH:-} CPATH=$root/usr/include:${CPATH:-}
  export PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$lib/pkgconfig:$root/usr/share/pkgconfig
  export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
  export OPAL_PREFIX=$root/usr OPAL_LIBDIR=$lib/openmpi/lib OPAL_PKGDATADIR=$root/usr/share/openmpi OPAL_SYSCONFDIR=$root/etc/openmpi
  export OMPI_MCA_mca_base_component_path=$lib/openmpi/lib/openmpi3 PMIX_INSTALL_PREFIX=$lib/pmix2 PMIX_MCA_mca_base_component_path=$lib/pmix2/lib/pmix
  export OMPI_MCA_btl=self,vader OMPI_MCA_plm_rsh_agent=true  # one machine: no ssh needed
  flags+=("-DCMAKE_PREFIX_PATH=$root/usr" "-DHDF5_ROOT=$root/hdf5" "-DMPI_C_COMPILER=$root/bin/mpicc" "-DTRIREME_MPIEXEC=$root/bin/mpirun"
    "-DCMAKE_BUILD_RPATH=$lib;$lib/openmpi/lib;$root/hdf5/lib")
}

# Whether the system has all that the pack would bring. Its parts belong together: HDF5 is linked with its Open MPI.
system_has_all() {
  local header program preprocess=(c++ -std=c++20 -DPCRE2_CODE_UNIT_WIDTH=8 -I/usr/include/trilinos -I/usr/include/kokkos -E -x c++ -)
  for program in mpicc mpirun; do
    command -v "$program" >/dev/null || { say "the system has no $program"; return 1; }
  done
  for header in toml++/toml.h CLI/CLI.hpp fmt/core.h spdlog/spdlog.h nlohmann/json.hpp pcre2.h utf8proc.h xxhash.h openssl/evp.h gtest/gtest.h \
    Kokkos_Macros.hpp; do
    "${preprocess[@]}" <<<"#include <$header>" >/dev/null 2>&1 || { say "the system has no $header"; return 1; }
  done
  compgen -G '/usr/lib/*/hdf5/openmpi/libhdf5.so' >/dev/null || command -v h5pcc >/dev/null || { say "the system has no parallel HDF5"; return 1; }
}

# part NAME LIMIT COMMAND...: runs it for at most LIMIT seconds, and no longer than the budget has left; output in $last and log.txt, one line in parts.jsonl.
part() {
  local name=$1 limit=$2 left began ended rc=0 said
  shift 2
  began=$(date +%s.%N)
  left=$(awk "BEGIN {print int($budget - ($began - $start))}")
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$limit" -lt 1 ]; then
    say "$name: no time is left"
    printf '{"part": "%s", "rc": null, "seconds": 0, "limit_s": 0}\n' "$name" >>"$results/parts.jsonl"
    failed=1
    return 1
  fi
  say "$name, $limit s at most"
  timeout --kill-after=5 "$limit" "$@" >"$last" 2>&1 || rc=$?
  ended=$(date +%s.%N)
  { printf '==> %s\n' "$name"; cat "$last"; } >>"$results/log.txt"
  said=$rc
  if [ "$rc" = 125 ] || grep -q -e '\*\*\*Skipped' -e 'PASSED  \] [^0-9 ]*0 tests' "$last"; then
    said='"skipped"'
    rc=0
  fi
  printf '{"part": "%s", "rc": %s, "seconds": %.2f, "limit_s": %d}\n' "$name" "$said" "$(awk "BEGIN {print $ended - $began}")" "$limit" >>"$results/parts.jsonl"
  [ "$rc" = 0 ] || failed=1
  return "$rc"
}

configure_and_build() {
  find_tools
  flags=("-DTRIREME_TORCH_ROOT=$torch")
  if system_has_all; then
    say "MPI: $(mpirun --version 2>&1 | head -n 1)"
  elif compgen -G "$pack/*.deb" >/dev/null; then
    use_pack
  else
    fail "no packages in $pack: run tests/gpu/pack.sh on a Debian 12 machine with network and bring the folder along"
  fi
  part configure 120 cmake --preset gpu -B "$build" "${flags[@]}" || { tail -n 40 "$last" >&2; fail "the configuration failed"; }
  grep -E '^-- Trireme ' "$last" >&2 || true
  ! grep -q -E '^-- no GPU variant' "$last" || fail "$(sed -n 's/^-- \(no GPU variant.*\)/\1/p' "$last")"
  [ ${#targets[@]} -gt 0 ] || targets=(--target gpu_unit gpu_drill trireme)  # what tests/gpu runs: the rest of the build takes minutes
  part build 540 cmake --build "$build" --parallel "$(nproc)" "${targets[@]}" ||
    { grep -E -A 12 'error|FAILED' "$last" | head -n 80 >&2; fail "the build failed ($results/log.txt)"; }
}

# The real NCCL among several ranks of one GPU, each a part of its own.
several_ranks() {
  local np program=$build/tests/gpu_unit deck=$build/trireme drill=$build/tests/gpu_drill
  ranks_part() { part "ranks/$1" "$2" "${@:3}" || tail -n 40 "$last" >&2; }
  cases() { ranks_part "$1" 60 env MALLOC_PERTURB_=165 "$self" --ranks "$2" "$program" "--gtest_filter=$3"; }
  if [ -x "$program" ]; then
    for np in 2 4; do cases "exchange/np$np" "$np" 'GpuExchange.*:GpuTraining.*:SeveralRanks.CompareReplicas:SeveralRanks.BringWeights*'; done
    cases soak 2 SeveralRanks.SumWhileAWatchdogLooksEveryMillisecond
    cases recorded 2 SeveralRanks.RecordTensorParallelSteps
    NCCL_MULTI_RANK_GPU_ENABLE=1 cases window 2 SeveralRanks.SumProductsInASymmetricWindow
  fi
  [ ! -x "$deck" ] || ranks_part tiny_deck 120 tests/gpu/tiny_deck.sh "$deck" "$self" --ranks 2
  [ ! -x "$deck" ] || ranks_part families 240 tests/gpu/families.sh "$build"
  [ ! -x "$drill" ] || ranks_part drills 90 python3 tests/gpu/drills_test.py "$drill" "$self" --ranks 2
  if [ -x "$program" ]; then
    cases bytes 2 SeveralRanks.TakeTheLedgersBytesForTheirCommunicators
    cases host_time 2 SeveralRanks.TellHowLongASumIsEnqueued
  fi
}

# What the device's own checker says of the kernels, on one GPU: the exchange's, row operators, head, optimizer, attention over pages, draws.
sanitize() {
  local checker program=$build/tests/gpu_unit
  checker=$(command -v compute-sanitizer) || { say "no compute-sanitizer here"; return 0; }
  [ -x "$program" ] || return 0
  # NCCL asks at its start for kernels and memory that a card may lack: refused calls are no errors of ours.
  part sanitizer 240 "$checker" --tool memcheck --report-api-errors no --error-exitcode 1 "$program" --gtest_filter='GpuExchange.*:GpuTraining.*:GpuGeneration.*' || tail -n 40 "$last" >&2
}

start=$(date +%s.%N)
results=${OUT:-$build-results}
failed=0
mkdir -p "$results"
: >"$results/parts.jsonl"
: >"$results/log.txt"
last=$(mktemp)
trap 'rm -f "$last"' EXIT
[ "$built" = 1 ] || configure_and_build
selected=(-L gpu)
[ "$built" = 0 ] || selected=()
mapfile -t tests < <(ctest --test-dir "$build" "${selected[@]}" "$@" -N | sed -n 's/^ *Test *#[0-9]*: //p')
[ ${#tests[@]} -gt 0 ] || fail "$build has no such tests"
several_ranks
for test in "${tests[@]}"; do
  part "$test" 300 ctest --test-dir "$build" --output-on-failure "$@" -R "^$test\$" || tail -n 60 "$last" >&2
done
sanitize
say "$(grep -c '"rc": 0,' "$results/parts.jsonl" || true) of $(wc -l <"$results/parts.jsonl") parts passed: $results/parts.jsonl"
exit "$failed"

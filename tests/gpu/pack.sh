#!/usr/bin/env bash
# Collects what tests/gpu/run.sh needs on a machine without network and without MPI: Debian packages of Open MPI, parallel HDF5,
# Kokkos and the small libraries, as .deb files in one folder (default build/gpu-pack). Run it on a Debian 12 machine with network; a
# machine with a newer C library can use them.
#
#   tests/gpu/pack.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
folder=${1:-build/gpu-pack}
tree_mb=$(git ls-files -z | du -cm --files0-from=- | tail -n 1 | cut -f 1)
limit_mb=$((63 - tree_mb))  # both travel together, in 64 MB

readonly names=(
  # MPI and what its transports are linked with
  libopenmpi-dev openmpi-bin openmpi-common libopenmpi3 libpmix2 libhwloc15 libevent-core-2.1-7 libevent-pthreads-2.1-7 libfabric1
  libucx0 libibverbs1 librdmacm1 libpsm2-2 libpsm-infinipath1 libnl-3-200 libnl-route-3-200 libmunge2 libnuma1 libltdl7 libudev1 zlib1g
  # parallel HDF5; its library is linked with curl
  libhdf5-openmpi-dev libhdf5-openmpi-103-1 libaec0 libsz2 libcurl4 libnghttp2-14 libidn2-0 librtmp1 libssh2-1 libpsl5 libgssapi-krb5-2
  libkrb5-3 libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1 libldap-2.5-0 libsasl2-2 libbrotli1 libunistring2 libgnutls30
  libhogweed6 libnettle8 libgmp10 libp11-kit0 libffi8 libtasn1-6 libssl3 libzstd1
  # the rest
  libtrilinos-kokkos-dev libtrilinos-kokkos-13.2 trilinos-dev libtomlplusplus-dev libtomlplusplus3 libcli11-dev libfmt-dev libfmt9 libspdlog-dev libspdlog1.10
  nlohmann-json3-dev libpcre2-dev libpcre2-8-0 libutf8proc-dev libutf8proc2 libxxhash-dev libxxhash0 libssl-dev libgtest-dev libgmock-dev
  googletest libbenchmark-dev libbenchmark1debian pkgconf pkgconf-bin libpkgconf3 ninja-build
)

mkdir -p "$folder"
cd "$folder"
rm -f ./*.deb
apt-get download "${names[@]}" 2>&1 | { grep -E '^E:' || true; } >&2
size=$(du -sm . | cut -f 1)
echo "$(find . -name '*.deb' | wc -l) packages, $size MB in $folder"
[ "$size" -lt "$limit_mb" ] || { echo "more than $limit_mb MB" >&2; exit 1; }

#!/usr/bin/env bash
# Debian's packages for 64-bit ARM, with all that they need, unpacked into a folder: what cmake/toolchains/aarch64.cmake takes as TRIREME_SYSROOT. This
# machine's own packages and architectures stay as they are. Needs apt, no root; the release is this machine's.
#   cmake/toolchains/aarch64_sysroot.sh FOLDER PACKAGE...
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 FOLDER PACKAGE..." >&2; exit 64; }
mkdir -p "$1"
root=$(readlink -f "$1")
shift

mkdir -p "$root"/usr/{bin,lib,sbin} "$root"/apt/{lists,archives}/partial
for folder in bin lib sbin; do ln -sfn "usr/$folder" "$root/$folder"; done
: >"$root/apt/status"  # nothing is installed there: apt names all that the packages need
options=(-qq -y -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Install-Recommends=0 -o Acquire::Languages=none -o Debug::NoLocking=1
  -o "Dir::State::status=$root/apt/status" -o "Dir::State::lists=$root/apt/lists" -o "Dir::Cache::archives=$root/apt/archives"
  -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --download-only "$@"
for package in "$root"/apt/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink --no-same-owner
done
rm -rf "$root/apt"

# Absolute links and the paths in CMake's package files point into the folder.
find "$root" -lname '/*' -printf '%p\t%l\n' | while IFS=$'\t' read -r link target; do
  case $target in
    "$root"/*) ;;
    *) ln -sfn "$(realpath -ms --relative-to="$(dirname "$link")" "$root$target")" "$link" ;;
  esac
done
grep -rlE '["; ]/usr/(lib|include)/' "$root/usr/lib/aarch64-linux-gnu/cmake" "$root/usr/share/cmake" --include='*.cmake' |
  while IFS= read -r file; do sed -i -E "s#([\"; ])/usr/(lib|include)/#\1$root/usr/\2/#g" "$file"; done

#!/usr/bin/env python3
"""Builds TRIREME_PLAIN_ONLY for 64-bit ARM, looks for NEON in its kernels and runs its unit tests under qemu.

    cross_test.py ROOT BUILD_FOLDER
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 125


def missing_tools():
    out = [name for name in ("cmake", "ninja", "aarch64-linux-gnu-g++") if not shutil.which(name)]
    if not (shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")):
        out.append("qemu-aarch64")
    if not pathlib.Path("/usr/src/googletest/CMakeLists.txt").exists():
        out.append("/usr/src/googletest")
    return out


def run(command, **options):
    """Says nothing when it works."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode:
        print(" ".join(map(str, command)), result.stdout[-6000:], sep="\n")
        sys.exit(1)
    return result.stdout


def main():
    root, build = map(pathlib.Path, sys.argv[1:])
    missing = missing_tools()
    if missing:
        print("skipped, missing:", ", ".join(missing), "(Debian: g++-aarch64-linux-gnu, qemu-user-static, googletest)")
        return SKIPPED
    run(["cmake", "-S", root, "-B", build, "-G", "Ninja", "--toolchain", root / "cmake/toolchains/aarch64.cmake", "-DTRIREME_PLAIN_ONLY=ON"])
    run(["cmake", "--build", build, "--parallel", str(min(2, os.cpu_count() or 1))])
    environment = {k: v for k, v in os.environ.items() if k not in ("GTEST_FILTER", "TRIREME_ISA")}
    print(run(["ctest", "--test-dir", build, "--verbose", "--no-tests=error"], env=environment)[-1500:])
    for stem in ("decode_gemm", "decode_attention", "training_attention", "int8_gemm", "lane_kernels"):
        [code] = build.rglob(f"{stem}_portable.cpp.o")
        listing = run(["aarch64-linux-gnu-objdump", "-d", code])
        vectors, scalars = (len(re.findall(rf"\t(?:fmla|fmadd|fmul|fadd|fsub)\t{register}", listing)) for register in (r"v\d+\.4s", r"s\d"))
        if vectors < 10 * max(scalars, 1):
            print(f"{stem}: {vectors} NEON instructions of arithmetic and {scalars} of single numbers: the compiler took its vectors apart")
            return 1
    machine = subprocess.run(["readelf", "-h", build / "plain_unit"], capture_output=True, text=True).stdout
    if "AArch64" not in machine:
        print("plain_unit is no ARM program:", machine, sep="\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Our CUDA kernels compile for every architecture of the defaults that this machine's nvcc knows, in builds without CUDA, too; none spills registers or keeps
an array in memory, and each leaves room for enough threads: they are bound by memory, and threads hide its latency. They also compile as in a build
with a Kokkos that has a CUDA space, by the standard of CMakeLists.txt and against what kokkos_stub/ says of Kokkos.
Skipped (exit code 125) where there is no nvcc.

    cuda_kernels_test.py ROOT
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ARCHITECTURES = (80, 90, 100)  # as in cmake/TriremeCuda.cmake
SOURCES = ("src/kernels/device_kernels.cu", "src/comm/shard_exchange_add.cu")
# 65,536 registers of a multiprocessor, given out in eights to a thread: 56 leave 1,170 threads of 2,048, each with more bytes under way than it would have
# in fewer registers (measured on an H100: AdamW with 32 registers, an element at a time, 562 GB/s; with 48, four at a time, 2,973 of a copy's 2,928).
MOST_REGISTERS = 56
# Draws have a team to a row, fewer than there are multiprocessors: more threads would find no work. Attention over pages has 16 pieces of keys, and then of
# values, under way in each thread, and the products of four keys with all heads of a pass (measured on an H200: 112 registers, eight pieces of values at a time,
# 2,342 GB/s; 128, sixteen, 2,960).
MOST_OF_SOME = {"SummariseRow|ChooseRow": 64, "AttendChunk.*Li8E": 168, "AttendChunk": 144}


def compile_one(nvcc, root, source, chosen, *more):
    """ptxas' lines about it; None where it does not compile."""
    code = [word for a in chosen for word in ("-gencode", f"arch=compute_{a},code=sm_{a}")]
    code += ["-gencode", f"arch=compute_{chosen[-1]},code=compute_{chosen[-1]}"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([nvcc, "-std=c++20", "--fmad=false", "-Werror", "all-warnings", "-Xptxas", "-v", *more, f"-I{root}/include", f"-I{root}/src", *code,
                               "-c", f"{root}/{source}", "-o", f"{folder}/kernels.o"], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout + done.stderr)
        return None
    return done.stdout + done.stderr


def problems_in(report):
    """Kernels that spill, keep arrays in memory or take too many registers, by ptxas' report: their names stand before their figures."""
    problems = []
    kernel = architecture = ""
    for line in report.split("\n"):
        if found := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
            kernel, architecture = found.groups()
        spilled = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if spilled and any(map(int, spilled.groups())):
            problems.append(f"{kernel} ({architecture}): {line.strip()}")
        used = re.search(r"Used (\d+) registers", line)
        most = next((number for names, number in MOST_OF_SOME.items() if re.search(names, kernel)), MOST_REGISTERS)
        if used and int(used[1]) > most:
            problems.append(f"{kernel} ({architecture}): {used[1]} registers, {most} at most")
    return problems


def main():
    root = pathlib.Path(sys.argv[1])
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if not nvcc:
        print("skipped: no nvcc")
        return 125
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    chosen = [a for a in ARCHITECTURES if re.search(rf"compute_{a}\b", listed)]
    if not chosen:
        print(f"skipped: {nvcc} knows none of {ARCHITECTURES}")
        return 125
    failed = False
    for source in SOURCES:
        report = compile_one(nvcc, root, source, chosen)
        if report is None:
            failed = True
            continue
        kernels = report.count("Compiling entry function")
        problems = problems_in(report)
        failed = failed or bool(problems) or kernels == 0
        print(f"{source}: {kernels} kernels for {chosen} and PTX", *problems, sep="\n  ")
    with_kokkos = compile_one(nvcc, root, SOURCES[0], chosen[:1], "-DTRIREME_KOKKOS_DEVICE", f"-I{root}/tests/style/kokkos_stub")
    if with_kokkos is None or "Compiling entry function" not in with_kokkos:
        print(f"{SOURCES[0]}: does not compile with a Kokkos that has a device space")
        failed = True
    # Compiled above by the standard of the whole build, so no target may ask for another.
    for lists in sorted(root.glob("src/*/CMakeLists.txt")):
        if "CUDA_STANDARD" in lists.read_text(encoding="utf-8"):
            print(f"{lists}: a standard of its own for CUDA; all are compiled as cmake/TriremeCuda.cmake says")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

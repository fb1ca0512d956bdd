#!/usr/bin/env python3
"""The GPU variant of the program and what needs it, built in a folder of its own where a CUDA toolkit is; then the tests that only such a build has.
Skipped where there is no nvcc, or where libraries of the variant are missing.

    variant_test.py ROOT FOLDER TORCH_ROOT
"""

import os
import pathlib
import shutil
import subprocess
import sys

# What runs without a GPU of a build that has the variant; the rest is the same as without it.
TESTS = r"^(integration/gpu_variant|install/gpu_links|style/(unwired_libraries|cuda_architectures|cuda_kernels|gpu_wheels))$"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(125)


def main():
    root, folder, torch = sys.argv[1:4]
    nvcc = shutil.which("nvcc", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"]))
    if not nvcc:
        skip("no nvcc on this machine")
    configured = subprocess.run(["cmake", "--preset", "gpu", "-S", root, "-B", folder, f"-DTRIREME_TORCH_ROOT={torch}"], text=True, check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(configured.stdout[-3000:], flush=True)
    for line in configured.stdout.splitlines():
        if "no GPU variant of the program: " in line:
            skip(line.partition("no GPU variant of the program: ")[2])
        if "TRIREME_CUDA=ON, but" in line:
            skip("NCCL is missing beside the toolkit (TRIREME_GPU=1 ./bootstrap.sh deps fetches it)")
    if configured.returncode:
        sys.exit("the configuration with CUDA failed")
    listed = subprocess.run(["cmake", "--build", folder, "--target", "help"], text=True, stdout=subprocess.PIPE, check=True).stdout
    measured = [line.split(":")[0] for line in listed.splitlines() if line.split(":")[0].endswith("-gpu") and "/" not in line.split(":")[0]]
    targets = ["trireme", "gpu_unit", *measured]
    print("building", *targets, flush=True)
    if subprocess.run(["cmake", "--build", folder, "--parallel", "2", "--target", *targets], check=False).returncode:
        sys.exit("the build of the GPU variant failed")
    environment = {name: value for name, value in os.environ.items() if name not in ("TRIREME_BINARY_DIR", "TRIREME_SOURCE_DIR")}
    sys.exit(subprocess.run(["ctest", "--test-dir", folder, "--output-on-failure", "--no-tests=error", "-R", TESTS], env=environment, check=False).returncode)


if __name__ == "__main__":
    main()

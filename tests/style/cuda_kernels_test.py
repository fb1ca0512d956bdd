#!/usr/bin/env python3
"""The functors that GPUs run compile for every architecture of the defaults that this machine's nvcc knows, in builds without CUDA, too.
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
    code = [word for a in chosen for word in ("-gencode", f"arch=compute_{a},code=sm_{a}")]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([nvcc, "-std=c++20", "--fmad=false", "-Werror", "all-warnings", f"-I{root}/include", f"-I{root}/src", *code, "-c",
                               f"{root}/src/kernels/device_kernels.cu", "-o", f"{folder}/device_kernels.o"], check=False)
    print(f"src/kernels/device_kernels.cu for {chosen}: {'compiled' if done.returncode == 0 else 'FAILED'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

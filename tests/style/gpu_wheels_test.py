#!/usr/bin/env python3
"""bootstrap.sh fetches for the GPU variant what a CUDA toolkit lacks, in the versions that the torch wheel names: asked with fake
toolkits, with and without cuDNN and NCCL. Nothing is fetched.

    gpu_wheels_test.py ROOT [FOLDER with the torch wheel]
"""

import pathlib
import re
import subprocess
import sys
import tempfile

NEVER_IN_A_TOOLKIT = {"nvidia-cusparselt-cu13", "nvidia-nvshmem-cu13", "nvidia-cufile"}


class Machine:
    """A folder with a toolkit, a cache and the functions of the script, whose last part, that does what it is called for, is left out."""

    def __init__(self, root, folder):
        self.folder = pathlib.Path(folder)
        script = (root / "bootstrap.sh").read_text()
        (self.folder / "functions.sh").write_text(script[:script.index("\ncommand=${1")] + "\n")
        for name in ("cuda/lib64", "cuda/bin", "module", "cache/trireme/python"):
            (self.folder / name).mkdir(parents=True)
        for name in ("nvcc", "ldconfig"):  # the machine's own must not answer
            path = self.folder / "cuda/bin" / name
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)

    def wanted(self, gpu="1", **environment):
        environment = {"PATH": f"{self.folder}/cuda/bin:/usr/bin:/bin", "HOME": str(self.folder), "CUDA_HOME": f"{self.folder}/cuda",
                       "XDG_CACHE_HOME": f"{self.folder}/cache", "TRIREME_GPU": gpu} | environment
        run = subprocess.run(["bash", "-c", f". {self.folder}/functions.sh; gpu_wheels"], env=environment, capture_output=True, text=True,
                             check=False)
        if run.returncode or run.stderr:
            sys.exit(f"gpu_wheels ended with {run.returncode}: {run.stderr}")
        return dict(line.split("==") for line in run.stdout.split())

    def touch(self, *names):
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def problems(root, wheels):
    def differs(what, got, expected):
        if set(got) != expected:
            yield f"{what}: {sorted(got)} instead of {sorted(expected)}"

    both = {"nvidia-cudnn-cu13", "nvidia-nccl-cu13"}
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(root, folder)
        plain = machine.wanted()
        yield from differs("a plain toolkit", plain, NEVER_IN_A_TOOLKIT | both)
        twelve = machine.wanted(gpu="12")
        machine.touch("cache/trireme/python12/nvidia/cublas/lib/libcublas.so.12", "module/libcudnn.so.9")
        yield from differs("CUDA 12, cuBLAS was fetched", machine.wanted(gpu="12", LD_LIBRARY_PATH=f"{folder}/module"),
                           set(twelve) - {"nvidia-cublas-cu12"})
        (machine.folder / "module/libcudnn.so.9").unlink()
        yield from differs("no GPU variant", machine.wanted(gpu="0"), set())
        machine.touch("module/libnccl.so.2")
        yield from differs("NCCL from a module", machine.wanted(LD_LIBRARY_PATH=f"/nowhere:{folder}/module"),
                           NEVER_IN_A_TOOLKIT | {"nvidia-cudnn-cu13"})
        machine.touch("cache/trireme/python/nvidia/cudnn/lib/libcudnn.so.9")
        yield from differs("cuDNN was fetched", machine.wanted(), NEVER_IN_A_TOOLKIT | {"nvidia-nccl-cu13"})
        machine.touch("cuda/lib64/libcudnn.so.9", "cuda/lib64/libnccl.so.2")
        yield from differs("a toolkit that has both", machine.wanted(), NEVER_IN_A_TOOLKIT)
        (machine.folder / "cuda/bin/nvcc").unlink()
        yield from differs("no nvcc in PATH", machine.wanted(), NEVER_IN_A_TOOLKIT)
    # One list in three files: the build names the wheels that it misses.
    named = dict(re.findall(r"\|(nvidia-[\w-]+)==([\w.]+)\"", (root / "cmake" / "TriremeCuda.cmake").read_text()))
    of_12 = {wheel: version for wheel, version in named.items() if wheel.endswith("-cu12")}
    of_13 = {wheel: version for wheel, version in named.items() if wheel not in of_12}
    if of_13 != plain:
        yield f"cmake/TriremeCuda.cmake names {of_13}, bootstrap.sh {plain}"
    if not of_12 or not of_12.items() <= twelve.items():
        yield f"cmake/TriremeCuda.cmake names {of_12}, bootstrap.sh of CUDA 12 {twelve}"
    told = dict(re.findall(r"(nvidia-[\w-]+)==([\w.]+)", (root / "docs/install/without_root.md").read_text().split("For **GPUs**")[1]))
    if told != plain:
        yield f"docs/install/without_root.md names {told}, bootstrap.sh {plain}"
    for metadata in pathlib.Path(wheels).glob("torch-*.dist-info/METADATA") if wheels else ():
        torch = dict(re.findall(r"^Requires-Dist: (nvidia-[\w-]+)==([\w.]+)", metadata.read_text(), re.M))
        for wheel in sorted(set(plain) & set(torch)):
            if plain[wheel] != torch[wheel]:
                yield f"{wheel}=={plain[wheel]}, the torch wheel wants {torch[wheel]}"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    found = list(problems(root, sys.argv[2] if len(sys.argv) > 2 else ""))
    print("\n".join([*found, f"{len(found)} problems"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

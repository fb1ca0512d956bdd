#!/usr/bin/env python3
"""trireme-gpu in an empty prefix: of all that it needs to start the loader is given a plain CUDA toolkit, without cuDNN and NCCL, the torch wheel and what
the system has. What it misses then is what bootstrap.sh fetches beside a plain toolkit, and with that it finds everything. Nothing is fetched.
Skipped (exit code 125) where there is no trireme-gpu, or a machine's toolkit has not all that the wheel needs.

    gpu_links_test.py ROOT PROGRAM TORCH
"""

import pathlib
import re
import subprocess
import sys
import tempfile

LOADER = "/lib64/ld-linux-x86-64.so.2"
# What the packages of NVIDIA's toolkit bring (cuda-libraries-13-0, cuda-cupti-13-0): cuDNN, NCCL, cuSPARSELt and NVSHMEM are products of their own.
TOOLKIT = re.compile(r"lib(cudart|cublas|cublasLt|nvblas|cufft|cufftw|cufile|cufile_rdma|curand|cusolver|cusolverMg|cusparse|cupti|nvrtc|nvrtc-builtins|nvJitLink|"
                     r"nvfatbin|nvjpeg|npp\w+|OpenCL|nvToolsExt|nvtx3interop)\.so(\.|$)")


def listed(program, *options):
    """(library, where the loader finds it, None for nowhere), of all that the program needs to start."""
    done = subprocess.run([LOADER, *options, str(program)], capture_output=True, text=True, check=False, env={"LD_TRACE_LOADED_OBJECTS": "1"})
    return [(name, None if place == "not found" else place) for name, place in re.findall(r"^\s*(\S+) => (not found|\S+)", done.stdout, re.MULTILINE)]


def isolated(program, prefix):
    """Those that it misses with the system's own folders and this prefix: neither the loader's cache nor what is noted in the files counts."""
    noted = ":".join(["", str(program), *(str(path) for path in prefix.iterdir())])  # the empty name is the program
    found = listed(program, "--inhibit-cache", "--inhibit-rpath", noted, "--library-path", str(prefix))
    strangers = [f"{name} in {place}" for name, place in found if place and not place.startswith((f"{prefix}/", "/lib", "/usr/lib"))]
    if strangers or not found:
        sys.exit(f"the prefix is not all that the loader looks at: {strangers or 'nothing was listed'}")
    return {name for name, place in found if place is None}


def of_wheels(root):
    """Libraries for which bootstrap.sh fetches a wheel where there is a plain toolkit."""
    script = (root / "bootstrap.sh").read_text()
    body = re.search(r"^gpu_wheels\(\) \{\n(.*?)^\}", script, re.MULTILINE | re.DOTALL)[1]
    return set(re.findall(r'"\$wheels/nvidia/\w+/lib/([\w.]+)"', body))


def main():
    root, program, torch = (pathlib.Path(path).resolve() for path in sys.argv[1:])
    if not program.exists():
        print(f"skipped: there is no {program.name} (TRIREME_GPU=1 ./bootstrap.sh build)")
        return 125
    needed = listed(program)
    missing = [name for name, place in needed if place is None]
    if missing:
        print(f"skipped: this machine has not all that {program.name} needs: {missing}")
        return 125
    places = {name: pathlib.Path(place).resolve() for name, place in needed if place.startswith("/")}
    fetched = of_wheels(root)
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder)
        for name, place in places.items():
            ours = place.is_relative_to(torch) or not place.is_relative_to("/usr/local") and name not in fetched
            if ours or TOOLKIT.match(name):
                (prefix / name).symlink_to(place)
        lacking = isolated(program, prefix)
        print(f"{len(needed)} libraries; beside a plain toolkit: {', '.join(sorted(lacking))}")
        if unexpected := lacking - fetched:
            sys.exit(f"neither a plain toolkit nor a wheel that bootstrap.sh fetches has {sorted(unexpected)}")
        if not {"libcudnn.so.9", "libnccl.so.2"} <= lacking:
            sys.exit("the prefix was to be without cuDNN and NCCL: what was compared with it means nothing")
        for name in fetched & places.keys():
            if not (prefix / name).exists():
                (prefix / name).symlink_to(places[name])
        if still := isolated(program, prefix):
            sys.exit(f"with what bootstrap.sh fetches there is still no {sorted(still)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

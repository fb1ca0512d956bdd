#!/usr/bin/env python3
"""The virtual environment of the comparison tests: same torch wheel as the program, transformers beside it.

    environment.py check               exit 0 when this interpreter has all of requirements.txt and beside_torch.lock, and imports torch
    environment.py prepare WHEELS      let this interpreter use the torch wheel in WHEELS, then check

A CUDA wheel of torch imports about ten CUDA libraries (2.5 GB) even where nothing runs on a GPU. Where some are missing,
`prepare` compiles stand-ins with the same names and symbols: enough for the loader, and a call of one ends the process
with the symbol's name. They lie inside the environment, so the program itself never sees them.
"""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

HERE = pathlib.Path(__file__).resolve().parent
SITE = pathlib.Path(sysconfig.get_paths()["purelib"])
STAND_INS = SITE / "trireme_cuda_stand_ins"
LOADER = '''"""Loads the stand-ins for CUDA libraries that this machine lacks, before torch asks for them."""
import ctypes, pathlib
for library in sorted(pathlib.Path(__file__).with_name("trireme_cuda_stand_ins").glob("*.so*")):
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
'''


def version_key(text):
    return [int(part) for part in re.findall(r"\d+", text)]


def unmet_requirements():
    """Names of packages in requirements.txt and beside_torch.lock that are missing or of another version."""
    unmet = []
    wanted = [(HERE / name).read_text() for name in ("requirements.txt", "beside_torch.lock")]
    for line in "\n".join(wanted).splitlines():
        line = line.split("#")[0].split("--hash")[0].strip()
        if not line:
            continue
        name, relation, wanted = re.fullmatch(r"([\w.-]+)(==|>=|<)?(.*)", line).groups()
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            unmet.append(f"{name} (missing)")
            continue
        a, b = version_key(found), version_key(wanted)
        if (relation == "==" and a != b) or (relation == ">=" and a < b) or (relation == "<" and a >= b):
            unmet.append(f"{line} (found {found})")
    return unmet


def import_error():
    """Why torch or transformers cannot be imported in a fresh interpreter; empty when they can."""
    probe = "import torch, transformers, safetensors.torch; torch.zeros(2).sum()"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd="/", check=False)
    return "" if run.returncode == 0 else (run.stderr.strip().splitlines() or ["killed"])[-1]


def check():
    unmet = unmet_requirements()
    if unmet:
        return "not as in requirements.txt: " + ", ".join(unmet)
    return import_error()


def tool(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def missing_libraries(torch_lib):
    """Sonames that the wheel's libraries need and the loader does not find."""
    missing = set()
    for name in ("libtorch_python.so", "libtorch_cuda.so", "libtorch_global_deps.so", "libtorch_nvshmem.so", "libc10_cuda.so"):
        if (torch_lib / name).exists():
            missing |= set(re.findall(r"(\S+) => not found", tool("ldd", str(torch_lib / name))))
    return sorted(missing)


def undefined_symbols(torch_lib):
    """Symbols that libraries of the wheel take from elsewhere, as {name: version or ''}."""
    symbols = {}
    for library in torch_lib.glob("lib*.so*"):
        listing = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=False).stdout
        for line in listing.splitlines():
            name, _, version = line.split()[-1].partition("@")
            symbols[name] = version.strip("@") or symbols.get(name, "")
    return symbols


# Which undefined symbol belongs to which library, by its prefix.
PREFIXES = {
    "libcublas.so": r"cublas(?!Lt)", "libcublasLt.so": r"cublasLt", "libcudnn.so": r"cudnn", "libcufft.so": r"cufft",
    "libcurand.so": r"curand", "libcusparse.so": r"cusparse(?!Lt)", "libcusparseLt.so": r"cusparseLt", "libcufile.so": r"cuFile",
    "libnccl.so": r"nccl", "libnvshmem_host.so": r"_?nvshmem", "libcusolver.so": r"cusolver", "libnvrtc.so": r"nvrtc",
    "libcudart.so": r"(cuda|__cuda)", "libcupti.so": r"cupti", "libnvJitLink.so": r"nvJitLink", "libcuda.so": r"cu[A-Z]",
}


def build_stand_in(soname, symbols):
    pattern = PREFIXES.get(re.sub(r"\.so.*", ".so", soname), r"(?!)")
    names = sorted(name for name in symbols if re.match(pattern, name) and re.fullmatch(r"\w+", name))
    versions = {symbols[name] for name in names if symbols[name]}
    source = ["#include <stdio.h>", "#include <stdlib.h>",
              f'static void absent(const char* name) {{ fprintf(stderr, "%s: {soname} is a stand-in\\n", name); abort(); }}']
    source += [f'void {name}(void) {{ absent("{name}"); }}' for name in names]
    script = STAND_INS / f"{soname}.map"
    script.write_text("".join(f"{version} {{ *; }};\n" for version in sorted(versions)) or "{ global: *; };\n")
    command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", "-x", "c", "-", "-o", str(STAND_INS / soname), f"-Wl,-soname,{soname}"]
    if len(versions) == 1:
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, input="\n".join(source), text=True, check=True)
    script.unlink()


def prepare(wheels):
    wheels = pathlib.Path(wheels).resolve()
    (SITE / "torch-wheel.pth").write_text(f"{wheels}\n")
    STAND_INS.mkdir(exist_ok=True)
    for old in STAND_INS.iterdir():
        old.unlink()
    torch_lib = wheels / "torch" / "lib"
    missing = missing_libraries(torch_lib)
    if missing:
        symbols = undefined_symbols(torch_lib)
        for soname in missing:
            build_stand_in(soname, symbols)
        (SITE / "trireme_load_stand_ins.py").write_text(LOADER)
        (SITE / "trireme_load_stand_ins.pth").write_text("import trireme_load_stand_ins\n")
        print("stand-ins for", ", ".join(missing))
    return check()


def main():
    if sys.argv[1:] == ["check"]:
        problem = check()
    elif len(sys.argv) == 3 and sys.argv[1] == "prepare":
        problem = prepare(sys.argv[2])
    else:
        sys.exit(__doc__)
    if problem:
        sys.exit(f"{sys.executable}: {problem}")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()

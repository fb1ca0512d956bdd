#!/usr/bin/env python3
"""Each library with our CUDA kernels has code for every architecture that the build was configured for, and PTX for the last one.
Without architectures (a build without CUDA) it counts as skipped (exit code 125).

    cuda_architectures_test.py [NVCC LIBRARY[,LIBRARY...] ARCHITECTURES...]     e.g. 80-real 90-real 100
"""

import pathlib
import re
import struct
import subprocess
import sys

DEVICES = {80: "A100", 90: "H100", 100: "B200"}


# What cuobjdump, which not every toolkit has, reads: containers of entries {kind u16, -, header bytes u32, bytes u64, -, -, -, -, arch u32}.
CONTAINER = struct.pack("<I", 0xBA55ED50)
PTX, ELF = 1, 2


def architectures(library):
    """{kind: architectures} of all containers in an object, library or program."""
    data = pathlib.Path(library).read_bytes()
    found = {PTX: set(), ELF: set()}
    at = data.find(CONTAINER)
    while at >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, at + 4)
        entry, end = at + header, at + header + size
        if version == 1 and header == 16 and end <= len(data):
            while entry < end:
                kind, entry_header, entry_size = struct.unpack_from("<HxxIQ", data, entry)
                found.setdefault(kind, set()).add(struct.unpack_from("<I", data, entry + 28)[0])
                entry += entry_header + entry_size
        at = data.find(CONTAINER, at + 4)
    return found


def is_complete(library, wanted, known):
    found = architectures(library)
    binary, ptx = found[ELF], found[PTX]
    print(f"{library}: code for {sorted(binary)}, PTX for {sorted(ptx)}; asked for {wanted}; nvcc knows {sorted(known)}")
    numbers = [int(re.match(r"\d+", word).group()) for word in wanted]
    missing = [number for word, number in zip(wanted, numbers) if not word.endswith("-virtual") and number not in binary]
    if missing:
        print(f"no code for {missing}")
    if not any(word.endswith(("-real", "-virtual")) for word in wanted[:-1]):
        return not missing  # the builder chose them
    left_out = [f"{number} ({name})" for number, name in DEVICES.items() if number in known and number not in binary]
    if left_out:
        print(f"the defaults leave out {left_out}, which nvcc knows")
    if max(numbers) not in ptx:
        print(f"no PTX for {max(numbers)}: a newer device finds nothing to run")
    return not (missing or left_out or max(numbers) not in ptx)


def main():
    if len(sys.argv) < 4:
        print("skipped: this build has no CUDA")
        return 125
    nvcc, libraries = sys.argv[1:3]
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    known = {int(number) for number in re.findall(r"compute_(\d+)", listed)}
    complete = [is_complete(library, sys.argv[3:], known) for library in libraries.split(",")]
    return 0 if all(complete) else 1


if __name__ == "__main__":
    sys.exit(main())

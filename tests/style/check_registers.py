#!/usr/bin/env python3
"""What is compiled for one instruction set uses no instruction of a newer one: by the registers and mnemonics that objdump shows in
the members *_portable, *_avx2, *_avx512, *_avx512_bf16 and *_amx of our libraries (x86-64).

    check_registers.py LIBRARY...      check_registers.py --self-test COMPILER
Exit code 125: no objdump.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

NEWER = {
    # mask registers and those from 16 on came with AVX-512 for every width
    "portable": re.compile(r"%[yz]mm|%xmm(1[6-9]|2\d|3[01])\b|\{%k|\tv[a-z]"),
    "avx2": re.compile(r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])\b|%k[0-7]\b"),
    "avx512": re.compile(r"\tv\w*bf16"),
    "avx512_bf16": re.compile(r"%tmm|\ttile|tilecfg"),
    "amx": None,
}
MEMBER = re.compile(r"_(portable|avx2|avx512_bf16|avx512|amx)\.cpp\.o")


def problems(path):
    """(members seen, messages) of one library or object."""
    members, out, kind, name = set(), [], None, ""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        if header := re.match(r"(\S+):\s+file format", line):
            found = MEMBER.search(header[1])
            kind, name = (found[1], header[1]) if found else (None, "")
            members.update([name] if found else [])
        elif kind and NEWER[kind] and re.match(r"\s+[0-9a-f]+:\t", line) and NEWER[kind].search(line):
            out.append(f"{name}: {line.strip()}")
            kind = None  # one line for each
    return members, out


def self_test(compiler):
    source = "void add(float* a, const float* b) { for (int i = 0; i < 1024; ++i) a[i] += b[i]; }"
    flags = {"portable": [], "avx2": ["-mavx2"], "avx512": ["-mavx512f", "-mavx512vl", "-mprefer-vector-width=512"]}
    with tempfile.TemporaryDirectory() as folder:
        for built, options in flags.items():
            for named in flags:
                path = pathlib.Path(folder) / f"kernel_{named}.cpp.o"
                subprocess.run([compiler, "-O3", *options, "-x", "c++", "-c", "-", "-o", path], input=source, text=True, check=True)
                newer = list(flags).index(built) > list(flags).index(named)
                assert bool(problems(path)[1]) == newer, (built, named)
    print("self-test passed")


def main():
    if not shutil.which("objdump"):
        print("objdump (Debian: binutils) is missing")
        return 125
    if sys.argv[1:2] == ["--self-test"]:
        return self_test(sys.argv[2])
    members, found = set(), []
    for path in sys.argv[1:]:
        seen, messages = problems(path)
        members |= seen
        found += messages
    print("\n".join([*found, f"{len(members)} objects for one instruction set, {len(found)} with instructions of a newer one"]))
    return 1 if found or not members else 0


if __name__ == "__main__":
    sys.exit(main())

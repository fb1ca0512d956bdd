#!/usr/bin/env python3
"""No code for a newer processor gets into functions that an older one runs: what is compiled for one instruction set (the members
*_avx*.cpp.o of our libraries) defines no function that the linker may take for another file's (inline functions and templates
with external linkage are such), and no function of external linkage whose name does not say its instruction set.

    check_isa_objects.py LIBRARY...      check_isa_objects.py --self-test COMPILER
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# By nm: weak functions and objects, and what is unique over the whole program.
SHARED = set("WVu")


def symbols(path):
    """(member, name, kind) of what the library or object defines."""
    member = pathlib.Path(path).name
    for line in subprocess.run(["nm", "--demangle", "--defined-only", path], capture_output=True, text=True, check=True).stdout.splitlines():
        if line.endswith(":"):
            member = line[:-1]
        elif match := re.match(r"[0-9a-f]+ (\w) (.*)", line):
            yield member, match[2], match[1]


def problems(paths):
    members, out = set(), []
    for path in paths:
        for member, name, kind in symbols(path):
            if not re.search(r"_avx\w*\.cpp\.o$", member):
                continue
            members.add(f"{pathlib.Path(path).name}:{member}")
            if kind in SHARED and not name.startswith("DW.ref."):  # a reference to the C++ run time, no code
                out.append(f"{path}: {member} defines {name}, which other files may define too")
            elif kind == "T" and "avx" not in name:
                out.append(f"{path}: {member} defines the function {name}, whose name does not say its instruction set")
    return members, out


def self_test(compiler):
    source = """#include <vector>
        inline void shared(std::vector<int>& out) { out.push_back(1); }
        void named(std::vector<int>& out) { shared(out); }
        void named_avx2(int* out) { *out = 1; }"""
    with tempfile.TemporaryDirectory() as folder:
        object_file = pathlib.Path(folder) / "wrong_avx2.cpp.o"
        subprocess.run([compiler, "-std=c++20", "-O1", "-x", "c++", "-c", "-", "-o", object_file], input=source, text=True, check=True)
        found = problems([object_file])[1]
    assert any("std::vector" in line for line in found), found
    assert any("function named(" in line for line in found), found
    assert not any("named_avx2(" in line for line in found), found
    print("self-test passed")


def main():
    if sys.argv[1:2] == ["--self-test"]:
        return self_test(sys.argv[2])
    members, found = problems(sys.argv[1:])
    print("\n".join([*found, f"{len(members)} objects for one instruction set, {len(found)} problems"]))
    return 1 if found or not members else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Compiles every public header alone (syntax only): a header must bring what it uses.

    check_headers.py ROOT COMPILER [compiler flags...]
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys


def compile_alone(header, compiler, flags):
    source = f'#include "{header}"\n#include "{header}"\n'  # twice: the include guard works
    command = [compiler, "-x", "c++", "-std=c++20", "-fsyntax-only", *flags, "-"]
    run = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return header, run.returncode, run.stderr


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    include = pathlib.Path(sys.argv[1]).resolve() / "include"
    compiler, flags = sys.argv[2], [f"-I{include}", *sys.argv[3:]]
    headers = sorted(str(path.relative_to(include)) for path in include.rglob("*.hpp"))
    _, rc, _ = compile_alone("trireme/no_such_header.hpp", compiler, flags)
    if rc == 0:
        sys.exit("a header that does not exist compiled: this check checks nothing")
    with concurrent.futures.ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as pool:
        results = list(pool.map(lambda header: compile_alone(header, compiler, flags), headers))
    broken = [(header, text) for header, rc, text in results if rc]
    for header, text in broken:
        print(f"{header} does not compile alone:\n" + "\n".join(text.splitlines()[:8]))
    print(f"{len(headers)} headers, {len(broken)} not self-contained")
    return 1 if broken or not headers else 0


if __name__ == "__main__":
    sys.exit(main())

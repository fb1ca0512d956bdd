#!/usr/bin/env python3
"""Compiles every public header alone (syntax only): a header must bring what it uses.

    check_headers.py ROOT COMPILER [compiler flags...]

LibTorch's tensor takes the compiler seconds. A header that includes it, however deep, has it in any case, so it is compiled behind it,
precompiled: all that this could hide is an include of it that stands too late.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TENSOR = "ATen/core/Tensor.h"
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)


def sees_tensors(header, texts, seen):
    """Whether it includes TENSOR, itself or by headers of ours."""
    seen.add(header)
    return any(name == TENSOR or (name in texts and name not in seen and sees_tensors(name, texts, seen)) for name in INCLUDE.findall(texts[header]))


class Compiler:
    def __init__(self, command, flags, folder):
        self.command = [command, "-std=c++20", *flags]
        self.tensor = folder / "tensor.hpp"
        self.tensor.write_text(f"#include <{TENSOR}>\n")

    def run(self, *arguments, source=None):
        return subprocess.run([*self.command, *arguments], input=source, capture_output=True, text=True, check=False)

    def precompile(self):
        made = self.run("-x", "c++-header", self.tensor, "-o", f"{self.tensor}.gch")
        if made.returncode:
            sys.exit(f"{TENSOR} does not compile:\n{made.stderr}")

    def alone(self, header, behind_tensor):
        source = f'#include "{header}"\n#include "{header}"\n'  # twice: the include guard works
        run = self.run("-fsyntax-only", *(["-include", self.tensor] if behind_tensor else []), "-x", "c++", "-", source=source)
        return header, run.returncode, run.stderr


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    include = pathlib.Path(sys.argv[1]).resolve() / "include"
    texts = {str(path.relative_to(include)): path.read_text() for path in include.rglob("*.hpp")}
    with_tensors = [header for header in sorted(texts) if sees_tensors(header, texts, set())]
    plain = sorted(set(texts) - set(with_tensors))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as pool:
        compiler = Compiler(sys.argv[2], [f"-I{include}", *sys.argv[3:]], pathlib.Path(folder))
        if compiler.alone("trireme/no_such_header.hpp", False)[1] == 0:
            sys.exit("a header that does not exist compiled: this check checks nothing")
        precompiled = pool.submit(compiler.precompile)
        results = list(pool.map(lambda header: compiler.alone(header, False), plain))
        precompiled.result()
        results += pool.map(lambda header: compiler.alone(header, True), with_tensors)
    broken = [(header, text) for header, rc, text in results if rc]
    for header, text in broken:
        print(f"{header} does not compile alone:\n" + "\n".join(text.splitlines()[:8]))
    print(f"{len(texts)} headers, {len(broken)} not self-contained")
    return 1 if broken or not texts else 0


if __name__ == "__main__":
    sys.exit(main())

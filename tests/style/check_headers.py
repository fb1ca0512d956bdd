#!/usr/bin/env python3
"""Compiles every public header alone: a header must bring what it uses.

    check_headers.py ROOT FOLDER COMPILER [compiler flags...]

What is compiled lies in FOLDER, where a compiler cache finds it again: with one only what has changed is compiled. LibTorch's tensor takes the compiler seconds. A header that includes it, however deep, has it in any case, so it is compiled behind it,
precompiled: all that this could hide is an include of it that stands too late.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

TENSOR = "ATen/core/Tensor.h"
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)


def sees_tensors(header, texts, seen):
    """Whether it includes TENSOR, itself or by headers of ours."""
    seen.add(header)
    return any(name == TENSOR or (name in texts and name not in seen and sees_tensors(name, texts, seen)) for name in INCLUDE.findall(texts[header]))


class Compiler:
    def __init__(self, command, flags, root, folder):
        cache = ["env", f"CCACHE_BASEDIR={root}", "CCACHE_NOHASHDIR=1", "CCACHE_SLOPPINESS=pch_defines,time_macros", "ccache"] if shutil.which("ccache") else []
        self.command = [*cache, command, "-std=c++20", "-fpch-preprocess", *flags]
        self.folder = folder
        self.tensor = folder / "tensor.hpp"
        self.write(self.tensor, f"#include <{TENSOR}>\n")

    @staticmethod
    def write(path, text):
        """A file that is as it should be stays as old as it is."""
        if not path.exists() or path.read_text() != text:
            path.write_text(text)

    def run(self, *arguments):
        return subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)

    def precompile(self):
        made = self.run("-x", "c++-header", "-c", self.tensor, "-o", f"{self.tensor}.gch")
        if made.returncode:
            sys.exit(f"{TENSOR} does not compile:\n{made.stderr}")

    def alone(self, header, behind_tensor):
        source = self.folder / f"{header.replace('/', '-')}.cpp"
        self.write(source, f'#include "{header}"\n#include "{header}"\n')  # twice: the include guard works
        run = self.run(*(["-include", self.tensor] if behind_tensor else []), "-c", source, "-o", source.with_suffix(".o"))
        return header, run.returncode, run.stderr


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    root, folder = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
    folder.mkdir(parents=True, exist_ok=True)
    include = root / "include"
    texts = {str(path.relative_to(include)): path.read_text() for path in include.rglob("*.hpp")}
    with_tensors = [header for header in sorted(texts) if sees_tensors(header, texts, set())]
    plain = sorted(set(texts) - set(with_tensors))
    with concurrent.futures.ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as pool:
        compiler = Compiler(sys.argv[3], [f"-I{include}", *sys.argv[4:]], root, folder)
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

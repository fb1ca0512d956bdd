#!/usr/bin/env python3
"""Every C++ and CUDA file is as clang-format writes it. Releases of clang-format differ: with another than the one named here, or
none, the test counts as skipped (exit code 125).

    check_format.py ROOT
    check_format.py --self-test
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

RELEASE = "14"
AREAS = ("include", "src", "tests", "perf")
SUFFIXES = {".hpp", ".cpp", ".h", ".cu", ".cuh"}


def skip_reason():
    if not shutil.which("clang-format"):
        return "clang-format is not installed"
    version = subprocess.run(["clang-format", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\d+)", version)
    return "" if found and found[1] == RELEASE else f"clang-format {RELEASE} is needed, this is: {version.strip()}"


def differing(root):
    files = [path for area in AREAS for path in sorted((root / area).rglob("*")) if path.suffix in SUFFIXES and path.is_file()]

    def differs(path):
        wanted = subprocess.run(["clang-format", f"--style=file:{root}/.clang-format", str(path)], capture_output=True, check=True).stdout
        return wanted != path.read_bytes()

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return len(files), [str(path.relative_to(root)) for path, bad in zip(files, pool.map(differs, files)) if bad]


def self_test(root):
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        shutil.copy(root / ".clang-format", copy)
        (copy / "src").mkdir()
        (copy / "src/good.cpp").write_text("int f() { return 1; }\n")
        (copy / "src/bad.cpp").write_text("int f()   { return 1; }\n")
        assert differing(copy) == (2, ["src/bad.cpp"]), differing(copy)
    print("a file that differs was found")
    return 0


def main():
    if reason := skip_reason():
        print(reason)
        return 125
    if sys.argv[1] == "--self-test":
        return self_test(pathlib.Path(__file__).resolve().parents[2])
    count, bad = differing(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join([f"{name}: run clang-format -i" for name in bad] + [f"{count} files, {len(bad)} differ from .clang-format"]))
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())

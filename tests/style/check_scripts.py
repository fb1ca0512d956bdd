#!/usr/bin/env python3
"""Shell scripts pass `bash -n` and shellcheck, Python files compile. Without shellcheck the rest is checked and the test counts
as skipped (exit code 125).

    check_scripts.py ROOT
"""

import ast
import os
import pathlib
import shutil
import subprocess
import sys

SKIPPED_FOLDERS = {".git", "build", "runs", "__pycache__"}


def files(root):
    """All files outside the skipped folders, which are not even looked into: others may be writing there."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        yield from (pathlib.Path(folder) / name for name in sorted(names))


def scripts(root):
    shell, python = [], []
    for path in files(root):
        with path.open("rb") as file:
            first = file.readline(80)
        if path.suffix in (".sh", ".pbs") or (first.startswith(b"#!") and b"sh" in first.split(b"/")[-1]):
            shell.append(path)
        elif path.suffix == ".py" or (first.startswith(b"#!") and b"python" in first):
            python.append(path)
    return shell, python


def shell_problems(path, shellcheck):
    commands = [["bash", "-n", str(path)]]
    if shellcheck:
        commands.append([shellcheck, "--shell=bash", "--severity=style", "--external-sources", str(path)])
    for command in commands:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            yield f"{path}: {command[0]}\n{run.stdout}{run.stderr}"


def python_problems(path):
    try:
        ast.parse(path.read_text(), str(path))
    except SyntaxError as error:
        yield f"{path}:{error.lineno}: {error.msg}"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    shellcheck = shutil.which("shellcheck")
    shell, python = scripts(root)
    problems = [p for path in shell for p in shell_problems(path, shellcheck)] + [p for path in python for p in python_problems(path)]
    print("\n".join(problems + [f"{len(shell)} shell scripts, {len(python)} Python files, {len(problems)} problems"]))
    if problems or not shell:
        return 1
    if not shellcheck:
        print("skipped in part: shellcheck is not installed")
        return 125
    return 0


if __name__ == "__main__":
    sys.exit(main())

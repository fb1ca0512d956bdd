#!/usr/bin/env python3
"""The program for 64-bit ARM (./bootstrap.sh cross) under qemu, beside this machine's: sft from random weights, PPO from its result, with one
rank. Every number of metrics.jsonl about losses, rewards, answers and gradients agrees to 1e-5, later ones to 1e-4.
Skipped (exit code 125) where there is no such program: it takes as long to build as this machine's own.

    program_test.py ROOT PROGRAM FOLDER_OF_THE_ARM_BUILD
"""

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 125
CLOSE, CLOSE_LATER = 1e-5, 1e-4  # of the first line; Adam divides, so that a step's rounding grows in the next (seen: 1.1e-5)


def numbers(line):
    """Of losses, rewards, answers, gradients. What is measured of the machine is nested, but for the clock; mismatch counts rounding itself, and
    explained_variance divides by that of the returns, which is none without rewards."""
    return {name: value for name, value in line.items() if isinstance(value, (int, float)) and not name.startswith(("time", "mismatch", "explained_variance"))}


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def differences(what, mine, theirs):
    if len(mine) != len(theirs) or not mine:
        return [f"{what}: {len(mine)} lines and {len(theirs)}"]
    out = []
    for number, (left, right) in enumerate(zip(mine, theirs), 1):
        left, right = numbers(left), numbers(right)
        close = CLOSE if number == 1 else CLOSE_LATER
        if left.keys() != right.keys():
            out.append(f"{what}, line {number}: {sorted(left)} and {sorted(right)}")
        for name in left.keys() & right.keys():
            if not math.isclose(left[name], right[name], rel_tol=close, abs_tol=close):
                out.append(f"{what}, line {number}: {name} is {left[name]} here and {right[name]} on ARM")
    return out


class Program:
    def __init__(self, folder, command, environment):
        self.folder, self.command = folder, command
        self.environment = os.environ | {"OMP_NUM_THREADS": "1", "TRIREME_ISA": "portable", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1"} | environment
        folder.mkdir()

    def run(self, root, *arguments):
        launch = ["mpirun", "-n", "1", "--bind-to", "none", *self.command, *map(str, arguments)]
        done = subprocess.run(launch, cwd=root, env=self.environment, capture_output=True, text=True, timeout=1200, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(launch)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")

    def train(self, root):
        name = self.folder
        plain = ("run.threads=1", "ckpt.interval=0", "run.device=cpu")
        self.run(root, "sft", "inputs/tutorial/tiny-sft.toml", f"run.dir={name}/sft", "run.iterations=2", "train.batch_size=16",
                 *plain)
        self.run(root, "ppo", "inputs/tutorial/tiny.toml", f"run.dir={name}/ppo", "run.iterations=2", "rollout.batch_size=4",
                 "rollout.n_samples_per_prompt=4", "train.batch_size=8", f"model.path={name}/sft/hf", *plain)
        return {kind: lines_of(name / kind / "metrics.jsonl") for kind in ("sft", "ppo")}


def main():
    root, program, build = (pathlib.Path(path).resolve() for path in sys.argv[1:])
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if not qemu or not (build / "trireme").exists() or not shutil.which("mpirun"):
        print(f"skipped: there is no {build}/trireme (./bootstrap.sh cross), no qemu-aarch64 or no mpirun")
        return SKIPPED
    sysroot = re.search(r"^TRIREME_SYSROOT:\w+=(.+)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)[1]
    with tempfile.TemporaryDirectory(prefix="trireme-cross-") as folder:
        here = Program(pathlib.Path(folder) / "here", [str(program)], {})
        # The emulator lets no process read another one's memory: messages of one node go by shared memory alone.
        arm = Program(pathlib.Path(folder) / "arm", [qemu, "-L", sysroot, str(build / "trireme")], {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"})
        found = []
        mine, theirs = here.train(root), arm.train(root)
        for kind, lines in mine.items():
            found += differences(kind, lines, theirs[kind])
            print(f"{kind}: {len(lines)} lines of {len(numbers(lines[0]))} numbers, the last: {numbers(lines[-1])}")
    print("\n".join([*found, f"{len(found)} differences"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

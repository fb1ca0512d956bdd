#!/usr/bin/env python3
"""Failures of GPUs and of what is between them: each drill must end the whole job with the right exit code and cause.

    drills_test.py DRILL LAUNCHER...    (the launcher with its number of ranks)
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

DRILL, LAUNCHER = sys.argv[1], sys.argv[2:]
LONGEST = 50  # seconds until a drill counts as hanging; what each took is printed
SKIPPED = 125
DRILLS = {"nothing": (0,), "killed_rank": (137, 70), "missing_rank": (70,), "no_memory_later": (71,), "wrong_interface": (70,)}


def drill(what, codes):
    with tempfile.TemporaryDirectory() as folder:
        name = pathlib.Path(folder).name
        environment = os.environ | {"DRILL_FOLDER": folder, "FAKEGPU_NAME": name}
        if what == "wrong_interface":
            environment["NCCL_SOCKET_IFNAME"] = "=nosuch0"
        start = time.monotonic()
        try:
            done = subprocess.run([*LAUNCHER, DRILL, what], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONGEST, env=environment)
        except subprocess.TimeoutExpired as error:
            print(f"{what}: hangs\n{error.stdout}")
            return False
        finally:
            for left in pathlib.Path("/dev/shm").glob(f"fakegpu-{name}-*"):
                left.unlink()
    print(f"{what}: exit code {done.returncode} after {time.monotonic() - start:.1f} s", flush=True)
    if done.returncode == SKIPPED:
        print(done.stdout)
        sys.exit(SKIPPED)
    if done.returncode not in codes:
        print(done.stdout)
    return done.returncode in codes


if __name__ == "__main__":
    sys.exit(0 if all([drill(what, codes) for what, codes in DRILLS.items()]) else 1)

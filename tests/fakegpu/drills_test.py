#!/usr/bin/env python3
"""GPUs that fail, made up: each drill must end the whole job with the right exit code, the rank and the cause.

    drills_test.py DRILL MPIEXEC FLAGS...
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

DRILL, LAUNCHER = sys.argv[1], sys.argv[2:]
LONGEST = 60  # seconds until a drill counts as hanging; what each took is printed (docs/dev/testing.md)


def drill(what):
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        name = pathlib.Path(folder).name
        done = subprocess.run(["env", f"DRILL_FOLDER={folder}", f"FAKEGPU_NAME={name}", *LAUNCHER, "-n", "3", DRILL, what], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=LONGEST)
        print(f"{what}: exit code {done.returncode} after {time.monotonic() - start:.1f} s", flush=True)
        for left in pathlib.Path("/dev/shm").glob(f"fakegpu-{name}-*"):
            left.unlink()
    return done


class Drills(unittest.TestCase):
    def expect(self, what, code, words):
        done = drill(what)
        self.assertIn(done.returncode, code if isinstance(code, tuple) else (code,), done.stdout)
        self.assertRegex(done.stdout, words)

    def test_without_faults(self):
        done = drill("nothing")
        self.assertEqual((done.returncode, re.findall("error", done.stdout)), (0, []), done.stdout)

    def test_async_error(self):
        for what in ("async_error", "async_error_while_waiting"):
            self.expect(what, 70, r"error: (rank 1 \(\S+\): )?NCCL: rank 1 of \d: remote process exited or there was a network error \(a link to a peer is gone\)")

    def test_missing_rank(self):
        self.expect("missing_rank", 70, r"error: HANG: ")

    def test_killed_rank(self):
        """Its process dies in the middle of a pass: the launcher ends the others, or they find that it is silent."""
        self.expect("killed_rank", (137, 70), r"(?i)signal 9|killed|error: .*(HANG|NCCL)")

    def test_weights_from_gpu_to_gpu(self):
        """A generator dies, or is never heard of again, or a link goes, in the middle of a weight sync."""
        done = drill("sync_without_faults")
        self.assertEqual((done.returncode, re.findall("error", done.stdout)), (0, []), done.stdout)
        self.expect("killed_generator", (137, 70), r"(?i)signal 9|killed|error: .*(HANG|NCCL)")
        self.expect("sync_missing_rank", 70, r"error: HANG: ")
        self.expect("sync_async_error", 70, r"error: (rank 1 \(\S+\): )?NCCL: rank 1 of \d: .*a link to a peer is gone")

    def test_endless_init(self):
        """The others wait for the rank in their first communicator, or in that which is split off from it."""
        self.expect("endless_init", 70, r"error: (rank 0 \(\S+\): )?NCCL: rank 0 of \d waits in ncclComm(InitRankConfig|Split) for")

    def test_other_calls(self):
        self.expect("other_calls", 70, r"error: .*ranks made different calls")

    def test_no_memory_at_start(self):
        self.expect("no_memory_at_start", 71, r"error: rank 1 \(\S+\): the GPU has no memory left for ncclMemAlloc")

    def test_no_memory_later(self):
        self.expect("no_memory_later", 71, r"error: rank 1 \(\S+\): CUDA out of memory")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

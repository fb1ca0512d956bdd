#!/usr/bin/env python3
"""trireme-gpu on a machine without a GPU: it starts without a driver, does on CPUs what trireme does, and refuses a device that is not there at once."""

import pathlib
import sys

import trireme_run
from trireme_run import SKIPPED, ProgramTest, main, timeless

UNFIT = 69


class GpuVariant(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cpu_program, trireme_run.PROGRAM = trireme_run.PROGRAM, trireme_run.PROGRAM.with_name("trireme-gpu")

    def test_starts_without_a_driver(self):
        self.assertIn("Trireme", self.succeed("--version").text)

    def test_a_device_that_is_not_there(self):
        for ranks in (1, 2):
            result = self.succeed("ppo", "ppo.toml", "run.dir=none", "run.device=cuda", ranks=ranks, code=UNFIT)
            self.assertRegex(result.text, "(?i)gpu|cuda")

    def test_on_cpus_it_is_the_same_program(self):
        self.succeed("ppo", "ppo.toml", "run.dir=gpu-variant", "run.device=cpu", ranks=2)
        trireme_run.PROGRAM = self.cpu_program
        self.succeed("ppo", "ppo.toml", "run.dir=cpu-variant", ranks=2)
        trireme_run.PROGRAM = self.cpu_program.with_name("trireme-gpu")
        self.assertEqual(timeless(self.metrics("gpu-variant")), timeless(self.metrics("cpu-variant")))


if __name__ == "__main__":
    if not trireme_run.PROGRAM.with_name("trireme-gpu").exists():
        print("skipped: this build has no trireme-gpu (TRIREME_GPU=1 ./bootstrap.sh build)")
        sys.exit(SKIPPED)
    if pathlib.Path("/dev/nvidiactl").exists():
        print("skipped: this machine has a GPU (tests of label gpu)")
        sys.exit(SKIPPED)
    main()

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
        """Before anything of the run is read or made."""
        for ranks in (1, 2):
            result = self.succeed("ppo", "ppo.toml", "run.dir=none", "run.device=cuda", ranks=ranks, code=UNFIT)
            self.assertRegex(result.text, "(?i)gpu|cuda")
            print(f"    refused on {ranks} ranks after {result.seconds:.2f} s", flush=True)
            self.assertNotIn("parameters", result.text)

    def test_on_cpus_it_is_the_same_program(self):
        self.succeed("ppo", "ppo.toml", "run.dir=gpu-variant", "run.device=cpu", ranks=2)
        trireme_run.PROGRAM = self.cpu_program
        self.succeed("ppo", "ppo.toml", "run.dir=cpu-variant", ranks=2)
        trireme_run.PROGRAM = self.cpu_program.with_name("trireme-gpu")
        self.assertEqual(timeless(self.metrics("gpu-variant")), timeless(self.metrics("cpu-variant")))

    def test_tools_take_a_device(self):
        """generate and score: a device that is not there is refused, on CPUs both programs say the same."""
        prompts = self.folder / "device-prompts.jsonl"
        prompts.write_text('{"input_ids": [5, 6, 7]}\n{"input_ids": [8, 9]}\n')
        generate = ["generate", "--model", str(self.folder / "model"), "--input", str(prompts), "--max-new-tokens", "4"]
        score = ["score", "--model", str(self.folder / "model"), "--input", str(prompts)]
        for command in (generate, score):
            refused = self.succeed(*command, "--output", str(self.folder / "none.jsonl"), "--device", "cuda", code=UNFIT)
            self.assertRegex(refused.text, "no GPU is visible|no GPU support")
            outputs = []
            for program in (trireme_run.PROGRAM, self.cpu_program):
                trireme_run.PROGRAM, before = program, trireme_run.PROGRAM
                output = self.folder / f"{command[0]}-{program.name}.jsonl"
                self.succeed(*command, "--output", str(output), "--device", "cpu")
                trireme_run.PROGRAM = before
                outputs.append(sorted(output.read_text().splitlines()))
            self.assertEqual(*outputs)


if __name__ == "__main__":
    if not trireme_run.PROGRAM.with_name("trireme-gpu").exists():
        print("skipped: this build has no trireme-gpu (TRIREME_GPU=1 ./bootstrap.sh build)")
        sys.exit(SKIPPED)
    if pathlib.Path("/dev/nvidiactl").exists():
        print("skipped: this machine has a GPU (tests of label gpu)")
        sys.exit(SKIPPED)
    main()

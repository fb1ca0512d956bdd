#!/usr/bin/env python3
"""tests/gpu/run.sh where there is no GPU: over the build that is there, with tests on the fake GPU in place of those of label gpu; and its steps before
the tests against stubs of their commands. What it writes as it goes is there, whatever ends it.

    rehearsal_test.py ROOT BUILD
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT, BUILD = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
TEST = "fakegpu_kernels"


class Rehearsal(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.stubs = self.folder / "bin"
        self.stubs.mkdir()

    def stub(self, name, text):
        (self.stubs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.stubs / name).chmod(0o755)

    def run_script(self, *arguments, **environment):
        """(exit code, what it said, its parts)"""
        out = self.folder / "out"
        environment = os.environ | {"OUT": str(out), "PATH": f"{self.stubs}:{os.environ['PATH']}"} | environment
        done = subprocess.run([ROOT / "tests/gpu/run.sh", *arguments], env=environment, capture_output=True, text=True, check=False)
        parts = [json.loads(line) for line in (out / "parts.jsonl").read_text().splitlines()] if out.exists() else []
        self.assertLessEqual(len(list(out.iterdir())) if out.exists() else 0, 8, "few files, however it ends")
        return done.returncode, done.stdout + done.stderr, parts

    def on_made_up_gpu(self, *arguments):
        built = self.folder / "built"  # this build's tests, with a log of their own: another ctest writes that of the build
        built.mkdir()
        (built / "CTestTestfile.cmake").write_text(f'subdirs("{BUILD}")\n')
        (built / "tests").symlink_to(BUILD / "tests")
        self.stub("compute-sanitizer", f'echo "$*" >{self.folder}/sanitized')
        code, text, parts = self.run_script("--build", str(built), "--built", *arguments)
        return code, text, [part for part in parts if not part["part"].startswith("ranks/")]  # of a build with CUDA

    def test_several_ranks_on_one_gpu(self):
        """The parts of section "ranks", on the fake GPU; the deck on CPUs."""
        built = self.folder / "built"
        (built / "tests").mkdir(parents=True)
        (built / "CTestTestfile.cmake").write_text(f'subdirs("{BUILD}")\n')
        for name, program in {"tests/gpu_unit": "tests/fakegpu_ranks", "tests/gpu_drill": "tests/fakegpu_drill", "trireme": "trireme"}.items():
            (built / name).symlink_to(BUILD / program)
        self.stub("compute-sanitizer", "exit 0")
        code, text, parts = self.run_script("--build", str(built), "--built", "-R", f"^{TEST}$", TRIREME_TINY_DEVICE="cpu", TRIREME_FAMILY="smollm3")
        self.assertEqual(code, 0, text + (self.folder / "out/log.txt").read_text())
        ranks = ["exchange/np2", "exchange/np4", "soak", "recorded", "window", "tiny_deck", "families", "drills", "bytes", "host_time"]
        self.assertEqual([part["part"] for part in parts], [*(f"ranks/{name}" for name in ranks), TEST, "sanitizer"])
        log = (self.folder / "out/log.txt").read_text()
        for words in ("in a symmetric window of 2", "host time of a sum", "bytes of a communicator", "wrong_interface: exit code 70"):
            self.assertIn(words, log)
        self.assertNotIn("SKIPPED", log)

    def test_tests_on_the_made_up_gpu(self):
        code, text, parts = self.on_made_up_gpu("-R", f"^{TEST}$")
        self.assertEqual(code, 0, text)
        self.assertEqual((parts[0]["part"], parts[0]["rc"]), (TEST, 0))
        self.assertGreater(parts[0]["seconds"], 0)
        self.assertIn("100% tests passed", (self.folder / "out/log.txt").read_text())

    def test_the_devices_checker_runs_what_has_kernels(self):
        """Every suite that it is given is there, and every one that starts kernels of ours is given to it."""
        _, text, parts = self.on_made_up_gpu("-R", f"^{TEST}$")
        if not (BUILD / "tests/gpu_unit").exists():
            return
        self.assertEqual((parts[-1]["part"], parts[-1]["rc"]), ("sanitizer", 0), text)
        patterns = re.search(r"--gtest_filter=(\S+)", (self.folder / "sanitized").read_text()).group(1).split(":")
        suites = set(re.findall(r"^TEST\((\w+), ", "".join(path.read_text() for path in (ROOT / "tests/gpu").glob("*_test.cpp")), re.MULTILINE))
        without_kernels = {"GpuMirror", "GpuCheckpoint", "GpuWeightSync"}  # copies; the suites of several ranks are of TEST_F
        self.assertEqual({pattern.removesuffix(".*") for pattern in patterns}, suites - without_kernels)

    def test_no_time_is_left(self):
        code, text, parts = self.on_made_up_gpu("--budget", "0", "-R", f"^{TEST}$")
        self.assertEqual(code, 1, text)
        self.assertEqual((parts[0]["part"], parts[0]["rc"]), (TEST, None))

    def test_nothing_to_run(self):
        code, text, parts = self.on_made_up_gpu("-R", "^no_such_test$")
        self.assertEqual((code, parts), (1, []))
        self.assertIn("no such tests", text)

    def new_build(self, build="exit 0", ctest="exit 0"):
        """All steps of a machine with a GPU, by stubs."""
        torch = self.folder / "torch"
        (torch / "include/ATen/core").mkdir(parents=True)
        (torch / "include/ATen/core/Tensor.h").touch()
        self.stub("nvcc", "echo release 13.0")
        self.stub("cmake", f'case "$1" in --build) {build} ;; *) echo "-- Trireme GPU variant" ;; esac')
        self.stub("ctest", f'case "$*" in *-N) echo "  Test #1: gpu_unit/np1"; echo "  Test #2: gpu_tiny_deck/np2" ;; *) {ctest} ;; esac')
        for name in ("mpicc", "mpirun", "c++", "h5pcc"):
            self.stub(name, "exit 0")
        pack = self.folder / "pack"
        pack.mkdir()
        return self.run_script("--build", str(self.folder / "gpu"), "--pack", str(pack), TRIREME_TORCH_ROOT=str(torch))

    def test_each_step_is_a_part(self):
        code, text, parts = self.new_build(ctest='case "$*" in *deck*) exit 8 ;; esac')
        self.assertEqual(code, 1, text)
        self.assertEqual([(part["part"], part["rc"]) for part in parts],
                         [("configure", 0), ("build", 0), ("gpu_unit/np1", 0), ("gpu_tiny_deck/np2", 8)], text)

    def test_a_build_that_fails(self):
        code, text, parts = self.new_build(build="echo a.cpp: error: no; exit 2")
        self.assertEqual(code, 1)
        self.assertIn("a.cpp: error: no", text)
        self.assertEqual([(part["part"], part["rc"]) for part in parts], [("configure", 0), ("build", 2)])

    def test_a_skipped_test_did_not_pass(self):
        _, text, parts = self.new_build(ctest='echo "1/1 Test #1: gpu ...***Skipped"')
        self.assertEqual({part["rc"] for part in parts[2:]}, {"skipped"}, text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

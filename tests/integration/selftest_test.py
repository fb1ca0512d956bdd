#!/usr/bin/env python3
"""trireme selftest: what a user runs on a new machine. One JSON line, and an exit code for each kind of fault, shown by one that is injected."""

import json
import pathlib

from trireme_run import ProgramTest, main

PARTS = ["environment", "collectives", "weight sync, fp32", "optimizer, fp32", "checkpoint", "weight sync, bf16", "optimizer, bf16"]
WRONG, UNFIT, NO_SPACE, FILES = 70, 69, 28, 74


class SelfTest(ProgramTest):
    def selftest(self, *arguments, ranks=1, code=0):
        """The line that the program printed, as {part: row}, and the line."""
        result = self.succeed("selftest", "--device", "cpu", *arguments, ranks=ranks, code=code)
        lines = [line for line in result.out.splitlines() if line.startswith("{")]
        self.assertEqual(len(lines), 1, result.text)
        line = json.loads(lines[0])
        self.assertEqual(line["exit_code"], code)
        self.assertEqual(line["ranks"], ranks)
        self.assertEqual(line["selftest"], "failed" if code else "passed")
        self.assertEqual([row["part"] for row in line["parts"]], PARTS)
        self.assertFalse(list(self.folder.glob("trireme-selftest-*")), "the checkpoint is removed again")
        return {row["part"]: row for row in line["parts"]}, result

    def failed(self, part, words, *arguments, ranks, code):
        """That part failed with these words, those before it passed, those behind it were not run; the message is said, too."""
        rows, result = self.selftest(*arguments, ranks=ranks, code=code)
        verdicts = [rows[name]["verdict"] for name in PARTS]
        at = PARTS.index(part)
        self.assertEqual(verdicts, ["passed"] * at + ["failed"] + ["not run"] * (len(PARTS) - at - 1), result.text)
        self.assertRegex(rows[part]["problem"], words)
        self.assertRegex(result.err, words)

    def test_it_passes(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                rows, _ = self.selftest(ranks=ranks)
                for name, row in rows.items():
                    self.assertEqual(row["verdict"], "passed", row)
                    self.assertGreater(row["figure"], 0, row)
                    self.assertGreaterEqual(row["seconds"], 0, row)
                    self.assertIn("unit", row)
                self.assertLess(rows["optimizer, fp32"]["figure"], 1e-4, "the largest relative error")

    def test_wrong_numbers(self):
        for part, fault, words, ranks in (("optimizer, fp32", "nan:0:loss:2", "loss of step 2 is -?nan, PyTorch has 3.67", 1),
                                          ("optimizer, fp32", "nan:1:grad:1", "gradient norm of step 1", 2),
                                          ("weight sync, fp32", "nan:1:generator:1", "rank 1", 2),
                                          ("weight sync, bf16", "nan:0:generator:2", "rank 0", 2)):
            with self.subTest(fault):
                self.failed(part, words, "--fault-at", fault, ranks=ranks, code=WRONG)

    def test_an_environment_that_does_not_fit(self):
        if pathlib.Path("/dev/nvidiactl").exists():
            self.skipTest("this machine has a GPU")
        result = self.succeed("selftest", "--device", "cuda", ranks=2, code=UNFIT)
        line = json.loads(next(line for line in result.out.splitlines() if line.startswith("{")))
        self.assertEqual((line["exit_code"], line["parts"][0]["verdict"], line["parts"][1]["verdict"]), (UNFIT, "failed", "not run"))
        self.assertRegex(line["parts"][0]["problem"], "no GPU")

    def test_files(self):
        """A full disk, for the files of the checkpoint and on one rank alone; a folder that cannot be made."""
        for arguments in (("--fault-io-fail", f"write:1:{NO_SPACE}"), ("--fault-at", f"io_fail:1:selftest checkpoint:1:{NO_SPACE}")):
            with self.subTest(arguments):
                self.failed("checkpoint", "No space left", *arguments, ranks=2, code=FILES)
        (self.folder / "file").touch()
        self.failed("checkpoint", "file/sub", "--folder", "file/sub", ranks=2, code=FILES)

    def test_memory(self):
        self.failed("weight sync, fp32", "rank 1", "--fault-at", "alloc_fail:1:selftest weight sync:1", ranks=2, code=71)

    def test_ranks_that_do_not_fit_together(self):
        """One rank leaves a collective out; one does not answer: no rank waits for ever. Nothing is known of the others then, so there is no line."""
        skipped = self.succeed("selftest", "--device", "cpu", "--timeout", "3", "--fault-at", "skip:1:selftest collectives:1", ranks=2, code=WRONG)
        self.assertRegex(skipped.err, "(?i)collective")
        hung = self.succeed("selftest", "--device", "cpu", "--timeout", "2", "--fault-at", "hang:1:selftest collectives:1", ranks=2, code=WRONG)
        self.assertRegex(hung.err, "rank 1")

    def test_bad_arguments(self):
        self.assertRegex(self.succeed("selftest", "--fault-at", "melt:1:train:1", code=78).err, "fault.at")
        self.assertRegex(self.succeed("selftest", "--timeout", "0", code=64).err, "--timeout")
        self.assertNotIn("--fault", self.succeed("selftest", "--help").out)


if __name__ == "__main__":
    main()

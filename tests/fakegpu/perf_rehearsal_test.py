#!/usr/bin/env python3
"""perf/run gpu where there is no GPU: every row of the group comes to a figure, and nothing is written down as if one had been there.

    perf_rehearsal_test.py ROOT BUILD
"""

import os
import pathlib
import shutil
import subprocess
import sys
import unittest

ROOT, BUILD = (pathlib.Path(path).resolve() for path in sys.argv[1:3])


class Rehearsal(unittest.TestCase):
    def run_rows(self, *arguments):
        environment = os.environ | {"TRIREME_BUILD": str(BUILD)}
        return subprocess.run([sys.executable, ROOT / "perf" / "run", "gpu", *arguments], env=environment, capture_output=True, text=True, check=False)

    def test_every_row_comes_to_a_figure(self):
        results = sorted((ROOT / "perf" / "results").rglob("*"))
        done = self.run_rows("--rehearse")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [line.split()[0] for line in done.stdout.splitlines() if line[:1] == "C"]
        self.assertEqual(rows, ["C1", "C2", "C2", "C3", "C4", "C5", "C5", "C6", "C7"], done.stdout + done.stderr)
        self.assertEqual(sorted((ROOT / "perf" / "results").rglob("*")), results)

    def test_without_a_gpu_it_says_so(self):
        if shutil.which("nvidia-smi"):
            self.skipTest("there may be one")
        done = self.run_rows()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no GPU", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

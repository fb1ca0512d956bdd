#!/usr/bin/env python3
"""The parity runner itself, on folders of the golden layout under other paths: TRIREME_PARITY_DIR is obeyed, a selection of the
cases is run in full and no other, and what must fail does: a wrong number, an unknown kind, an output that nobody looks at, an
unknown word, a missing folder.

    runner_test.py PARITY_PROGRAM GOLDEN_FOLDER
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM, GOLDEN = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
CHOSEN = ["gae.b0.g1.l0.95", "whiten.b1.std", "policy.", "llama_tied.forward.c2", "greedy.llama_tied.p0"]


def some_cases():
    document = json.loads((GOLDEN / "cases.json").read_text())
    chosen = [next(case for case in document["cases"] if case["name"].startswith(name)) for name in CHOSEN]
    return document, chosen


class Folder:
    """A golden folder of our own, with chosen cases and the files that they need."""

    def __init__(self, path, cases):
        self.path = path
        (path / "cases").mkdir(parents=True)
        shutil.copytree(GOLDEN / "models", path / "models")
        for name in {case["file"] for case in cases}:
            shutil.copy(GOLDEN / name, path / name)
        self.write(cases)

    def write(self, cases):
        (self.path / "cases.json").write_text(json.dumps({"meta": {}, "cases": cases}))

    def change_number(self, case, output):
        """Adds 0.5 to the first element of an f32 output."""
        file = self.path / case["file"]
        file.chmod(0o644)
        data = bytearray(file.read_bytes())
        header = struct.unpack("<Q", data[:8])[0]
        begin = 8 + header + json.loads(data[8:8 + header])[case["outputs"][output]]["data_offsets"][0]
        data[begin:begin + 4] = struct.pack("<f", struct.unpack("<f", data[begin:begin + 4])[0] + 0.5)
        file.write_bytes(data)


class Runner(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        _, self.cases = some_cases()

    def folder(self, name="other"):
        return Folder(self.root / name, self.cases)

    def run_on(self, path):
        """Exit code, output, and the names of the cases that ran."""
        reports = self.root / "reports"
        reports.mkdir(exist_ok=True)
        environment = dict(os.environ, TRIREME_PARITY_DIR=str(path), TRIREME_PARITY_REPORT=str(reports))
        done = subprocess.run([PROGRAM, "--gtest_filter=Golden/*:ParityFolder.*"], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        report = reports / "np1.tsv"
        lines = report.read_text().splitlines() if report.exists() else []
        return done.returncode, done.stdout, [line.split("\t")[1] for line in lines if line.startswith("case\t")]

    def assert_fails(self, path, *texts):
        code, output, _ = self.run_on(path)
        self.assertNotEqual(code, 0, output)
        for text in texts:
            self.assertIn(text, output)

    def test_runs_the_cases_of_another_folder_and_no_others(self):
        code, output, ran = self.run_on(self.folder("a b").path)
        self.assertEqual(code, 0, output)
        self.assertEqual(ran, [case["name"] for case in self.cases])

    def test_new_names_of_known_kinds(self):
        for case in self.cases:
            case["name"] = case["name"].replace("llama_tied.forward", "another_model.forward").replace(".b", ".x")
        code, output, ran = self.run_on(self.folder().path)
        self.assertEqual((code, len(ran)), (0, len(self.cases)), output)

    def test_wrong_number(self):
        for index, output in [(0, "returns"), (2, "loss"), (3, "entropy")]:
            folder = self.folder(f"wrong{index}")
            folder.change_number(self.cases[index], output)
            self.assert_fails(folder.path, "beyond the tolerance", f"[{self.cases[index]['name']}, {output}]")

    def test_unknown_kind(self):
        self.cases[0]["name"] = "mystery.b0"
        self.assert_fails(self.folder().path, "there is no check for cases like mystery.b0")

    def test_output_that_no_check_looks_at(self):
        self.cases[0]["outputs"]["extra"] = self.cases[0]["outputs"]["returns"]
        self.assert_fails(self.folder().path, "does not look at the output extra")

    def test_unknown_word(self):
        self.cases[2]["hyper"]["policy_loss_type"] = "nonesuch"
        self.assert_fails(self.folder().path, "unknown word 'nonesuch' of policy_loss_type")

    def test_same_name_twice(self):
        self.cases.append(dict(self.cases[0]))
        self.assert_fails(self.folder().path)

    def test_no_folder(self):
        self.assert_fails(self.root / "nowhere", "no golden cases at")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

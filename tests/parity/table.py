#!/usr/bin/env python3
"""The worst error of each formula over all golden cases and rank counts, from what the parity tests wrote.

    table.py REPORTS            prints the table; exit 1 where a case of cases.json did not run exactly once at every rank count
    table.py REPORTS --once     prints it only when the reports are newer than the last time (after a ctest run)

REPORTS has np1.tsv, np2.tsv, ... (registry.cpp); the newest report says which folder of cases it was.
"""

import collections
import json
import pathlib
import re
import sys

SKIPPED = 125


def words(formula):
    """F16 F18 -> F16, F18; what runs through a whole range of formulas (the pipeline, an update) is a row of its own."""
    return [formula] if "-" in formula else formula.split()


def by_number(formula):
    number = re.fullmatch(r"F(\d+)", formula)
    return (0, int(number[1]), "") if number else (1, 0, formula)


class Reports:
    def __init__(self, folder):
        files = sorted(folder.glob("np*.tsv"), key=lambda f: f.stat().st_mtime)
        self.newest = files[-1].stat().st_mtime if files else 0
        self.cases_folder, self.ran = None, {}
        self.worst = {}  # formula word -> (share, error, output, case, ranks)
        self.comparisons = collections.Counter()
        for file in reversed(files):
            self.read(file, file.stem[2:])

    def read(self, file, ranks):
        lines = [line.split("\t") for line in file.read_text().splitlines()]
        folder = next(fields[1] for fields in lines if fields[0] == "folder")
        self.cases_folder = self.cases_folder or folder
        if folder != self.cases_folder:
            return  # of an earlier run with another folder
        self.ran[ranks] = collections.Counter(fields[1] for fields in lines if fields[0] == "case")
        for fields in lines:
            if fields[0] != "worst":
                continue
            _, formula, output, count, error, share, case = fields
            for word in words(formula):
                self.comparisons[word] += int(count)
                found = (float(share), float(error), output, case, ranks)
                self.worst[word] = max(self.worst.get(word, found), found)

    def table(self):
        yield f"Golden cases of {self.cases_folder} at {', '.join(sorted(self.ran))} ranks: the worst error of each formula"
        yield f"{'formula':18} {'compared':>8} {'error':>9} {'of tolerance':>12}  case, output, ranks"
        for word in sorted(self.worst, key=by_number):
            share, error, output, case, ranks = self.worst[word]
            yield f"{word:18} {self.comparisons[word]:8} {error:9.1e} {100 * share:10.1f} %  {case}, {output}, {ranks}"

    def problems(self):
        names = [case["name"] for case in json.loads((pathlib.Path(self.cases_folder) / "cases.json").read_text())["cases"]]
        for ranks, ran in sorted(self.ran.items()):
            for name in names:
                if ran[name] != 1:
                    yield f"{name} ran {ran[name]} times at {ranks} ranks"
            for name in ran - collections.Counter(names):
                yield f"{name} ran at {ranks} ranks, but cases.json has it less often"


def main():
    folder, once = pathlib.Path(sys.argv[1]), "--once" in sys.argv
    reports = Reports(folder)
    if not reports.ran:
        if once:
            return 0
        print("skipped: the parity tests have not run (ctest -L parity)")
        return SKIPPED
    seen = folder / "seen"
    if once:
        if seen.exists() and seen.stat().st_mtime >= reports.newest:
            return 0
        seen.touch()
    print("\n".join(reports.table()))
    problems = [] if once else list(reports.problems())
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The table of what each test costs in docs/dev/testing.md, from the file that ctest wrote (`--output-junit`), and what it is known to find.

    costs.py BUILD [--write]         from BUILD/tests/last_run.xml; --write: into docs/dev/testing.md, else on the screen
    costs.py --self-test

Seconds are wall time; processor seconds are those of all processes that the test started (timed.sh); waiting is the part of the wall time in which
not even one of them computed. Rank counts and instruction sets of one test are one row. Mutations: how many of docs/dev/mutations.md the test
reports first.
"""

import collections
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from report import RUN, ran_in, tests_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/dev/testing.md"
BEGIN, END = "<!-- costs:begin -->\n", "<!-- costs:end -->"


class Row:
    def __init__(self):
        self.tests = 0
        self.seconds = self.processor = self.waiting = 0.0
        self.rings = set()


def stem_of(name):
    return re.sub(r"(/np\d+|/avx2|/portable)+$", "", name)


def processor_seconds(output):
    found = re.findall(r"processor seconds: ([\d.]+) user, ([\d.]+) system", output)
    return sum(map(float, found[-1])) if found else None


def rows_of(tests, ring_of):
    rows = collections.defaultdict(Row)
    for test in tests:
        if test.status == "skipped":
            continue
        processor = processor_seconds(test.output)
        row = rows[stem_of(test.name)]
        row.tests += 1
        row.seconds += test.seconds
        row.processor += processor or 0
        row.waiting += max(0.0, test.seconds - processor) if processor is not None else 0
        row.rings.add(ring_of.get(test.name, "first"))
    return rows


def mutations_of(page):
    """How many mutations a suite reports first, by the suite's name in the table."""
    counts = collections.Counter()
    for suite in re.findall(r"(?m)^\|.*\| `([\w/]+): ", page):
        counts[suite.split("/")[0]] += 1
    return counts


def suite_matches(suite, stem):
    return stem == suite or stem.split("/")[-1] == suite or stem in (f"integration_{suite}", f"{suite}_unit")


def table(rows, mutations):
    lines = ["| test | ring | runs | seconds | processor seconds | waiting | mutations |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for name, row in sorted(rows.items(), key=lambda item: -item[1].seconds):
        found = sum(count for suite, count in mutations.items() if suite_matches(suite, name))
        lines.append(f"| `{name}` | {', '.join(sorted(row.rings))} | {row.tests} | {row.seconds:.1f} | {row.processor:.1f} | {row.waiting:.1f} | {found or ''} |")
    for ring in ("first", "second"):
        own = [row for row in rows.values() if row.rings == {ring}]
        if own:
            lines.append(f"| **{ring} ring** | | {sum(row.tests for row in own)} | {sum(row.seconds for row in own):.0f} | "
                         f"{sum(row.processor for row in own):.0f} | {sum(row.waiting for row in own):.0f} | |")
    return "\n".join(lines) + "\n"


def rings(build):
    return {name: "second" if any(label.startswith("quarter") for label in labels) else "first" for name, labels in tests_of(build).items()}


def self_test():
    text = RUN.replace("test_one (__main__.A) ... ok", "processor seconds: 0.15 user, 0.05 system").replace('name="a"', 'name="a/np2"')
    rows = rows_of(ran_in(text), {"c": "second"})
    problems = []
    if set(rows) != {"a", "c", "bad", "gone"} or abs(rows["a"].processor - 0.2) > 1e-9 or abs(rows["a"].waiting - 0.3) > 1e-9:
        problems.append(f"rows {({name: vars(row) for name, row in rows.items()})}")
    found = mutations_of("| x | `a/2: T.One` |\n| y | `a: test_two` |\n")
    if not re.search(r"\| `a` \| first \| 1 \| 0\.5 \| 0\.2 \| 0\.3 \| 2 \|", table(rows, found)):
        problems.append(table(rows, found))
    print("\n".join(problems) or "costs are added up")
    return 1 if problems else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    arguments = [argument for argument in sys.argv[1:] if argument != "--write"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    build = pathlib.Path(arguments[0]).resolve()
    made = table(rows_of(ran_in((build / "tests/last_run.xml").read_text(errors="replace")), rings(build)),
                 mutations_of((ROOT / "docs/dev/mutations.md").read_text()))
    if "--write" not in sys.argv:
        print(made, end="")
        return 0
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{PAGE} has no place for the table ({BEGIN.strip()} ... {END})")
    PAGE.write_text(before + BEGIN + made + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())

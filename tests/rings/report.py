#!/usr/bin/env python3
"""What a run of ctest left out: every test and every case that was skipped, with its reason, and the tests that were not asked for. ctest's own
verdict is repeated as the last line.

    report.py BUILD                  after `ctest --test-dir BUILD ...`
    report.py --self-test

Reads tests/last_run.xml, which `ctest --output-junit` wrote, and asks ctest for the tests that there are. tests/not_here.txt of the build has those
that this configuration has not, as "name|reason".
"""

import json
import pathlib
import re
import subprocess
import sys
import textwrap
from xml.etree import ElementTree

# What keeps a test out of a run, by its label, and how to run it.
LEFT_OUT = {"gpu": "need a GPU: tests/gpu/run.sh runs them there"}
LEFT_OUT |= {f"quarter{n}": f"quarter {n} of the second ring: ./bootstrap.sh test quarter {n}, or ./bootstrap.sh test all" for n in range(4)}
NOT_ASKED = "which the options of ctest left out"


class Ran:
    """One test of ctest's file: status is passed, failed or skipped."""

    def __init__(self, case):
        self.name, self.seconds = case.get("name"), float(case.get("time"))
        skip = case.find("skipped")
        left_out = skip is not None and skip.get("message", "").startswith("SKIP_")
        self.status = "passed" if case.get("status") == "run" else "skipped" if left_out else "failed"
        self.output = case.findtext("system-out") or ""


def ran_in(text):
    """Tests of a file that `ctest --output-junit` wrote."""
    return [Ran(case) for case in ElementTree.fromstring(text).iter("testcase")]


def tests_in(shown):
    """{name: labels} of what `ctest --show-only=json-v1` prints, behind which a custom command of CTestCustom.cmake may print more."""
    tests = json.JSONDecoder().raw_decode(shown.lstrip())[0]["tests"]
    return {test["name"]: next((one["value"] for one in test.get("properties", []) if one["name"] == "LABELS"), []) for test in tests}


def tests_of(build):
    return tests_in(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout)


def cases_skipped(output):
    """{case: reason} in the words of unittest and of GoogleTest."""
    cases = {}
    for match in re.finditer(r"(?m)^(test_\w+) \(.*?\.\.\. skipped ['\"](.*)['\"]$", output):
        cases[match[1]] = match[2]
    for match in re.finditer(r"(?m)^(\S+:\d+): Skipped\n(.*)\n(?:.*\n)*?\[  SKIPPED \] (\S+)", output):
        cases[match[3].rstrip(",")] = match[2].strip() or match[1]
    return cases


def reason_of(test):
    """Why a whole test was skipped: its own words."""
    said = re.findall(r"(?mi)^skipped(?: in part)?[:,] *(.*)$", test.output)
    if said:
        return said[-1]
    cases = cases_skipped(test.output)
    return "; ".join(sorted(set(cases.values()))) or "it gave no reason"


def skipped_of(tests):
    lines = []
    for test in tests:
        if test.status == "skipped":
            lines.append(f"{test.name}: {reason_of(test)}")
        else:
            lines += [f"{test.name}, {case}: {reason}" for case, reason in cases_skipped(test.output).items()]
            lines += [f"{test.name}, in part: {reason}" for reason in re.findall(r"(?m)^skipped in part: (.*)$", test.output)]
    return sorted(set(lines))


def not_asked(listed, ran):
    """[(reason, names)] of the tests that this run was not asked for, by the label that keeps them out."""
    groups = {}
    for name, labels in listed.items():
        if name in ran:
            continue
        reason = next((LEFT_OUT[label] for label in LEFT_OUT if label in labels), NOT_ASKED)
        groups.setdefault(reason, []).append(name)
    return sorted(groups.items())


def paragraph(title, names):
    return textwrap.fill(f"{title}: {', '.join(names)}", width=140, initial_indent="  ", subsequent_indent="    ", break_long_words=False,
                         break_on_hyphens=False)


def verdict_of(tests):
    """In ctest's words."""
    failed = sum(test.status == "failed" for test in tests)
    percent = 100 * (len(tests) - failed) // len(tests) if tests else 0
    return f"{percent}% tests passed, {failed} tests failed out of {len(tests)}"


def text_of(tests, listed, not_here):
    lines = []
    skipped = skipped_of(tests)
    if skipped:
        lines += ["Skipped, with the reason:", *(f"  {line}" for line in skipped)]
    groups = not_asked(listed, {test.name for test in tests})
    if groups:
        lines.append("Not run:")
        for reason, names in groups:
            title = f"{len(names)} tests, {reason}"
            lines.append(f"  {title}" if reason == NOT_ASKED else paragraph(title, names))
    if not_here:
        lines += ["Not part of this build:", *(f"  {name}: {reason}" for name, reason in not_here)]
    if not (skipped or groups or not_here):
        lines.append("Every test of the project ran.")
    failed = [test.name for test in tests if test.status == "failed"]
    if failed:
        lines.append(paragraph("Failed", failed))
    return "\n".join([*lines, "", verdict_of(tests)])


def report(build):
    rows = build / "tests/not_here.txt"
    not_here = [line.split("|", 1) for line in rows.read_text().splitlines() if line] if rows.exists() else []
    print(text_of(ran_in((build / "tests/last_run.xml").read_text(errors="replace")), tests_of(build), not_here), flush=True)


RUN = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="(empty)" tests="5">
<testcase name="a" time="0.5" status="run"><system-out>test_one (__main__.A) ... ok
test_two (__main__.A) ... skipped 'no zstd here'
</system-out></testcase>
<testcase name="b/np2" time="0.5" status="notrun"><skipped message="SKIP_RETURN_CODE=125"/><system-out>skipped: no nvcc
</system-out></testcase>
<testcase name="c" time="0.5" status="run"><system-out>[ RUN      ] C.One
/x/c_test.cpp:7: Skipped
one rank only
[  SKIPPED ] C.One (0 ms)
</system-out></testcase>
<testcase name="bad" time="0.5" status="fail"><failure message=""/><system-out></system-out></testcase>
<testcase name="gone" time="0" status="notrun"><skipped message="Unable to find executable"/><system-out></system-out></testcase>
</testsuite>
"""


def self_test():
    shown = {"tests": [{"name": name, "properties": [{"name": "LABELS", "value": labels}]} for name, labels in
                       (("a", ["unit"]), ("b/np2", ["unit"]), ("c", ["unit"]), ("d", ["gpu"]), ("e", ["sanitize", "quarter3"]), ("f", ["unit"]))]}
    listed = tests_in(json.dumps(shown) + "\nthe worst error of each formula\n")
    text = text_of(ran_in(RUN), listed, [("g", "no headers of CUDA")])
    wanted = ["  a, test_two: no zstd here", "  b/np2: no nvcc", "  c, C.One: one rank only", "need a GPU", "test quarter 3, or", ": d", ": e",
              "  1 tests, which the options of ctest left out", "  g: no headers of CUDA", "  Failed: bad, gone"]
    failures = [f"not in the report: {part}" for part in wanted if part not in text]
    if text.splitlines()[-1] != "60% tests passed, 2 tests failed out of 5":
        failures.append("the verdict is not the last line")
    if "Every test of the project ran." not in text_of([], {}, []):
        failures.append("nothing left out is not said")
    print("\n".join(failures + ([text] if failures else [])) or "what was left out is named")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    report(pathlib.Path(sys.argv[1]).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())

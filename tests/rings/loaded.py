#!/usr/bin/env python3
"""Each test that waits, starts a process or has a deadline, many times beside busy loops: what is red here depends on time. Goes on where it stopped.

    loaded.py BUILD --results FILE [--times 20] [--busy 3] [--minutes M] [--only REGEX] [--cores LIST]

--busy: loops that take a core each while a test runs; --minutes: no test is begun after so many; --only: tests whose name matches; --cores: run on these
alone (as taskset -c 0). FILE gets one JSON line for each test that is done; those in it are not run again, unless they were red. Exit code 1 when a
line of it is red.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from report import tests_of

# Those that only compute: one process, no deadline, no other rank.
COMPUTES = re.compile(r"^(style/|rings/|parity/table$|kernels_|text_|ppo_unit$|interop/)")


def names_of(build, only):
    for name, labels in tests_of(build).items():
        if "gpu" not in labels and not COMPUTES.match(name) and re.search(only, name):
            yield name


def done_in(path):
    """{name: last line} of a file of results."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["test"]: line for line in map(json.loads, filter(None, lines))}


class Load:
    """Processes that do nothing but take a core each."""

    def __init__(self, count):
        self.processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def repeat(build, name, times, busy):
    """Runs a test until it fails, at most so many times; a line of results."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Load(busy):
        file = pathlib.Path(folder) / "out"
        with file.open("w") as out:
            code = subprocess.run(["ctest", "--test-dir", build, "-R", f"^{re.escape(name)}$", "--repeat", f"until-fail:{times}", "--output-on-failure"],
                                  stdout=out, stderr=subprocess.STDOUT, check=False).returncode
        text = file.read_text(errors="replace")
    runs = len(re.findall(rf"Test\s+#\d+: {re.escape(name)} ", text))
    line = {"test": name, "passed": code == 0, "skipped": "***Skipped" in text, "runs": runs, "busy": busy, "seconds": round(time.monotonic() - began, 1)}
    if code:
        line["output"] = text[-6000:]
    return line


def self_test():
    """A fake project with a test that is red at its third time: found, noted, tried again; a green one is not run twice."""
    problems = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "count.sh").write_text("#!/bin/bash\necho x >>$1; [ $(wc -l <$1) != 3 ]\n")
        (folder / "CTestTestfile.cmake").write_text(f"""add_test(waits/good "/bin/true")
add_test(waits/bad "bash" "{folder}/count.sh" "{folder}/times")
add_test(style/left_out "/bin/false")
""")
        command = [sys.executable, __file__, folder, "--results", folder / "results", "--times", "4", "--busy", "1"]
        codes = [subprocess.run(command, stdout=subprocess.PIPE, check=False).returncode for _ in range(2)]
        lines = [json.loads(line) for line in (folder / "results").read_text().splitlines()]
    if codes != [1, 0]:
        problems.append(f"exit codes {codes}")
    if [(line["test"], line["passed"], line["runs"]) for line in lines] != [("waits/good", True, 4), ("waits/bad", False, 3), ("waits/bad", True, 4)]:
        problems.append(f"results {lines}")
    print("\n".join(problems) or "a test that fails now and then is found")
    return 1 if problems else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--busy", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--only", default="")
    parser.add_argument("--cores", default="", metavar="0,1")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    if options.cores:
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})  # tests and load inherit it
    done = done_in(options.results)
    for name in names_of(options.build, options.only):
        if name in done and done[name]["passed"]:
            continue
        if time.monotonic() > end:
            print("no time is left: start again to go on")
            break
        done[name] = repeat(options.build, name, options.times, options.busy)
        with options.results.open("a") as file:
            file.write(json.dumps(done[name]) + "\n")
        print(f"{name}: {'passed' if done[name]['passed'] else 'RED'}, {done[name]['runs']} runs in {done[name]['seconds']} s", flush=True)
    red = [name for name, line in done.items() if not line["passed"]]
    print(f"{len(done)} tests, {len(red)} red{': ' + ', '.join(red) if red else ''}")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())

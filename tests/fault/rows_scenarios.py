"""The scenarios of docs/dev/fault_coverage.md, each by the tests that its line names; and what fuzzing finds."""

import pathlib
import re
import shutil
import subprocess
import sys

from chaos import Failure, Skipped
from trireme_run import BINARY_DIR, SKIPPED

ROOT = pathlib.Path(__file__).resolve().parents[2]
COVERAGE = ROOT / "docs/dev/fault_coverage.md"
FUZZED = ROOT / "build/fuzz"
sys.path.insert(0, str(ROOT / "tests/fuzz"))
import fuzz  # noqa: E402


def scenarios():
    """(name, what it names in backticks, in order), S1 first."""
    lines = re.findall(r"^\| (S\d+) [^|]*\|[^|]*\|([^|]*)\|$", COVERAGE.read_text(), re.M)
    return [(name, re.findall(r"`([^`]+)`", tests)) for name, tests in lines]


def commands(named):
    """What runs them. A row is left to the scoreboard, but for a scenario that has nothing else: then a small one is made."""
    found, script = {}, None
    for name in named:
        file, _, test = name.rpartition(".")
        if name.startswith("test_"):
            file, test = script, name
        if test.startswith("test_"):
            script = file
            path = ROOT / (file if "/" in file else f"tests/integration/{file}")
            found[name] = [sys.executable, path.with_suffix(".py"), "-k", test.replace("*", "")]
        elif unit := re.match(r"tests/unit/(\w+)/", name):
            found[name] = ["ctest", "--test-dir", BINARY_DIR, "--output-on-failure", "--no-tests=error", "-R", f"^{unit[1]}_unit$"]
        elif name.startswith("tests/fakegpu/"):
            what = "fakegpu_drills" if name.endswith(".py") else "fakegpu_unit"
            found[name] = ["ctest", "--test-dir", BINARY_DIR, "--output-on-failure", "--no-tests=error", "-R", f"^{what}$"]
    return found or {name: [sys.executable, ROOT / "tests/fault/scoreboard", "--row", name, "--count", "6", "--document", "-", "--results"] for name in named}


def scenario(shop, name, named):
    skipped = []
    for test, command in commands(named).items():
        results = [shop.path(f"scenario-{name}.json")] if command[-1] == "--results" else []
        done = subprocess.run(command + results, capture_output=True, text=True, errors="replace")
        if done.returncode == SKIPPED:
            skipped.append(test)
        elif done.returncode != 0:
            raise Failure(f"{name}: {test}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}")
    if skipped:
        raise Skipped(f"{name}: {', '.join(skipped)}")


def fuzz_pieces(seconds):
    """Of so many seconds in all, one piece a target."""
    each = max(1, seconds // len(fuzz.SEEDS))
    return [(each, fuzzing, (target, each)) for target in fuzz.SEEDS]


def fuzzing(shop, target, seconds):
    compiler = shutil.which("clang++")
    if compiler is None:
        raise Skipped("there is no clang++")
    with shop.mutex:
        program = fuzz.build(FUZZED, compiler, fuzz.CHECKED)
    if not fuzz.run(program, target, seconds, 0, FUZZED):
        raise Failure(f"{target}: see {FUZZED}/findings/{target}")

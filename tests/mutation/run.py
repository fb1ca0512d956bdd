#!/usr/bin/env python3
"""Breaks known-dangerous details one at a time (mutations.py) and shows that the suite notices every one.

    tests/mutation/run.py [NAME ...]        all mutations, or those named; exit 1 where one survives
    tests/mutation/run.py --list
    tests/mutation/run.py --check [BUILD]   builds nothing: exit 1 where a mutation no longer fits the sources, or where none of its suites is a test of
                                            the first ring of BUILD (ctest style/mutations)

Works on a copy of the tree in build/mutation/source with a build of its own in build/mutation/build (-O1, without debug
information: half the compile time, the same numbers). Nothing outside build/mutation is written. A first run builds everything that
the suites need (minutes), then each mutation costs one file and the links. Only --check is part of ctest.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "rings"))

from mutations import MUTATIONS  # noqa: E402
from report import tests_of  # noqa: E402

WORK = ROOT / "build" / "mutation"
SOURCE, BUILD = WORK / "source", WORK / "build"
COPIED = ["CMakeLists.txt", "cmake", "include", "inputs", "src", "tests"]
FLAGS = ("cmake/TriremeToolchain.cmake", '"-O2 -g1 -DNDEBUG"', '"-O1 -DNDEBUG"')
TEST_SECONDS = 300
PROGRAMS = {"parity": "parity_cases"}  # where the file's name differs from the target's

# name -> program and its filter; "/2" behind a name asks for that many ranks. The filter of the program itself is a file of tests/integration and
# a test in it.
SUITES = {
    "parity": ("parity", "Golden/*:Reference.*"),
    "steps": ("parity", "Steps.*"),
    "ppo_unit": ("ppo_unit", "*"),
    "base_unit": ("base_unit", "*"),
    "weightsync_unit": ("weightsync_unit", "*"),
    "generate_ranks": ("generate_ranks", "*"),
    "checkpoint_unit": ("checkpoint_unit", "*"),
    "counts": ("trireme", "counts_test.py test_counts_of_a_run"),
    "deltas": ("trireme", "counts_test.py test_deltas_carry_the_changes_of_all_steps"),
    "long_pass": ("trireme", "long_pass_test.py test_a_long_pass_takes_what_comes"),
    "healing": ("trireme", "counts_test.py test_memory_that_went_wrong_is_healed"),
}


def copy_tree():
    """Files whose content differs from the last copy, so that only they are built again."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *COPIED], cwd=ROOT,
                            capture_output=True, check=True).stdout.decode()
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for name in names:
        data = (ROOT / name).read_bytes()
        if name == FLAGS[0]:
            data = data.replace(FLAGS[1].encode(), FLAGS[2].encode())
        target = SOURCE / name
        if not target.exists() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    for old in [f for f in SOURCE.rglob("*") if f.is_file() and str(f.relative_to(SOURCE)) not in names]:
        old.unlink()


def build(targets):
    """Empty, or the end of the compiler's output."""
    if not (BUILD / "build.ninja").exists():
        configure = subprocess.run(["cmake", "-S", SOURCE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DTRIREME_PERF=OFF",
                                    "-DTRIREME_CUDA=OFF"], capture_output=True, text=True, check=False)
        if configure.returncode:
            sys.exit(configure.stdout[-3000:] + configure.stderr[-3000:])
    done = subprocess.run(["nice", "ninja", "-C", BUILD, *sorted(targets)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout[-3000:]


def split(suite):
    name, _, ranks = suite.partition("/")
    return (*SUITES[name], int(ranks or 1))


def launcher(ranks):
    if ranks == 1:
        return []
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]


def command_of(program, chosen, ranks):
    if program == "trireme":
        script, test = chosen.split()
        return [sys.executable, SOURCE / "tests" / "integration" / script, "-k", test]
    return [*launcher(ranks), BUILD / "tests" / PROGRAMS.get(program, program), f"--gtest_filter={chosen}"]


def run_suite(suite):
    """The first test that fails, or None."""
    program, chosen, ranks = split(suite)
    environment = dict(os.environ, TRIREME_SOURCE_DIR=str(SOURCE), TRIREME_BINARY_DIR=str(BUILD), OMP_NUM_THREADS="1",
                       OMP_WAIT_POLICY="passive", OMPI_MCA_mpi_yield_when_idle="1",
                       OMPI_MCA_btl_vader_single_copy_mechanism="none", TORCH_CPP_LOG_LEVEL="ERROR",
                       TRIREME_MPI_FLAGS=";".join(launcher(2)[1:-2]))
    environment.pop("TRIREME_PARITY_DIR", None)
    try:
        done = subprocess.run(command_of(program, chosen, ranks), env=environment, cwd=WORK, capture_output=True, text=True, errors="replace", timeout=TEST_SECONDS,
                              check=False)
    except subprocess.TimeoutExpired:
        return f"{suite}: ran longer than {TEST_SECONDS} s"
    if done.returncode == 0:
        return None
    failed = re.search(r"\[  FAILED  \] (?:\x1b\[m)?([\w/.]+)|^(?:FAIL|ERROR): (\w+)", done.stdout + done.stderr, re.MULTILINE)
    return f"{suite}: {failed[1] or failed[2] if failed else f'exit code {done.returncode}'}"


def misfit(mutation, source):
    """Why the mutation cannot be made in `source`; empty when it can."""
    found = len(mutation.places((source / mutation.file).read_text()))
    return "" if found == 1 else f"{mutation.name}: its text stands {found} times in {mutation.file}: adapt mutations.py"


def test_of(suite):
    """The ctest that runs a suite."""
    program, chosen, ranks = split(suite)
    if program == "trireme":
        return "integration/" + chosen.split()[0].removesuffix("_test.py")
    return program + (f"/np{ranks}" if ranks > 1 else "")


def beyond_first_ring(mutations, labels):
    """Mutations that the first ring alone would not notice; `labels`: {test: its labels} of a build."""
    first = {name for name, own in labels.items() if not any(label.startswith("quarter") for label in own)}
    return [f"{one.name}: none of {', '.join(map(test_of, one.suites))} is a test of the first ring (docs/dev/testing.md)" for one in mutations
            if not first.intersection(map(test_of, one.suites))]


def mutate(mutation):
    if problem := misfit(mutation, SOURCE):
        sys.exit(problem)
    file = SOURCE / mutation.file
    original = file.read_text()
    first, last = mutation.places(original)[0]
    file.write_text(original[:first] + mutation.new + original[last:])
    return file, original


def try_one(mutation):
    """(caught by, None where it survives; seconds)"""
    start = time.monotonic()
    file, original = mutate(mutation)
    try:
        errors = build({split(suite)[0] for suite in mutation.suites})
        if errors:
            sys.exit(f"{mutation.name} does not compile:\n{errors}")
        caught = next(filter(None, map(run_suite, mutation.suites)), None)
    finally:
        file.write_text(original)
    return caught, time.monotonic() - start


def main():
    wanted = [m for m in MUTATIONS if not sys.argv[1:] or m.name in sys.argv[1:]]
    if "--list" in sys.argv:
        print("\n".join(f"{m.name:30} {m.detail}" for m in MUTATIONS))
        return 0
    if "--check" in sys.argv:
        problems = list(filter(None, (misfit(m, ROOT) for m in MUTATIONS)))
        if builds := [argument for argument in sys.argv[1:] if argument != "--check"]:
            problems += beyond_first_ring(MUTATIONS, tests_of(builds[0]))
        print("\n".join(problems) or f"all {len(MUTATIONS)} fit")
        return 1 if problems else 0
    if not wanted:
        sys.exit("no mutation of that name: see --list")
    suites = sorted({suite for m in wanted for suite in m.suites})
    shutil.rmtree(BUILD / "tests" / "reports", ignore_errors=True)
    copy_tree()
    print("building", *sorted({split(s)[0] for s in suites}), flush=True)
    if errors := build({split(suite)[0] for suite in suites}):
        sys.exit(errors)
    if broken := [found for found in map(run_suite, suites) if found]:
        sys.exit(f"the unchanged program fails: {broken}")
    survivors = 0
    for mutation in wanted:
        caught, seconds = try_one(mutation)
        survivors += caught is None
        print(f"| {mutation.name} | {mutation.detail} | {caught or 'SURVIVED'} | {seconds:.0f} s |", flush=True)
    build({split(suite)[0] for suite in suites})
    print(f"{len(wanted) - survivors} of {len(wanted)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Unit tests of the modules without LibTorch under sanitizers: builds only these, in a folder of their own, and runs them.

    tests/sanitize/sanitizers.py threads [--full] [--build FOLDER]    ThreadSanitizer, over what has threads
    tests/sanitize/sanitizers.py memory [--full] [--build FOLDER]     AddressSanitizer, UBSan and the program's own assertions
--full: all cases at more rank counts, for minutes. What was said stays in FOLDER/logs.
"""

import argparse
import concurrent.futures
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MPIEXEC = os.environ.get("TRIREME_MPIEXEC", "mpirun")
MPI_FLAGS = os.environ.get("TRIREME_MPI_FLAGS", "--oversubscribe;--bind-to;none").split(";")
TOGETHER = 2  # as many cores as CI has
FINDING = 66  # exit code of a program with findings of ThreadSanitizer

# They do one thing thousands of times.
EXHAUSTIVE = "Commit.EveryFailedCall*:Commit.OldOrNewAfterACrash*:Damage.EveryFlippedBit*"
STORMS = "Mailbox.*:Barrier.*"
MESSAGES = "EnvironmentTest.TenThousandMessages"
# They leave out what puts two streams of the fake GPU into order: races are what they are for.
RACES = "*/Edges.*:*/Waits.*:DeviceMessages.HaveNoEventTooMany"


class Run:
    """Cases of a module's unit test at a number of ranks."""

    def __init__(self, module, ranks=1, cases="*", messages=None):
        self.module, self.ranks, self.cases = module, ranks, cases
        names = ("TRIREME_MAILBOX_MESSAGES", "TRIREME_ENVIRONMENT_MESSAGES")
        self.environment = {} if messages is None else {**dict.fromkeys(names, str(messages)), "TRIREME_TEST_LIMIT": "1800"}


class Kind:
    def __init__(self, preset, runs, full, environment, finding):
        self.preset, self.runs, self.full, self.environment, self.finding = preset, runs, full, environment, finding


KINDS = {
    "threads": Kind(
        "tsan",
        # Mailboxes, watchdogs, counters in shared memory; regions; watches of signals, time and files; the writer in the background; the exchanges between
        # GPUs, whose streams are threads of the fake device; and messages to environments.
        [Run("fakegpu", 2, f"*:-{RACES}"), Run("comm", 2), Run("checkpoint", 2, f"*:-{EXHAUSTIVE}"), Run("trace"), Run("job"), Run("comm", 1, "Watchdog*:Liveness*"),
         Run("comm", 4, STORMS, messages=400), Run("environment", 1, MESSAGES)],
        [*(Run(module, 1, f"*:-{EXHAUSTIVE}") for module in ("base", "trace", "job", "comm", "checkpoint")), Run("comm", 2),
         Run("comm", 8, STORMS, messages=10000), Run("environment", 1, MESSAGES, messages=1000000), Run("checkpoint", 2, f"*:-{EXHAUSTIVE}"), *(Run("fakegpu", ranks, f"*:-{RACES}") for ranks in (1, 2, 3))],
        {"TSAN_OPTIONS": f"exitcode={FINDING} die_after_fork=0 suppressions={ROOT}/tests/sanitize/tsan.supp"}, "WARNING: ThreadSanitizer"),
    "memory": Kind(
        "debug",
        [Run("checkpoint", 2, f"*:-{EXHAUSTIVE}"), Run("comm", 2), Run("base"), Run("trace"), Run("job"), Run("comm", 1, "Watchdog*:Liveness*")],
        [*(Run(module, ranks) for module, ranks in (("base", 1), ("trace", 1), ("job", 1), ("comm", 1), ("comm", 2), ("comm", 4), ("checkpoint", 1),
                                                     ("checkpoint", 2), ("checkpoint", 4)))],
        {"ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"}, "ERROR: AddressSanitizer"),
}


def build(kind, runs, folder, torch):
    """Returns the runs whose programs this machine can build: those on the fake GPU need the headers of CUDA and NCCL."""
    def run(*command):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-6000:]}")
        return done.stdout

    flags = ["-DTRIREME_PERF=OFF", "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -g1", *([f"-DTRIREME_TORCH_ROOT={torch}"] if torch else [])]
    run("cmake", "--preset", kind.preset, "-S", ROOT, "-B", folder, *flags)
    if "fakegpu_unit" not in run("cmake", "--build", folder, "--target", "help"):
        print("without fakegpu: the headers of CUDA or NCCL are missing", flush=True)
        runs = [one for one in runs if one.module != "fakegpu"]
    run("cmake", "--build", folder, "--parallel", str(TOGETHER), "--target", *sorted({f"{one.module}_unit" for one in runs}))
    return runs


def fixed_addresses():
    """ThreadSanitizer's shadow memory has its place among them."""
    prefix = ["setarch", platform.machine(), "-R"]
    return prefix if shutil.which("setarch") and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else []


def execute(kind, one, folder):
    log = folder / "logs" / f"{one.module}-{one.ranks}.log"
    command = [*fixed_addresses(), *([MPIEXEC, *MPI_FLAGS, "-n", str(one.ranks)] if one.ranks > 1 else []), folder / "tests" / f"{one.module}_unit",
               f"--gtest_filter={one.cases}"]
    environment = os.environ | {
        "TRIREME_SOURCE_DIR": str(ROOT), "TRIREME_BINARY_DIR": str(folder), "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} | kind.environment | one.environment
    began = time.monotonic()
    with log.open("w") as out:
        code = subprocess.run(command, env=environment, stdout=out, stderr=subprocess.STDOUT).returncode
    text = log.read_text(errors="replace")
    findings = text.count(kind.finding) + text.count(": runtime error: ")
    print(f"{one.module}, ranks {one.ranks}: exit code {code}, {findings} findings, {time.monotonic() - began:.0f} s ({log})", flush=True)
    if code or findings:
        print(text[-8000:], flush=True)
    return code == 0 and findings == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--torch", default="", help="LibTorch's folder, else where the build looks for it")
    arguments = parser.parse_args()
    kind = KINDS[arguments.kind]
    folder = (arguments.build or ROOT / "build" / kind.preset).resolve()
    runs = kind.full if arguments.full else kind.runs
    began = time.monotonic()
    runs = build(kind, runs, folder, arguments.torch)
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    (folder / "logs").mkdir(exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(1 if arguments.full else TOGETHER) as pool:
        good = list(pool.map(lambda one: execute(kind, one, folder), runs))
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()

"""What the tests with a real Slurm share: the cluster, one job script's run with its folder, log and gates, and tests that wait for
their cases while all cases run at the same time on one cluster."""

import concurrent.futures
import functools
import json
import os
import pathlib
import signal
import sys
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))

from one_box_slurm import OneBoxSlurm, missing_programs  # noqa: E402
import trireme_run  # noqa: E402
from trireme_run import PROGRAM, ROOT, ProgramTest, read_lines, read_safetensors, timeless  # noqa: E402

SCRIPT = ROOT / "slurm" / "trireme.sh"
ITERATIONS = 4
KILL_WAIT = 45  # seconds between Slurm's TERM and KILL
AT_ONCE = 6  # cases; with all of them a job's last save may take longer than that
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")

GATE_SOURCE = f"""
[[reward.source]]
kind = "plugin"
name = "gate"
weight = 0.0
timeout = 1800
command = ["{sys.executable}", "{HERE / 'gate.py'}"]
"""

# Fake nodes share one machine: /dev/shm, the loopback interface and two cores. The fence: with Slurm's tree of messages a rank of
# Open MPI 4.1 may leave MPI_Init while another is still in it, which then dies of the first message (10 of 100 starts of
# 4 x 2 ranks on two cores; 0 of 250 with the ring).
ONE_BOX = {
    "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo",
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
    "SLURM_PMIX_FENCE": "ring", "OMP_WAIT_POLICY": "passive", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONDONTWRITEBYTECODE": "1",
}

# Seen once, on a busy machine: two ranks did not reach each other over the one loopback interface on which all nodes' ranks listen, which is no fault of the
# program or the script. Such a case is tried once more, and says so.
UNREACHED = "Open MPI failed to TCP connect to a peer"

# The script asks for whole nodes with 8 GPUs; everything can be said otherwise on sbatch's command line.
TWO_NODES = ("--nodes=2", "--ntasks-per-node=1")
FOUR_NODES = ("--nodes=4", "--ntasks-per-node=2")
SMALL = ("--cpus-per-task=1", "--gpus-per-node=0", "--exclusive=user", "--time=30", "--signal=B:USR1@60")


class Run:
    """One run folder and the jobs that work in it."""

    def __init__(self, test, name, layout=TWO_NODES, task=""):
        name += test.again
        test.runs.append(self)
        self.test, self.cluster, self.name, self.layout, self.task = test, test.cluster, name, layout, task
        suffix = f"-{task}" if task else ""
        self.folder = test.folder / f"{name}{suffix}"
        self.gates = test.folder / f"{name}.gates{suffix}"
        self.gates.mkdir(exist_ok=True)
        self.jobs = []
        self.exporting = threading.Lock()

    def submit(self, *options, **settings):
        """sbatch of the shipped script; the job's id. `options` come after the small ones, so they win."""
        given = {"TRIREME_HOME": self.test.folder / "home", "TRIREME_DECK": self.test.folder / "gated.toml",
                 "TRIREME_RUN_DIR": self.test.folder / self.name, "TRIREME_GPUS_PER_NODE": 0, "TRIREME_LOCK_WAIT": 0,
                 "GATES": self.test.folder / f"{self.name}.gates"}
        env = ONE_BOX | {name: str(value) for name, value in (given | settings).items()}
        job = self.cluster.sbatch(f"--job-name={self.name}", f"--output={self.test.folder}/{self.name}-%j.out", *SMALL, *self.layout,
                                  *options, SCRIPT, env=env, cwd=self.test.folder)
        self.jobs.append(job)
        return job

    # ---- gates -------------------------------------------------------------------------------------------------------

    def hold(self, iteration, text=""):
        (self.gates / f"hold-{iteration}").write_text(text)

    def let_go(self, iteration):
        (self.gates / f"hold-{iteration}").unlink()

    def wait_until_at(self, iteration):
        self.wait((self.gates / f"at-{iteration}").exists, f"iteration {iteration}")

    def ranks(self, restart=0):
        return [json.loads(path.read_text()) for path in self.gates.glob(f"rank-*-restart-{restart}.json")]

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def explain(self):
        logs = [f"--- {path.name}\n{path.read_text(errors='replace')}" for path in self.test.folder.glob(f"{self.name}-*.out")]
        return "\n".join([f"run {self.name}:", *logs, self.cluster.command("squeue", "-h", "-t", "all", check=False)])

    def wait(self, condition, what):
        """Until it comes about, or until no job of this run has been left for a while that could bring it about."""
        last_alive = time.monotonic()

        def met_or_hopeless():
            nonlocal last_alive
            if condition():
                return True
            if not all(self.cluster.state(job) in FINAL for job in self.jobs):
                last_alive = time.monotonic()
            if time.monotonic() > last_alive + 10:
                raise AssertionError(f"{self.name}: {what}: all jobs have ended without it\n{self.explain()}")
            return False

        self.cluster.wait(met_or_hopeless, f"{self.name}: {what}", explain=self.explain)

    def wait_for_state(self, job, *states):
        self.wait(lambda: self.cluster.state(job) in states, f"job {job}: {' or '.join(states)}")

    def wait_for_log(self, job, words):
        self.wait(lambda: words in self.log(job), f"'{words}' in the log of job {job}")

    def log(self, job):
        path = self.test.folder / f"{self.name}-{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    # ---- results -----------------------------------------------------------------------------------------------------

    def saved(self, step):
        return (self.folder / "ckpt" / f"step-{step:06d}" / "manifest.json").is_file()

    def metrics(self):
        return read_lines(self.folder / "metrics.jsonl")

    def weights(self):
        exported = self.test.folder / f"{self.folder.name}.exported"
        with self.exporting:  # several cases compare with one reference
            if not exported.exists():
                self.test.succeed("convert", self.folder / "ckpt" / f"step-{ITERATIONS:06d}", exported)
        return read_safetensors(exported / "model.safetensors")


def together(waits=0):
    """A test whose body runs beside those of the others marked so, AT_ONCE of them, from the start of the class; the test itself waits
    for it. waits: seconds that pass on Slurm's clocks however fast the machine is; the longest begin first."""

    def mark(method):
        @functools.wraps(method)
        def wait(self):
            self.cases[method.__name__].result()

        wait.body, wait.waits = method, waits
        return wait

    return mark


class SlurmTest(ProgramTest):
    again = ""  # behind the names of a case's second try

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.runs = []

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        deck = (cls.folder / "ppo.toml").read_text()
        for old, new in (("iterations = 3", f"iterations = {ITERATIONS}\nhang_timeout = 1800\nterm_grace = {KILL_WAIT - 2}\nstop_within = \"iteration\""), ("\n[actor]", GATE_SOURCE + "[actor]")):
            if old not in deck:
                raise AssertionError(f"the deck has no {old}")
            deck = deck.replace(old, new)
        (cls.folder / "gated.toml").write_text(deck)
        program = cls.folder / "home" / "build" / "release" / "trireme"
        program.parent.mkdir(parents=True)
        program.symlink_to(PROGRAM)
        # n5 and n6 may fail, n7 and n8 are for preemption: a job that loses its node must not take others along.
        cls.cluster = OneBoxSlurm(nodes=8, kill_wait=KILL_WAIT, partitions=(
            "whole Nodes=n[1-4]", "fragile Nodes=n[5-6]", f"low Nodes=n[7-8] PriorityTier=1 GraceTime={KILL_WAIT}",
            "high Nodes=n[7-8] PriorityTier=2"))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, cls.leave)
        cls.cluster.start()
        cls.seconds = {}
        names = unittest.defaultTestLoader.getTestCaseNames(cls)  # those that -k asks for
        cls.pool = concurrent.futures.ThreadPoolExecutor(max_workers=AT_ONCE)
        cls.cases = {name: cls.pool.submit(cls.timed, name) for name in sorted(names, key=lambda name: getattr(cls, name).waits, reverse=True)}

    @classmethod
    def leave(cls, number, _):
        """Takes the cluster down at once; the threads of the cases would wait for it."""
        cls.cluster.stop()
        os._exit(128 + number)

    @classmethod
    def timed(cls, name):
        began = time.monotonic()
        case = cls(name)
        try:
            getattr(cls, name).body(case)
        except AssertionError:
            if not any(UNREACHED in run.explain() for run in case.runs):
                raise
            print(f"{name}: two ranks did not reach each other; once more", flush=True)
            for job in [job for run in case.runs for job in run.jobs]:
                cls.cluster.command("scancel", job, check=False)
            case = cls(name)
            case.again = "-again"
            getattr(cls, name).body(case)
        finally:
            cls.seconds[name] = time.monotonic() - began

    @classmethod
    def tearDownClass(cls):
        print("".join(f"\n{seconds:4.0f} s  {name}" for name, seconds in cls.seconds.items()), flush=True)
        cls.cluster.stop()
        cls.pool.shutdown(wait=False, cancel_futures=True)
        super().tearDownClass()

    def assert_as(self, run, reference):
        """Every iteration once and in order, with the same numbers, and the same weights at the end."""
        self.assertEqual([line["iteration"] for line in run.metrics()], list(range(1, ITERATIONS + 1)), run.explain())
        self.assertEqual(timeless(run.metrics()), timeless(reference.metrics()), run.explain())
        self.assertEqual(run.weights(), reference.weights(), f"{run.name}: the weights at the end")
        left = [path.name for path in (run.folder / "ckpt").iterdir() if path.name.startswith(".step-")]  # the lock stays
        self.assertEqual(left, [], "no temporary folder stays")

    def assert_ended(self, run, job, state, code):
        self.assertEqual((self.cluster.state(job), self.cluster.exit_code(job)), (state, code), run.explain())


def main():
    missing = missing_programs()
    if missing:
        print(f"skipped: Slurm is not installed here (no {', '.join(missing)}): apt-get install slurmctld slurmd slurm-client munge")
        sys.exit(trireme_run.SKIPPED)
    trireme_run.main()

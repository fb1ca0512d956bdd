"""Rows about ranks that do not arrive, and about those that only take their time."""

import json
import pathlib
import re
import time

from chaos import INTERNAL, Failure, adversity, lines_in, wait_until
from trireme_run import MPI_FLAGS, MPIEXEC, SKIPPED

DEADLINE = 4  # run.hang_timeout, seconds
LATE = 3
PLACES = ("rollout:3", "reward:3", "exchange:2", "train:3", "sync:3", "checkpoint:2")  # of iteration 2
KINDS = ("cut", "skip", "suspend", "hang")
# What a collective that one rank leaves out comes to, besides a rank that waits alone.
SKIPS = (r"called different collectives.*rank 0.*, the \d+th.*rank 1",  # both wait, each in another one
         r"the ranks of \S+ called different collectives: the \d+th was",  # they compare what they have called
         r"rank [01] .*the ranks called different collectives, or one with different amounts; this rank is in [^)]*, the \d+th",  # messages do not fit
         r"rank 1 is at version \d+ of the shared weights, rank 0 at \d+")  # data do not
NO_NAMESPACES = "no network namespaces here"


def drill(shop, kind, place, seed):
    """A rank stops, works for ever, leaves a collective out or loses its network in a phase of iteration 2: named, with the phase, soon after the
    deadline."""
    if kind == "cut":
        return cut_network(shop, place, seed)
    run = f"hang-{seed}"
    began = time.time()
    result = shop.begin(run, f"run.hang_timeout={DEADLINE}", f"run.io_timeout={DEADLINE}", f'fault.at=["delay:1:{place}:1200", "{kind}:1:{place}"]',
                        "ckpt.background=false", iterations=100).wait(90)
    last = (shop.path(run) / "metrics.jsonl").stat().st_mtime
    phase = place.split(":")[0]
    if result.code != INTERNAL:
        raise Failure(f"{kind} in {phase}: exit code {result.code}\n{result.text[-2000:]}")
    named = rf"HANG: a rank [^:]*: rank 1 \(\S+\) in iteration \d+ > {phase}"
    if kind == "skip":
        named = "|".join((named, *SKIPS))
    if not re.search(named, result.text):
        raise Failure(f"{kind} in {phase}: not named\n{result.text[-2000:]}")
    # From the end of the iteration before; the launcher takes its time to end the others.
    late = began + result.seconds - last - 1.2 - DEADLINE
    if late > LATE + 3:
        raise Failure(f"{kind} in {phase}: {late:.1f} s after the deadline")
    shop.remove(run)


def cut_network(shop, place, seed):
    """No packet passes between two nodes from one moment on, and nobody is told: each side names the other, on its own stderr and in the run folder."""
    run = f"cut-{seed}"
    now = shop.folder / f"{run}.now"
    two_nodes = ["bash", str(pathlib.Path(__file__).with_name("two_nodes.sh")), str(now), MPIEXEC, *MPI_FLAGS, "--host", "n1,n2"]
    job = shop.begin(run, f"run.hang_timeout={DEADLINE}", f"run.io_timeout={DEADLINE}", f'fault.at=["delay:1:{place}:3000"]', "ckpt.background=false",
                     iterations=100, launcher=two_nodes)
    if not wait_until(lambda: lines_in(shop.path(run) / "metrics.jsonl") >= 1, job):
        result = job.wait(5)
        if result.code == SKIPPED:
            print(f"cut network: {NO_NAMESPACES}", flush=True)
            return
        raise Failure(f"cut network in {place}: no first iteration, exit code {result.code}\n{result.text[-2000:]}")
    time.sleep(1)  # rank 1 stands at the place for three seconds
    now.touch()
    cut = time.time()
    reports = [shop.path(run) / "hang" / f"rank-0000{rank}.json" for rank in (0, 1)]
    wait_until(lambda: all(path.exists() for path in reports), job, DEADLINE + 20)
    job.kill()  # mpirun waits for the other node's daemon; a batch system ends it
    result = job.wait()
    phase = place.split(":")[0]
    for report, words in zip(reports, (rf"rank 1 \(n2\) in iteration \d+ > {phase}", "rank 0 has not been heard of"), strict=True):
        if not report.exists():
            raise Failure(f"cut network in {phase}: no {report.name}\n{result.text[-2000:]}")
        verdict = json.loads(report.read_text())["verdict"]
        if not re.search(words, verdict):
            raise Failure(f"cut network in {phase}: {report.name} does not name the other: {verdict}")
        late = report.stat().st_mtime - cut - DEADLINE
        if late > LATE:
            raise Failure(f"cut network in {phase}: {report.name} {late:.1f} s after the deadline")
    shop.remove(run)


def slow_disk(shop, seconds):
    """Every call of the checkpoint's files takes long; the deadline is short. Nobody may be blamed."""
    run = "slow"
    slow = adversity("storage", STORAGE="/ckpt/", STORAGE_OPS="write,fsync,rename", STORAGE_DO="delay:150")
    began = time.monotonic()
    runs = 0
    while True:
        shop.remove(run)
        shop.go(run, "run.hang_timeout=2", "run.io_timeout=60", iterations=3, env=slow)
        runs += 1
        if time.monotonic() - began > seconds:
            shop.remove(run)
            return runs

"""Rows about ranks that do not arrive, and about those that only take their time."""

import json
import os
import pathlib
import re
import signal
import time

from chaos import DONE, INTERNAL, KILLED, LONGEST, STOPPED, Failure, Lateness, Skipped, adversity, lines_in, wait_until
from trireme_run import MPI_FLAGS, MPIEXEC, SKIPPED, ranks_of

DEADLINE = 4  # run.hang_timeout, seconds
LATE = 3
START = 3  # seconds from the run folder to the models
DELAY = 1.2  # a rank stays at a place for so long before it suffers there, so that its last life sign says so

# Phases of a run and where a fault finds them: "region:pass", in iteration 2 where the phase is part of one.
PLACES = {
    "start": "load weights:1",
    "resume": "resume:1",
    "rollout": "rollout:3",
    "reward": "reward:3",
    "exchange": "exchange:2",
    "log-probs": "old log-probs:2",
    "train": "train:3",
    "step": "actor step:3",
    "sync": "sync:3",
    "save": "checkpoint:2",
}
KINDS = ("cut", "skip", "suspend", "hang", "kill")
# Calls on files that never return: rank, operations, path, number of the call, and where its rank must be said to be.
STALLS = {
    "start: making the run folder": (0, "mkdir", "{run}/logs", 1, "start, in making of"),
    "start: lock": (0, "link", "{run}/.run.lock", 1, "start, in locking of"),
    "start: deck": (0, "open", "{run}/deck.toml", 1, "start, in write of .*deck.toml"),
    "start: prompts": (1, "open", "prompts.jsonl", 1, "start > read data, in open of .*prompts.jsonl"),
    "start: reading prompts": (1, "read", "prompts.jsonl", 1, "start > read data, in read of .*prompts.jsonl"),
    "start: model": (1, "open", "model.safetensors", 1, "start > (open a model|load weights), in open of .*model.safetensors"),
    "resume: manifest": (0, "read", "step-000001/manifest.json", 3, "start > .*, in .* of .*"),
    "resume: data": (1, "read", "step-000001/data.h5", 4, "start > resume > checkpoint (open|read), in read of .*data.h5"),
    "exchange: samples": (0, "write", "{run}/samples.jsonl", 2, "iteration 2 > exchange 2, in write of .*samples.jsonl"),
    "report: metrics": (0, "write", "{run}/metrics.jsonl", 2, "iteration 2 > report 2, in write of .*metrics.jsonl"),
    "any phase: log": (0, "write", "{run}/log.txt", 14, ".*, in write of the log"),
    "save: open": (1, "open", "step-000002.1.tmp/data.h5", 1, "iteration 2 > checkpoint 2 > wait for the checkpoint 2 > checkpoint save 2 > .*data.h5"),
    "save: write": (1, "write", "step-000002.1.tmp/data.h5", 1, "iteration 2 > checkpoint 2 > .* > checkpoint write 2, in write of .*data.h5"),
    "save: sync": (1, "fsync", "step-000002.1.tmp/data.h5", 1, "iteration 2 > checkpoint 2 > .* > checkpoint write 2, in sync of .*data.h5"),
    "save: rename": (0, "rename", "/step-000002", 1, "iteration 2 > checkpoint 2 > .* > checkpoint save 2, in rename of .*step-000002"),
    "end: log": (0, "write", "{run}/log.txt", 30, "outside of all regions, in write of the log"),
    "export": (0, "write", "{run}/hf/", 1, ".*, in (making|write) of .*hf"),
}
# What a collective that one rank leaves out comes to, besides a rank that waits alone.
SKIPS = (r"called different collectives.*rank 0.*, the \d+th.*rank 1",  # both wait, each in another one
         r"the ranks of \S+ called different collectives: the \d+th was",  # they compare what they have called
         r"rank [01] .*the ranks called different collectives, or one with different amounts; this rank is in [^)]*, the \d+th",  # messages do not fit
         r"rank 1 is at version \d+ of the shared weights, rank 0 at \d+")  # data do not
NO_NAMESPACES = "no network namespaces here"
SETTINGS = (f"run.hang_timeout={DEADLINE}", f"run.io_timeout={DEADLINE}", "ckpt.background=false")


def drills():
    """All of them, as arguments of drill()."""
    return [(kind, phase) for phase in PLACES for kind in KINDS] + [("stall", what) for what in STALLS]


def drill(shop, kind, what, seed):
    """A rank stops, works for ever, dies, leaves a collective out, loses its network or waits for a file that never comes, in a phase of the run: named,
    with the place, within 3 s of the deadline."""
    run = f"{kind}-{seed}"
    shop.remove(run)
    if what.startswith("resume"):
        shop.first_iteration(run, iterations=100)
    if kind == "cut":
        cut_network(shop, run, what)
    elif kind == "stall":
        stall(shop, run, what)
    else:
        suffer(shop, run, kind, what)
    shop.remove(run)


def where(phase):
    """As a report says it."""
    region = PLACES[phase].split(":")[0]
    return rf"(start|iteration \d+) > .*{region}" if phase in ("start", "resume") else rf"iteration \d+ > .*{region}"


def began_at(shop, run, phase):
    """When the run was last heard of before the place, by a file that is written there: None, not yet."""
    path = shop.path(run) / ("run.lock" if phase in ("start", "resume") else "metrics.jsonl")
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def named_at(shop, run, otherwise):
    """When the first rank said who it was."""
    return min((path.stat().st_mtime for path in (shop.path(run) / "hang").glob("rank-*.json")), default=otherwise)


def expect_in_time(what, late, most=LATE):
    if late > most:
        Lateness.found(f"{what}: {late:.1f} s after the deadline")


def stands_still(shop, job, rank):
    """Whether a rank's main thread sleeps by the clock for a while, as an injected delay does: it does not wait for others, nor for its turn on a core."""
    pid = ranks_of(job).get(rank)

    def state():
        """Where it is in the kernel ("0" where that may not be read), and how often it went to sleep."""
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
        asleep = re.search(r"State:\s+(\w)", text)[1] == "S"
        return asleep and pathlib.Path(f"/proc/{pid}/wchan").read_text(), re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", text)[1]

    try:
        before = state()
        time.sleep(0.4)
        return before[0] and ("nanosleep" in before[0] or before[0] == "0") and state() == before
    except OSError:
        return False


def suffer(shop, run, kind, phase):
    place = PLACES[phase]
    began = time.time()
    job = shop.begin(run, *SETTINGS, f'fault.at=["delay:1:{place}:{DELAY * 1000:.0f}", "{kind}:1:{place}"]', iterations=100)
    heard = None
    if phase in ("start", "resume"):  # the lock goes when the run ends by itself
        wait_until(lambda: (began_at(shop, run, phase) or 0) > began, job)
        heard = began_at(shop, run, phase)
    result = job.wait()
    ended = began + result.seconds
    named = rf"HANG: a rank [^:]*: rank 1 \(\S+\) in {where(phase)}"
    if kind == "skip":
        named = "|".join((named, *SKIPS))
    elif kind == "kill":  # the launcher sees it
        named = r"rank 1 .*on node \S+ exited on\s+signal 9"
    code, deadline = (KILLED, 0) if kind == "kill" else (INTERNAL, DEADLINE)
    if result.code != code:
        raise Failure(f"{kind} in {phase}: exit code {result.code}\n{result.text[-2000:]}")
    if not re.search(named, result.text):
        raise Failure(f"{kind} in {phase}: not named\n{result.text[-2000:]}")
    late = named_at(shop, run, ended) - (heard or began_at(shop, run, phase)) - DELAY - deadline
    expect_in_time(f"{kind} in {phase}", late, LATE + (START if phase in ("start", "resume") else 0))


def stall(shop, run, what):
    """One rank's call on a file never returns."""
    rank, operations, path, number, place = STALLS[what]
    mark = shop.folder / f"{run}.mark"
    env = adversity("storage", STORAGE=path.format(run=run), STORAGE_OPS=operations, STORAGE_CALLS=f"{number}-1000000", STORAGE_DO="block",
                    STORAGE_RANK=str(rank), STORAGE_MARK=str(mark))
    began = time.time()
    result = shop.begin(run, *SETTINGS, "ckpt.save_hf=end", iterations=2 if what == "export" else 3, env=env).wait()
    ended = began + result.seconds
    if not mark.exists():
        raise Failure(f"{what}: no such call\n{result.text[-2000:]}")
    if result.code != INTERNAL:
        raise Failure(f"{what}: exit code {result.code}\n{result.text[-2000:]}")
    if not re.search(rf"HANG: a rank [^:]*: rank {rank} \(\S+\) (in )?{place}", result.text):
        raise Failure(f"{what}: not named\n{result.text[-2000:]}")
    late = named_at(shop, run, ended) - mark.stat().st_mtime - DEADLINE
    mark.unlink()
    expect_in_time(what, late)


def cut_network(shop, run, phase):
    """No packet passes between two nodes from one moment on, and nobody is told: each side names the other, on its own stderr and in the run folder."""
    now = shop.folder / f"{run}.now"
    two_nodes = ["bash", str(pathlib.Path(__file__).with_name("two_nodes.sh")), str(now), MPIEXEC, *MPI_FLAGS, "--host", "n1,n2"]
    began = time.time()
    job = shop.begin(run, *SETTINGS, f'fault.at=["delay:1:{PLACES[phase]}:3000"]', iterations=100, launcher=two_nodes)
    if not wait_until(lambda: (began_at(shop, run, phase) or 0) > began, job):
        result = job.wait(5)
        if result.code == SKIPPED:
            raise Skipped(NO_NAMESPACES)
        raise Failure(f"cut network in {phase}: no first iteration, exit code {result.code}\n{result.text[-2000:]}")
    wait_until(lambda: stands_still(shop, job, 1), job)  # at the place, for three seconds: elsewhere it works, or asks MPI all the time
    now.touch()
    cut = time.time()
    reports = [shop.path(run) / "hang" / f"rank-0000{rank}.json" for rank in (0, 1)]
    wait_until(lambda: all(path.exists() for path in reports), job, DEADLINE + 20)
    job.kill()  # mpirun waits for the other node's daemon; a batch system ends it
    result = job.wait()
    for report, words in zip(reports, (rf"rank 1 \(n2\) in {where(phase)}", "rank 0 has not been heard of"), strict=True):
        if not report.exists():
            raise Failure(f"cut network in {phase}: no {report.name}\n{result.text[-2000:]}")
        verdict = json.loads(report.read_text())["verdict"]
        if not re.search(words, verdict):
            raise Failure(f"cut network in {phase}: {report.name} does not name the other: {verdict}")
        late = report.stat().st_mtime - cut - DEADLINE
        expect_in_time(f"cut network in {phase}: {report.name}", late)


# ---- what only takes its time ----

PATIENT = ("run.hang_timeout=2", "run.io_timeout=60")
# Files of a run of which one call takes longer than the usual deadline.
SLOW_FILES = ("model.safetensors", "prompts.jsonl", "{run}/deck.toml", "{run}/run.lock", "{run}/log.txt", "{run}/samples.jsonl", "{run}/metrics.jsonl",
              "{run}/trace.json", "{run}/summary.json", "data.h5", "manifest.json", "/step-000002", "{run}/hf", "{run}/stop")


def every_call_slow(shop, run):
    shop.go(run, *PATIENT, iterations=3, env=adversity("storage", STORAGE="/ckpt/", STORAGE_OPS="write,fsync,rename", STORAGE_DO="delay:150"))


def one_call_slow(number):
    file = SLOW_FILES[number % len(SLOW_FILES)]

    def go(shop, run):
        slow = {"STORAGE": file.format(run=run), "STORAGE_CALLS": "2-2" if number // len(SLOW_FILES) % 2 else "1-1", "STORAGE_DO": "delay:4500"}
        shop.go(run, *PATIENT, "ckpt.save_hf=end", "trace.enabled=true", iterations=3, env=adversity("storage", **slow))
    return go


def pause(shop, run):
    """The whole job is stopped and goes on, as by gang scheduling."""
    job = shop.begin(run, *PATIENT, "ckpt.interval=0", iterations=100000)
    wait_until(lambda: lines_in(shop.path(run) / "metrics.jsonl") >= 1, job)
    ranks = ranks_of(job).values()
    for number, seconds in ((signal.SIGSTOP, 5), (signal.SIGCONT, 1)):
        for pid in ranks:
            os.kill(pid, number)
        time.sleep(seconds)
    (shop.path(run) / "stop").touch()
    result = job.wait()
    if result.code != STOPPED:
        raise Failure(f"a pause: exit code {result.code}\n{result.text[-2000:]}")


def patience(shop, seconds):
    """What is slow for a reason of its own, one after another until the time is over. Nobody may be blamed."""
    began = time.monotonic()
    runs = 0
    kinds = [every_call_slow, pause, *(one_call_slow(number) for number in range(2 * len(SLOW_FILES)))]
    while time.monotonic() - began < seconds:
        run = f"slow-{runs}"
        kinds[runs % len(kinds)](shop, run)
        shop.remove(run)
        runs += 1
    return runs


def judge(shop, seconds):
    """One answer of a plugin takes so long."""
    run = "judged"
    result = shop.begin(run, *PATIENT, deck="sleepy.toml", iterations=1, env={"ITERATION_SECONDS": str(seconds)}).wait(seconds + LONGEST)
    if result.code != DONE or result.seconds < seconds:
        raise Failure(f"an answer after {seconds} s: exit code {result.code}\n{result.text[-2000:]}")
    shop.remove(run)
    return seconds

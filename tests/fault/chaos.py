"""What the rows of the scoreboard share: a workshop with a model, decks and undisturbed runs; runs that are hurt; what must hold afterwards."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from trireme_run import BINARY_DIR, ProgramTest, adversity, lines_in, ranks_of, read_lines, timeless  # noqa: E402,F401

DONE, BAD_DATA, INTERNAL, LOCKED, IO_ERROR, STOPPED, KILLED = 0, 65, 70, 73, 74, 75, 137
LONGEST = 300  # seconds; a run that takes longer counts as one that hangs

# A judge that takes so long for an iteration; in the deck sleepy.toml.
SLEEPER = """
import json, os, sys, time
seen = set()
for line in sys.stdin:
    request = json.loads(line)
    if request["iteration"] not in seen:
        seen.add(request["iteration"])
        time.sleep(float(os.environ.get("ITERATION_SECONDS", "0")))
    print(json.dumps({"id": request["id"], "reward": 0.0}), flush=True)
"""
SLEEPING_SOURCE = f"""
[[reward.source]]
kind = "plugin"
name = "sleeper"
weight = 0.0
timeout = 3600
command = ["{sys.executable}", "sleeper.py"]
"""


class Failure(Exception):
    """A promise that was not kept."""


class Skipped(Exception):
    """What this machine cannot do. Not a case."""


class Lateness:
    """Something came too late. The scoreboard fails; a test, which may run on a busy machine, only says so."""

    judged = True

    @classmethod
    def found(cls, what):
        if cls.judged:
            raise Failure(what)
        print(f"    {what}", flush=True)


def began_behind(result):
    """Behind which finished iteration a start went on, by its own words and by the first iteration that it reports; None: it came to neither."""
    said = re.search(r"resumed after iteration (\d+)", result.text)
    reported = re.search(r"^.*\biteration (\d+)/\d+  (?=reward|loss|kl)", result.text, re.MULTILINE)
    places = [int(said[1])] if said else []
    if reported:
        places.append(int(reported[1]) - 1)
    if len(places) == 2 and places[0] != places[1]:
        raise Failure(f"it says that it goes on behind iteration {places[0]} and reports {places[1] + 1} first\n{result.text[-3000:]}")
    return places[0] if places else None


def must_go_on_behind(result, least, most=None):
    """Nothing beyond the last interval is lost."""
    place = began_behind(result)
    if place is None and result.code == DONE and "the run is done" not in result.text and least > 0:
        raise Failure(f"it does not say where it goes on, which was to be behind iteration {least}\n{result.text[-3000:]}")
    if place is not None and not least <= place <= (place if most is None else most):
        raise Failure(f"it goes on behind iteration {place}, not {least}{'' if most is None else f' to {most}'}\n{result.text[-3000:]}")


class Workshop(ProgramTest):
    """A folder with the tiny model and decks; runs in it by name. Safe for several threads."""

    def __init__(self):
        super().__init__("keep")
        self.mutex = threading.Lock()
        self.reference = {}
        self.one_at_a_time = {}
        self.at_the_end = []  # what to do then
        self.stood = []  # launchers that did not end behind their ranks; append() is safe for several threads

    def keep(self):
        """unittest wants a method to be made for."""

    @classmethod
    def open(cls):
        cls.setUpClass()
        (cls.folder / "sleeper.py").write_text(SLEEPER)
        cls.deck_with("sleepy.toml", "\n[actor]", SLEEPING_SOURCE + "[actor]")
        cls.deck_with("steps.toml", "batch_size = 4\nrecompute", "batch_size = 2\nmax_epochs = 2\nrecompute")
        return cls()

    def close(self):
        for action in self.at_the_end:
            action()
        self.tearDownClass()

    def path(self, run):
        return self.folder / run

    def begin(self, run, *overrides, ranks=2, deck="ppo.toml", iterations=4, **options):
        return self.start("ppo", deck, f"run.dir={run}", f"run.iterations={iterations}", *overrides, ranks=ranks, **options)

    def go(self, run, *overrides, codes=(DONE,), **options):
        """A run to its end, which must be one of these."""
        result = self.begin(run, *overrides, **options).wait(LONGEST)
        if result.code not in codes:
            raise Failure(f"{run}: exit code {result.code}, not {codes}\n{result.text[-3000:]}")
        return result

    def finish(self, run, *overrides, **options):
        """The same command again, until the ranks of the one before are gone (LOCKED)."""
        deadline = time.monotonic() + 30
        while True:
            result = self.begin(run, *overrides, **options).wait(LONGEST)
            if result.code != LOCKED or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        if result.code != DONE:
            raise Failure(f"{run}: the start after it ends with {result.code}\n{result.text[-3000:]}")
        return result

    def first_iteration(self, run, *overrides, iterations=4, **options):
        """A run that is stopped behind its first iteration, with a checkpoint. Its schedule is that of `iterations`."""
        return self.go(run, *overrides, "run.stop_within=iteration", 'fault.at=["signal:0:reward:1:10"]', iterations=iterations, codes=(STOPPED,), **options)

    def begun(self, run, iterations=4):
        """A copy of such a run, which is made once."""
        first = f"begun-{iterations}"
        with self.mutex:
            lock = self.one_at_a_time.setdefault(first, threading.Lock())
        with lock:
            if not self.path(first).exists():
                self.first_iteration(first, iterations=iterations)
        shutil.copytree(self.path(first), self.path(run), symlinks=True)

    def undisturbed(self, *overrides, ranks=2, deck="ppo.toml", iterations=4):
        """Metrics and samples of a run that is left in peace; made once."""
        key = (ranks, deck, iterations, *overrides)
        with self.mutex:
            lock = self.one_at_a_time.setdefault(key, threading.Lock())
        with lock:
            if key not in self.reference:
                run = f"undisturbed-{len(self.reference)}-{random.randrange(1 << 40)}"
                self.go(run, *overrides, ranks=ranks, deck=deck, iterations=iterations)
                self.reference[key] = (timeless(self.metrics(run)), self.samples(run))
        return self.reference[key]

    def must_equal_undisturbed(self, run, *overrides, leaving_out=(), **options):
        metrics, samples = self.undisturbed(*overrides, **options)
        if [{key: value for key, value in line.items() if key not in leaving_out} for line in timeless(self.metrics(run))] != metrics:
            raise Failure(f"{run}: its metrics are not those of an undisturbed run")
        if self.samples(run) != samples:
            raise Failure(f"{run}: its samples are not those of an undisturbed run")

    def end_of_killed(self, job):
        """Ranks that stay are a failure; a launcher that stays without them is killed, as the batch scripts do, and counted."""
        deadline = time.monotonic() + 60
        while job.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if job.process.poll() is None and not ranks_of(job):
            self.stood.append(job.process.args)
            job.process.kill()
        return job.wait(1)

    def remove(self, run):
        shutil.rmtree(self.path(run), ignore_errors=True)

    # ---- processes ----

    def hit(self, job, kind, dice):
        """SIGKILL of one rank, of all ranks, or of the launcher."""
        ranks = ranks_of(job)
        if kind == "launcher" or not ranks:
            victims = [job.process.pid]
        elif kind == "all":
            victims = list(ranks.values())
        else:
            victims = [dice.choice(sorted(ranks.values()))]
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def end_of(job, metrics):
    """Of a run that may be slow, not one that hangs: LONGEST seconds without another iteration."""
    lines, since = lines_in(metrics), time.monotonic()
    while job.process.poll() is None and time.monotonic() < since + LONGEST:
        time.sleep(0.05)
        if lines_in(metrics) != lines:
            lines, since = lines_in(metrics), time.monotonic()
    return job.wait(1)


def wait_until(condition, job, seconds=LONGEST):
    """False: the job ended, or the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if job.process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


# ---- power loss (tests/support/power_loss.c) ----

def after_power_loss(tree, log):
    """The tree that a machine comes back with: names by synced folders, bytes by synced files. A name whose file was never synced is an empty file;
    the folder itself and what is above it were there before."""
    tree = pathlib.Path(tree)
    log = pathlib.Path(log)
    rebuilt = pathlib.Path(tempfile.mkdtemp(prefix="power-", dir=tree.parent))

    def fill(target, key):
        names = log / key
        if not names.exists():
            return
        for line in names.read_text().splitlines():
            inode, kind, rest = line.split(" ", 2)
            name, _, link = rest.partition("\t")
            if kind == "d":
                (target / name).mkdir()
                fill(target / name, inode)
            elif kind == "l":
                (target / name).symlink_to(link)
            elif (log / inode).exists():
                shutil.copyfile(log / inode, target / name)
            else:
                (target / name).touch()

    fill(rebuilt, key_of(tree))
    shutil.rmtree(tree)
    rebuilt.rename(tree)


def key_of(path):
    """As power_loss.c names an inode. Python has no time of birth: stat has."""
    import subprocess
    inode, birth = subprocess.run(["stat", "-c", "%i %.9W", str(path)], check=True, capture_output=True, text=True).stdout.split()
    seconds, _, nanoseconds = birth.partition(".")
    return f"{int(inode):x}-{int(seconds):x}-{int(nanoseconds or 0):x}"


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    fresh.rename(path)

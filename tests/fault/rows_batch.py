"""Rows about jobs that come back: the shipped batch scripts under a real Slurm (of simulated nodes) and on stand-ins of PBS, disturbed several times each, with
saves and iterations of any length. They go on by themselves until the run is done, and it has the bits of an undisturbed one."""

import os
import pathlib
import random
import signal
import sys
import time

from chaos import Failure, Lateness, Skipped, adversity, lines_in
from rows_slurm import cluster_of, drawn, home_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "pbs"))
from pbs_run import SCRIPT as PBS_SCRIPT, Pbs  # noqa: E402
from slurm_run import FINAL, ONE_BOX, ROOT, SCRIPT, SMALL, TWO_NODES  # noqa: E402

ITERATIONS = 8
DISTURBANCES = 3
PATIENCE = 240  # seconds that a busy machine may take beside what a case waits for


def ranks_in(folder):
    """Process numbers of the ranks that work in a run folder, whoever started them."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/trireme") and f"run.dir={folder}".encode() in words:
            found.append(int(path.name))
    return sorted(found)


def kill_one(folder, dice):
    """False: nobody was there."""
    ranks = ranks_in(folder)
    if not ranks:
        return False
    try:
        os.kill(dice.choice(ranks), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Case:
    """One run: what it suffers is drawn, and what it leaves is looked at."""

    def __init__(self, shop, name, longest, number, seed):
        self.shop, self.run = shop, f"{name}-{seed}-{number}"
        self.dice = random.Random(seed * 1000003 + number)
        self.save, self.iteration = drawn(self.dice, longest), drawn(self.dice, longest)
        self.folder = shop.path(self.run)
        self.metrics = self.folder / "metrics.jsonl"
        self.words = f"{self.run}: iterations of {self.iteration:.1f} s, saves of {self.save:.1f} s"
        shop.remove(self.run)

    def settings(self):
        slow = f"{1000 * self.save:.0f}-{1000 * self.save:.0f}"
        return adversity("slow_disk", SLOW_DISK_MS=slow) | {
            "TRIREME_HOME": str(home_of(self.shop)), "TRIREME_DECK": str(self.shop.folder / "sleepy.toml"), "TRIREME_RUN_DIR": str(self.folder),
            "TRIREME_GPUS_PER_NODE": "0", "TRIREME_RETRY_PAUSE": "1", "ITERATION_SECONDS": f"{self.iteration:.2f}"}

    def fail(self, why):
        logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.shop.folder.glob(f"{self.run}*.o*")) if path.is_file())
        raise Failure(f"{self.words}: {why}\n{logs}")

    def wait(self, condition, what, seconds):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"{what} did not come about in {seconds:.0f} s")
            time.sleep(0.1)

    def longest_start(self):
        """Until something is sure to be saved that was not before."""
        return PATIENCE + 4 * (self.iteration + self.save)

    def check(self):
        self.shop.must_equal_undisturbed(self.run, deck="sleepy.toml", iterations=ITERATIONS)
        self.shop.remove(self.run)
        for path in self.shop.folder.glob(f"{self.run}*.o*"):
            path.unlink()


def slurm_returns(shop, longest, number, seed):
    """Each time something new is in the metrics: the warning to the script, or SIGKILL to a rank, at a random moment. The script requeues its job."""
    cluster = cluster_of(shop)
    if cluster is None:
        raise Skipped("no Slurm is installed here")
    case = Case(shop, "returns", longest, number, seed)
    env = ONE_BOX | case.settings() | {"TRIREME_OVERRIDES": f"run.iterations={ITERATIONS} ckpt.interval=1"}
    job = cluster.sbatch(f"--job-name={case.run}", f"--output={shop.folder}/{case.run}.out", *SMALL, *TWO_NODES, SCRIPT, env=env, cwd=shop.folder)
    ended = lambda: cluster.state(job) in FINAL  # noqa: E731
    restarts = lambda: int(cluster.show(job).get("Restarts", 0))  # noqa: E731
    for times in range(1, DISTURBANCES + 1):
        before = lines_in(case.metrics)
        case.wait(lambda: lines_in(case.metrics) > before or ended(), "another iteration", case.longest_start())
        time.sleep(case.dice.random() * (case.iteration + case.save))
        if ended():
            break
        kind = case.dice.choice(("warning", "kill"))
        case.words += f", {kind} behind iteration {lines_in(case.metrics)}"
        if kind == "warning":
            cluster.command("scancel", "--signal=USR1", "--batch", job, check=False)
        elif not kill_one(case.folder, case.dice):
            break
        case.wait(lambda: ended() or restarts() >= times, "the requeued job", PATIENCE + case.iteration + 2 * case.save)
    case.wait(ended, "the end of the run", PATIENCE + ITERATIONS * (case.iteration + case.save))
    if cluster.state(job) != "COMPLETED":
        case.fail(f"the job ends as {cluster.state(job)}")
    case.check()


class Given:
    """Whom the stand-ins of PBS tell what did not come about."""

    def fail(self, why):
        raise Failure(why)


def pbs_returns(shop, longest, number, seed):
    """A walltime of a few iterations, in which nothing or a SIGKILL of a rank happens: each job leaves in time and submits its successor, until the run is
    done."""
    case = Case(shop, "chained", longest, number, seed)
    pbs = Pbs(shop.folder / f"{case.run}-pbs", Given(), poll=1)
    shop.at_the_end.append(pbs.end)
    walltime = int(20 + 3 * case.iteration + 3 * case.save)
    settings = case.settings() | {"TRIREME_THREADS_PER_RANK": "1", "TRIREME_MPI_OPTIONS": "--oversubscribe",
                                  "TRIREME_OVERRIDES": f"run.iterations={ITERATIONS} ckpt.interval=1"}
    text = ",".join(f"{name}={value.replace(',', chr(92) + ',')}" for name, value in settings.items())
    given = pbs.command("qsub", "-l", f"select=1:ncpus=2:mpiprocs=2,walltime=00:{walltime // 60:02}:{walltime % 60:02}", "-N", case.run, "-v", text,
                        ROOT / PBS_SCRIPT, cwd=shop.folder)
    if given.returncode != 0:
        case.fail(given.stderr)
    for _ in range(DISTURBANCES):
        before = lines_in(case.metrics)
        case.wait(lambda: lines_in(case.metrics) > before or pbs.all_ended(), "another iteration", case.longest_start())
        time.sleep(case.dice.random() * (case.iteration + case.save))
        if pbs.all_ended():
            break
        if case.dice.random() < 0.5 and kill_one(case.folder, case.dice):
            case.words += f", kill behind iteration {lines_in(case.metrics)}"
    case.wait(pbs.all_ended, "the end of the run", PATIENCE + ITERATIONS * (case.iteration + case.save) + 4 * walltime)
    exits = [job["exit"] for job in pbs.jobs()]
    case.words += f", {len(exits)} jobs"
    if exits[-1] != 0:
        case.fail(f"exit codes {exits}")
    if [text for text in pbs.events() if text.startswith(("term", "kill"))]:
        Lateness.found(f"{case.words}: PBS had to end a job: {pbs.events()}")
    case.check()

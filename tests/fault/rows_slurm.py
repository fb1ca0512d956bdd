"""A row about the shipped batch script: warnings of a real Slurm (of simulated nodes) at random moments, with saves and iterations of any length."""

import math
import pathlib
import random
import sys
import time

from chaos import DONE, STOPPED, Failure, Skipped, adversity, lines_in

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "slurm"))
from one_box_slurm import OneBoxSlurm, missing_programs  # noqa: E402
from slurm_run import FINAL, ONE_BOX, SCRIPT, SMALL, TWO_NODES  # noqa: E402
from trireme_run import PROGRAM  # noqa: E402

LONGEST_SAVE = 45  # the first case of a few


def home_of(shop):
    """What the scripts take for TRIREME_HOME."""
    with shop.mutex:
        program = shop.folder / "home" / "build" / "release" / "trireme"
        if not program.exists():
            program.parent.mkdir(parents=True)
            program.symlink_to(PROGRAM)
    return shop.folder / "home"


def cluster_of(shop):
    """One for all cases; None where Slurm is not installed."""
    with shop.mutex:
        if not hasattr(shop, "slurm"):
            shop.slurm = None
            if not missing_programs():
                shop.slurm = OneBoxSlurm(nodes=8)
                shop.slurm.start()
                shop.at_the_end.append(shop.slurm.stop)
        return shop.slurm


def drawn(dice, longest):
    """Log-uniform from 0.1 s."""
    return math.exp(dice.uniform(math.log(0.1), math.log(longest)))


def warning(shop, longest, number, seed):
    """USR1 to the script at a random moment: exit code 75, and everything that was finished is in a whole checkpoint."""
    dice = random.Random(seed * 1000003 + number)
    cluster = cluster_of(shop)
    if cluster is None:
        raise Skipped("no Slurm is installed here")
    save = LONGEST_SAVE if number == 0 and longest < LONGEST_SAVE else drawn(dice, longest)
    iteration = drawn(dice, longest)
    in_a_step = dice.random() < 0.5  # else while the judge is waited for
    run = f"warned-{number}"
    shop.remove(run)
    overrides = "run.iterations=100000 ckpt.interval=3"
    if in_a_step:  # two steps an iteration
        overrides += f' fault.at=["delay:*:actor\\u0020step:*:{500 * iteration:.0f}"]'
    env = ONE_BOX | adversity("slow_disk", SLOW_DISK_MS=f"{1000 * save:.0f}-{1000 * save:.0f}") | {
        "TRIREME_HOME": str(home_of(shop)), "TRIREME_DECK": str(shop.folder / "sleepy.toml"), "TRIREME_RUN_DIR": str(shop.path(run)),
        "TRIREME_GPUS_PER_NODE": "0", "TRIREME_LOCK_WAIT": "0", "TRIREME_MAX_RESTARTS": "0", "TRIREME_OVERRIDES": overrides,
        "ITERATION_SECONDS": "0" if in_a_step else f"{iteration:.2f}"}
    case = f"{'steps' if in_a_step else 'a judge'} of {iteration:.1f} s, saves of {save:.1f} s"
    job = cluster.sbatch(f"--job-name={run}", f"--output={shop.folder}/{run}.out", *SMALL, *TWO_NODES, SCRIPT, env=env, cwd=shop.folder)
    out = shop.folder / f"{run}.out"

    def fail(why):
        raise Failure(f"{case}: {why}\n{out.read_text(errors='replace')[-3000:] if out.exists() else 'no output'}")

    def wait(condition, what, seconds):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                fail(f"{what} did not come about in {seconds:.0f} s")
            time.sleep(0.2)

    metrics = shop.path(run) / "metrics.jsonl"
    ended = lambda: cluster.state(job) in FINAL  # noqa: E731
    wait(lambda: lines_in(metrics) >= 1 or ended(), "the first iteration", 120 + 4 * iteration + save)
    if ended():
        fail("it has ended before the warning")
    time.sleep(dice.random() * (2 * iteration + save))
    cluster.command("scancel", "--signal=USR1", "--batch", job)
    # The step or answer that is under way, a save that is, and the last one; the rest is for starting processes on a busy machine.
    wait(ended, "the end of the job", 60 + iteration + 2 * save)
    if cluster.exit_code(job) != STOPPED:
        fail(f"exit code {cluster.exit_code(job)}")
    saved = sorted(path.parent for path in (shop.path(run) / "ckpt").glob("step-*/manifest.json"))
    finished = lines_in(metrics)
    if not saved or int(saved[-1].name[5:]) < finished:
        fail(f"{finished} iterations are finished, saved: {[path.name for path in saved]}")
    if shop.run_program("inspect", "--verify", saved[-1]).code != DONE:
        fail(f"{saved[-1].name} does not verify")
    shop.remove(run)
    out.unlink()

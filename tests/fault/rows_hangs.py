"""Rows about ranks that do not arrive, and about those that only take their time."""

import re
import time

from chaos import INTERNAL, Failure, adversity

DEADLINE = 4  # run.hang_timeout, seconds
LATE = 3
DRILLS = [(kind, place) for kind in ("suspend", "hang") for place in ("rollout:3", "reward:3", "exchange:2", "train:3", "sync:3", "checkpoint:2")]


def drill(shop, kind, place, seed):
    """A rank stops or works for ever in a phase of iteration 2: named, with the phase, soon after the deadline."""
    run = f"hang-{seed}"
    began = time.time()
    result = shop.begin(run, f"run.hang_timeout={DEADLINE}", f"run.io_timeout={DEADLINE}", f'fault.at=["delay:1:{place}:1200", "{kind}:1:{place}"]',
                        "ckpt.background=false", iterations=100).wait(90)
    last = (shop.path(run) / "metrics.jsonl").stat().st_mtime
    phase = place.split(":")[0]
    if result.code != INTERNAL:
        raise Failure(f"{kind} in {phase}: exit code {result.code}\n{result.text[-2000:]}")
    if not re.search(rf"HANG: a rank [^:]*: rank 1 \(\S+\) in iteration \d+ > {phase}", result.text):
        raise Failure(f"{kind} in {phase}: not named\n{result.text[-2000:]}")
    # From the end of the iteration before; the launcher takes its time to end the others.
    late = began + result.seconds - last - 1.2 - DEADLINE
    if late > LATE + 3:
        raise Failure(f"{kind} in {phase}: {late:.1f} s after the deadline")
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

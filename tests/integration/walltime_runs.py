#!/usr/bin/env python3
"""Runs with random walltimes, random iterations and a disk whose saves take a random time each: counts those that overrun.

    walltime_runs.py [--runs 50] [--parallel 2] [--seed 1] [--walltime 20-35] [--slack 0] [--ranks 2]

A run overruns when its launcher ends later than the walltime after it was started. It must end with exit code 75 and a whole
checkpoint of its last iteration. Exit code 1 when a run overran (by more than --slack seconds) or ended otherwise.
"""

import argparse
import concurrent.futures
import random
import shutil
import statistics
import sys
import time

from trireme_run import BINARY_DIR, Job, ProgramTest

SLOW_REWARD = """
import json, random, sys, time
low, high = float(sys.argv[1]), float(sys.argv[2])
last = None
for line in sys.stdin:
    request = json.loads(line)
    if request["iteration"] != last:
        last = request["iteration"]
        time.sleep(random.uniform(low, high))
    print(json.dumps({"id": request["id"], "reward": 0.0}), flush=True)
"""

SOURCE = """
[[reward.source]]
kind = "plugin"
name = "slow"
weight = 0.0
command = ["{python}", "slow.py", "{low}", "{high}"]
"""


class Runs(ProgramTest):
    """The folder with model and decks."""


def plan(draw, number, walltime):
    iteration = draw.uniform(0.05, 0.8)
    save = draw.uniform(0.1, 1.5)
    return {"name": f"run-{number}", "walltime": draw.uniform(*walltime), "interval": draw.choice([0, 1, 2, 5]),
            "background": draw.choice(["true", "false"]), "iteration": (iteration, 1.25 * iteration),
            "save": (int(1000 * save), int(1400 * save))}


def one(folder, settings, ranks):
    name = settings["name"]
    low, high = settings["iteration"]
    deck = (folder / "ppo.toml").read_text().replace("iterations = 3", "iterations = 100000").replace(
        "\n[actor]", SOURCE.format(python=sys.executable, low=low, high=high) + "[actor]")
    (folder / f"{name}.toml").write_text(deck)
    env = {"LD_PRELOAD": str(BINARY_DIR / "tests" / "libslow_disk.so"), "SLOW_DISK_MS": "{}-{}".format(*settings["save"])}
    began = time.monotonic()
    job = Job(["ppo", f"{name}.toml", f"run.dir={name}", f"run.walltime={settings['walltime']:.3f}", f"ckpt.interval={settings['interval']}",
               f"ckpt.background={settings['background']}", "rollout.save_samples=0"], folder, ranks, env)
    try:
        result = job.wait(settings["walltime"] + 60)
        code, text = result.code, result.text
    except AssertionError as late:
        code, text = -1, str(late)
    seconds = time.monotonic() - began
    metrics = folder / name / "metrics.jsonl"
    iterations = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    # Stopped inside an iteration, its checkpoint bears the number of that one.
    whole = any((folder / name / "ckpt" / f"step-{n:06d}" / "manifest.json").is_file() for n in (iterations, iterations + 1))
    shutil.rmtree(folder / name, ignore_errors=True)
    return {**settings, "code": code, "seconds": seconds, "iterations": iterations, "whole": whole, "left": settings["walltime"] - seconds,
            "text": text}


def report(run):
    print(f"{run['name']:>8}  walltime {run['walltime']:5.1f} s  interval {run['interval']}  background {run['background']:5}  "
          f"iteration {run['iteration'][0]:.2f}-{run['iteration'][1]:.2f} s  save {run['save'][0]}-{run['save'][1]} ms  "
          f"{run['iterations']:3} iterations  code {run['code']}  {run['left']:+5.1f} s left", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--walltime", default="20-35", help="bounds in seconds")
    parser.add_argument("--slack", type=float, default=0, help="seconds of overrun that are forgiven (a busy machine)")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    walltime = tuple(float(bound) for bound in arguments.walltime.split("-"))
    Runs.setUpClass()
    (Runs.folder / "slow.py").write_text(SLOW_REWARD)
    runs = []
    try:
        with concurrent.futures.ThreadPoolExecutor(arguments.parallel) as pool:
            plans = [plan(draw, number, walltime) for number in range(arguments.runs)]
            for future in concurrent.futures.as_completed([pool.submit(one, Runs.folder, p, arguments.ranks) for p in plans]):
                runs.append(future.result())
                report(runs[-1])
    finally:
        Runs.tearDownClass()
    bad = [run for run in runs if run["left"] < -arguments.slack or run["code"] != 75 or not run["whole"]]
    for run in bad:
        print(f"{run['name']}: code {run['code']}, whole checkpoint {run['whole']}, {run['left']:+.1f} s left\n{run['text']}")
    overruns = sum(run["left"] < 0 for run in runs)
    left = [run["left"] for run in runs]
    print(f"{overruns} of {len(runs)} runs overran; time left at the end: min {min(left):.1f} s, median {statistics.median(left):.1f} s, "
          f"max {max(left):.1f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

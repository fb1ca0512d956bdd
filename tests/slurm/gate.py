#!/usr/bin/env python3
"""A reward plugin of weight zero that holds a job inside a given iteration, so that tests need not guess times: iteration N gets no
answer as long as a file `hold-N` lies in the folder named by $GATES (of an array task: $GATES-TASK). A rank that waits here costs
next to no time of a core. `at-N` says that a rank has come there; `rank-R-restart-S.json` says how rank R was started.

Slurm sends a signal to all processes of a step, so also here. A hold with the text "until USR1" or "until TERM" ends when that comes;
with "freeze at TERM" the rank is then stopped, as if it hung in a file system.
"""

import json
import os
import pathlib
import signal
import sys

FACTS = ("SLURM_LOCALID", "SLURMD_NODENAME", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "UCX_NET_DEVICES")
SIGNALS = {signal.SIGUSR1, signal.SIGTERM}  # blocked, and asked for
passed = set()  # iterations, which have several requests


def hold(gates, iteration):
    if iteration not in passed:
        wait(gates, iteration)
        passed.add(iteration)


def wait(gates, iteration):
    rank = os.getppid()
    came = set()
    while signal.sigtimedwait(SIGNALS, 0):  # what came before the rank was here may have come before it could listen
        pass
    (gates / f"at-{iteration}").touch()
    while True:
        try:
            text = (gates / f"hold-{iteration}").read_text()
        except FileNotFoundError:
            return
        arrived = signal.sigtimedwait(SIGNALS, 0.1)
        if arrived:
            came.add(signal.Signals(arrived.si_signo).name.removeprefix("SIG"))
        if any(text == f"until {name}" for name in came):
            return
        if text == "freeze at TERM" and "TERM" in came:  # not before: Slurm sends CONT and then TERM
            os.kill(rank, signal.SIGSTOP)
        if os.getppid() != rank:  # the rank is gone
            sys.exit(1)


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    gates = pathlib.Path(os.environ["GATES"] + (f"-{task}" if task else ""))
    gates.mkdir(exist_ok=True)
    name = f"rank-{os.environ.get('SLURM_PROCID')}-restart-{os.environ.get('SLURM_RESTART_COUNT', 0)}.json"
    (gates / name).write_text(json.dumps({fact: os.environ.get(fact) for fact in FACTS}))
    for line in sys.stdin:
        request = json.loads(line)
        hold(gates, request["iteration"])
        print(json.dumps({"id": request["id"], "reward": 0.0}), flush=True)


if __name__ == "__main__":
    main()

"""Rows of the group `hosts`: W3, W4, W5, W7. Hosts are network namespaces with cards of 800 Mbit/s, on this machine (perf/weightsync/hosts.sh): what goes over a
card, and how long that takes, is theirs; processors, memory and latency are not.
"""

import json
import pathlib
import re
import tempfile

from . import demo, machine
from .rows import SIZES, Peer, Row

MBIT = 800
TENSORS = 272  # of the 135M shape
LARGEST_SLICE = {1: 1.0, 2: 71_698_752 / 134_515_008}  # by degree, of its parameters: one of two ranks has two of its three groups of heads
SENDS = {"OMPI_MCA_btl_tcp_flags": "send,inplace"}  # without puts, before each of which both sides of a message wait for each other


def transfer(trainers, generators, degree, line, settings=None):
    """Milliseconds of a sync of the 135M shape, one rank a host: of the line of perf_weightsync that begins so. `settings`: of Open MPI."""
    arguments = ["--trainers", trainers, "--tp", degree, "--replicas", generators // degree, "--only-messages", "--repetitions", 2]

    def measure():
        found = re.search(rf"^{re.escape(line)} +min +([\d.]+) ms", machine.run_on_hosts("perf_weightsync", arguments, trainers + generators, MBIT, settings), re.M)
        if not found:
            raise machine.Failed(f"perf_weightsync printed no line '{line}'")
        return float(found.group(1))
    given = "".join(f"{name}={value} " for name, value in (settings or {}).items())
    measure.command = f"{given}perf/weightsync/hosts.sh {trainers + generators} {MBIT} mpirun perf_weightsync {' '.join(map(str, arguments))}"
    return measure


def demo_figure(figure, *overrides):
    """`figure` of a line of metrics.jsonl: the worst of the iterations but the first, of the demo with a trainer and a generator on two hosts, in bf16 with a learning rate of 1e-6."""
    settings = ["ppo", "inputs/tutorial/arithmetic.toml", "run.iterations=4", "model.dtype=bf16", f"model.path={demo.MODEL}", "actor.adam.lr=1e-6", "ckpt.interval=0", "ckpt.save_hf=never",
                *overrides]  # the deck has its two roles apart

    def measure():
        if not demo.MODEL.exists():
            raise machine.Failed("no model: ./bootstrap.sh model")
        with tempfile.TemporaryDirectory() as scratch:
            machine.run_on_hosts("trireme", [*settings, f"run.dir={scratch}/run"], 2, MBIT)
            lines = [json.loads(line) for line in pathlib.Path(scratch, "run", "metrics.jsonl").read_text().splitlines()]
        synced = [line for line in lines[1:] if "weight_sync" in line]  # the last iteration needs no sync
        if not synced:
            raise machine.Failed("no iteration sent weights")
        return max(figure(line) for line in synced)
    measure.command = f"perf/weightsync/hosts.sh 2 {MBIT} mpirun trireme {' '.join(settings)}"
    return measure


def host_rows(quick):
    rows = []
    for trainers, generators, degree, settings in ((2, 2, 1, None), (2, 2, 2, None), (4, 2, 2, None), (2, 4, 1, None), (2, 4, 1, SENDS)):
        bound = 2 * sum(SIZES["135M"]) * max(1 / trainers, LARGEST_SLICE[degree]) / (MBIT * 1e6 / 8)
        what = f"weight sync 135M bf16, {trainers} trainers to {generators // degree} x TP {degree}, a host each"
        rows.append(Row("W3", what + (", btl_tcp_flags=send,inplace" if settings else ""), "ms",
                        transfer(trainers, generators, degree, "ours, messages", settings),
                        [] if quick else [Peer("gather + broadcast, MPI", transfer(trainers, generators, degree, "peer: gather + broadcast per tensor"))],
                        lower=True, limit=lambda limits, bound=bound: 1e3 * bound, limit_target=1 / 1.12))
    what = "demo, lr 1e-6, bf16, two hosts"
    return rows + [
        Row("W4", f"share of the weights' bytes that a sync sends as changes, {what}", "", demo_figure(lambda line: line["weight_sync"]["sent_share"]), lower=True,
            limit=lambda limits: 1 / 20, limit_target=1.0),
        Row("W5", f"share of an iteration that a sync takes, {what}, all weights sent", "",
            demo_figure(lambda line: line["weight_sync"]["seconds"] / line["seconds"]["total"], "weightsync.delta=false"), lower=True),
        Row("W5", f"share of a sync that a rank waits for another, {what}, all weights sent", "",
            demo_figure(lambda line: line["weight_sync"]["stall"] / line["weight_sync"]["seconds"], "weightsync.delta=false"), lower=True),
        Row("W7", f"messages of a sync, {what}, all weights sent", "", demo_figure(lambda line: line["weight_sync"]["messages"], "weightsync.delta=false"),
            [Peer("one a tensor", lambda: float(TENSORS))], lower=True)]

"""The rows that perf/run measures: what ours and the peer run, how the figure is read from their output, and the target.

A side is a function that makes one repetition and returns a figure. Higher is better unless `lower` is set; a ratio above 1 always means
that ours is better.
"""

import dataclasses
import json
import pathlib
import re
import tempfile
from collections.abc import Callable

from . import machine


@dataclasses.dataclass
class Row:
    name: str
    metric: str
    unit: str
    target: float | None                  # ratio to the peer; None: no peer
    ours: Callable[[], float]
    peer: Callable[[], float] | None = None
    peer_name: str = ""
    lower: bool = False
    limit: Callable[[dict], float] | None = None   # from the machine's measured limits
    command: str = ""


def last_json(text):
    for line in reversed(text.strip().splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise machine.Failed("no JSON line in the output")


def ours(program, key, *arguments, ranks=1, threads=1, folder=None):
    def measure():
        return float(last_json(machine.run_ours(program, arguments, ranks, threads, folder=folder))[key])
    measure.command = f"{'mpirun -n %d ' % ranks if ranks > 1 else ''}{program} {' '.join(map(str, arguments))}"
    return measure


def peer(script, key, *arguments, ranks=1, threads=1, folder=None):
    return lambda: float(last_json(machine.run_peer(script, arguments, ranks, threads, folder=folder))[key])


# ---- train -------------------------------------------------------------------------------------------------------------

SIZES = {"135M": (106203456, 28311552), "25M": (12589440, 6291456)}  # parameters of the blocks, of embedding = head


def train_limit(shape, dtype, tokens=512):
    """Tokens/s when every product runs at the library's rate: 8 FLOP per parameter and token with full recompute (6 for the head, which
    is computed once), causal attention at the same rate."""
    def limit(limits):
        body, head = SIZES[shape]
        layers, width = (30, 576) if shape == "135M" else (8, 384)
        kind = "bf16" if dtype == "bf16" else "fp32"
        attention = 8 * layers * width * tokens  # scores and values, forward twice and backward, half by causality
        seconds = (8 * body + attention) / limits[f"gemm_{kind}_gflops"] + 6 * head / limits[f"head_{kind}_gflops"]
        return 1e9 / seconds
    return limit


def train_rows(quick):
    shape, steps = ("25M", 2) if quick else ("135M", 2)
    rows = []
    for name, dtype, target in (("T1", "fp32", 1.2), ("T2", "bf16", 1.4)):
        side = ours("perf_train", "tokens_per_s_best", "--shape", shape, "--dtype", dtype, "--steps", steps, ranks=2)
        rows.append(Row(name, f"train step {shape} {dtype}, 2 ranks x 2 x 512 tokens, recompute", "tokens/s", target, side,
                        peer("train_fsdp.py", "tokens_per_s_best", "--shape", shape, "--dtype", dtype, "--repetitions", steps, ranks=2),
                        "FSDP2 + gloo", limit=train_limit(shape, dtype), command=side.command))
    side = ours("perf_train", "peak_bytes", "--shape", shape, "--dtype", "bf16", "--steps", 1, ranks=2)
    rows.append(Row("T5", f"peak memory per rank, {shape} bf16", "bytes", 1 / 0.75, side,
                    peer("train_fsdp.py", "peak_bytes", "--shape", shape, "--dtype", "bf16", ranks=2), "FSDP2 + gloo", lower=True, command=side.command))
    return rows


# ---- generate ----------------------------------------------------------------------------------------------------------


def decode_figure(dtype, batch, what, threads, new):
    return ours("perf_decode", f"{what}_tokens_per_s_best", "--dtype", dtype, "--batch", batch, "--new", new, "--repetitions", 1,
                "--threads", threads, threads=threads)


def decode_limit(dtype, batch):
    """Every step reads all weights once and multiplies each with `batch` rows."""
    def limit(limits):
        weights = sum(SIZES["135M"])
        read = weights * (2 if dtype == "bf16" else 4) / 1e9 / limits["read_gb_per_s"]
        multiply = 2 * weights * batch / 1e9 / limits[f"gemm_{dtype}_gflops"]
        return batch / max(read, multiply)
    return limit


def generate_rows(quick):
    threads, rows, new = machine.cores(), [], 32 if quick else 128
    for name, batch, target in (("G1", 1, 2.0), ("G2", 8, 2.0), ("G3", 32, 4.0)):
        for dtype in (["bf16"] if quick else ["bf16", "fp32"]):
            side = decode_figure(dtype, batch, "decode", threads, new)
            rows.append(Row(name, f"decode 135M {dtype}, batch {batch}, 128 + {new}", "tokens/s", target, side,
                            peer("generate_hf.py", "decode_tokens_per_s_best", "--dtype", dtype, "--batch", batch, "--new", new, threads=threads),
                            "HF generate", limit=decode_limit(dtype, batch), command=side.command))
    for dtype in (["bf16"] if quick else ["bf16", "fp32"]):
        side = decode_figure(dtype, 8, "prefill", threads, 4)
        rows.append(Row("G4", f"prefill 135M {dtype}, 8 x 128 tokens", "tokens/s", 1.05, side,
                        peer("generate_hf.py", "prefill_tokens_per_s_best", "--dtype", dtype, "--batch", 8, "--new", 2, threads=threads), "HF generate",
                        command=side.command))
    return rows


# ---- weightsync, checkpoint, collectives ---------------------------------------------------------------------------------


def table_figure(program, pattern, *arguments, ranks):
    """A figure from the table that one of our programs prints."""
    def measure():
        found = re.search(pattern, machine.run_ours(program, arguments, ranks), re.M)
        if not found:
            raise machine.Failed(f"{program} printed no line like '{pattern}'")
        return float(found.group(1))
    measure.command = f"mpirun -n {ranks} {program} {' '.join(map(str, arguments))}"
    return measure


def weightsync_rows(quick):
    size, rows = 2 * sum(SIZES["135M"]), []
    arguments = ["--trainers", 2, "--tp", 2, "--replicas", 1, "--repetitions", 1 if quick else 3]
    for kind in ("shared memory", "messages"):
        side = table_figure("perf_weightsync", rf"^ours, {kind} +min +([\d.]+) ms", *arguments, ranks=4)
        same_mpi = table_figure("perf_weightsync", r"^peer: gather \+ broadcast per tensor +min +([\d.]+) ms", *arguments, ranks=4)
        peers = [("gather + broadcast, MPI", 5.0, same_mpi)]
        if kind == "messages":
            peers.append(("gloo, per parameter", 20.0, peer("weightsync_gloo.py", "milliseconds_best", "--repetitions", 1 if quick else 3, ranks=4)))
        rows += [Row("W1", f"weight sync 135M bf16 by {kind}, 2 trainers to TP 2", "ms", target, side, action, name, lower=True,
                     limit=lambda limits: 1e3 * 2 * size / 1e9 / limits["copy_gb_per_s"], command=side.command) for name, target, action in peers]
    return rows


def checkpoint_rows(quick):
    scratch = machine.ROOT / "build" / "perf-checkpoint"
    scratch.mkdir(parents=True, exist_ok=True)
    arguments = ["--dir", scratch, "--repetitions", 1 if quick else 2]
    def best(label):  # columns: min s, median s, best GB/s, median GB/s
        return table_figure("perf_checkpoint", rf"^{label} +[\d.]+ +[\d.]+ +([\d.]+)", *arguments, ranks=2)

    def torch(writer, key):
        return peer("checkpoint_torch.py", key, "--writer", writer, "--folder", scratch, ranks=2 if writer == "dcp" else 1)
    what = "135M, 12 B per parameter, 2 ranks"
    save, load = best("save, fsynced"), best("load, cold, digests checked")
    rows = [Row("K1", f"checkpoint save {what}", "GB/s", 0.9, save, best(r"dd conv=fdatasync"), "dd conv=fdatasync", command=save.command)]
    for writer in (["dcp"] if quick else ["dcp", "safetensors", "torch"]):
        rows.append(Row("K1", f"checkpoint save {what}", "GB/s", 1.3, save, torch(writer, "save_gb_per_s_best"), writer, command=save.command))
    rows.append(Row("K3", f"checkpoint load, cold, {what}", "GB/s", 0.9, load, best("dd of the file, cold"), "dd, cold", command=load.command))
    rows.append(Row("K3", f"checkpoint load, cold, {what}", "GB/s", 1.0, load, torch("dcp", "load_gb_per_s_best"), "dcp", command=load.command))
    stall = table_figure("perf_checkpoint", r"^stall of a background save, 1 s step +([\d.]+)", *arguments, ranks=2)
    rows.append(Row("K2", f"training stall of a background save, {what}", "s", None, stall, lower=True, command=stall.command))
    return rows


def collectives_rows(quick):
    mib, rows = 16 if quick else 64, []
    for ranks in (2, 4):
        for key, target in (("reduce_scatter_ms_best", 4.0), ("all_gather_ms_best", None)):
            side = ours("perf_collectives", key, "--mib", mib, "--repetitions", 5, ranks=ranks)
            rows.append(Row("T4", f"{key.removesuffix('_ms_best')} {mib} MiB fp32, {ranks} ranks", "ms", target, side,
                            peer("collectives_gloo.py", key, "--mib", mib, "--repetitions", 5, ranks=ranks), "gloo", lower=True, command=side.command))
    return rows


# ---- whole iterations ----------------------------------------------------------------------------------------------------


def iteration_figure(shape, dtype):
    """Seconds of the fastest iteration but the first, from metrics.jsonl."""
    folder = "perf/ppo/shape-25m" if shape == "25M" else "inputs/models/smollm2-135m"
    settings = ["ppo", "perf/ppo/iteration.toml", f"model.shape={folder}", f"model.dtype={dtype}"]

    def measure():
        with tempfile.TemporaryDirectory() as scratch:
            prompts = pathlib.Path(scratch) / "prompts.jsonl"
            lines = ({"prompt": f"{i:031d}", "label": ""} for i in range(512))  # with the begin token 32 tokens
            prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
            machine.run_ours("trireme", [*settings, f"run.dir={scratch}/run", f'data.prompt_dataset=["{prompts}"]'], ranks=2, folder=machine.ROOT)
            metrics = pathlib.Path(scratch, "run", "metrics.jsonl").read_text().splitlines()
        return min(json.loads(line)["seconds"]["total"] for line in metrics[1:])
    measure.command = f"mpirun -n 2 trireme {' '.join(settings)}"
    return measure


def ppo_rows(quick):
    rows = []
    for name, shape, targets in (("P1", "25M", (1.5, 2.2)), ("P2", "135M", (1.3, 1.8))):
        if quick and shape == "135M":
            continue
        for dtype, target in zip(("fp32", "bf16"), targets):
            side = iteration_figure(shape, dtype)
            rows.append(Row(name, f"PPO iteration {shape} {dtype}, 32 prompts x 32 + 32 tokens, 2 ranks", "s", target, side,
                            peer("ppo_stock.py", "seconds_best", "--shape", shape, "--dtype", dtype, "--repetitions", 3, ranks=2),
                            "HF generate + DDP", lower=True, command=side.command))
    return rows


GROUPS = {"train": train_rows, "generate": generate_rows, "weightsync": weightsync_rows, "ppo": ppo_rows, "checkpoint": checkpoint_rows,
          "collectives": collectives_rows}

"""The rows that perf/run measures: what ours and the peer run, how the figure is read from their output, and the target.

A side is a function that makes one repetition and returns a figure. Higher is better unless `lower` is set; a ratio above 1 always means
that ours is better.
"""

import dataclasses
import json
import re
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
    """perf_decode prints both dtypes and all batches; one call per repetition and row keeps ours and the peer interleaved."""
    arguments = [threads, "fused", 128, new, 1, batch]

    def measure():
        text = machine.run_ours("perf_decode", arguments)
        found = re.search(rf"^{dtype} b={batch} .*?decode ([\d.]+) tok/s.*?prefill ([\d.]+) tok/s", text, re.M)
        if not found:
            raise machine.Failed("perf_decode printed no such line")
        return float(found.group(1 if what == "decode" else 2))
    measure.command = f"perf_decode {' '.join(map(str, arguments))}"
    return measure


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


def weightsync_rows(quick):
    shape = "25M" if quick else "135M"
    side = ours("perf_weightsync", "milliseconds_best", "--shape", shape, "--repetitions", 3, ranks=4)
    size = 2 * sum(SIZES[shape])
    return [Row("W1", f"weight sync {shape} bf16, 2 trainers to 2 generators", "ms", target, side,
                peer("weightsync_gloo.py", "milliseconds_best", "--shape", shape, "--mode", mode, "--repetitions", 3, ranks=4),
                f"gloo, {mode}", lower=True, limit=lambda limits: 1e3 * 2 * size / 1e9 / limits["copy_gb_per_s"], command=side.command)
            for mode, target in (("per-parameter", 20.0), ("bucketed", 5.0))]


def checkpoint_rows(quick):
    shape = "25M" if quick else "135M"
    folder = machine.ROOT / "build"
    rows = []
    for row, key, target in (("K1", "save_gb_per_s_best", 1.3), ("K3", "load_gb_per_s_best", 1.0)):
        side = ours("perf_checkpoint", key, "--shape", shape, "--folder", folder / "perf-checkpoint", ranks=2)
        for writer, ranks in (("safetensors", 1), ("dcp", 2)):
            rows.append(Row(row, f"checkpoint {key.split('_')[0]} {shape}, 12 B per parameter, 2 ranks", "GB/s", target, side,
                            peer("checkpoint_torch.py", key, "--shape", shape, "--writer", writer, "--folder", folder / "perf-checkpoint", ranks=ranks),
                            writer, limit=(lambda limits: limits["disk_write_gb_per_s"]) if row == "K1" else None, command=side.command))
    return rows


def collectives_rows(quick):
    mib, rows = 16 if quick else 64, []
    for ranks in (2, 4):
        for key, target in (("reduce_scatter_ms_best", 4.0), ("all_gather_ms_best", None)):
            side = ours("perf_collectives", key, "--mib", mib, "--repetitions", 5, ranks=ranks)
            rows.append(Row("T4", f"{key.removesuffix('_ms_best')} {mib} MiB fp32, {ranks} ranks", "ms", target, side,
                            peer("collectives_gloo.py", key, "--mib", mib, "--repetitions", 5, ranks=ranks), "gloo", lower=True, command=side.command))
    return rows


GROUPS = {"train": train_rows, "generate": generate_rows, "weightsync": weightsync_rows, "checkpoint": checkpoint_rows,
          "collectives": collectives_rows}

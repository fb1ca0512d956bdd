"""Rows of the group `gpu`: C1 to C7, on one GPU, beside the peers on the same. `perf/run gpu --rehearse` goes through all of them where there is none: with the fake
GPU of the tests, a shape of a million parameters, no peers and no results.
"""

import dataclasses
import json

from . import machine, rows
from .rows import SIZES, Peer, Row


@dataclasses.dataclass
class Shape:
    """Of a model: parameters that products take, those of the head apart; bytes of keys and values of a position in bf16."""
    body: int
    head: int
    cache: int


SHAPES = {"1M": Shape(2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64), 16384 * 32, 2 * 2 * 16 * 2),
          "135M": Shape(*SIZES["135M"], 30 * 2 * 3 * 64 * 2),
          "1B": Shape(16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192), 128256 * 2048, 16 * 2 * 8 * 64 * 2),
          "8B": Shape(32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336), 128256 * 4096, 32 * 2 * 8 * 128 * 2)}
PLACES = {True: "rehearsal", False: "gpu"}


def ours(program, key, *arguments):
    """With all cores of the host, which draw our initial weights."""
    return rows.ours(program, key, *arguments, threads=machine.cores())


def peer(script, key, *arguments):
    return rows.peer(script, key, *arguments, threads=machine.cores())


class Kernels:
    """Runs of perf_device_kernels: both sides of a row take their figures from the same one."""

    def __init__(self, rehearse):
        self.program = f"perf_device_kernels-{PLACES[rehearse]}"
        self.arguments = ["--sequences", 2, "--context", 40, "--elements", 4096, "--tokens", 64, "--hidden", 64, "--vocabulary", 300, "--product", 64,
                          "--repetitions", 1] if rehearse else []
        self.found = {}

    def figure(self, key, begins=False):
        """`begins`: of a new run."""
        def measure():
            if begins or not self.found:
                self.found = json.loads(machine.run_ours(self.program, self.arguments).strip().splitlines()[-1])
            return float(self.found[key])
        measure.command = " ".join(map(str, [self.program, *self.arguments]))
        return measure


def train_row(rehearse):
    """C1: 16 sequences of 2,048 tokens packed into one micro-batch, all blocks recomputed."""
    name, sequences, tokens = ("1M", 2, 32) if rehearse else ("1B", 16, 2048)
    shape, steps = SHAPES[name], 1 if rehearse else 5
    side = ours(f"perf_train-{PLACES[rehearse]}", "tokens_per_s_best", "--shape", name, "--dtype", "bf16", "--sequences", sequences, "--tokens", tokens, "--steps", steps)
    stock = peer("train_stock.py", "tokens_per_s_best", "--kind", "fsdp", "--shape", name, "--dtype", "bf16", "--sequences", sequences, "--tokens", tokens,
                 "--repetitions", steps, "--device", "cuda", "--compile", 1)

    def limit(limits):
        attention = 8 * 2 * shape.cache // 4 * tokens  # as products with keys and values, forward twice and backward, half by causality; of few KV heads less than it is
        return limits["product_tflops"] * 1e12 / (8 * shape.body + 6 * shape.head + attention)
    return Row("C1", f"train step {name} bf16, {sequences} x {tokens} tokens packed, recompute", "tokens/s", side, [Peer("FSDP2 + torch.compile", stock, 1.1)],
               limit=limit, limit_target=0.5)


def decode_row(name, shape_name, batch, context, ratio, rehearse):
    shape, new = SHAPES[shape_name], 4 if rehearse else 64
    arguments = ["--shape", shape_name, "--dtype", "bf16", "--batch", batch, "--prompt", context, "--new", new, "--repetitions", 1 if rehearse else 3]
    program = f"perf_decode-{PLACES[rehearse]}", "decode_tokens_per_s_best", *arguments
    side, by_kernels = ours(*program), ours(*program, "--graphs", 0)
    peers = [Peer(who, peer(script, "decode_tokens_per_s_best", *arguments, "--device", "cuda"), ratio)
             for who, script in (("HF generate", "generate_hf.py"), ("HF continuous batching", "generate_continuous.py"))]
    peers.append(Peer("ours, kernel by kernel", by_kernels, 1.0))

    def limit(limits):
        read = 2 * (shape.body + shape.head) + batch * (context + new / 2) * shape.cache
        return batch * limits["copy_gb_per_s"] * 1e9 / read  # a copy's bytes, read and written
    return Row(name, f"decode {shape_name} bf16, batch {batch}, context {context}", "tokens/s", side, peers, limit=limit, limit_target=0.75 if name == "C2" else None)


def step_row(rehearse):
    """C3: milliseconds of a step."""
    row = decode_row("C3", "1M" if rehearse else "135M", 32, 32 if rehearse else 128, 10, rehearse)

    def milliseconds(figure):
        return lambda: 32e3 / figure()
    side = milliseconds(row.ours)
    side.command = row.ours.command
    return Row("C3", row.metric.replace("decode", "a step of decode"), "ms", side, [Peer(row.peers[0].name, milliseconds(row.peers[0].run), 10.0),
                                                                                               Peer(row.peers[2].name, milliseconds(row.peers[2].run), 1.0)], lower=True,
               limit=lambda limits: 0.5, limit_target=1.0)


def kernel_rows(rehearse):
    kernels = Kernels(rehearse)
    return [Row("C4", "attention of single rows over pages, bf16", "GB/s", kernels.figure("attention_gb_per_s", begins=True), [Peer("copy", kernels.figure("copy_gb_per_s"), 0.75)]),
            Row("C5", "optimizer's pass: AdamW, cast, changes", "GB/s", kernels.figure("adamw_gb_per_s", begins=True), [Peer("copy", kernels.figure("copy_gb_per_s"), 0.88)]),
            Row("C5", "head: log-probs, forward and backward", "TFLOP/s", kernels.figure("head_tflops", begins=True), [Peer("product", kernels.figure("product_tflops"), 0.7)])]


def iteration_rows(rehearse):
    """C6, C7: 64 prompts of 512 tokens, four answers of 512 to each."""
    name, prompts, samples, length = ("1M", 4, 2, 16) if rehearse else ("1B", 64, 4, 512)
    settings = [f"rollout.batch_size={prompts}", f"rollout.n_samples_per_prompt={samples}", f"rollout.max_new_tokens={length}", f"data.max_len={2 * max(length, 32)}",
                f"train.batch_size={prompts}", f"run.device={'cpu' if rehearse else 'cuda'}", f"run.iterations={2 if rehearse else 4}"]
    lengths = [max(length, 32)] * prompts

    def iteration(**how):
        return rows.iteration_figure(name, "bf16", *settings, prompts=lengths, ranks=1, threads=machine.cores(), **how)
    stock = peer("ppo_stock.py", "seconds_best", "--shape", name, "--dtype", "bf16", "--lengths", ",".join(map(str, lengths)), "--samples", samples, "--new", length,
                 "--mini-batch", prompts, "--micro-batch", 8, "--max-batch", 256, "--repetitions", 2, "--device", "cuda")

    def rate(lines, *_):
        """On a host the weights are read in place, and there is nothing to copy."""
        rates = [line["weight_sync"]["gb_per_second"] for line in lines if "weight_sync" in line]
        if not rates and not rehearse:
            raise machine.Failed("no iteration copied weights")
        return max(rates, default=0)
    sync = iteration(figure=rate)
    return [Row("C6", f"weight sync in a process, {name} bf16: bytes of weights a second", "GB/s", sync, limit=lambda limits: limits["copy_gb_per_s"] / 2, limit_target=1 / 1.2),
            Row("C7", f"PPO iteration {name} bf16, {prompts} x {samples} answers, {length} + {length} tokens", "s", iteration(), [Peer("HF generate + AdamW", stock, 4.0)],
                lower=True)]


def gpu_rows(rehearse):
    if rehearse:
        decode = [decode_row("C2", "1M", batch, 32, 3, True) for batch in (1, 8)]
    else:
        decode = [decode_row("C2", "8B", batch, 1024, 3, False) for batch in (1, 32, 256)]
    return [train_row(rehearse), *decode, step_row(rehearse), *kernel_rows(rehearse), *iteration_rows(rehearse)]


def limits(rehearse):
    """What the device copies (bytes read and written) and multiplies."""
    kernels = Kernels(rehearse)
    return {key: kernels.figure(key)() for key in ("copy_gb_per_s", "product_tflops")}

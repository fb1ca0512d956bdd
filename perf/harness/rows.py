"""The rows that perf/run measures: what ours and the peer run, how the figure is read from their output, and the target.

A side is a function that makes one repetition and returns a figure. Higher is better unless `lower` is set; a ratio above 1 always means
that ours is better.
"""

import dataclasses
import json
import math
import pathlib
import random
import re
import tempfile
import time
from collections.abc import Callable

from . import demo, machine


@dataclasses.dataclass
class Peer:
    name: str
    run: Callable[[], float]
    target: float | None = None           # ratio to reach; None: for comparison only


@dataclasses.dataclass
class Row:
    name: str
    metric: str
    unit: str
    ours: Callable[[], float]
    peers: list[Peer] = dataclasses.field(default_factory=list)   # repetitions of all are interleaved with ours
    lower: bool = False
    limit: Callable[[dict], float] | None = None   # from the machine's measured limits
    limit_target: float | None = None     # share of the limit to reach


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


def train_limit(shape, dtype, tokens=512, recompute=True):
    """Tokens/s when every product runs at the library's rate: 8 FLOP per parameter and token with full recompute (6 without, and for the head,
    which is computed once), causal attention at the same rate."""
    def limit(limits):
        body, head = SIZES[shape]
        layers, width = (30, 576) if shape == "135M" else (8, 384)
        kind = "bf16" if dtype == "bf16" else "fp32"
        passes = 8 if recompute else 6
        attention = passes * layers * width * tokens  # scores and values, forward and backward, half by causality
        seconds = (passes * body + attention) / limits[f"gemm_{kind}_gflops"] + 6 * head / limits[f"head_{kind}_gflops"]
        return 1e9 / seconds
    return limit


def train_peers(shape, dtype, steps, fsdp_target, ddp_target, *arguments):
    """The same step by two processes of one thread each."""
    return [Peer(name, peer("train_stock.py", "tokens_per_s_best", "--kind", kind, "--shape", shape, "--dtype", dtype, "--repetitions", steps, *arguments, ranks=2),
                 target) for kind, name, target in (("fsdp", "FSDP2 + gloo", fsdp_target), ("ddp", "DDP + gloo", ddp_target))]


def rl_lengths(prompts, samples, longest, seed=1):
    """Of an RL-shaped batch: tokens of each prompt (64 to 256) and of each sample's response (log-normal, median 96, cut to 16 to `longest`)."""
    draw = random.Random(seed)
    return ([draw.randint(64, 256) for _ in range(prompts)],
            [min(longest, max(16, round(draw.lognormvariate(math.log(96), 0.9)))) for _ in range(prompts * samples)])


def equal_step_rows(name, shape, dtype, target, steps):
    """T1, T2: everything recomputed. T3: nothing recomputed, where each may choose; the best peer of three counts."""
    common = ["--shape", shape, "--dtype", dtype, "--steps", steps]
    side = ours("perf_train", "tokens_per_s_best", *common, ranks=2)
    rows = [Row(name, f"train step {shape} {dtype}, 2 ranks x 2 x 512 tokens, recompute", "tokens/s", side, train_peers(shape, dtype, steps, target, 1.0),
                limit=train_limit(shape, dtype), limit_target=0.9 if dtype == "fp32" else 0.83)]
    best = 1.1 if dtype == "fp32" else 1.4
    one_process = peer("train_stock.py", "tokens_per_s_best", "--kind", "single", "--shape", shape, "--dtype", dtype, "--repetitions", steps, "--recompute", 0,
                       "--sequences", 4, threads=2)
    side = ours("perf_train", "tokens_per_s_best", *common, "--recompute", 0, ranks=2)
    rows.append(Row("T3", f"train step {shape} {dtype}, 4 x 512 tokens, no recompute", "tokens/s", side,
                    [*train_peers(shape, dtype, steps, best, best, "--recompute", 0), Peer("one process", one_process, best)],
                    limit=train_limit(shape, dtype, recompute=False)))
    return rows


def rl_step_rows(shape, dtype, steps, sequences):
    lengths = ",".join(f"{prompt}+{response}" for prompt, response in zip(*rl_lengths(sequences, 1, 512)))
    side = ours("perf_train", "tokens_per_s_best", "--shape", shape, "--dtype", dtype, "--steps", steps, "--lengths", lengths, "--recompute", 0, "--reduce-once",
                ranks=2)
    peers = train_peers(shape, dtype, steps, 2.5, 2.5, "--lengths", lengths, "--recompute", 0)
    return [Row("T6", f"RL-shaped train step {shape} {dtype}, {sequences} sequences, 2 ranks, no recompute", "tokens/s", side, peers)]


def lora_rows(shape, steps):
    """T11: an adapter of rank 16 on all linear layers, beside the same step of the whole model and
    peft's. Two ranks by DDP: the base is whole on each. Without recompute the adapter leaves two of
    three passes over the base's weights; with it three of four, so 1.33 is the most that a step can
    win there, before the adapter's own products."""
    def sides(key, recompute):
        def side(lora):
            return ours("perf_train", key, "--shape", shape, "--dtype", "bf16", "--steps", steps,
                        "--lora", lora, "--recompute", -recompute, ranks=2)
        stock = peer("train_stock.py", key, "--kind", "ddp", "--shape", shape, "--dtype", "bf16",
                     "--lora", 16, "--recompute", recompute, "--repetitions", steps, ranks=2)
        return side(16), side(0), stock
    rows = []
    for recompute, faster in ((0, 1.3), (1, None)):
        what = (f"{shape} bf16, LoRA of rank 16, 2 ranks x 2 x 512 tokens, "
                f"{'' if recompute else 'no '}recompute")
        for key, name, unit, targets in (
                ("tokens_per_s_best", "train step", "tokens/s", (faster, 1.2)),
                ("peak_bytes", "peak memory per rank", "bytes", (2, None))):
            adapter, whole, stock = sides(key, recompute)
            peers = [Peer("the whole model", whole, targets[0]),
                     Peer("peft, DDP + gloo", stock, targets[1])]
            rows.append(Row("T11", f"{name} {what}", unit, adapter, peers,
                            lower=key == "peak_bytes"))
    return rows


def scaling_rows(shape, steps):
    """T9: what two ranks of one thread do against one, as a share of what the library's products gain from the second core. Nobody's figure but our own."""
    def tokens_per_s(ranks, sequences):
        return ours("perf_train", "tokens_per_s_best", "--shape", shape, "--dtype", "fp32", "--steps", steps, "--sequences", sequences, ranks=ranks)
    rows = []
    for kind, one, two in (("strong", 4, 2), ("weak", 2, 2)):
        rows.append(Row("T9", f"{kind} scaling {shape} fp32, 1 to 2 ranks of one thread", "tokens/s", tokens_per_s(2, two), [Peer("one rank", tokens_per_s(1, one))]))
    return rows


def train_rows(quick):
    shape, steps = ("25M", 2) if quick else ("135M", 2)
    rows = []
    for name, dtype, target in (("T1", "fp32", 1.2), ("T2", "bf16", 1.4)):
        rows += equal_step_rows(name, shape, dtype, target, steps)
        rows += rl_step_rows(shape, dtype, steps, 16 if quick else 64)
    side = ours("perf_train", "peak_bytes", "--shape", shape, "--dtype", "bf16", "--steps", 1, ranks=2)
    fsdp = Peer("FSDP2 + gloo", peer("train_stock.py", "peak_bytes", "--shape", shape, "--dtype", "bf16", ranks=2), 1 / 0.75)
    rows.append(Row("T5", f"peak memory per rank, {shape} bf16", "bytes", side, [fsdp], lower=True))
    return rows + lora_rows(shape, steps) + scaling_rows(shape, steps)


# ---- generate ----------------------------------------------------------------------------------------------------------


def timed(run):
    """Seconds from the start of a process to its end."""
    def measure():
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun
    return measure


def start_rows():
    """G8: a process that loads the model, answers one prompt with one token, and ends; files in the cache."""
    threads, model = machine.cores(), demo.MODEL

    def ours_once():
        with tempfile.TemporaryDirectory() as folder:
            prompt = pathlib.Path(folder, "one.jsonl")
            prompt.write_text('{"prompt": "Once upon a time"}\n')
            arguments = ["generate", "--model", model, "--input", prompt, "--output", f"{folder}/answer.jsonl", "--max-new-tokens", 1, "--temperature", 0]
            machine.run_ours("trireme", arguments, threads=threads, folder=machine.ROOT)
    side = timed(ours_once)
    side.command = "trireme generate --model SmolLM2-135M --max-new-tokens 1"
    peers = [Peer("HF generate", timed(lambda: machine.run_peer("start_hf.py", [model], threads=threads)), 5.0),
             Peer("llama.cpp", timed(lambda: machine.run_peer("start_llama.py", [], threads=threads)))]
    return [Row("G8", "process start to first token and end, 135M bf16", "s", side, peers, lower=True, limit=lambda limits: 0.8, limit_target=1.0)]


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
    for name, batch, target, llama_target in (("G1", 1, 2.0, 1.3), ("G2", 8, 2.0, 1.6), ("G3", 32, 4.0, 2.0)):
        for dtype in (["bf16"] if quick else ["bf16", "fp32"]):
            side = decode_figure(dtype, batch, "decode", threads, new)
            peers = [Peer(who, peer(script, "decode_tokens_per_s_best", "--dtype", dtype, "--batch", batch, "--new", new, threads=threads), goal)
                     for who, script, goal in (("HF generate", "generate_hf.py", target), ("llama.cpp", "generate_llama.py", llama_target))]
            rows.append(Row(name, f"decode 135M {dtype}, batch {batch}, 128 + {new}", "tokens/s", side, peers,
                            limit=decode_limit(dtype, batch)))
    for dtype in (["bf16"] if quick else ["bf16", "fp32"]):
        side = decode_figure(dtype, 8, "prefill", threads, 4)
        peers = [Peer(who, peer(script, "prefill_tokens_per_s_best", "--dtype", dtype, "--batch", 8, "--new", 2, threads=threads), 1.05)
                 for who, script in (("HF generate", "generate_hf.py"), ("llama.cpp", "generate_llama.py"))]
        rows.append(Row("G4", f"prefill 135M {dtype}, 8 x 128 tokens", "tokens/s", side, peers))
    return rows + rollout_rows(quick) + start_rows() + window_rows(quick)


def window_rows(quick):
    """G9: decoding far beyond the window of every layer, beside layers that see everything in a text as long as the window."""
    window, context, threads = (256, 1024, machine.cores()) if quick else (1024, 4096, machine.cores())
    new = 128  # longer than all prompts take: they are computed in several steps, and answers begin in between
    common = ["--dtype", "bf16", "--batch", 8, "--new", new, "--repetitions", 1, "--threads", threads]
    def decode(prompt, *arguments):
        return ours("perf_decode", "decode_tokens_per_s_best", *common, "--prompt", prompt, *arguments, threads=threads)
    return [Row("G9", f"decode 135M bf16, batch 8, {context} tokens, window of {window}", "tokens/s", decode(context - new, "--window", window),
                [Peer(f"all of {window} tokens", decode(window - new), 1.0)])]


def rollout_rows(quick):
    """G5 to G7: 64 prompts x 8 samples (quick: 8 x 8, 25M) that begin with the same 32 tokens. All decode as many samples side by side."""
    together = 64
    shape, prompts, longest = ("25M", 8, 128) if quick else ("135M", 64, 512)
    before, after = rl_lengths(prompts, 8, longest)
    lengths = ["--prompts", ",".join(map(str, before)), "--responses", ",".join(map(str, after)), "--shape", shape]
    threads, rows = machine.cores(), []
    for dtype in (["bf16"] if quick else ["bf16", "fp32"]):
        side = ours("perf_rollout", "useful_tokens_per_s", *lengths, "--dtype", dtype, "--max-batch", together, "--threads", threads, threads=threads)
        peers = [Peer(who, peer(script, "useful_tokens_per_s", *lengths, "--dtype", dtype, width, together, threads=threads), target)
                 for who, script, width, target in (("HF generate", "rollout_hf.py", "--max-batch", 5.0), ("llama.cpp", "rollout_llama.py", "--slots", 2.5))]
        rows.append(Row("G5", f"RL-shaped rollout {shape} {dtype}, {prompts} prompts x 8 to {longest}", "tokens/s", side, peers))
    side = ours("perf_rollout", "prefill_saved", *lengths, "--threads", threads, threads=threads)
    rows.append(Row("G6", "share of the prompts' work that sharing can save and did", "", side, limit=lambda limits: 1.0, limit_target=0.95))
    side = ours("perf_rollout", "page_waste", *lengths, "--threads", threads, threads=threads)
    rows.append(Row("G7", "share of the room in the cache's pages that holds no token", "", side, lower=True, limit=lambda limits: 0.04, limit_target=1.0))
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
        peers = [Peer("gather + broadcast, MPI", same_mpi, 5.0)]
        if kind == "messages":
            gloo = peer("weightsync_gloo.py", "milliseconds_best", "--repetitions", 1 if quick else 3, ranks=4)
            peers.append(Peer("gloo, per parameter", gloo, 20.0))
        rows.append(Row("W1", f"weight sync 135M bf16 by {kind}, 2 trainers to TP 2", "ms", side, peers, lower=True,
                        limit=lambda limits: 1e3 * 2 * size / 1e9 / limits["copy_gb_per_s"], limit_target=1 / 1.3 if kind == "shared memory" else None))  # W2
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
    writers = [Peer(writer, torch(writer, "save_gb_per_s_best"), 1.3) for writer in (["dcp"] if quick else ["dcp", "safetensors", "torch"])]
    stall = table_figure("perf_checkpoint", r"^stall of a background save, 1 s step +([\d.]+)", *arguments, ranks=2)
    shape = "25M" if quick else "135M"
    # Three saves and what they held up, in a run that saves behind every iteration.
    held_up = iteration_figure(shape, "fp32", "ckpt.interval=1", "ckpt.keep=2", scratch=scratch,
                               figure=lambda lines, *_: sum(line["seconds"]["checkpoint_stall"] for line in lines) / sum(line["seconds"]["total"] for line in lines))
    return [
        Row("K1", f"checkpoint save {what}", "GB/s", save, [Peer("dd conv=fdatasync", best(r"dd conv=fdatasync"), 0.9), *writers]),
        Row("K3", f"checkpoint load, cold, {what}", "GB/s", load,
            [Peer("dd, cold", best("dd of the file, cold"), 0.9), Peer("dcp", torch("dcp", "load_gb_per_s_best"), 1.0)]),
        Row("K2", f"training stall of a background save, {what}", "s", stall, lower=True),
        Row("K4", f"share of a PPO iteration that its save holds up, {shape} fp32, 2 ranks", "", held_up, lower=True, limit=lambda limits: 0.02, limit_target=1.0)]


def collectives_rows(quick):
    mib, rows = 16 if quick else 64, []
    for ranks in (2, 4):
        for key, target in (("reduce_scatter_ms_best", 4.0), ("all_gather_ms_best", None)):
            side = ours("perf_collectives", key, "--mib", mib, "--repetitions", 5, ranks=ranks)
            gloo = Peer("gloo", peer("collectives_gloo.py", key, "--mib", mib, "--repetitions", 5, ranks=ranks), target)
            rows.append(Row("T4", f"{key.removesuffix('_ms_best')} {mib} MiB fp32, {ranks} ranks", "ms", side, [gloo], lower=True))
    return rows


def scale_rows(_quick):
    """What a rank pays for the size of its job before it computes: within 1 s and 64 MB."""
    what = "plans, maps, shards and balances of a rank, 4,096 ranks x 16,384 sequences"
    def of_sync(column):
        return table_figure("perf_scale", r"^plan of the weight sync +" + r"[\d.]+ +" * column + r"([\d.]+)", ranks=1)
    sync = "plan of the weight sync at a trainer, 70B, 2,048 trainers to 256 x TP 8"
    return [Row("W6", sync, "ms", of_sync(0), lower=True, limit=lambda limits: 1e3, limit_target=1.0),
            Row("W6", f"{sync}: kept", "kB", of_sync(1), lower=True, limit=lambda limits: 64e3, limit_target=1.0),
            Row("S1", what, "s", ours("perf_scale", "seconds"), lower=True, limit=lambda limits: 1.0, limit_target=1.0),
            Row("S2", what, "MB", ours("perf_scale", "megabytes"), lower=True, limit=lambda limits: 64.0, limit_target=1.0)]


# ---- whole iterations ----------------------------------------------------------------------------------------------------


def fastest_iteration(lines, *_):
    return min(line["seconds"]["total"] for line in lines)


def prompt_lines(lengths):
    """512 prompts of digits, a token each, with the begin token in front; of these lengths in turn, 31 digits alike where they are longer than that."""
    for i in range(512):
        digits = random.Random(i)
        text = f"{i:031d}" if lengths is None else "0" * 31 + "".join(digits.choices("0123456789", k=lengths[i % len(lengths)] - 32))
        yield json.dumps({"prompt": text, "label": ""}) + "\n"


def iteration_figure(shape, dtype, *overrides, figure=fastest_iteration, scratch=None, plugin=(), sections="", prompts=None, ranks=2, threads=1):
    """`figure` of the lines of metrics.jsonl but the first, of summary.json, and of the run's folder. `plugin`: the lines of a reward source in place of the deck's. `sections`:
    more of the deck. `prompts`: tokens of each, 32 if none are given."""
    folder = {"asleep": "perf/ppo/shape-asleep", "1M": "perf/ppo/shape-1m", "25M": "perf/ppo/shape-25m", "1B": "perf/ppo/shape-1b", "135M": "inputs/models/smollm2-135m"}[shape]
    settings = [f"model.shape={folder}", f"model.dtype={dtype}", *overrides]
    deck = (machine.ROOT / "perf/ppo/iteration.toml").read_text()
    if plugin:
        deck = re.sub(r"(\[\[reward\.source\]\]\n)(.+\n)+", lambda found: found[1] + "".join(f"{line}\n" for line in plugin), deck)

    def measure():
        with tempfile.TemporaryDirectory(dir=scratch) as run_folder:
            prompt_file = pathlib.Path(run_folder) / "prompts.jsonl"
            prompt_file.write_text("".join(prompt_lines(prompts)))
            written = pathlib.Path(run_folder, "deck.toml")
            written.write_text(deck + sections)
            machine.run_ours("trireme", ["ppo", written, *settings, f"run.dir={run_folder}/run", f'data.prompt_dataset=["{prompt_file}"]'], ranks=ranks, threads=threads, folder=machine.ROOT)
            run = pathlib.Path(run_folder, "run")
            metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            return figure(metrics[1:], json.loads((run / "summary.json").read_text()), run)
    measure.command = f"mpirun -n {ranks} trireme ppo perf/ppo/iteration.toml {' '.join(map(str, settings))}"
    return measure


def guards_rows(quick):
    """What the guards of a run cost: by their own clocks, and a run with them beside one without. The second one is as fine as the machine is quiet."""
    shape, dtype = "25M" if quick else "135M", "fp32"
    # Two shard groups of one rank each hold everything alike: compared behind every iteration.
    guarded, bare = ("train.shard_group=1", "train.replica_check=1"), ("train.shard_group=1", "run.mismatch_check=0", "run.hang_timeout=0", "run.io_timeout=0")
    share = iteration_figure(shape, dtype, *guarded, figure=lambda _, summary, run: summary["guards"]["share"])
    what = f"{shape} {dtype}, 2 ranks"
    return [
        Row("R1", f"share of the ranks' time in guards, PPO {what}", "", share, lower=True, limit=lambda limits: 0.01, limit_target=1.0),
        Row("R2", f"PPO iteration with guards, {what}", "s", iteration_figure(shape, dtype, *guarded), [Peer("without guards", iteration_figure(shape, dtype, *bare), 0.99)],
            lower=True)]


def ppo_rows(quick):
    rows = []
    for name, shape, targets in (("P1", "25M", (1.5, 2.2)), ("P2", "135M", (1.3, 1.8))):
        if quick and shape == "135M":
            continue
        for dtype, target in zip(("fp32", "bf16"), targets):
            side = iteration_figure(shape, dtype)
            stock = peer("ppo_stock.py", "seconds_best", "--shape", shape, "--dtype", dtype, "--repetitions", 3, ranks=2)
            rows.append(Row(name, f"PPO iteration {shape} {dtype}, 32 prompts x 32 + 32 tokens, 2 ranks", "s", side, [Peer("HF generate + DDP", stock, target)],
                            lower=True))
    return rows + rl_iteration_rows(quick)


# Answers of random weights end at one of 182 of 16,384 tokens: lengths with a long tail, 90 tokens on average. One at a time takes a core about as
# long to write as to learn from.
STOPS = range(300, 482)


def long_tail(stops):
    return ("run.threads=1", "rollout.n_samples_per_prompt=8", "rollout.max_new_tokens=256", "data.max_len=320", f"rollout.stop_token_ids={list(stops)}")


def rl_iteration_rows(quick):
    """P4: prompts of 64 to 256 tokens, 8 answers to each, which end at one of STOPS on both sides."""
    count = 8 if quick else 32
    lengths, rows = rl_lengths(count, 0, 0)[0], []
    for dtype in (["bf16"] if quick else ["fp32", "bf16"]):
        side = iteration_figure("25M", dtype, f"rollout.batch_size={count}", "rollout.n_samples_per_prompt=8", "rollout.max_new_tokens=256", "data.max_len=512",
                                f"rollout.stop_token_ids={list(STOPS)}", "train.batch_size=32", "run.iterations=3", prompts=lengths)
        stock = peer("ppo_stock.py", "seconds_best", "--shape", "25M", "--dtype", dtype, "--lengths", ",".join(map(str, lengths)), "--samples", 8,
                     "--new", 256, "--stop", f"{STOPS[0]}-{STOPS[-1]}", "--mini-batch", 32, "--repetitions", 2, ranks=2)
        rows.append(Row("P4", f"PPO iteration 25M {dtype}, {count} prompts of 64 to 256 tokens x 8 answers to 256, 2 ranks", "s", side,
                        [Peer("HF generate + DDP, padded", stock, 5.0)], lower=True))
    return rows


def demo_rows(quick):
    """The demo's iteration against what its products and reads cost at the machine's own rates, within 2.2 times of that; and `auto` against the
    two types that it chooses from, within 5 % of the faster one. D2: the same with answers ten times as long."""
    rows, iterations = [], 3 if quick else 5
    for name, longer, what in (("D1", False, "iteration of the demo, SmolLM2-135M"), ("D2", True, f"the same with answers of {demo.LONGER} tokens")):
        auto, bf16, fp32 = (demo.Iteration(dtype, iterations, longer) for dtype in ("auto", "bf16", "fp32"))
        rows.append(Row(name, f"{what}, dtype auto", "s", auto, [Peer("ours, bf16", bf16, 0.95), Peer("ours, fp32", fp32, 0.95)], lower=True,
                        limit=auto.limit, limit_target=1 / 2.2))
    return rows


GROUPS = {"train": train_rows, "generate": generate_rows, "weightsync": weightsync_rows, "ppo": ppo_rows, "checkpoint": checkpoint_rows,
          "guards": guards_rows, "collectives": collectives_rows, "scale": scale_rows, "demo": demo_rows}

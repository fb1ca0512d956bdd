#!/usr/bin/env python3
"""Supervised training of a 25 M-parameter model: `trireme sft` at 1 to 4 ranks against plain PyTorch, 20 optimizer steps.

    steps.py PROGRAM

Random weights (`trireme init`), 8 x 384, 6 query and 2 KV heads, vocabulary 16384, untied. PyTorch: transformers' LlamaForCausalLM with
eager attention, padded rows, torch.optim.AdamW, clip_grad_norm_, the cosine schedule (tests/gold/make_steps.py), in float64: its float32
run is 1e-5 away from that, a hundred times as far as ours. Ours: fp32 with packed sequences, gradient accumulation, with and without
recompute, one or two ZeRO groups; and bf16. Exit code 125 where the environment is missing.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from compare import Program, enter_environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "gold"))
TOKENIZER = ROOT / "inputs" / "tutorial" / "tokenizer"
STEPS, ROWS = 20, 8
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 16384, "hidden_size": 384, "num_hidden_layers": 8,
         "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024, "hidden_act": "silu",
         "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
         "initializer_range": 0.05, "torch_dtype": "float32"}
HYPER = {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0, "scheduler": "cosine_with_min_lr",
         "warmup_ratio": 0.1, "min_lr_ratio": 0.1, "steps": STEPS}

# Relative to float64; the golden set's rule for parameters after AdamW: steps of rounding size may go either way.
LOSS, NORM, RATE = 2e-6, 2e-6, 1e-6
PARAMETER, OUTLIER_SHARE = 3e-5, 0.002

FP32 = ["model.dtype=fp32"]
# name, ranks, deck keys
RUNS = [
    ("one rank, packed", 1, FP32),
    ("two ranks, accumulation", 2, FP32 + ["train.micro_batch_tokens=64"]),
    ("three ranks, without recompute", 3, FP32 + ["train.recompute=0"]),
    ("four ranks in two groups, some blocks recomputed", 4, FP32 + ["train.shard_group=2", "train.recompute=3", "train.micro_batch_tokens=100"]),
    ("two ranks, bf16", 2, ["model.dtype=bf16"]),
]


def records():
    words = "the rank sends its shard and waits for a token that no other process has seen before it adds up all sums".split()
    draw = random.Random(5)
    text = lambda low, high: " ".join(draw.choice(words) for _ in range(draw.randint(low, high)))
    return [{"prompt": text(1, 8), "response": " " + text(2, 12)} for _ in range(STEPS * ROWS)]


def batches(rows, hf):
    """ids, attention and target masks of each step, padded on the right."""
    import torch
    sequences = []
    for row in rows:
        prompt = hf(row["prompt"])["input_ids"]
        answer = hf(row["response"], add_special_tokens=False)["input_ids"] + [hf.eos_token_id]
        sequences.append((prompt + answer, len(prompt)))
    for step in range(STEPS):
        mine = sequences[step * ROWS:(step + 1) * ROWS]
        width = max(len(ids) for ids, _ in mine)
        ids = torch.tensor([s + [0] * (width - len(s)) for s, _ in mine])
        attended = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s, _ in mine])
        targets = torch.tensor([[int(first <= t < len(s)) for t in range(width)] for s, first in mine])
        yield ids, attended, targets


def launcher(ranks):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [] if ranks == 1 else ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]


def optimizer_keys(hyper):
    return [f"actor.adam.lr={hyper['lr']}", f"actor.adam.betas={hyper['betas']}", f"actor.adam.eps={hyper['eps']}",
            f"actor.adam.weight_decay={hyper['weight_decay']}", f"actor.warmup_ratio={hyper['warmup_ratio']}",
            f"actor.min_lr_ratio={hyper['min_lr_ratio']}", f"actor.max_norm={hyper['clip']}"]


def remove(folder):
    subprocess.run(["rm", "-r", folder], check=True)


def ours(program, folder, ranks, keys):
    """The same of `trireme sft`."""
    from safetensors.torch import load_file
    run = folder / "run"
    fixed = [f"run.dir={run}", f"run.iterations={STEPS}", "run.device=cpu", f"model.path={folder / 'model'}",
             f'data.dataset=["{folder / "data.jsonl"}"]', "data.shuffle=false", f"train.batch_size={ROWS}", *optimizer_keys(HYPER),
             "ckpt.interval=0", "ckpt.resume=never", "ckpt.save_hf=end"]
    deck = folder / "deck.toml"
    deck.write_text("")
    program.run("sft", deck, *fixed, *keys, launcher=launcher(ranks))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    parameters = {}
    for file in sorted((run / "hf").glob("*.safetensors")):
        parameters |= load_file(file)
    remove(run)
    return [[line[key] for line in lines] for key in ("loss", "grad_norm", "lr")] + [parameters]


def relative(found, wanted):
    if len(found) != len(wanted):
        return float("inf")
    return max(abs(a - b) / max(abs(b), 1e-30) if a != b else 0.0 for a, b in zip(found, wanted))


def parameters_differ(found, wanted, rates):
    """Problems, the largest distance and the largest share of a tensor beyond PARAMETER."""
    problems, largest, share = [], 0.0, 0.0
    if found.keys() != wanted.keys():
        return [f"the export has other tensors: {sorted(found.keys() ^ wanted.keys())[:4]}"], 0, 0
    for name, tensor in wanted.items():
        distance = (found[name].double() - tensor).abs()
        beyond = (distance > PARAMETER).float().mean().item()
        largest, share = max(largest, distance.max().item()), max(share, beyond)
        if beyond > OUTLIER_SHARE or distance.max().item() > 2.1 * sum(rates):
            problems.append(f"{name}: {100 * beyond:.2f} % beyond {PARAMETER}, largest distance {distance.max().item():.1e}")
    return problems, largest, share


def compare(name, found, wanted, bf16_bound):
    losses, norms, rates, parameters = found
    loss, norm, rate = relative(losses, wanted[0]), relative(norms, wanted[1]), relative(rates, wanted[2])
    if "bf16" in name:
        print(f"{name}: losses within {loss:.1e} (allowed {bf16_bound:.1e})")
        return [f"{name}: losses differ by {loss:.1e}, PyTorch's own bf16 run by {bf16_bound / 3:.1e}"] if loss > bf16_bound else []
    problems, largest, share = parameters_differ(parameters, wanted[3], wanted[2])
    print(f"{name}: losses within {loss:.1e}, gradient norms {norm:.1e}, rates {rate:.1e}; parameters {largest:.1e}, "
          f"{100 * share:.3f} % of a tensor beyond {PARAMETER}")
    for what, value, bound in (("losses", loss, LOSS), ("gradient norms", norm, NORM), ("learning rates", rate, RATE)):
        if value > bound:
            problems.append(f"{what} differ by {value:.1e}, allowed {bound}")
    return [f"{name}: {problem}" for problem in problems]


def main():
    enter_environment(__file__)
    import torch
    from make_steps import train
    from transformers import AutoTokenizer
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        program = Program(sys.argv[1], folder)
        (folder / "config.json").write_text(json.dumps(SHAPE))
        program.run("init", "--shape", folder / "config.json", "--output", folder / "model", "--tokenizer", TOKENIZER, "--dtype", "fp32",
                    "--seed", "1")
        rows = records()
        (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = list(batches(rows, AutoTokenizer.from_pretrained(folder / "model")))
        exact = train(folder / "model", data, torch.float64, hyper=HYPER)
        single = train(folder / "model", data, torch.float32, hyper=HYPER)
        half = train(folder / "model", data, torch.float32, torch.bfloat16, hyper=HYPER)
        bf16_bound = 3 * relative(half[0], exact[0])  # each side's rounding, and room for GEMMs that add in another order
        print(f"PyTorch in float64: losses {exact[0][0]:.4f} to {exact[0][-1]:.4f}, {sum(p.numel() for p in exact[3].values())} parameters; "
              f"its float32: losses within {relative(single[0], exact[0]):.1e}, gradient norms {relative(single[1], exact[1]):.1e}")
        problems = []
        for name, ranks, keys in RUNS:
            problems += compare(name, ours(program, folder, ranks, keys), exact, bf16_bound)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

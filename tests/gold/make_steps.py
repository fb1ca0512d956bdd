#!/usr/bin/env python3
"""Twenty supervised steps of the small golden models in plain PyTorch: what tests/parity/steps_test.cpp compares with.

    ~/.cache/trireme/venv/bin/python tests/gold/make_steps.py        (./bootstrap.sh interop makes the environment)
    ... make_steps.py frozen       only tests/gold/steps_frozen: the same with requires_grad = False on some parameters

Writes tests/gold/steps in the layout of tests/gold/parity (its README describes cases.json): one case per model, with the padded
sequences of every step, the losses, gradient norms and learning rates, and all parameters afterwards. One sequence is one row of a
padded batch; the loss is the mean of -log p over the target tokens of the step. transformers' LlamaForCausalLM with eager attention
in float32 on one thread, torch.optim.AdamW (no decay on norm weights), clip_grad_norm_, transformers' cosine_with_min_lr.

The same run in float64 says how far rounding alone moves the results (`note`), and one that computes with bfloat16 weights
(float32 master weights, moments and log-softmax) gives `bf16_losses`.
"""

import json
import pathlib
import re
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, get_scheduler

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "steps"
MODELS = ["llama_untied", "llama_tied", "llama_rope3"]
# Of a model what is frozen, in the deck's words and as a regular expression.
FROZEN = [("llama_untied", ["model.embed_tokens.*", "model.layers.{0..0}.*"], r"model\.(embed_tokens|layers\.0)\..*"),
          ("llama_tied", ["model.embed_tokens.weight"], r"model\.embed_tokens\.weight"),
          ("llama_untied", ["*norm.weight", "*.q_proj.*", "lm_head.weight"], r".*norm\.weight|.*\.q_proj\..*|lm_head\.weight"),
          ("llama_rope3", ["model.layers.*", "model.norm.weight"], r"model\.(layers|norm)\..*")]
STEPS, ROWS, WIDTH, VOCABULARY = 20, 7, 24, 256
HYPER = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0, "scheduler": "cosine_with_min_lr",
         "warmup_ratio": 0.1, "min_lr_ratio": 0.1, "steps": STEPS}


def batches(seed):
    """Sequences of 2 to WIDTH tokens that follow noisy arithmetic, so that there is something to learn; targets begin anywhere."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda low, high: int(torch.randint(low, high, (1,), generator=generator))
    ids = torch.zeros(STEPS, ROWS, WIDTH, dtype=torch.int64)
    attended, targets = torch.zeros_like(ids), torch.zeros_like(ids)
    for step in range(STEPS):
        for row in range(ROWS):
            length, token, stride = draw(2, WIDTH + 1), draw(3, VOCABULARY), draw(1, 5)
            for t in range(length):
                ids[step, row, t] = token
                token = draw(3, VOCABULARY) if draw(0, 8) == 0 else 3 + (token - 3 + stride) % (VOCABULARY - 3)
            attended[step, row, :length] = 1
            targets[step, row, draw(1, length):length] = 1
    return ids, attended, targets


def decayed(model, weight_decay):
    return [{"params": [p for n, p in model.named_parameters() if "norm" not in n], "weight_decay": weight_decay},
            {"params": [p for n, p in model.named_parameters() if "norm" in n], "weight_decay": 0.0}]


def mean_loss(model, ids, attended, targets):
    positions = (attended.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=attended, position_ids=positions).logits
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_probs = torch.log_softmax(wide[:, :-1], -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return -(log_probs * targets[:, 1:]).sum() / targets[:, 1:].sum()


def train(folder, data, dtype, compute=None, hyper=HYPER, frozen=None):
    """Losses, norms, rates and the trained parameters. `data`: ids, attention and target mask of each step; `compute`: the type that
    passes use, with master weights in `dtype`. `frozen`: regular expression of names."""
    load = lambda kind: AutoModelForCausalLM.from_pretrained(folder, dtype=kind, attn_implementation="eager").train()
    model = load(dtype)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen is None or re.fullmatch(frozen, name) is None)
    passes = load(compute) if compute else model
    optimizer = torch.optim.AdamW(decayed(model, hyper["weight_decay"]), lr=hyper["lr"], betas=hyper["betas"], eps=hyper["eps"])
    schedule = get_scheduler(hyper["scheduler"], optimizer, num_warmup_steps=round(hyper["warmup_ratio"] * hyper["steps"]),
                             num_training_steps=hyper["steps"], scheduler_specific_kwargs={"min_lr_rate": hyper["min_lr_ratio"]})
    losses, norms, rates = [], [], []
    for batch in data:
        loss = mean_loss(passes, *batch)
        loss.backward()
        if compute:
            for master, weight in zip(model.parameters(), passes.parameters()):
                master.grad, weight.grad = weight.grad.to(dtype), None
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), hyper["clip"]).item())
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if compute:
            with torch.no_grad():
                for master, weight in zip(model.parameters(), passes.parameters()):
                    weight.copy_(master)
    return losses, norms, rates, {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def distance(a, b):
    return max((a[name].double() - b[name].double()).abs().max().item() for name in a)


def make_case(name, seed, tensors):
    folder = HERE / "parity" / "models" / name
    data = batches(seed)
    steps = list(zip(*data))
    losses, norms, rates, parameters = train(folder, steps, torch.float32)
    exact_losses, exact_norms, _, exact = train(folder, steps, torch.float64)
    bf16_losses, *_ = train(folder, steps, torch.float32, torch.bfloat16)
    beyond = max(((parameters[n].double() - exact[n]).abs() > 3e-5).float().mean().item() for n in parameters)
    relative = lambda a, b: max(abs(x - y) / abs(y) for x, y in zip(a, b))
    note = (f"float64 recomputation: losses {relative(losses, exact_losses):.1e}, norms {relative(norms, exact_norms):.1e} (relative), "
            f"parameters {distance(parameters, exact):.1e}, {beyond:.1e} of elements above 3e-5")
    prefix = f"sft_steps.{name}"
    inputs = dict(zip(("sequences", "attention_mask", "loss_mask"), data))
    outputs = {"losses": torch.tensor(losses), "grad_norms": torch.tensor(norms), "lrs": torch.tensor(rates), "bf16_losses": torch.tensor(bf16_losses)}
    outputs |= {f"param/{n}": p for n, p in parameters.items()}
    tensors |= {f"{prefix}/in/{k}": v.contiguous() for k, v in inputs.items()} | {f"{prefix}/out/{k}": v.contiguous() for k, v in outputs.items()}
    tight = {"losses": {"rtol": 1e-5, "atol": 0.0}, "grad_norms": {"rtol": 1e-4, "atol": 0.0}, "lrs": {"rtol": 1e-6, "atol": 0.0}}
    # PyTorch's own bf16 run against float32: the largest relative difference of a loss. Two bf16 runs may differ by that on each
    # side; once more for processors whose GEMMs add in another order.
    bf16 = relative(bf16_losses, losses)
    tight["bf16_losses"] = {"rtol": 3 * bf16, "atol": 0.0}
    outlier = {"rtol": 0.0, "atol": 3e-5, "outlier_atol": 2.1 * sum(rates), "outlier_fraction": 0.002}
    print(name, note, f"bf16 {bf16:.1e}", f"losses {losses[0]:.3f} .. {losses[-1]:.3f}")
    return {"name": prefix, "file": "steps.safetensors", "formula": "SFT OPT LR", "function": "transformers.LlamaForCausalLM + torch.optim.AdamW",
            "hyper": {"model": f"../parity/models/{name}", **HYPER}, "inputs": {k: f"{prefix}/in/{k}" for k in inputs},
            "outputs": {k: f"{prefix}/out/{k}" for k in outputs}, "tolerance": {k: tight.get(k, outlier) for k in outputs}, "note": note}


def make_frozen_case(number, tensors):
    name, patterns, frozen = FROZEN[number]
    folder = HERE / "parity" / "models" / name
    data = batches(100 + number)
    steps = list(zip(*data))
    losses, norms, rates, parameters = train(folder, steps, torch.float32, frozen=frozen)
    exact_losses, exact_norms, _, exact = train(folder, steps, torch.float64, frozen=frozen)
    relative = lambda a, b: max(abs(x - y) / abs(y) for x, y in zip(a, b))
    note = (f"float64 recomputation: losses {relative(losses, exact_losses):.1e}, norms {relative(norms, exact_norms):.1e} (relative), "
            f"parameters {distance(parameters, exact):.1e}")
    prefix = f"frozen_steps.{number}.{name}"
    inputs = dict(zip(("sequences", "attention_mask", "loss_mask"), data))
    outputs = {"losses": torch.tensor(losses), "grad_norms": torch.tensor(norms), "lrs": torch.tensor(rates)}
    outputs |= {f"param/{n}": p for n, p in parameters.items()}
    tensors |= {f"{prefix}/in/{k}": v.contiguous() for k, v in inputs.items()} | {f"{prefix}/out/{k}": v.contiguous() for k, v in outputs.items()}
    tight = {"losses": {"rtol": 1e-5, "atol": 0.0}, "grad_norms": {"rtol": 1e-4, "atol": 0.0}, "lrs": {"rtol": 1e-6, "atol": 0.0}}
    outlier = {"rtol": 0.0, "atol": 3e-5, "outlier_atol": 2.1 * sum(rates), "outlier_fraction": 0.002}
    print(prefix, note, f"losses {losses[0]:.3f} .. {losses[-1]:.3f}", len(parameters), "parameters")
    return {"name": prefix, "file": "steps.safetensors", "formula": "SFT OPT LR", "function": "transformers.LlamaForCausalLM + torch.optim.AdamW",
            "hyper": {"model": f"../parity/models/{name}", "freeze": patterns, **HYPER}, "inputs": {k: f"{prefix}/in/{k}" for k in inputs},
            "outputs": {k: f"{prefix}/out/{k}" for k in outputs}, "tolerance": {k: tight.get(k, outlier) for k in outputs}, "note": note}


def write(folder, cases, tensors):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "steps.safetensors")
    rows = ",\n".join(json.dumps(case) for case in cases)
    meta = {"made_by": "tests/gold/make_steps.py", "torch": torch.__version__, "cases": len(cases)}
    (folder / "cases.json").write_text(f'{{"meta": {json.dumps(meta)},\n"cases": [\n{rows}\n]}}\n')


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tensors = {}
    write(HERE / "steps_frozen", [make_frozen_case(number, tensors) for number in range(len(FROZEN))], tensors)
    if sys.argv[1:] == ["frozen"]:
        return
    tensors = {}
    cases = [make_case(name, seed, tensors) for seed, name in enumerate(MODELS)]
    write(OUT, cases, tensors)


if __name__ == "__main__":
    main()

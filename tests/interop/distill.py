#!/usr/bin/env python3
"""`trireme sft` with a teacher against PyTorch in float64: six optimizer steps of a small student, with divergences of every kind.

    distill.py PROGRAM

Student and teacher are random (`trireme init`), of different shapes. The divergences are written here as TRL (generalized_jsd_loss, tail bucket,
renormalised support) and verl (compute_forward_kl_topk) define them. Exit code 125 where the environment is missing.
"""

import json
import pathlib
import sys
import tempfile

from compare import Program, enter_environment
import steps

HYPER = steps.HYPER | {"lr": 1e-3, "steps": 6, "warmup_ratio": 0.0}
SHAPE = steps.SHAPE | {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                       "intermediate_size": 160, "vocab_size": 272, "initializer_range": 0.3}
TEACHER = SHAPE | {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6}
# name, ranks, keys of algo.distill
RUNS = [
    ("forward KL", 1, {}),
    ("reverse KL, warm", 2, {"beta": 1.0, "temperature": 2.0}),
    ("Jensen-Shannon beside the data", 2, {"beta": 0.3, "nll_coef": 0.5, "coef": 2.0}),
    ("the teacher's five and the rest", 1, {"beta": 0.5, "top_k": 5}),
    ("the student's seven, renormalised", 2, {"beta": 1.0, "top_k": 7, "support": "student", "rest": "renormalise"}),
    ("the teacher's five, as verl", 1, {"top_k": 5, "rest": "none", "log_prob_min": -4.0, "loss_max": 2.0}),
]


def divergence(student, teacher, keys):
    """Of logits [T, V], in float64: [T]."""
    import torch
    beta, temperature = keys.get("beta", 0.0), keys.get("temperature", 1.0)
    p, q = (torch.log_softmax(logits / temperature, -1) for logits in (student, teacher))
    if keys.get("top_k"):
        of = p if keys.get("support") == "student" else q
        ids = of.detach().topk(keys["top_k"]).indices
        p, q = p.gather(-1, ids), q.gather(-1, ids)
        rest = keys.get("rest", "tail")
        if rest == "none":
            p, q = (x.clamp(min=keys["log_prob_min"]) for x in (p, q))
            return (q.exp() * (q - p)).sum(-1).clamp(min=0, max=keys["loss_max"])
        if rest == "tail":
            p, q = (torch.cat([x, torch.log1p(-x.exp().sum(-1, keepdim=True))], -1) for x in (p, q))
        else:
            p, q = (x - x.logsumexp(-1, keepdim=True) for x in (p, q))
    kl = lambda a, b: (a.exp() * (a - b)).sum(-1)
    if beta in (0.0, 1.0):
        return kl(p, q) if beta else kl(q, p)
    mean = torch.log((1 - beta) * p.exp() + beta * q.exp())
    return beta * kl(q, mean) + (1 - beta) * kl(p, mean)


def exact(folder, data, keys):
    """Losses and gradient norms in float64."""
    import torch
    from make_steps import decayed
    from transformers import AutoModelForCausalLM, get_scheduler
    load = lambda name: AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float64, attn_implementation="eager")
    student, teacher = load("student").train(), load("teacher").eval()
    optimizer = torch.optim.AdamW(decayed(student, HYPER["weight_decay"]), lr=HYPER["lr"], betas=HYPER["betas"], eps=HYPER["eps"])
    schedule = get_scheduler(HYPER["scheduler"], optimizer, num_warmup_steps=0, num_training_steps=HYPER["steps"],
                             scheduler_specific_kwargs={"min_lr_rate": HYPER["min_lr_ratio"]})
    losses, norms = [], []
    for ids, attended, targets in data[:HYPER["steps"]]:
        positions = (attended.cumsum(-1) - 1).clamp(min=0)
        run = lambda model: model(input_ids=ids, attention_mask=attended, position_ids=positions).logits[:, :-1]
        with torch.no_grad():
            wanted = run(teacher)
        logits, where = run(student), targets[:, 1:].bool()
        loss = keys.get("coef", 1.0) * divergence(logits[where], wanted[where], keys).mean()
        if keys.get("nll_coef"):
            loss = loss - keys["nll_coef"] * torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)[where].mean()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(student.parameters(), HYPER["clip"]).item())
        losses.append(loss.item())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return losses, norms


def ours(program, folder, ranks, keys):
    launcher = steps.launcher(ranks)
    run = folder / "run"
    more = [f"algo.distill.{key}={json.dumps(value)}" for key, value in ({"coef": 1.0} | keys).items()]
    program.run("sft", folder / "deck.toml", f"run.dir={run}", f"run.iterations={HYPER['steps']}", "run.device=cpu", f"model.path={folder / 'student'}",
                f"reference.path={folder / 'teacher'}", f'data.dataset=["{folder / "data.jsonl"}"]', "data.shuffle=false", f"train.batch_size={steps.ROWS}",
                "model.dtype=fp32", "train.micro_batch_tokens=100", *steps.optimizer_keys(HYPER), "ckpt.interval=0", "ckpt.resume=never",
                "ckpt.save_hf=never", *more, launcher=launcher)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps.remove(run)
    return [[line[key] for line in lines] for key in ("loss", "grad_norm")]


def main():
    enter_environment(__file__)
    from transformers import AutoTokenizer
    problems = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        program = Program(sys.argv[1], folder)
        for seed, (name, shape) in enumerate((("student", SHAPE), ("teacher", TEACHER)), 1):
            (folder / "config.json").write_text(json.dumps(shape))
            program.run("init", "--shape", folder / "config.json", "--output", folder / name, "--tokenizer", steps.TOKENIZER, "--dtype", "fp32",
                        "--seed", seed)
        rows = steps.records()
        (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "deck.toml").write_text("")
        data = list(steps.batches(rows, AutoTokenizer.from_pretrained(folder / "student")))
        for name, ranks, keys in RUNS:
            wanted, found = exact(folder, data, keys), ours(program, folder, ranks, keys)
            loss, norm = (steps.relative(a, b) for a, b in zip(found, wanted))
            print(f"{name}: losses {wanted[0][0]:.4f} to {wanted[0][-1]:.4f}, within {loss:.1e}, gradient norms {norm:.1e}")
            if max(loss, norm) > 1e-4:
                problems.append(f"{name}: {found} instead of {wanted}")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

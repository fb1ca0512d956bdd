#!/usr/bin/env python3
"""`trireme sft` and `trireme ppo` with a teacher against PyTorch in float64: optimizer steps of a
small student, with divergences of every kind.

    distill.py PROGRAM

ppo: one step an iteration on the answers that the student wrote (samples.jsonl), whose rewards are
all 0.

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

# of ppo: name, ranks, keys of algo.distill, other keys
ON_POLICY = [
    ("forward KL", 1, {}, {}),
    ("reverse KL, warm, two micro-batches and more", 2,
     {"beta": 1.0, "temperature": 2.0, "coef": 0.5}, {"train.micro_batch_tokens": 60}),
    ("Jensen-Shannon, a mean over answers", 2,
     {"beta": 0.5}, {"actor.loss_agg_mode": "seq-mean-token-mean"}),
    ("the teacher's five and the rest, of answers that ended", 2,
     {"beta": 0.5, "top_k": 5}, {"algo.advantage.mask_truncated": True}),
    ("the student's seven, renormalised, of half of the tokens", 2,
     {"beta": 1.0, "top_k": 7, "support": "student", "rest": "renormalise"},
     {"actor.top_entropy_quantile": 0.5, "train.micro_batch_tokens": 60}),
    ("the teacher's five, as verl", 1,
     {"top_k": 5, "rest": "none", "log_prob_min": -4.0, "loss_max": 2.0}, {}),
]
ITERATIONS = 3


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


class Student:
    """In float64, with its teacher; step() goes by the gradient of a loss."""

    def __init__(self, folder, steps):
        import torch
        from make_steps import decayed
        from transformers import AutoModelForCausalLM, get_scheduler
        load = lambda name: AutoModelForCausalLM.from_pretrained(
            folder / name, dtype=torch.float64, attn_implementation="eager")
        self.student, self.teacher = load("student").train(), load("teacher").eval()
        self.optimizer = torch.optim.AdamW(decayed(self.student, HYPER["weight_decay"]),
                                           lr=HYPER["lr"], betas=HYPER["betas"], eps=HYPER["eps"])
        self.schedule = get_scheduler(
            HYPER["scheduler"], self.optimizer, num_warmup_steps=0, num_training_steps=steps,
            scheduler_specific_kwargs={"min_lr_rate": HYPER["min_lr_ratio"]})

    def logits(self, ids, attended):
        """Of the token after each one: the student's, the teacher's."""
        import torch
        positions = (attended.cumsum(-1) - 1).clamp(min=0)
        run = lambda model: model(input_ids=ids, attention_mask=attended,
                                  position_ids=positions).logits[:, :-1]
        with torch.no_grad():
            wanted = run(self.teacher)
        return run(self.student), wanted

    def step(self, loss):
        import torch
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.student.parameters(), HYPER["clip"]).item()
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return norm


def exact(folder, data, keys):
    """Losses and gradient norms in float64."""
    import torch
    model, losses, norms = Student(folder, HYPER["steps"]), [], []
    for ids, attended, targets in data[:HYPER["steps"]]:
        logits, wanted = model.logits(ids, attended)
        where = targets[:, 1:].bool()
        loss = keys.get("coef", 1.0) * divergence(logits[where], wanted[where], keys).mean()
        if keys.get("nll_coef"):
            log_probs = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
            loss = loss - keys["nll_coef"] * log_probs[where].mean()
        losses.append(loss.item())
        norms.append(model.step(loss))
    return losses, norms


def exact_on_policy(folder, samples, hf, keys, more):
    """Divergences, before coef, and gradient norms in float64, on the answers of each iteration."""
    import torch
    model, losses, norms = Student(folder, ITERATIONS), [], []
    for iteration in range(1, ITERATIONS + 1):
        rows = [(hf(one["prompt"])["input_ids"], one["output_ids"], one["finish_reason"])
                for one in samples if one["iteration"] == iteration]
        width = max(len(prompt) + len(answer) for prompt, answer, _ in rows)
        ids, attended, learned = torch.zeros(3, len(rows), width, dtype=torch.long)
        for row, (prompt, answer, reason) in enumerate(rows):
            end = len(prompt) + len(answer)
            ids[row, :end], attended[row, :end] = torch.tensor(prompt + answer), 1
            dropped = reason == "length" and more.get("algo.advantage.mask_truncated")
            learned[row, len(prompt):end] = int(not dropped)
        logits, wanted = model.logits(ids, attended)
        learned = learned[:, 1:].bool()
        of_tokens = torch.zeros(learned.shape, dtype=torch.float64)
        of_tokens[learned] = divergence(logits[learned], wanted[learned], keys)
        if more.get("actor.top_entropy_quantile"):
            log_probs = torch.log_softmax(logits, -1)
            entropy = -(log_probs.exp() * log_probs).sum(-1).detach()
            least = torch.quantile(entropy[learned], 1 - more["actor.top_entropy_quantile"])
            of_tokens = of_tokens * (entropy >= least)
        counts = learned.sum(-1)
        loss = of_tokens.sum() / counts.sum()
        if more.get("actor.loss_agg_mode") == "seq-mean-token-mean":
            loss = (of_tokens.sum(-1) / counts.clamp(min=1)).sum() / (counts > 0).sum()
        losses.append(loss.item())
        norms.append(model.step(keys.get("coef", 1.0) * loss))
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


def ours_on_policy(program, folder, ranks, keys, more):
    """The same of `trireme ppo`, and its samples."""
    run = folder / "run"
    word = lambda value: value if isinstance(value, str) else json.dumps(value)
    keys = {"coef": 1.0, "policy": "distribution"} | keys
    chosen = [f"algo.distill.{key}={word(value)}" for key, value in keys.items()]
    chosen += [f"{key}={word(value)}" for key, value in more.items()]
    (folder / "ppo.toml").write_text('[[reward.source]]\nkind = "rule"\nrule = "none"\n')
    program.run(
        "ppo", folder / "ppo.toml", f"run.dir={run}", f"run.iterations={ITERATIONS}",
        "run.device=cpu", f"model.path={folder / 'student'}",
        f"reference.path={folder / 'teacher'}",
        f'data.prompt_dataset=["{folder / "data.jsonl"}"]', "model.dtype=fp32", "data.max_len=64",
        "rollout.batch_size=8", "rollout.n_samples_per_prompt=1", "train.batch_size=8",
        "rollout.max_new_tokens=8", 'rollout.stop=["a", "e", "i", "o", "u", "s", "t"]',
        "rollout.save_samples=-1", "algo.advantage.estimator=reinforce",
        "algo.advantage.no_std_norm=true", "algo.kl.init_coef=0", *steps.optimizer_keys(HYPER),
        "ckpt.interval=0", "ckpt.resume=never", "ckpt.save_hf=never", *chosen,
        launcher=steps.launcher(ranks))
    lines, samples = ([json.loads(line) for line in (run / f"{name}.jsonl").open()]
                      for name in ("metrics", "samples"))
    steps.remove(run)
    for line in lines:
        assert line["policy_loss"] == 0 and line["kl"] == line["distill_loss"], line
    return [[line[key] for line in lines] for key in ("distill_loss", "grad_norm")], samples


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
        hf = AutoTokenizer.from_pretrained(folder / "student")
        data = list(steps.batches(rows, hf))
        of_sft = [(name, exact(folder, data, keys), ours(program, folder, ranks, keys))
                  for name, ranks, keys in RUNS]
        of_ppo = []
        for name, ranks, keys, more in ON_POLICY:
            found, samples = ours_on_policy(program, folder, ranks, keys, more)
            # Later norms depend on steps that Adam makes as long where a gradient is rounding.
            wanted = exact_on_policy(folder, samples, hf, keys, more)
            first = [(losses, norms[:1]) for losses, norms in (wanted, found)]
            of_ppo.append((f"ppo, {name}", *first))
        for name, wanted, found in of_sft + of_ppo:
            loss, norm = (steps.relative(a, b) for a, b in zip(found, wanted))
            print(f"{name}: losses {wanted[0][0]:.4f} to {wanted[0][-1]:.4f}, within {loss:.1e}, gradient norms {norm:.1e}")
            if max(loss, norm) > 1e-4:
                problems.append(f"{name}: {found} instead of {wanted}")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

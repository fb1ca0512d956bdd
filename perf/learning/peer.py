"""What the peers' scripts share: the model, the prompts and the reward of the tutorial, and a file of curves."""
import argparse
import json
import os
import pathlib
import re
import sys
import time

# Before torch is loaded: one thread, and nothing asks the network or reports to anyone.
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", WANDB_DISABLED="true", TRL_EXPERIMENTAL_SILENCE="1",
                  TOKENIZERS_PARALLELISM="false")


def arguments(**extra):
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    for name, kind in extra.items():
        parser.add_argument("--" + name, type=kind, required=True)
    return parser.parse_args()


def load_tokenizer(folder):
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = "left"
    return tokenizer


def load_model(folder):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")


def read_lines(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines]


def prompts_of(samples_path, n):
    """Prompt and label of each group of n samples, in the order in which our run drew them."""
    rows = sorted(read_lines(samples_path), key=lambda row: (row["iteration"], row["id"]))
    groups = rows[::n]
    for first, row in enumerate(groups):
        same = rows[first * n:(first + 1) * n]
        assert all(other["prompt"] == row["prompt"] for other in same), "the samples are not whole groups"
    return [{"prompt": row["prompt"], "label": row["label"]} for row in groups]


def exact_reward(response, label):
    """The deck's rule = "exact": the whole answer, without white space around it, is the label."""
    white = " \t\n\v\f\r"
    return float(response.strip(white) == label.strip(white))


def without_special_tokens(text):
    return re.sub(r"<\|\w+\|>", "", text)


class Curves:
    """Columns that grow by one value an iteration."""

    def __init__(self, **facts):
        self.facts = facts
        self.columns = {}
        self.start = time.perf_counter()

    def add(self, **values):
        for name, value in values.items():
            self.columns.setdefault(name, []).append(value)

    def write(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.facts | {"seconds": time.perf_counter() - self.start} | self.columns) + "\n")


def log_callback(on_log):
    """A TrainerCallback that hands each line of the trainer's log to on_log(logs)."""
    from transformers import TrainerCallback

    class Collect(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            on_log(logs or {})
            print(logs, file=sys.stderr)

    return Collect()


def trainer_arguments(task, adam, steps, warmup, output, seed):
    """TrainingArguments that all of TRL's trainers take."""
    return dict(output_dir=str(output.with_suffix("")), seed=seed, max_steps=steps, learning_rate=task["lr"],
                lr_scheduler_type="constant_with_warmup", warmup_steps=warmup, max_grad_norm=task["max_norm"], weight_decay=0.0,
                adam_beta1=adam["beta1"], adam_beta2=adam["beta2"], adam_epsilon=adam["eps"], per_device_train_batch_size=task["batch"],
                gradient_accumulation_steps=1, bf16=False, use_cpu=True, gradient_checkpointing=False, report_to="none",
                save_strategy="no", disable_tqdm=True)

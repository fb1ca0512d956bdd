#!/usr/bin/env python3
"""Fifty steps of SFT, DPO and GRPO by TRL's trainers with adapters of peft: what the cases lora.trl_* of tests/parity compare with.

    python3 -m venv TMP && TMP/bin/pip install trl==1.16.0 peft==0.21.2 transformers==5.15.0 datasets==5.2.0 torch==2.11.0
    TMP/bin/python tests/gold/lora_steps/make.py

Writes cases.json, cases/ and adapters/ in the layout of tests/gold/lora. A case has each step's batch as the trainer gave it to its loss, padding and masks
included, the losses, gradient norms and the adapter afterwards. float32 on one thread, torch.optim.AdamW, constant learning rate, no dropout; AdamW's epsilon is 1e-5,
since with 1e-8 a gradient of rounding size becomes a step of the rate's size. GRPO has the k3 term without TRL's importance weight on it. It writes its
answers with transformers' generate(); the batches have its advantages, and the log-probabilities of the model without its adapter are the reference.
"""

import json
import pathlib
import random
import shutil
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

HERE = pathlib.Path(__file__).resolve().parent
STEPS, ROWS = 50, 8
HYPER = {"lr": 2e-3, "betas": [0.9, 0.999], "eps": 1e-5, "weight_decay": 0.01, "clip": 1.0, "steps": STEPS, "rows": ROWS}
BETA_DPO, BETA_GRPO, CLIP = 0.1, 0.04, 0.2


def tokenizer():
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"t{i}": i for i in range(3, 256)}
    fast = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left")


def words(draw, low, high):
    """Noisy arithmetic, so that there is something to learn."""
    token, stride, out = draw.randrange(3, 256), draw.randint(1, 4), []
    for _ in range(draw.randint(low, high)):
        out.append(f"t{token}")
        token = draw.randrange(3, 256) if draw.random() < 0.1 else 3 + (token - 3 + stride) % 253
    return " ".join(out)


def arguments(config, folder, **more):
    return config(output_dir=folder, max_steps=STEPS, per_device_train_batch_size=ROWS, gradient_accumulation_steps=1, learning_rate=HYPER["lr"],
                  adam_beta1=HYPER["betas"][0], adam_beta2=HYPER["betas"][1], adam_epsilon=HYPER["eps"], weight_decay=HYPER["weight_decay"],
                  max_grad_norm=HYPER["clip"], lr_scheduler_type="constant", warmup_steps=0, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
                  bf16=False, gradient_checkpointing=False, seed=7, dataloader_drop_last=True, disable_tqdm=True, **more)


class Recorded:
    """Mixed into a trainer: keeps what its loss gets and gives."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        batch = {name: value.detach().clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        out = super().compute_loss(model, inputs, *args, **kwargs)
        self.batches.append(batch)
        self.losses.append(float((out[0] if isinstance(out, tuple) else out).detach()))
        return out


def train(kind, name, base, lora):
    set_seed(11)
    draw = random.Random(13)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
    folder = HERE / "adapters" / name
    adapted.save_pretrained(folder)
    config = json.loads((folder / "adapter_config.json").read_text()) | {"base_model_name_or_path": "../../../parity/models/" + base.name}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "README.md").unlink(missing_ok=True)
    adapted.base_model.model.generation_config.max_length = None
    texts = tokenizer()
    with tempfile.TemporaryDirectory() as scratch:
        if kind == "sft":
            rows = [{"prompt": words(draw, 1, 6), "completion": " " + words(draw, 2, 12)} for _ in range(STEPS * ROWS)]
            trainer_class, args = SFTTrainer, arguments(SFTConfig, scratch, completion_only_loss=True, max_length=None)
            more = {}
        elif kind == "dpo":
            rows = [{"prompt": words(draw, 1, 6), "chosen": " " + words(draw, 2, 9), "rejected": " " + words(draw, 2, 9)} for _ in range(STEPS * ROWS)]
            trainer_class, args = DPOTrainer, arguments(DPOConfig, scratch, beta=BETA_DPO, max_length=None)
            more = {}
        else:
            rows = [{"prompt": words(draw, 1, 6)} for _ in range(STEPS * ROWS)]
            even = lambda completion_ids, **_: [sum(t % 2 == 0 for t in ids) / len(ids) for ids in completion_ids]
            trainer_class, more = GRPOTrainer, {"reward_funcs": even}
            args = arguments(GRPOConfig, scratch, beta=BETA_GRPO, num_generations=4, max_completion_length=8, loss_type="dapo", temperature=1.0, epsilon=CLIP,
                             use_bias_correction_kl=False)
        trainer = type("Kept", (Recorded, trainer_class), {"batches": [], "losses": []})(
            model=adapted, args=args, train_dataset=Dataset.from_list(rows), processing_class=texts, **more)
        trainer.train()
        norms = [float(line["grad_norm"]) for line in trainer.state.log_history if "grad_norm" in line]
        trained = pathlib.Path(scratch) / "trained"
        trainer.model.save_pretrained(trained)
        parameters = load_file(trained / "adapter_model.safetensors")
    assert len(trainer.losses) == len(norms) == STEPS, (len(trainer.losses), len(norms))
    return trainer, norms, parameters


def stacked(tensors, side="right"):
    width = max(t.shape[1] for t in tensors)
    pad = (lambda t: (0, width - t.shape[1])) if side == "right" else (lambda t: (width - t.shape[1], 0))
    return torch.stack([torch.nn.functional.pad(t, pad(t)) for t in tensors])


def batches_of(kind, batches):
    if kind == "grpo":
        ids = [torch.cat([b["prompt_ids"], b["completion_ids"]], 1) for b in batches]
        attended = [torch.cat([b["prompt_mask"], b["completion_mask"]], 1) for b in batches]
        actions = [torch.cat([torch.zeros_like(b["prompt_mask"]), b["completion_mask"]], 1) for b in batches]
        return {"sequences": stacked(ids), "attention_mask": stacked(attended), "action_mask": stacked(actions),
                "advantages": torch.stack([b["advantages"] for b in batches])}
    ids, attended = [b["input_ids"] for b in batches], [b["attention_mask"] for b in batches]
    if kind == "sft":
        actions = [(b["labels"] != -100).long() if "labels" in b else b["completion_mask"] for b in batches]
    else:
        actions = [b["completion_mask"] for b in batches]
    return {"sequences": stacked(ids), "attention_mask": stacked(attended), "action_mask": stacked(actions)}


def main():
    torch.set_num_threads(1)
    for old in ("adapters", "cases"):
        shutil.rmtree(HERE / old, ignore_errors=True)
    (HERE / "cases").mkdir()
    all_linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    cases = []
    for kind, base, lora in (("sft", "llama_untied", {"r": 4, "lora_alpha": 8, "target_modules": all_linear}),
                             ("dpo", "llama_tied", {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "use_rslora": True}),
                             ("grpo", "llama_rope3", {"r": 4, "lora_alpha": 4, "target_modules": all_linear})):
        name = f"trl_{kind}"
        trainer, norms, parameters = train(kind, name, (HERE / "../parity/models" / base).resolve(), lora)
        inputs = {key: value.contiguous() for key, value in batches_of(kind, trainer.batches).items()}
        inputs = {key: value.to(torch.float32) if value.is_floating_point() else value.long() for key, value in inputs.items()}
        outputs = {"losses": torch.tensor(trainer.losses), "grad_norms": torch.tensor(norms)} | {f"param/{key}": value for key, value in parameters.items()}
        full = f"lora.{name}.{kind}50"
        tolerance = {key: {"rtol": 1e-5, "atol": 1e-5} for key in outputs}
        save_file({f"in/{k}": v for k, v in inputs.items()} | {f"out/{k}": v.float().contiguous() for k, v in outputs.items()}, HERE / "cases" / f"{name}.safetensors")
        print(name, "losses", trainer.losses[0], trainer.losses[-1], "norms", norms[0], norms[-1], {k: tuple(v.shape) for k, v in inputs.items()})
        hyper = HYPER | {"model": f"models/{base}", "adapter": f"adapters/{name}", "beta": {"dpo": BETA_DPO, "grpo": BETA_GRPO}.get(kind, 0), "eps_clip": CLIP}
        cases.append({"name": full, "file": f"cases/{name}.safetensors", "formula": "F62 F63" if kind != "sft" else "F62",
                      "function": f"TRL {trainer_name(kind)} with peft", "hyper": hyper, "inputs": {k: f"in/{k}" for k in inputs},
                      "outputs": {k: f"out/{k}" for k in outputs}, "tolerance": tolerance})
    meta = {"content": "LoRA by TRL's trainers", "dtype": "float32 / int64", "peft": "0.21.2", "trl": "1.16.0", "torch": torch.__version__, "cases": len(cases)}
    (HERE / "cases.json").write_text('{"meta": ' + json.dumps(meta) + ',\n"cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")
    link = HERE / "models"
    if not link.is_symlink():
        link.symlink_to("../parity/models")


def trainer_name(kind):
    return {"sft": "SFTTrainer", "dpo": "DPOTrainer", "grpo": "GRPOTrainer"}[kind]


if __name__ == "__main__":
    main()

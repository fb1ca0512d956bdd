#!/usr/bin/env python3
"""Adapters in folders of peft's, both ways: peft loads what `trireme sft` and `trireme rm` export, and `trireme score` reads what peft stored; log-probs and
rewards equal to TOLERANCE, the adapter applied, disabled and merged.

    adapters.py PROGRAM

Random weights (`trireme init`) in fp32. Exit code 125 where the environment is missing.
"""

import json
import os
import pathlib
import sys
import tempfile

from compare import Program, enter_environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "inputs" / "tutorial" / "tokenizer"
TOLERANCE = 2e-5
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 16384, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 160, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "initializer_range": 0.1, "torch_dtype": "float32"}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TEXTS = [f"{i} + {j} = {i + j}." for i in range(4) for j in range(3)]
# name, whether embedding and head are one, what LoraConfig says
THEIRS = [
    ("all linear layers", True, {"r": 5, "lora_alpha": 7, "target_modules": "all-linear"}),
    ("rank-stabilised, two layers", False, {"r": 16, "lora_alpha": 3, "use_rslora": True, "target_modules": ["q_proj", "down_proj"], "layers_to_transform": [0, 2]}),
    ("ranks and scales by name", True, {"r": 2, "lora_alpha": 4, "target_modules": LINEAR, "rank_pattern": {"layers.1.mlp.up_proj": 9}, "alpha_pattern": {"k_proj": 11}}),
    ("embedding and head", False, {"r": 4, "lora_alpha": 8, "target_modules": ["v_proj", "embed_tokens", "lm_head"]}),
    ("saved whole", False, {"r": 4, "lora_alpha": 8, "target_modules": ["o_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}),
    ("named in full, all but a pattern", False, {"r": 3, "target_modules": ["q_proj", "v_proj", "lm_head"], "layers_to_transform": [1], "exclude_modules": r".*\.v_proj"}),
    ("a regular expression", True, {"r": 3, "lora_alpha": 6, "target_modules": r".*layers\.[01]\..*(gate|q)_proj", "lora_dropout": 0.2}),
]
OURS = [
    ("all linear layers", True, ["actor.lora.rank=4", "actor.lora.alpha=8", "actor.lora.dropout=0.1"]),
    ("rank-stabilised", False, ["actor.lora.rank=6", "actor.lora.rslora=true", 'actor.lora.targets=["q_proj", "v_proj", "lm_head"]']),
    ("saved whole", False, ["actor.lora.rank=2", 'actor.lora.targets=["up_proj"]', 'actor.lora.modules_to_save=["embed_tokens", "norm"]']),
]


class Comparison:
    def __init__(self, program, folder):
        self.program, self.folder, self.problems = program, folder, []
        for name, tied in (("tied", True), ("untied", False)):
            shape = folder / f"{name}-shape"
            shape.mkdir()
            (shape / "config.json").write_text(json.dumps(SHAPE | {"tie_word_embeddings": tied}))
            program.run("init", "--shape", shape, "--output", folder / name, "--tokenizer", TOKENIZER, "--dtype", "fp32", "--seed", "3")

    def base(self, tied):
        return self.folder / ("tied" if tied else "untied")

    def their_log_probs(self, model, texts, hf):
        import torch
        out = []
        for text in texts:
            ids = torch.tensor([hf(text)["input_ids"]])
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, :-1]
            out += logits.float().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].tolist()
        return out

    def our_log_probs(self, *options):
        answers = self.program.lines("score", [{"text": text} for text in TEXTS], *options)
        return [number for answer in answers for number in answer["log_probs"]]

    def near(self, what, ours, theirs):
        far = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        print(f"{what}: within {far:.1e}")
        if not far <= TOLERANCE:
            self.problems.append(f"{what} differ by {far:.1e}")

    def compare(self, what, base, adapter, ways=("apart",)):
        """Our scores with the folder beside peft's with the same folder. A start of the program takes longer than all it does here: one way for most."""
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer
        import torch
        hf = AutoTokenizer.from_pretrained(base)
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        alone = self.their_log_probs(plain, TEXTS, hf)
        model = PeftModel.from_pretrained(plain, adapter).eval()
        applied = self.their_log_probs(model, TEXTS, hf)
        if max(abs(a - b) for a, b in zip(alone, applied)) < 1e-3:
            self.problems.append(f"{what}: the adapter changes nothing")
        theirs = {"apart": applied}
        if "disabled" in ways:
            with model.disable_adapter():
                theirs["disabled"] = self.their_log_probs(model, TEXTS, hf)
        if "merged" in ways:
            theirs["merged"] = self.their_log_probs(model.merge_and_unload(), TEXTS, hf)
        for way in ways:
            self.near(f"{what}, {way}", self.our_log_probs("--model", base, "--dtype", "fp32", "--adapter", adapter, "--adapter-as", way), theirs[way])

    def theirs(self):
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM
        import torch
        for number, (name, tied, config) in enumerate(THEIRS):
            torch.manual_seed(number)
            model = get_peft_model(AutoModelForCausalLM.from_pretrained(self.base(tied), dtype=torch.float32), LoraConfig(task_type="CAUSAL_LM", **config))
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.data += 0.1 * torch.randn_like(parameter)
            folder = self.folder / f"theirs-{number}"
            model.save_pretrained(folder)
            self.compare(f"peft's: {name}", self.base(tied), folder, ("apart", "disabled", "merged") if "head" in name else ("apart",))

    def train(self, command, run, base, rows, keys):
        (self.folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        deck = self.folder / "deck.toml"
        deck.write_text("")
        self.program.run(command, deck, f"run.dir={run}", "run.iterations=3", "run.device=cpu", "model.dtype=fp32", f"model.path={base}",
                         f'data.dataset=["{self.folder / "data.jsonl"}"]', "train.batch_size=4", "actor.adam.lr=0.02", "actor.lr_scheduler=constant_with_warmup",
                         "actor.warmup_ratio=0", "ckpt.interval=0", "ckpt.resume=never", "ckpt.save_hf=end", *keys)
        return run / "hf"

    def ours(self):
        rows = [{"prompt": text[:-3], "response": text[-3:]} for text in TEXTS]
        for number, (name, tied, keys) in enumerate(OURS):
            folder = self.train("sft", self.folder / f"ours-{number}", self.base(tied), rows, keys)
            self.compare(f"ours: {name}", self.base(tied), folder)

    def reward_model(self):
        """An adapter with a score head, as peft has it for sequence classification."""
        from peft import PeftModel
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        import torch
        base = self.base(True)
        rows = [{"prompt": text[:-3], "chosen": text[-3:], "rejected": "?"} for text in TEXTS]
        folder = self.train("rm", self.folder / "rm", base, rows, ["actor.lora.rank=4"])
        hf = AutoTokenizer.from_pretrained(base)
        plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32).eval()
        plain.config.pad_token_id = hf.pad_token_id or 0
        model = PeftModel.from_pretrained(plain, folder).eval()
        with torch.no_grad():
            theirs = [float(model(input_ids=torch.tensor([hf(text)["input_ids"]])).logits[0, 0]) for text in TEXTS]
        merged = self.folder / "judge"
        self.program.run("convert", folder, merged, "--merge", "--dtype", "fp32")
        answers = self.program.lines("score", [{"input_ids": hf(text)["input_ids"]} for text in TEXTS], "--model", base, "--dtype", "fp32", "--reward-model", merged)
        self.near("ours: rewards", [answer["reward"] for answer in answers], theirs)


def main():
    enter_environment(__file__)
    import torch
    torch.set_num_threads(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as temporary:
        comparison = Comparison(Program(sys.argv[1], temporary), pathlib.Path(temporary))
        comparison.theirs()
        comparison.ours()
        comparison.reward_model()
    print("\n".join(comparison.problems))
    return 1 if comparison.problems else 0


if __name__ == "__main__":
    sys.exit(main())

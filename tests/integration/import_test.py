#!/usr/bin/env python3
"""trireme import: command lines of OpenRLHF, a GRPOConfig of TRL, verl's overrides and YAML become decks that run."""

import tomllib

from trireme_run import RULE_SOURCE, ProgramTest, main

OPENRLHF = r"""#!/bin/bash
# a comment --not_a_flag 3
python3 -m openrlhf.cli.train_ppo_ray \
   --pretrain model --reward_pretrain rm --prompt_data a.jsonl,b.jsonl --input_key question \
   --rollout_batch_size 8 --n_samples_per_prompt 4 --train_batch_size=16 --prompt_max_len 24 --generate_max_len 8 \
   --adam_betas 0.9 0.98 --advantage_estimator group_norm --zero_stage 3 --bf16 --gradient_checkpointing \
   --actor_learning_rate 5e-7 --init_kl_coef 1e-3 --use_kl_loss --kl_estimator k3 --save_path $OUT --lr_warmup_ratio 0.03 \
   --ring_attn_size 2 --unheard_of 3 --flash_attn
"""
TRL = """
from trl import GRPOConfig, GRPOTrainer
config = GRPOConfig(
    output_dir="out",  # where
    learning_rate=1e-5, num_generations=4, max_prompt_length=24, max_completion_length=8,
    generation_batch_size=32, beta=0.04, epsilon_high=0.28, loss_type='dr_grpo', importance_sampling_level="sequence",
    lr_scheduler_type="cosine", per_device_train_batch_size=8, bf16=True, fp16=False, seed=base + 1, run_name=None,
    max_steps=1,
)
trainer = GRPOTrainer(model="m", args=config)
"""
VERL = """
algorithm:
  adv_estimator: grpo
  use_kl_in_reward: false
data:
  train_files: [p.parquet]
  train_batch_size: 8
  max_prompt_length: 24
  max_response_length: 8
actor_rollout_ref:
  model: {path: m, use_remove_padding: true}
  actor:
    optim: {lr: 1e-6}
    ppo_mini_batch_size: 4
    use_kl_loss: true
    kl_loss_coef: 0.002
    kl_loss_type: low_var_kl
    clip_ratio_low: 0.2
    clip_ratio_high: 0.28
  rollout:
    n: 4
    temperature: 1.0
    name: vllm
    max_model_len: ???
trainer:
  total_training_steps: 1
  experiment_name: ${oc.env:NAME}
  logger: [console]
"""


class Import(ProgramTest):
    def imported(self, system, name, text):
        (self.folder / name).write_text(text)
        (self.folder / "out.toml").unlink(missing_ok=True)
        result = self.succeed("import", system, name, "--output", "out.toml")
        deck = (self.folder / "out.toml").read_text()
        return tomllib.loads(deck), deck, result.text

    def run_imported(self, name):
        """With this machine's model, prompts and reward."""
        deck = (self.folder / "out.toml").read_text().split("\n[[reward.source]]")[0] + "\n" + RULE_SOURCE
        (self.folder / f"{name}.toml").write_text(deck)
        self.succeed("ppo", f"{name}.toml", f"run.dir={name}", "run.iterations=1", "model.path=model", "model.dtype=fp32",
                     'data.prompt_dataset=["prompts.jsonl"]', "data.prompt_key=prompt", "rollout.batch_size=4", "train.batch_size=8", "ckpt.interval=0", "ckpt.save_hf=never")
        self.assertEqual([line["iteration"] for line in self.metrics(name)], [1])

    def test_openrlhf(self):
        deck, text, said = self.imported("openrlhf", "train.sh", OPENRLHF)
        self.assertEqual(deck["model"], {"path": "model", "dtype": "bf16"})
        self.assertEqual(deck["data"], {"prompt_dataset": ["a.jsonl", "b.jsonl"], "prompt_key": "question", "max_len": 32})
        self.assertEqual(deck["rollout"], {"batch_size": 8, "n_samples_per_prompt": 4, "max_new_tokens": 8})
        self.assertEqual(deck["actor"], {"adam": {"betas": [0.9, 0.98], "lr": 5e-7}, "warmup_ratio": 0.03})
        self.assertEqual(deck["algo"], {"advantage": {"estimator": "group_norm"}, "kl": {"init_coef": 1e-3, "use_loss": True, "estimator": "k3"}})
        self.assertEqual(deck["train"], {"batch_size": 16, "recompute": -1})
        self.assertEqual(deck["reward"], {"source": [{"kind": "model", "path": "rm"}]})
        self.assertNotIn("run", deck)
        for line in ("save_path: its value is a shell variable: set run.dir", "ring_attn_size: context parallelism", "unheard_of: no setting of this name"):
            self.assertIn(f"#   {line}", text)
            self.assertIn(f"not carried over: {line}", said)
        self.assertIn("not needed: flash_attn: ", said)
        self.assertNotIn("not_a_flag", text)
        self.run_imported("openrlhf")

    def test_trl(self):
        deck, text, _ = self.imported("trl", "grpo.py", TRL)
        self.assertEqual(deck["algo"], {"advantage": {"estimator": "group_norm"}, "kl": {"init_coef": 0.04, "use_loss": True, "estimator": "k3"}})
        self.assertEqual(deck["actor"], {"adam": {"lr": 1e-5, "betas": [0.9, 0.999]}, "eps_clip_low_high": [0.2, 0.28], "lr_scheduler": "cosine_with_min_lr",
                                         "min_lr_ratio": 0, "loss_agg_mode": "seq-mean-token-sum-norm", "policy_loss_type": "gspo", "warmup_ratio": 0})
        self.assertEqual(deck["rollout"], {"batch_size": 8, "n_samples_per_prompt": 4, "max_new_tokens": 8})
        self.assertEqual(deck["run"], {"dir": "out", "iterations": 1})
        self.assertEqual(deck["model"], {"dtype": "bf16"})
        self.assertRegex(text, r"#   per_device_train_batch_size: train.batch_size counts")
        self.assertRegex(text, r"#   seed: its value is an expression: base \+ 1: set run.seed")
        self.assertRegex(text, r"(?m)^warmup_ratio = 0  # TRL's default$")
        self.run_imported("trl")

    def test_verl(self):
        deck, text, _ = self.imported("verl", "config.yaml", VERL)
        self.assertEqual(deck["algo"], {"advantage": {"estimator": "group_norm"}, "kl": {"init_coef": 0.002, "use_loss": True, "estimator": "k3"}})
        self.assertEqual(deck["rollout"], {"batch_size": 8, "n_samples_per_prompt": 4, "max_new_tokens": 8, "temperature": 1.0})
        self.assertEqual(deck["train"]["batch_size"], 16, "4 prompts of 4 answers")
        self.assertEqual(deck["actor"]["eps_clip_low_high"], [0.2, 0.28])
        self.assertEqual(deck["data"]["max_len"], 32)
        self.assertIn("trainer.experiment_name: its value refers to another one", text)
        self.run_imported("verl")
        deck, *_ = self.imported("verl", "run.sh", "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae data.train_batch_size=64 "
                                 "+trainer.nnodes=2 actor_rollout_ref.rollout.n=2 actor_rollout_ref.actor.ppo_mini_batch_size=16 critic.optim.lr=2e-5")
        self.assertEqual(deck["algo"], {"advantage": {"estimator": "gae"}, "kl": {"init_coef": 0}})
        self.assertEqual((deck["rollout"]["batch_size"], deck["train"]["batch_size"], deck["critic"]["adam"]["lr"]), (64, 32, 2e-5))

    def test_what_cannot_be_read(self):
        for system, name, text, words in (("verl", "bad.yaml", "a: [1\nb: 2\n", "bad.yaml:"), ("trl", "none.py", "x = 1\n", "calls no ...Config"),
                                          ("openrlhf", "", "", "without a file")):
            with self.subTest(name=name):
                if name:
                    (self.folder / name).write_text(text)
                result = self.run_program("import", system, *([name] if name else []))
                self.assertIn(result.code, (64, 65))
                self.assertIn(words, result.text)


if __name__ == "__main__":
    main()

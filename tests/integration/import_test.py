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

SCRIPT = r"""
MODEL="a model"; LR=5e-7
BATCH=$((4 * (6 + 2)))
if [ "$1" = big ]; then KL=0.1; else KL=0.2; fi
MORE="--adam_offload --max_norm 0.5"
GROUP=(
   --rollout_batch_size 8   # prompts
   --n_samples_per_prompt ${N:-4}
)
ray job submit --address="http://x" --runtime-env-json='{"working_dir": "/o", "env": "--b"}' -- \
  python3 -m openrlhf.cli.train_ppo_ray --pretrain "$MODEL" --actor_learning_rate $LR --init_kl_coef $KL \
  --train_batch_size $BATCH --generate_max_len 2048 --save_steps -1 --zpg 1 --lora_rank 4 --target_modules q_proj v_proj \
  --remote_rm_url ./reward.py --async_queue_size 3 --adam_betas 0.9 .95 --train.micro_batch_size 2 --actor.num_nodes 1 --vllm.num_engines 4 \
  --load_checkpoint False ${GROUP[@]} $MORE --use_kl_loss
"""
SFT = """read -r -d '' commands <<EOF
openrlhf.cli.train_%s \\
   --model.model_name_or_path m --data.dataset d.jsonl --ckpt.save_steps -1 --ds.zero_stage 2 \\
   %s --model.gradient_checkpointing_enable
EOF
   # --adam.lr 3
deepspeed --module $commands
"""
DPO = """
'''GRPOConfig(beta=9)'''
from trl import DPOConfig, DPOTrainer
class Mine(DPOConfig): pass
adapter = LoraConfig(r=32, target_modules="all-linear", modules_to_save="lm_head")
args = DPOConfig(output_dir='out', beta=0.2, loss_type=["ipo"], num_train_epochs=2, max_length=2_048, warmup_steps=0.1, max_steps=-1,
                 optim="paged_adamw_8bit", eval_strategy="no", eval_steps=50, save_strategy="no", **more)
DPOTrainer(model=model, args=args, peft_config=adapter)
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
                     'data.prompt_dataset=["prompts.jsonl"]', "data.prompt_key=prompt", "rollout.batch_size=4", "train.batch_size=8", "data.max_len=32", "rollout.max_new_tokens=8",
                     "ckpt.interval=0", "ckpt.save_hf=never")
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
        self.assertEqual(deck["model"], {"dtype": "bf16", "path": "m"})
        self.assertEqual(deck["reward"], {"clip_range": "none"})
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

    def test_scripts(self):
        """Variables, arrays, launchers; what looks like a setting of ours and is none."""
        deck, text, said = self.imported("openrlhf", "train.sh", SCRIPT)
        self.assertEqual((deck["model"]["path"], deck["actor"]["adam"], deck["train"]), ("a model", {"lr": 5e-7, "betas": [0.9, 0.95]}, {"batch_size": 32, "optimizer_offload": True, "shard_group": 0}))
        self.assertEqual((deck["rollout"], deck["data"], deck["ckpt"]), ({"batch_size": 8, "n_samples_per_prompt": 4, "max_new_tokens": 2048}, {"max_len": 3072}, {"interval": 0}))
        self.assertEqual(deck["critic"], {"adam": {"betas": [0.9, 0.95]}, "lora": {"rank": 4, "targets": ["q_proj", "v_proj"]}, "max_norm": 0.5})
        self.assertNotIn("ranks", deck)
        self.assertNotIn("reward", deck)
        for line in ("init_kl_coef: its value is a shell variable", "remote_rm_url: a reward function in Python", "rewards: a [[reward.source]]"):
            self.assertIn(f"#   {line}", text)
        for name in ("address", "runtime", "working_dir", "train.micro_batch_size", "actor.num_nodes"):
            self.assertNotIn(f"#   {name}", text)
        self.assertIn("not needed: async_queue_size: async_train is off", said)

    def test_other_trainers(self):
        """sft, rm and dpo have defaults and names of their own."""
        for trainer, options, wanted in (("sft", "--data.output_key out", {"lr": 5e-6, "max_len": None, "epochs": 2, "beta": None}),
                                         ("rm", "--model.loss_type logexp --train.max_epochs 3", {"lr": 9e-6, "max_len": 512, "epochs": 3, "beta": None}),
                                         ("dpo", "--model.beta 0.3 --adam.lr 5e-7 --data.max_len 900", {"lr": 5e-7, "max_len": 900, "epochs": None, "beta": 0.3})):
            with self.subTest(trainer=trainer):
                deck, text, _ = self.imported("openrlhf", "train.sh", SFT % (trainer, options))
                self.assertIn(f"for `trireme {trainer}`", text)
                self.assertNotIn("Not carried over", text)
                self.assertEqual({"lr": deck["actor"]["adam"]["lr"], "max_len": deck["data"].get("max_len"), "epochs": deck["train"].get("max_epochs"),
                                  "beta": deck.get("algo", {}).get("dpo", {}).get("beta")}, wanted)
                self.assertEqual((deck["data"]["dataset"], deck["ckpt"]), (["d.jsonl"], {"interval": 0}))
        deck, text, _ = self.imported("trl", "dpo.py", DPO)
        self.assertEqual(deck["algo"], {"dpo": {"beta": 0.2, "loss": "ipo_norm"}})
        self.assertEqual(deck["actor"]["lora"], {"rank": 32, "alpha": 8, "dropout": 0, "targets": ["all-linear"], "modules_to_save": "lm_head"})
        self.assertEqual((deck["train"], deck["data"], deck["ckpt"], deck["run"], deck["actor"]["warmup_ratio"]), ({"max_epochs": 2}, {"max_len": 2048}, {"interval": 0}, {"dir": "out", "iterations": 0}, 0.1))
        for line in ("model: it is an object of the script", "more: it holds arguments that are not read"):
            self.assertIn(f"#   {line}", text)
        deck, text, _ = self.imported("trl", "sft.yaml", "model_name_or_path: m\nmax_length: 64\nbf16: yes\npacking: off\nlora_r: 4\nwarmup_ratio: .1\n")
        self.assertIn("for `trireme sft`", text)
        self.assertEqual((deck["actor"]["adam"]["lr"], deck["actor"]["warmup_ratio"], deck["model"]["dtype"]), (2e-5, 0.1, "bf16"))
        self.assertNotIn("lora", deck["actor"], "use_peft is off")
        result = self.succeed("import", "trl", "sft.yaml", "--for", "rm")
        self.assertEqual(tomllib.loads(result.out)["actor"]["adam"]["lr"], 1e-4)
        deck, *_ = self.imported("verl", "sft.sh", "torchrun --nnodes=1 -m verl.trainer.fsdp_sft_trainer data.train_files=d.jsonl model.partial_pretrain=m trainer.total_epochs=2 optim.lr=1e-4")
        self.assertEqual((deck["data"]["dataset"], deck["model"], deck["train"], deck["actor"]["adam"]["lr"]), (["d.jsonl"], {"path": "m"}, {"max_epochs": 2, "batch_size": 256}, 1e-4))

    def test_settings_that_mean_something_together(self):
        common = "algorithm.adv_estimator=%s actor_rollout_ref.rollout.n=4 trainer.critic_warmup=%d algorithm.kl_ctrl.type=%s algorithm.kl_ctrl.target_kl=0.1 algorithm.use_kl_in_reward=True " \
                 "actor_rollout_ref.rollout.top_k=-1 trainer.save_freq=-1 trainer.test_freq=5 reward_model.enable=False reward_model.model.path=rm " \
                 "+reward_model.reward_kwargs.overlong_buffer_cfg.enable=False reward_model.reward_kwargs.overlong_buffer_cfg.len=4 actor_rollout_ref.model.lora_rank=0 " \
                 "actor_rollout_ref.model.lora_alpha=16 actor_rollout_ref.actor.clip_ratio_high=0.28 actor_rollout_ref.actor.policy_loss.loss_mode=gspo trainer.total_training_steps=100 " \
                 "actor_rollout_ref.actor.optim.lr_warmup_steps=10 data.max_response_length=1024 algorithm.norm_adv_by_std_in_grpo=False data.val_files=null trainer.logger='[\"console\"]'"
        deck, text, _ = self.imported("verl", "run.sh", common % ("grpo", 0, "fixed"))
        self.assertEqual(deck["algo"], {"advantage": {"estimator": "dr_grpo"}, "kl": {"init_coef": 0.001}})
        self.assertEqual({"lora", "critic", "eval"} & (set(deck) | set(deck["actor"])), {"eval"})
        self.assertEqual((deck["rollout"]["top_k"], deck["ckpt"]["interval"], deck["train"]["batch_size"], deck["data"]["max_len"], deck["reward"]), (0, 0, 1024, 1536, {"clip_range": "none"}))
        self.assertEqual((deck["actor"]["eps_clip_low_high"], deck["actor"]["policy_loss_type"], deck["actor"]["warmup_ratio"], deck["eval"]), ([0.2, 0.28], "gspo", 0.1, {"temperature": 0, "n_samples_per_prompt": 1}))
        self.assertIn("#   eval.steps = 5: it needs eval.dataset", text)
        self.run_imported("verl-grpo")
        deck, *_ = self.imported("verl", "run.sh", common % ("gae", 5, "adaptive"))
        self.assertEqual((deck["critic"]["freezing_steps"], deck["critic"]["adam"], deck["algo"]["kl"]["target"]), (3, {"lr": 1e-5, "weight_decay": 0.01, "betas": [0.9, 0.999]}, 0.1))
        deck, *_ = self.imported("trl", "grpo.json", '{"num_iterations": 2, "max_steps": 100, "save_steps": 25, "eval_strategy": "no", "loss_type": "cispo", "epsilon_high": 5.0, '
                                 '"max_completion_length": 4096, "lr_scheduler_type": "constant", "warmup_ratio": 0.1, "top_k": null}')
        self.assertEqual((deck["run"]["iterations"], deck["ckpt"]["interval"], deck["data"]["max_len"], deck["actor"]["warmup_ratio"]), (50, 13, 6144, 0))
        self.assertEqual((deck["actor"]["policy_loss_type"], deck["actor"]["cispo_ratio_max"], deck["actor"]["loss_agg_mode"], "eps_clip_low_high" in deck["actor"]), ("cispo", 5.0, "token-mean", False))

    def test_what_cannot_be_read(self):
        for system, name, text, words in (("verl", "bad.yaml", "a: [1\nb: 2\n", "bad.yaml:"), ("verl", "list.yaml", "[1, 2]", "has no setting"), ("openrlhf", "notes.txt", "nothing here", "has no setting"),
                                          ("trl", "none.py", "x = 1\n", "calls no ...Config"),
                                          ("openrlhf", "", "", "without a file")):
            with self.subTest(name=name):
                if name:
                    (self.folder / name).write_text(text)
                result = self.run_program("import", system, *([name] if name else []))
                self.assertIn(result.code, (64, 65))
                self.assertIn(words, result.text)


if __name__ == "__main__":
    main()

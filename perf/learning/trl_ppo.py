#!/usr/bin/env python3
"""TRL's PPOTrainer (trl.experimental.ppo of TRL 1.8; 1.13 has none) on the tiny tutorial. Started by compare.py.

    trl_ppo.py --model HF_FOLDER --samples samples.jsonl --seed 1 --output curves.json

The trainer wants a reward *model*: a module with a backbone and a head `score` whose output at the last token is the reward. RuleReward is
such a module; it carries the token ids through the backbone and applies the deck's rule to them in the head.
"""
import pathlib

import peer
from settings import ADAM, PPO, optimizer_steps


def rule_reward(tokenizer, labels):
    import torch

    class Ids(torch.nn.Module):
        """Hands the token ids on in place of hidden states; -1 where the mask is 0."""

        def forward(self, input_ids, attention_mask, **_):
            from types import SimpleNamespace
            return SimpleNamespace(hidden_states=[input_ids.masked_fill(~attention_mask.bool(), -1)])

    class RuleReward(torch.nn.Module):
        base_model_prefix = "backbone"

        def __init__(self):
            super().__init__()
            self.backbone = Ids()

        def score(self, ids):
            rewards = [self.reward_of([token for token in row if token >= 0]) for row in ids.tolist()]
            return torch.tensor(rewards).view(-1, 1, 1).expand(*ids.shape, 1)

        def reward_of(self, tokens):
            prompt, _, response = tokenizer.decode(tokens, skip_special_tokens=True).partition("=")
            return peer.exact_reward(response, labels[prompt + "="])

    return RuleReward()


def value_model(folder):
    """The policy's weights under a new head, as ours starts: N(0, 1 / (hidden + 1))."""
    import torch
    from transformers import AutoModelForSequenceClassification
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    torch.nn.init.normal_(model.score.weight, std=1 / (model.config.hidden_size + 1))
    return model


def optimizers(policy, value):
    import torch
    groups = [{"params": policy.parameters(), "lr": PPO["lr"]}, {"params": value.parameters(), "lr": PPO["critic_lr"]}]
    adam = torch.optim.AdamW(groups, betas=(ADAM["beta1"], ADAM["beta2"]), eps=ADAM["eps"], weight_decay=0.0)
    return adam, torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 1.0)


def configuration(options):
    from trl.experimental.ppo import PPOConfig
    # A device batch of the whole iteration and no accumulation: so the trainer makes one optimizer step per mini-batch. With accumulation it
    # makes one per iteration, whatever num_mini_batches says.
    sequences = PPO["prompts"] * PPO["n"]
    return PPOConfig(output_dir=str(options.output.with_suffix("")), seed=options.seed, total_episodes=PPO["iterations"] * sequences,
                     per_device_train_batch_size=sequences, gradient_accumulation_steps=1, num_mini_batches=optimizer_steps(PPO),
                     local_rollout_forward_batch_size=sequences, num_ppo_epochs=1, response_length=PPO["max_new_tokens"],
                     stop_token="eos", temperature=PPO["temperature"], kl_coef=PPO["kl"], kl_estimator="k1", cliprange=PPO["clip"],
                     vf_coef=1.0, cliprange_value=PPO["value_clip"], gamma=PPO["gamma"], lam=PPO["lambd"], whiten_rewards=False,
                     num_sample_generations=0, bf16=False, use_cpu=True, gradient_checkpointing=False, report_to="none",
                     save_strategy="no", disable_tqdm=True)


def in_order(tokenizer, rows):
    """Batches of prompts as our run drew them, each prompt n times."""
    import torch
    repeated = [tokenizer(row["prompt"])["input_ids"] for row in rows for _ in range(PPO["n"])]
    return torch.utils.data.DataLoader(
        [{"input_ids": torch.tensor(ids)} for ids in repeated], batch_size=PPO["prompts"] * PPO["n"], shuffle=False)


def main():
    options = peer.arguments(samples=pathlib.Path)
    import datasets
    import torch
    import transformers
    import trl
    from trl.experimental.ppo import PPOTrainer
    transformers.set_seed(options.seed)
    tokenizer = peer.load_tokenizer(options.model)
    rows = peer.prompts_of(options.samples, PPO["n"])
    policy, value = peer.load_model(options.model), value_model(options.model)
    curves = peer.Curves(trainer="trl PPOTrainer", version=trl.__version__, transformers=transformers.__version__, seed=options.seed)

    def collect(logs):
        if "objective/scores" in logs:
            curves.add(reward=logs["objective/scores"], kl=logs["objective/kl"], value_loss=logs["loss/value_avg"])

    trainer = PPOTrainer(args=configuration(options), processing_class=tokenizer, model=policy, ref_model=peer.load_model(options.model),
                         reward_model=rule_reward(tokenizer, {row["prompt"]: row["label"] for row in rows}), value_model=value,
                         train_dataset=datasets.Dataset.from_list([{"input_ids": [0]}] * (PPO["prompts"] * PPO["n"])),
                         optimizers=optimizers(policy, value), callbacks=[peer.log_callback(collect)])
    trainer.dataloader = in_order(tokenizer, rows)  # the trainer's own draws in an order of its own
    torch.manual_seed(options.seed)
    trainer.train()
    curves.write(options.output)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""TRL's GRPOTrainer on the tiny tutorial. Started by compare.py.

    trl_grpo.py --model HF_FOLDER --samples samples.jsonl --seed 1 --output curves.json

Prompts come from our run's samples.jsonl: the same ones in the same iterations.
"""
import pathlib

import peer
from settings import ADAM, GRPO, optimizer_steps, warmup_steps


def reward(prompts, completions, label, **_):
    return [peer.exact_reward(text, wanted) for text, wanted in zip(completions, label, strict=True)]


def configuration(options, task, **more):
    """Of a task of settings.py; `more` goes before it."""
    from trl import GRPOConfig
    per_iteration = optimizer_steps(task)
    steps = task["iterations"] * per_iteration
    return GRPOConfig(
        **peer.trainer_arguments(task, ADAM, steps, warmup_steps(task, steps), options.output, options.seed),
        **({"max_completion_length": task["max_new_tokens"]} | more),
        num_generations=task["n"], steps_per_generation=per_iteration, num_iterations=1,
        temperature=task["temperature"], top_p=1.0, top_k=0, shuffle_dataset=False, beta=task["kl"], epsilon=task["clip"],
        scale_rewards="group",         # divides by the group's standard deviation
        loss_type="bnpo",              # mean over the tokens of the optimizer step: actor.loss_agg_mode = token-mean
        use_bias_correction_kl=False,  # algo.kl.unbiased_gradient = false
        logging_steps=per_iteration)


def main():
    options = peer.arguments(samples=pathlib.Path)
    import datasets
    import transformers
    import trl
    rows = peer.prompts_of(options.samples, GRPO["n"])
    assert len(rows) == GRPO["iterations"] * GRPO["prompts"]
    curves = peer.Curves(trainer="trl GRPOTrainer", version=trl.__version__, transformers=transformers.__version__, seed=options.seed)

    def collect(logs):
        if "reward" in logs:
            curves.add(reward=logs["reward"], kl=logs["kl"], response_length=logs["completions/mean_length"],
                       grad_norm=logs["grad_norm"], lr=logs["learning_rate"])

    trainer = trl.GRPOTrainer(model=peer.load_model(options.model), reward_funcs=reward, args=configuration(options, GRPO),
                              train_dataset=datasets.Dataset.from_list(rows), processing_class=peer.load_tokenizer(options.model),
                              callbacks=[peer.log_callback(collect)])
    trainer.train()
    curves.write(options.output)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""TRL's DPOTrainer on pairs of a right and a wrong sum, rows in the order of the file. Started by compare.py.

    trl_dpo.py --model HF_FOLDER --data pairs.jsonl --seed 1 --output curves.json
"""
import pathlib

import peer
from settings import ADAM, DPO, warmup_steps


def configuration(options):
    from trl import DPOConfig
    steps = DPO["iterations"]
    return DPOConfig(**peer.trainer_arguments(DPO, ADAM, steps, warmup_steps(DPO, steps), options.output, options.seed),
                     train_sampling_strategy="sequential", beta=DPO["beta"], loss_type="sigmoid", label_smoothing=0.0, max_length=32,
                     logging_steps=1)


def main():
    options = peer.arguments(data=pathlib.Path)
    import datasets
    import transformers
    import trl
    curves = peer.Curves(trainer="trl DPOTrainer", version=trl.__version__, transformers=transformers.__version__, seed=options.seed)

    def collect(logs):
        if "loss" in logs:
            curves.add(loss=logs["loss"], grad_norm=logs["grad_norm"], lr=logs["learning_rate"], accuracy=logs["rewards/accuracies"],
                       reward_margin=logs["rewards/margins"])

    trainer = trl.DPOTrainer(model=peer.load_model(options.model), ref_model=peer.load_model(options.model), args=configuration(options),
                             train_dataset=datasets.Dataset.from_list(peer.read_lines(options.data)),
                             processing_class=peer.load_tokenizer(options.model), callbacks=[peer.log_callback(collect)])
    trainer.train()
    curves.write(options.output)


if __name__ == "__main__":
    main()

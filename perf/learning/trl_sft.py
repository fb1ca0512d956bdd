#!/usr/bin/env python3
"""TRL's SFTTrainer on the tiny tutorial's data, rows in the order of the file. Started by compare.py.

    trl_sft.py --model HF_FOLDER --data rows.jsonl --seed 1 --output curves.json
"""
import pathlib

import peer
from settings import ADAM, SFT, warmup_steps


def configuration(options):
    from trl import SFTConfig
    steps = SFT["iterations"]
    return SFTConfig(**peer.trainer_arguments(SFT, ADAM, steps, warmup_steps(SFT, steps), options.output, options.seed),
                     train_sampling_strategy="sequential", completion_only_loss=True, packing=False, max_length=32, loss_type="nll",
                     logging_steps=1)


def main():
    options = peer.arguments(data=pathlib.Path)
    import datasets
    import transformers
    import trl
    rows = [{"prompt": row["prompt"], "completion": row["response"]} for row in peer.read_lines(options.data)]
    curves = peer.Curves(trainer="trl SFTTrainer", version=trl.__version__, transformers=transformers.__version__, seed=options.seed)

    def collect(logs):
        if "loss" in logs:
            curves.add(loss=logs["loss"], grad_norm=logs["grad_norm"], lr=logs["learning_rate"])

    trainer = trl.SFTTrainer(model=peer.load_model(options.model), args=configuration(options),
                             train_dataset=datasets.Dataset.from_list(rows), processing_class=peer.load_tokenizer(options.model),
                             callbacks=[peer.log_callback(collect)])
    trainer.train()
    curves.write(options.output)


if __name__ == "__main__":
    main()

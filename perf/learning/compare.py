#!/usr/bin/env python3
"""Trains the tiny tutorials with our program and with TRL and compares the curves.

    perf/learning/setup                      # once: TRL beside the comparison environment
    perf/learning/compare grpo ppo sft dpo tools   # all five; docs/dev/learning.md says what they are

Both sides start from the same weights, get the same data in the same order, and the settings of settings.py. Runs go to --work, which
is kept: what is there is not run again. Results: perf/results/learning/trl-*.json and docs/dev/learning-*.svg.
"""
import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import subprocess
import sys

import ours
import peer
import plots
import settings
from preferences import write_pairs
from tool_task import Calculator

HERE = pathlib.Path(__file__).parent


class Comparison:
    """One task: both sides' runs in the work folder, by seed."""

    def __init__(self, options, name):
        self.name, self.options = name, options
        self.seeds = options.seeds or settings.SEEDS.get(name, (1,))
        self.folder = options.work.resolve() / name
        self.program = ours.Program(options.program.resolve())

    def start_model(self, deck="tiny-sft.toml", name="start"):
        """The policy that the tutorial's SFT stage leaves: half of the sums right."""
        folder = self.options.work.resolve() / name
        if not (folder / ours.MODEL / "model.safetensors").exists():
            self.program.run("sft", settings.TUTORIAL / deck, folder, [])
        return folder / ours.MODEL

    def our_run(self, subcommand, deck, seed, keys):
        folder = self.folder / f"ours-{seed}"
        if not (folder / "summary.json").exists():
            self.program.run(subcommand, deck, folder, [f"run.seed={seed}", *keys])
        return [json.loads(line) for line in open(folder / "metrics.jsonl")]

    def peer_run(self, script, seed, *arguments, environment=None):
        output = self.folder / f"trl-{seed}.json"
        if not output.exists():
            output.parent.mkdir(parents=True, exist_ok=True)
            with open(output.with_suffix(".out"), "w") as out:
                command = ["nice", sys.executable, str(HERE / script), "--seed", str(seed), "--output", str(output), *map(str, arguments)]
                done = subprocess.run(command, env=dict(os.environ, **(environment or {})), stdout=out, stderr=subprocess.STDOUT)
            if done.returncode != 0:
                raise SystemExit(f"{script}, seed {seed}: exit code {done.returncode}, see {out.name}")
        return json.loads(output.read_text())


def rewards_agree(samples_path, reward_of):
    """Number of samples whose reward in our run is what the Python rule gives for the text that TRL would hand to it. All must be."""
    rows = peer.read_lines(samples_path)
    for row in rows:
        reward = reward_of(row)
        if reward != row["reward"]:
            raise SystemExit(f"{samples_path}: {row} has another reward than the Python rule gives: {reward}")
    return len(rows)


def rule_of_answers(model):
    """The tiny tutorial's, of a sample's text without special tokens."""
    tokenizer = peer.load_tokenizer(model)
    return lambda row: peer.exact_reward(tokenizer.decode(row["output_ids"], skip_special_tokens=True), row["label"])


def reinforcement(comparison, model, deck, keys, names, script, reward_of, environment=None):
    """Ours and TRL's curves of every seed, on the prompts that our run draws."""
    checked, mine = 0, []
    for seed in comparison.seeds:
        metrics = comparison.our_run("ppo", settings.TUTORIAL / deck, seed, [f"model.path={model}", "ckpt.save_hf=never", *keys])
        mine.append({"seed": seed, **ours.columns(metrics, **names)})
        checked += rewards_agree(comparison.folder / f"ours-{seed}" / "samples.jsonl", reward_of)

    def one(seed):
        samples = comparison.folder / f"ours-{seed}" / "samples.jsonl"
        return comparison.peer_run(script, seed, "--model", model, "--samples", samples, environment=environment)

    with concurrent.futures.ThreadPoolExecutor(comparison.options.jobs) as pool:
        theirs = list(pool.map(one, comparison.seeds))
    return {"rewards_compared": checked, "ours": mine, "trl": theirs}


GRPO_NAMES = {"reward": "reward", "kl": "kl_loss", "response_length": "response_length", "lr": "lr"}


def grpo(options):
    comparison = Comparison(options, "grpo")
    model = comparison.start_model()
    found = reinforcement(comparison, model, "tiny.toml", settings.grpo_deck(), GRPO_NAMES, "trl_grpo.py", rule_of_answers(model))
    return {"settings": settings.GRPO, "deck": settings.grpo_deck(), **found}


def tools(options):
    """GRPO over turns: both sides ask the calculator of inputs/plugins."""
    comparison, calculator = Comparison(options, "tools"), Calculator()
    model = comparison.start_model("calculator-sft.toml", "start-tools")

    def reward_of(row):
        return calculator.reward(peer.without_special_tokens(row["turns"][-1]["response"]), row["label"])

    names = GRPO_NAMES | {"turns": "turns"}
    found = reinforcement(comparison, model, "calculator.toml", settings.tools_deck(), names, "trl_tools.py", reward_of)
    return {"settings": settings.TOOLS, "deck": settings.tools_deck(), **found}


def ppo(options):
    names = {"reward": "reward", "kl_per_token": "kl", "value_loss": "value_loss", "response_length": "response_length", "lr": "lr"}
    environment = {"PYTHONPATH": str(options.ppo_trl)}
    comparison = Comparison(options, "ppo")
    model = comparison.start_model()
    found = reinforcement(comparison, model, "tiny.toml", settings.ppo_deck(), names, "trl_ppo.py", rule_of_answers(model), environment)
    return {"settings": settings.PPO, "deck": settings.ppo_deck(), **found}


def supervised(comparison, subcommand, deck, model, data, task, more_keys):
    """Loss by optimizer step of both sides on the same rows in the same order."""
    keys = [*settings.supervised_deck(task), *more_keys]
    metrics = comparison.our_run(subcommand, deck, 1, [f"model.path={model}", f"data.dataset=[\"{data}\"]", "ckpt.save_hf=never", *keys])
    mine = {"seed": 1, **ours.columns(metrics, loss="loss", grad_norm="grad_norm", lr="lr")}
    theirs = comparison.peer_run(f"trl_{comparison.name}.py", 1, "--model", model, "--data", data)
    return {"settings": task, "deck": keys, "ours": [mine], "trl": [theirs]}


def sft(options):
    comparison = Comparison(options, "sft")
    model = comparison.folder / "init"
    if not (model / "model.safetensors").exists():
        comparison.program.init(model, 1)
    deck = settings.TUTORIAL / "tiny-sft.toml"
    return supervised(comparison, "sft", deck, model, settings.TUTORIAL / "data/tiny-sft.jsonl", settings.SFT,
                      ["model.shape=", "model.tokenizer="])


def dpo(options):
    comparison = Comparison(options, "dpo")
    data = comparison.folder / "pairs.jsonl"
    write_pairs(data, settings.DPO["iterations"] * settings.DPO["batch"])
    return supervised(comparison, "dpo", settings.TUTORIAL / "tiny-sft.toml", comparison.start_model(), data, settings.DPO,
                      ["model.shape=", "model.tokenizer=", f"algo.dpo.beta={settings.DPO['beta']}"])


TASKS = {"grpo": grpo, "ppo": ppo, "sft": sft, "dpo": dpo, "tools": tools}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", help="of grpo, ppo and tools; default: settings.SEEDS")
    parser.add_argument("--work", type=pathlib.Path, default=settings.ROOT / "runs/learning")
    parser.add_argument("--program", type=pathlib.Path, default=settings.ROOT / "build/release/trireme")
    parser.add_argument("--ppo-trl", type=pathlib.Path, default=pathlib.Path(sys.prefix) / "trl-with-ppo",
                        help="folder with a TRL that still has a PPO trainer")
    parser.add_argument("--jobs", type=int, default=2, help="runs of the peer at a time")
    options = parser.parse_args()
    for task in options.tasks:
        result = {"date": datetime.date.today().isoformat(), "task": task, **TASKS[task](options)}
        settings.RESULTS.mkdir(parents=True, exist_ok=True)
        (settings.RESULTS / f"trl-{task}.json").write_text(plots.compact(result) + "\n")
        plots.draw(result, settings.ROOT / f"docs/dev/learning-{task}.svg")
        print(plots.table(result), flush=True)


if __name__ == "__main__":
    main()

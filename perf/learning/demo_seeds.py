#!/usr/bin/env python3
"""Runs the demo's deck for several seeds and checks that it learns: the mean reward of the last five iterations must
exceed that of the first five by 0.15 for every seed. Writes perf/results/learning/demo-seeds.json.

    perf/learning/demo_seeds.py --model ~/.cache/trireme/models/SmolLM2-135M-Instruct [--seeds 1 2 3]
"""
import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys

from ours import launch_environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULT = ROOT / "perf/results/learning/demo-seeds.json"
NEEDED = 0.15


def run(seed, model, folder):
    command = ["mpirun", "-n", "2", "build/release/trireme", "ppo", "inputs/tutorial/arithmetic.toml",
               f"run.seed={seed}", f"run.dir={folder}", f"model.path={model}", "ckpt.resume=never", "ckpt.save_hf=never",
               "ckpt.interval=0"]
    subprocess.run(command, cwd=ROOT, env=launch_environment(), check=True)
    lines = [json.loads(line) for line in open(ROOT / folder / "metrics.jsonl")]
    rewards = [line["reward"] for line in lines]
    gain = statistics.mean(rewards[-5:]) - statistics.mean(rewards[:5])
    shown = [word if not word.startswith("model.path=") else "model.path=MODEL" for word in command]
    return {"seed": seed, "reward": rewards, "kl": [line["kl"] for line in lines], "first_five": statistics.mean(rewards[:5]),
            "last_five": statistics.mean(rewards[-5:]), "gain": gain, "seconds": sum(line["seconds"]["total"] for line in lines),
            "command": " ".join(shown)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    results = [run(seed, options.model, f"runs/demo-seed-{seed}") for seed in options.seeds]
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps({"date": datetime.date.today().isoformat(), "needed": NEEDED, "runs": results}, indent=1) + "\n")
    for result in results:
        print(f"seed {result['seed']}: {result['first_five']:.3f} -> {result['last_five']:.3f}  gain {result['gain']:.3f}")
    return 0 if all(result["gain"] >= NEEDED for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What running ahead of the trainer does to learning: the tiny tutorial under GRPO with one rank that trains and one that generates, at depth 0, and at
depths 1, 2 and 4 with and without the importance correction; with --demo the demo's deck at depths 0, 1 and 2. Every run starts from the same weights; a run that
is there already is kept. Results: perf/results/learning/depths.json, docs/dev/learning-depths.svg, or depths-demo.json, learning-depths-demo.svg (needs
matplotlib, as in the environment of perf/learning/setup).

    perf/learning/depths.py [--seeds 1 2 3] [--program build/release/trireme] [--demo ~/.cache/trireme/models/SmolLM2-135M-Instruct]
"""
import argparse
import dataclasses
import datetime
import json
import pathlib
import statistics

import plots
import settings
from ours import MODEL, Program, columns

LAYOUT = ["ranks.trainer=1", "ranks.generator=1"]
CORRECTION = ["algo.advantage.is_correction_enable=true", "algo.advantage.is_correction_type=tis"]


def ahead(depth):
    return [f"train.async_depth={depth}", "train.partial_rollout_enable=true"]


@dataclasses.dataclass
class Task:
    name: str
    title: str
    deck: str          # of the tutorial
    keys: list[str]    # in place of the deck's
    iterations: int
    last: int          # iterations that count as the end of a run
    kl: str            # the metric
    cases: dict[str, list[str]]


TINY = Task("depths", "GRPO: mean reward", "tiny.toml", [*LAYOUT, *settings.grpo_deck()], settings.GRPO["iterations"], plots.LAST, "kl_loss",
            {"depth 0": []} | {f"depth {depth}{name}": [*ahead(depth), *keys] for depth in (1, 2, 4) for name, keys in (("", []), (", corrected", CORRECTION))})
# The roles work side by side, so each has a thread of its own at every depth.
DEMO = Task("depths-demo", "The demo's deck: mean reward", "arithmetic.toml", ["run.threads=1"], 18, 5, "kl", {"depth 0": [], "depth 1": ahead(1), "depth 2": ahead(2)})
COLORS = {0: "#0b6e99", 1: "#2a9d5c", 2: "#8f6bb3", 4: "#d1495b"}


def run(program, folder, task, model, seed, keys):
    lines = (folder / "metrics.jsonl").read_text().splitlines() if folder.exists() else []
    metrics = [json.loads(line) for line in lines]
    if len(metrics) < task.iterations:
        metrics = program.run("ppo", settings.TUTORIAL / task.deck, folder, [f"model.path={model}", f"run.seed={seed}", "ckpt.save_hf=never", *task.keys, *keys])
    return {"seed": seed, **columns([{"staleness": 0, **line} for line in metrics], reward="reward", staleness="staleness", kl=task.kl)}


def table(task, cases):
    lines = [f"| | reward, last {task.last}, by seed | mean | reward, whole run, by seed | mean | versions that tokens were old |", "| --- | --- | --- | --- | --- | --- |"]
    for name, runs in cases.items():
        last, whole = ([statistics.mean(one["reward"][-count:]) for one in runs] for count in (task.last, task.iterations))
        row = [part for values in (last, whole) for part in (", ".join(f"{value:.3f}" for value in values), f"{statistics.mean(values):.3f}")]
        old = statistics.mean(value for run in runs for value in run["staleness"])
        lines.append(f"| {name} | " + " | ".join(row) + f" | {old:.2f} |")
    return "\n".join(lines)


def draw(task, cases, path):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "trireme", "svg.fonttype": "none", "path.simplify": True, "font.size": 9})
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(6.4, 3.4))
    for name, runs in cases.items():
        curves = [one["reward"] for one in runs]
        style = {"color": COLORS[int(name.split(",")[0].split()[1])], "linestyle": "-" if "corrected" in name or name == "depth 0" else ":"}
        steps = range(1, len(curves[0]) + 1)
        for curve in curves:
            axes.plot(steps, curve, linewidth=0.4, alpha=0.3, **style)
        axes.plot(steps, [statistics.mean(values) for values in zip(*curves, strict=True)], linewidth=1.8, label=name, **style)
    axes.set_title(f"{task.title}, {len(runs)} seeds")
    axes.set_xlabel("iteration")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--work", type=pathlib.Path, default=settings.ROOT / "runs/learning")
    parser.add_argument("--program", type=pathlib.Path, default=settings.ROOT / "build/release/trireme")
    parser.add_argument("--demo", type=pathlib.Path, metavar="MODEL")
    options = parser.parse_args()
    program = Program(options.program)
    task = DEMO if options.demo else TINY
    work = options.work.resolve() / task.name
    model = options.demo.resolve() if options.demo else work / "sft" / MODEL
    if not (model / "model.safetensors").exists():
        program.run("sft", settings.TUTORIAL / "tiny-sft.toml", work / "sft", [])
    cases = {}
    for name, keys in task.cases.items():
        cases[name] = [run(program, work / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}", task, model, seed, keys) for seed in options.seeds]
    result = {"date": datetime.date.today().isoformat(), "deck": task.keys, "keys": task.cases, "cases": cases}
    settings.RESULTS.mkdir(parents=True, exist_ok=True)
    (settings.RESULTS / f"{task.name}.json").write_text(json.dumps(result, indent=None) + "\n")
    draw(task, cases, settings.ROOT / f"docs/dev/learning-{task.name}.svg")
    print(table(task, cases), flush=True)


if __name__ == "__main__":
    main()

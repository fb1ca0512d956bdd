"""A comparison's curves as an SVG, its figures as a table, its result as a JSON file with one line a curve."""
import json
import statistics

TITLES = {"grpo": "GRPO: mean reward", "tools": "GRPO with a calculator: mean reward", "ppo": "PPO: mean reward", "sft": "SFT: loss", "dpo": "DPO: loss"}
COLORS = {"ours": "#0b6e99", "trl": "#d1495b"}
LAST = 10  # iterations that count as the end of a run


def is_reward(result):
    return "reward" in result["ours"][0]


def compact(result):
    """Curves rounded to nine digits, each on one line."""
    def rounded(value):
        if isinstance(value, float):
            return float(f"{value:.9g}")
        if isinstance(value, list):
            return [rounded(item) for item in value]
        if isinstance(value, dict):
            return {key: rounded(item) for key, item in value.items()}
        return value

    def run(facts):
        return "{" + ",\n   ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()) + "}"

    lines = []
    for key, value in rounded(result).items():
        runs = key in COLORS
        lines.append(f" {json.dumps(key)}: " + ("[\n  " + ",\n  ".join(map(run, value)) + "]" if runs else json.dumps(value)))
    return "{\n" + ",\n".join(lines) + "\n}"


def figures(run):
    """Mean reward of the last iterations, and of all of them: the area under the curve divided by its length."""
    return statistics.mean(run["reward"][-LAST:]), statistics.mean(run["reward"])


def largest_difference(result):
    ours, trl = result["ours"][0]["loss"], result["trl"][0]["loss"]
    differences = [abs(a - b) for a, b in zip(ours, trl, strict=True)]
    step = max(range(len(differences)), key=differences.__getitem__)
    return differences[step], step + 1, statistics.mean(differences)


def table(result):
    """Markdown."""
    if not is_reward(result):
        largest, step, mean = largest_difference(result)
        ours, trl = result["ours"][0]["loss"], result["trl"][0]["loss"]
        return (f"| {result['task']} | {len(ours)} | {ours[0]:.6f} | {trl[0]:.6f} | {ours[-1]:.6f} | {trl[-1]:.6f} | "
                f"{largest:.1e} (step {step}) | {mean:.1e} |")
    lines = [f"| seed | ours, last {LAST} | TRL, last {LAST} | ours, whole run | TRL, whole run |", "| --- | --- | --- | --- | --- |"]
    rows = [[*figures(a), *figures(b)] for a, b in zip(result["ours"], result["trl"], strict=True)]
    for run, (our_last, our_area, their_last, their_area) in zip(result["ours"], rows):
        lines.append(f"| {run['seed']} | {our_last:.3f} | {their_last:.3f} | {our_area:.3f} | {their_area:.3f} |")
    columns = [[row[i] for row in rows] for i in (0, 2, 1, 3)]
    for name, of in (("mean", statistics.mean), ("standard deviation", statistics.stdev), ("least", min), ("most", max)):
        lines.append(f"| {name} | " + " | ".join(f"{of(column):.3f}" for column in columns) + " |")
    return "\n".join(lines)


def draw(result, path):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "trireme", "svg.fonttype": "none", "path.simplify": True, "font.size": 9})
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(6.4, 3.4))
    key = "reward" if is_reward(result) else "loss"
    for side, label in (("trl", f"TRL {result['trl'][0]['version']}"), ("ours", "Trireme")):
        curves = [run[key] for run in result[side]]
        steps = range(1, len(curves[0]) + 1)
        if key == "loss":
            axes.plot(steps, curves[0], color=COLORS[side], label=label, linewidth=3.5 if side == "trl" else 1.2,
                      alpha=0.5 if side == "trl" else 1)
            continue
        for curve in curves:
            axes.plot(steps, curve, color=COLORS[side], linewidth=0.5, alpha=0.45)
        mean = [statistics.mean(values) for values in zip(*curves, strict=True)]
        axes.plot(steps, mean, color=COLORS[side], linewidth=2, label=f"{label}, mean of {len(curves)} seeds")
    axes.set_title(TITLES[result["task"]])
    axes.set_xlabel("iteration" if key == "reward" else "optimizer step")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)

"""What is compared: one table per task, from which both sides' settings are made, so that they cannot drift apart."""
import math
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "inputs/tutorial"
RESULTS = ROOT / "perf/results/learning"
SEEDS = {"grpo": (1, 2, 3, 4, 5), "ppo": (1, 2, 3), "tools": (1, 2, 3)}

# Both sides: AdamW with these, no weight decay, fp32, one epoch over each batch.
ADAM = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8}

GRPO = {"iterations": 60, "prompts": 32, "n": 8, "batch": 64, "max_new_tokens": 6, "temperature": 1.0, "lr": 1.5e-4,
        "warmup_ratio": 0.03, "max_norm": 1.0, "clip": 0.2, "kl": 0.01}

# TRL's PPO trainer steps its schedule once an iteration and never clips gradients, so neither side warms up or clips.
PPO = {"iterations": 60, "prompts": 32, "n": 8, "batch": 64, "max_new_tokens": 6, "temperature": 1.0, "lr": 1.5e-4,
       "critic_lr": 1e-3, "warmup_ratio": 0.0, "max_norm": 0.0, "clip": 0.2, "value_clip": 0.5, "kl": 0.001, "lambd": 1.0,
       "gamma": 1.0}

# Turns are short (the longest that is right has 8 tokens), so TRL's limit of an episode and ours of a turn cut nothing that matters.
TOOLS = {"iterations": 30, "prompts": 16, "n": 8, "batch": 64, "max_new_tokens": 16, "temperature": 1.0, "lr": 3e-4, "warmup_ratio": 0.03, "max_norm": 1.0,
         "clip": 0.2, "kl": 0.01, "turns": 2, "pattern": "<<(?<arguments>.*?)>>", "environment": "inputs/plugins/calculator.py"}

SFT = {"iterations": 60, "batch": 64, "lr": 2e-3, "warmup_ratio": 0.03, "max_norm": 1.0}
DPO = {"iterations": 60, "batch": 32, "lr": 1e-4, "warmup_ratio": 0.03, "max_norm": 1.0, "beta": 0.1}


def optimizer_steps(task):
    """Of one iteration."""
    return task["prompts"] * task["n"] // task["batch"]


def warmup_steps(task, steps):
    return math.ceil(task["warmup_ratio"] * steps)


def _optimizer(section, lr, task):
    return [f"{section}.adam.lr={lr}", f"{section}.adam.betas=[{ADAM['beta1']}, {ADAM['beta2']}]", f"{section}.adam.eps={ADAM['eps']}",
            f"{section}.lr_scheduler=constant_with_warmup", f"{section}.warmup_ratio={task['warmup_ratio']}",
            f"{section}.max_norm={task['max_norm']}"]


def rollout_deck(task):
    """Deck keys of ours that GRPO and PPO share; all samples are saved, so that the peer can be given the same prompts."""
    return [f"run.iterations={task['iterations']}", f"rollout.batch_size={task['prompts']}", f"rollout.n_samples_per_prompt={task['n']}",
            f"rollout.max_new_tokens={task['max_new_tokens']}", f"rollout.temperature={task['temperature']}",
            f"train.batch_size={task['batch']}", "train.max_epochs=1", f"actor.eps_clip={task['clip']}",
            f"algo.kl.init_coef={task['kl']}", "rollout.save_samples=-1", *_optimizer("actor", task["lr"], task)]


def grpo_deck(task=None):
    """The KL term goes into the loss as its k3 estimate, as in GRPO's paper and in TRL."""
    return [*rollout_deck(task or GRPO), "algo.advantage.estimator=group_norm", "algo.kl.use_loss=true", "algo.kl.estimator=k3"]


def tools_deck():
    """Of inputs/tutorial/calculator.toml, which names the environment."""
    return [*grpo_deck(TOOLS), f"environment.tool_pattern={TOOLS['pattern']}", f"environment.max_turns={TOOLS['turns']}"]


def ppo_deck():
    return [*rollout_deck(PPO), "algo.advantage.estimator=gae", f"algo.advantage.lambd={PPO['lambd']}",
            f"algo.advantage.gamma={PPO['gamma']}", f"critic.value_clip={PPO['value_clip']}", "algo.kl.estimator=k1",
            *_optimizer("critic", PPO["critic_lr"], PPO)]


def supervised_deck(task):
    """Rows in the order of the file on both sides."""
    return [f"run.iterations={task['iterations']}", f"train.batch_size={task['batch']}", "data.shuffle=false",
            *_optimizer("actor", task["lr"], task)]

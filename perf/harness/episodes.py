"""Rows of the group `episodes`: A1, an environment that thinks, and A2, a judge, in PPO iterations whose rest is the same."""

from . import demo, machine
from .rows import Peer, Row, iteration_figure

SLOTS = 64
# Turns end at one of 364 of 16,384 tokens: 34 on average. Every second episode waits for a slot, which is free while an environment thinks.
LOAD = ("25M", "bf16", "rollout.ignore_eos=false", "rollout.batch_size=16", "rollout.n_samples_per_prompt=8", "rollout.max_new_tokens=64", f"rollout.stop_token_ids={list(range(300, 664))}", "data.max_len=256",
        f"generate.max_batch={SLOTS}", "train.batch_size=64")
JUDGE = ('kind = "judge"', 'name = "judge"', f'path = "{demo.MODEL}"', "prompt_template = 'Is {{ prompt }} answered by {{ response }}? Write 0 or 1.'", "score_pattern = '[01]'",
         "max_new_tokens = 8", "max_len = 2048")


def environment(milliseconds):
    return f'\n[environment]\ncommand = ["python3", "perf/ppo/slow_environment.py", "{milliseconds}"]\nmax_turns = 3\n'


def judged(load):
    """Fails without the judge's model."""
    run = iteration_figure(*load, plugin=JUDGE, threads=machine.cores())

    def measure():
        if not demo.MODEL.exists():
            raise machine.Failed("no model: ./bootstrap.sh model")
        return run()
    measure.command = run.command
    return measure


def episode_rows(quick):
    iterations = f"run.iterations={3 if quick else 5}"
    what = "128 answers, 2 ranks, 25M bf16"

    def thinks(milliseconds):
        return iteration_figure(*LOAD, iterations, sections=environment(milliseconds), threads=machine.cores())
    return [
        Row("A1", f"PPO iteration, an environment of 50 ms a turn, {SLOTS} slots, 3 turns, {what}", "s", thinks(50), [Peer("one that answers at once", thinks(0), 1 / 1.1)], lower=True),
        Row("A2", f"PPO iteration, a judge of 135M, 8 tokens an answer, {what}", "s", judged((*LOAD, iterations)),
            [Peer("a rule", iteration_figure(*LOAD, iterations, threads=machine.cores()))], lower=True)]

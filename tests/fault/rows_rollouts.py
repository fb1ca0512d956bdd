"""Rows about sequences that are under way while weights change: none is lost, none is learned from twice, and long ones are not rarer than drawn."""

import math
import random
import time

from chaos import DONE, LOCKED, Failure, lines_in, must_go_on_behind, wait_until

APART = ("ranks.trainer=0-0", "ranks.generator=1-1", "ranks.reward=2-2")
PROMPTS, SAMPLES = 20, 2  # of an iteration
# Answers end at one of the deck's stop texts: their lengths have a long tail.
LONG = (f"rollout.batch_size={PROMPTS}", f"rollout.n_samples_per_prompt={SAMPLES}", "rollout.max_new_tokens=40", "generate.max_batch=8")
AHEAD = ("train.partial_rollout_enable=true", "algo.advantage.is_correction_enable=true")
ORDERS = ("drawn", "finished")
OVER_SAMPLED = {"over-sampled": (f"rollout.over_sampling={PROMPTS // 2}",)}


def ahead(*depths):
    """Deck keys by name."""
    return {f"{depth}-{order}": (*AHEAD, f"train.async_depth={depth}", f"train.partial_rollout_order={order}") for depth in depths for order in ORDERS}


def ids(iterations, prompts):
    return [iteration << 40 | prompt << 20 | sample << 8 for iteration in range(1, iterations + 1) for prompt in range(prompts) for sample in range(SAMPLES)]


def same_distribution(a, b):
    """Probability of a distance as large between two samples of one distribution (Kolmogorov and Smirnov)."""
    values = sorted(set(a) | set(b))
    distance = max(abs(sum(x <= v for x in a) / len(a) - sum(x <= v for x in b) / len(b)) for v in values)
    n = len(a) * len(b) / (len(a) + len(b))
    scaled = distance * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))
    return 1.0 if scaled < 0.2 else sum((2 if k % 2 else -2) * math.exp(-2 * (scaled * k) ** 2) for k in range(1, 101))


def length_bias(shop, groups, seed, kinds):
    """With weights that stay what they are the same prompts have the same answers whoever is ahead of whom. So what is learned from at any depth, and where
    long answers begin again, is what was drawn: each sequence once, with the tokens that it has otherwise; and the iterations in the middle have as many
    long ones as all."""
    iterations = max(6, groups // PROMPTS)
    common = (*LONG, "actor.adam.lr=0", "critic.adam.lr=0", "ckpt.interval=0", f"run.seed={seed}")
    reference = f"bias-{seed}"
    shop.go(reference, *common, *APART, ranks=3, iterations=iterations)
    drawn = {sample["id"]: sample["output_ids"] for sample in shop.samples(reference)}
    if sorted(drawn) != ids(iterations, PROMPTS) or len(shop.samples(reference)) != len(drawn):
        raise Failure(f"{reference}: not every drawn sequence once")
    for name, arguments in kinds.items():
        run = f"bias-{seed}-{name}"
        shop.go(run, *common, *APART, *arguments, ranks=3, iterations=iterations)
        learned = shop.samples(run)
        if sorted(sample["id"] for sample in learned) != sorted(drawn):
            raise Failure(f"{run}: not every drawn sequence once")
        if any(sample["output_ids"] != drawn[sample["id"]] for sample in learned):
            raise Failure(f"{run}: another answer than without anybody ahead")
        middle = [len(sample["output_ids"]) for sample in learned if iterations / 6 < sample["iteration"] <= iterations * 5 / 6]
        p = same_distribution(middle, [len(tokens) for tokens in drawn.values()])
        print(f"    {groups} groups, {name}: p = {p:.3f}", flush=True)
        if p <= 0.01:
            raise Failure(f"{run}: lengths of what is learned from and of what was drawn differ, p = {p}")
        shop.remove(run)
    shop.remove(reference)


def kills_in_flight(shop, count, seed, kinds):
    """SIGKILL at random moments, one run after the other until it is done: ids complete, none twice. Each seed has one of the kinds."""
    dice = random.Random(seed)
    kind = list(kinds)[seed % len(kinds)]
    run, iterations = f"flight-{seed}-{kind}", 8
    arguments = (*LONG, *APART, *kinds[kind])

    def must_be_whole():
        learned = [sample["id"] for sample in shop.samples(run)]
        if sorted(learned) != ids(iterations, PROMPTS):
            raise Failure(f"{run} ({kind}): {len(learned)} sequences, {len(set(learned))} of them different, {len(ids(iterations, PROMPTS))} drawn")
        shop.remove(run)

    done = 0
    while done < count:
        before = lines_in(shop.path(run) / "metrics.jsonl")
        job = shop.begin(run, *arguments, ranks=3, iterations=iterations)
        wait_until(lambda: lines_in(shop.path(run) / "metrics.jsonl") > min(before, iterations - 1), job)
        time.sleep(dice.random() * 0.3)
        if job.process.poll() is None:
            shop.hit(job, dice.choice(("rank", "all", "launcher")), dice)
            done += 1
        result = job.wait()
        must_go_on_behind(result, before - 2)
        if result.code == DONE:
            must_be_whole()
        elif result.code == LOCKED:
            time.sleep(0.2)
    shop.finish(run, *arguments, ranks=3, iterations=iterations)
    must_be_whole()
    return done

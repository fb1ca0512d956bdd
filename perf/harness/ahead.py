"""Rows of the group `ahead`: W8, P3, P5, P6. Ranks that train beside one that generates, ahead of the trainers and taking turns.

In rows "sleeping" the steps of all roles sleep in place of computing, so that none slows another down: what is left is the schedule. How long each sleeps is found
by a run before the first of them: the roles' loads are to be equal, on this machine as it is now (`equal_sleeps`).
"""

import functools
import json
import math
import statistics
from collections.abc import Callable

from .rows import STOPS, Peer, Row, iteration_figure, long_tail

AHEAD = ("train.async_depth=1", "train.partial_rollout_enable=true")
APART = ("ranks.trainer=1", "ranks.generator=1")
COMPUTED = ("25M", "bf16", *long_tail(STOPS), *APART, "rollout.batch_size=16", "train.batch_size=32", "generate.max_batch=1")
# Of 512 tokens 6 end an answer. About 1,700 steps of 32 slots of 6 ms and 4 updates an iteration. Waves of the reference are small, since what is left of a batch
# when its last answer is there is waited for.
ASLEEP = ("asleep", "bf16", *long_tail(range(300, 306)), "rollout.batch_size=64", "train.batch_size=128", "rollout.micro_batch_tokens=1024")
SLOTS = "generate.max_batch=32"
GENERATE, UPDATE, REFERENCE = "generate step", "actor step", "log-prob micro-batch"
# name -> (ranks, overrides, {place of a sleep: (the rank that sleeps there, ms to begin with)}, the generator's rank). A rank that has the reference and another
# role does not sleep for the reference.
LAYOUTS = {"1 + 1 ranks": (2, APART, {UPDATE: (0, 2300)}, 1),
           "2 + 1 + 1 ranks": (4, ("ranks.trainer=0-1", "ranks.generator=2-2", "ranks.reward=3-3"), {UPDATE: (0, 2550), REFERENCE: (3, 155)}, 2)}
STEP = 6  # ms of a generator's step
PLUGIN = ('kind = "plugin"', 'name = "slow"', 'command = ["python3", "perf/ppo/slow_plugin.py"]', "processes = 4")


def sleeps(step, others=(), reference_rank="*"):
    """`others`: (place, ms)."""
    asleep = [f"delay:{reference_rank if place == REFERENCE else '*'}:{place}:*:{milliseconds:.4g}" for place, milliseconds in ((GENERATE, step), *others)]
    return f"fault.at={json.dumps(asleep)}"


BETWEEN_STEPS = 10_000  # microseconds


def timelines(events):
    """Of each rank its iterations but the first and the last, in which one role has nothing to do yet or any more: their number, their microseconds, and of each
    region of the main thread there [name, category, microseconds that no region inside it has]. Who waits for others writes or scores meanwhile: what lies between two
    such steps is looking for more of them, or a core that somebody else has, and the second step's, not a wait for a role."""
    ranks = {}
    for event in events:
        if event["ph"] == "X" and event["tid"] == event["pid"] * 1000 + 1:
            ranks.setdefault(event["pid"], []).append(event)
    for _, mine in sorted(ranks.items()):
        iterations = sorted((e["ts"], e["ts"] + e["dur"]) for e in mine if e["name"] == "iteration")[1:-1]
        begin, end = iterations[0][0], iterations[-1][1]
        regions, open_regions = [], []
        for event in sorted(mine, key=lambda e: (e["ts"], -e["dur"])):
            stop = event["ts"] + event["dur"]
            open_regions = [one for one in open_regions if one[1] >= stop]
            inside = max(0, min(stop, end) - max(event["ts"], begin))
            regions.append([event["name"], event["cat"], inside])
            if open_regions:
                outer, until, last = open_regions[-1]
                gap = event["ts"] - last
                if outer[1] == "wait" and gap < BETWEEN_STEPS and begin <= last and stop <= end:
                    outer[2] -= gap
                    regions[-1][2] += gap
                outer[2] -= inside
                open_regions[-1] = (outer, until, stop)
            open_regions.append((regions[-1], stop, -math.inf))
        yield len(iterations), end - begin, [region for region in regions if region[2] > 0]


def waiting(events):
    """Of each rank the share of these iterations in which its main thread waits for others."""
    for _, duration, regions in timelines(events):
        yield sum(own for _, category, own in regions if category == "wait") / duration


def working(events):
    """Of each rank: seconds of an iteration in which it does not wait, and how often it is at each place in one."""
    for iterations, duration, regions in timelines(events):
        waits = sum(own for _, category, own in regions if category == "wait")
        visits = {place: sum(name == place for name, _, _ in regions) / iterations for place in (UPDATE, REFERENCE)}
        yield (duration - waits) / iterations / 1e6, visits


def trace_of(run):
    return json.loads((run / "trace.json").read_text())["traceEvents"]


def middle(lines, *_):
    """Seconds of an iteration. The first one, which lines do not have, waits for the whole of its rollout, the last one has nobody ahead."""
    return statistics.mean(line["seconds"]["total"] for line in lines[:-1])


@functools.cache
def equal_sleeps(layout):
    """(place, ms) with which each role works as long in an iteration one batch ahead as the generator: by a run of six."""
    ranks, overrides, places, generator = LAYOUTS[layout]
    guess = sleeps(STEP, ((place, milliseconds) for place, (_, milliseconds) in places.items()), places.get(REFERENCE, ("*",))[0])
    work = list(iteration_figure(*ASLEEP, *overrides, SLOTS, *AHEAD, "run.iterations=6", guess, figure=lambda lines, summary, run: list(working(trace_of(run))), ranks=ranks)())
    equal = []
    for place, (rank, milliseconds) in places.items():
        seconds, visits = work[rank]
        equal.append((place, max(0.0, milliseconds + 1e3 * (work[generator][0] - seconds) / visits[place])))
    loads = ", ".join(f"rank {rank} {seconds:.2f} s" for rank, (seconds, _) in enumerate(work))
    print(f"sleeps of {layout}: {', '.join(f'{place} {milliseconds:.0f} ms' for place, milliseconds in equal)} (with a guess, work of an iteration: {loads})", flush=True)
    return tuple(equal)


def apart(layout):
    """Overrides of the layout with equal loads."""
    _, overrides, places, _ = LAYOUTS[layout]
    return *overrides, SLOTS, sleeps(STEP, equal_sleeps(layout), places.get(REFERENCE, ("*",))[0])


def colocated(layout):
    """Of as many ranks that have all roles and take turns: each has its share of the updates' and the reference's work, and where the reference sleeps so do the trainers'
    log-probs, half as long each."""
    ranks, _, places, _ = LAYOUTS[layout]
    trainers = 2 if ranks == 4 else 1
    shares = []
    for place, milliseconds in equal_sleeps(layout):
        # Updates are as many as before, and shorter; micro-batches are fewer on each rank, and as long.
        shares.append((place, milliseconds * trainers / ranks if place == UPDATE else milliseconds / 2))
    return SLOTS, sleeps(STEP, shares)


class Measured:
    """A figure of a run whose overrides are known when it is made."""

    def __init__(self, load, overrides: Callable[[], tuple], more, **how):
        self.load, self.overrides, self.more, self.how, self.command = load, overrides, more, how, ""

    def __call__(self):
        run = iteration_figure(*self.load, *self.overrides(), *self.more, **self.how)
        self.command = run.command
        return run()


def pair(load, overrides, what, iterations, ranks=2, beside=()):
    """W8, and P3 of the same runs: the share is that of a run from which W8 has its seconds, if there is one."""
    def both(*more):
        shares = []
        run = Measured(load, overrides, (f"run.iterations={iterations}", *more), ranks=ranks,
                       figure=lambda lines, summary, run: (middle(lines), max(waiting(trace_of(run)))))

        def seconds():
            taken, share = run()
            shares.append(share)
            seconds.command = share_of.command = run.command
            return taken

        def share_of():
            if shares:
                return shares.pop(0)
            share = run()[1]
            share_of.command = run.command
            return share
        return seconds, share_of
    (ours, ours_share), (turns, turns_share) = both(*AHEAD), both()
    return [
        Row("W8", f"PPO iteration one batch ahead, {what}", "s", ours, [Peer("taking turns", turns, 1 / 0.65), *beside], lower=True),
        Row("P3", f"share of its iterations that a role waits, {what}", "", ours_share, [Peer("taking turns", turns_share)], lower=True,
            limit=lambda limits: 0.08, limit_target=1.0)]


def occupancy_rows(layout, what, quick):
    """A slot for each answer of a batch; generation takes most of an iteration, whatever the depth."""
    ranks, overrides, _, _ = LAYOUTS[layout]

    def occupancy(ahead, *more):
        """Of the iterations in which batches are begun, but the first: tokens per slot and step."""
        def of(lines, *_):
            steady = [line["generation"] for line in lines[:len(lines) - ahead]]
            return sum(one["tokens"] for one in steady) / sum(one["tokens"] / one["occupancy"] for one in steady)
        count = (4 if quick else 8) + ahead
        return iteration_figure(*ASLEEP, *overrides, "generate.max_batch=512", sleeps(80), f"run.iterations={count}", *more, figure=of, ranks=ranks)
    return [Row("P6", f"occupancy {ahead} batches ahead in the order {order}, {what}", "",
                occupancy(ahead, f"train.async_depth={ahead}", AHEAD[1], f"train.partial_rollout_order={order}"), [Peer("taking turns", occupancy(0), 2.0)],
                limit=lambda limits: 0.8, limit_target=1.0) for ahead, order in ((4, "drawn"), (2, "finished"))]


def ahead_rows(quick):
    iterations = 5 if quick else 8
    length = f"run.iterations={iterations}"
    computed = "1 + 1 ranks, 128 answers with a long tail, 25M bf16"
    rows = [
        Row("P5", f"PPO iteration with a plugin of 50 ms an answer, taking turns, {computed}", "s", iteration_figure(*COMPUTED, length, figure=middle, plugin=PLUGIN),
            [Peer("a rule", iteration_figure(*COMPUTED, length, figure=middle), 0.9)], lower=True),
        *pair(COMPUTED, tuple, computed, iterations)]
    for layout, (ranks, *_) in LAYOUTS.items():
        what = f"{layout}, 512 answers with a long tail, sleeping"
        overrides = functools.partial(apart, layout)
        beside = Peer(f"{ranks} colocated ranks", Measured(ASLEEP, functools.partial(colocated, layout), (length,), figure=middle, ranks=ranks))
        rows += pair(ASLEEP, overrides, what, iterations, ranks, [beside])
        with_plugin, with_rule = (Measured(ASLEEP, overrides, (*AHEAD, length), figure=middle, ranks=ranks, plugin=plugin) for plugin in (PLUGIN, ()))
        rows.append(Row("P5", f"PPO iteration with a plugin of 50 ms an answer, one batch ahead, {what}", "s", with_plugin, [Peer("a rule", with_rule, 0.9)], lower=True))
        rows += occupancy_rows(layout, what, quick)
    return rows

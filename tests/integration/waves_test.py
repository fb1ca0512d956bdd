#!/usr/bin/env python3
"""Models score sequences while others are written and while plugins work: the run is that of models that wait for all of them, bit for bit, at every layout, and
wherever it is stopped."""

import json
import signal
import sys

from trireme_run import RULE_SOURCE, ProgramTest, main, timeless

STOPPED = 75
PLUGIN = f"""[[reward.source]]
kind = "plugin"
command = ["{sys.executable}", "judge.py"]
"""
JUDGE = """
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    time.sleep(0.01)
    print(json.dumps({"id": request["id"], "reward": float(len(request["response"]) % 3)}), flush=True)
"""
# Answers of many lengths.
DECK = ["run.iterations=3", "rollout.batch_size=4", "rollout.n_samples_per_prompt=4", "rollout.max_new_tokens=24", "train.batch_size=8", "train.max_epochs=2",
        "algo.advantage.estimator=group_norm", "ckpt.interval=0"]
SMALL = "rollout.micro_batch_tokens=24"


def faults(*texts):
    return "fault.at=[" + ", ".join(f'"{text}"' for text in texts) + "]"


def waiting_generator(models, step=16):
    """A generator, which is rank 1, has written some of the first answers and goes on when a model of rank `models` has begun with them. What else the
    ranks do at the same time is left to them: slow steps make it likely that there are more such waves."""
    return (f"open:{models}:reference log-probs:1:1", f"gate:1:generate step:{step}:1", "delay:*:generate step:*:2")


def handshakes(rank, place, passes, step, first_gate, apart=2):
    """At each of these passes of `place` that rank and the generator, which is rank 1, wait for each other: the generator at `step` and every `apart` steps
    after it, and writes a step before the rank goes on. Three of them and messages are through, however the ranks are scheduled."""
    for i, number in enumerate(passes):
        there, back = first_gate + 2 * i, first_gate + 2 * i + 1
        yield from (f"open:{rank}:{place}:{number}:{there}", f"gate:1:generate step:{step + apart * i}:{there}",
                    f"open:1:generate step:{step + apart * i + 1}:{back}", f"gate:{rank}:{place}:{number}:{back}")


APART = ["ranks.trainer=0-0", "ranks.generator=1-1", "ranks.reward=2-2"]
# name -> (ranks, overrides, the rank whose model surely finds something to do before all is there, or None)
LAYOUTS = {
    "2 colocated": (2, [], None),
    "1+1": (2, ["ranks.trainer=1", "ranks.generator=1"], 0),
    "1+1, reward apart, queues of one": (3, [*APART, "rollout.queue_messages=1"], None),
    "1+1+2": (4, ["ranks.trainer=0-0", "ranks.generator=1-1", "ranks.reward=2-3"], 2),
    "trainers and generators share a rank": (3, ["ranks.trainer=0-1", "ranks.generator=1-2"], None),
    "one batch ahead": (3, [*APART, "train.async_depth=1"], 2),
    "more prompts than are learned from": (2, ["ranks.trainer=1", "ranks.generator=1", "rollout.over_sampling=3"], None),
    "what has something to teach": (2, ["ranks.trainer=1", "ranks.generator=1", "algo.dynamic_filtering_enable=true", "reward.source.0.length_weight=0",
                                        "algo.dynamic_filtering_range=[0.1, 0.9]"], 0),
}
SLOW = faults("delay:*:generate step:*:4")  # of no matter to the result


class Waves(ProgramTest):
    deck = "ppo.toml"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "judge.py").write_text(JUDGE)

    def run_deck(self, run, *overrides, **options):
        return self.succeed("ppo", self.deck, f"run.dir={run}", *DECK, *overrides, **options)

    def counts(self, run):
        return json.loads((self.folder / run / "summary.json").read_text())["counts"]

    def in_waves(self, run):
        return self.counts(run).get("sequences_scored_in_waves", 0)

    def assert_equal_runs(self, run, other):
        self.assertEqual(self.samples(run), self.samples(other))
        self.assertEqual(timeless(self.metrics(run)), timeless(self.metrics(other)))

    def steps_of(self, run, rank):
        """[(first, last)] of the generate steps of that rank in each rollout phase, counted from 1 over the run, with the phase's iteration."""
        events = [e for e in json.loads((self.folder / run / "trace.json").read_text())["traceEvents"] if e.get("pid") == rank and "dur" in e]
        steps = sorted(e["ts"] for e in events if e["name"] == "generate step")
        phases = sorted((e["ts"], e["ts"] + e["dur"], e["args"]["n"]) for e in events if e["name"] == "rollout")
        return [(n, sum(ts < begin for ts in steps) + 1, sum(ts < end for ts in steps)) for begin, end, n in phases]

    def test_layouts(self):
        for name, (ranks, roles, surely) in LAYOUTS.items():
            with self.subTest(layout=name):
                run = "".join(c for c in name if c.isalnum())
                self.run_deck(run, *roles, ranks=ranks)
                self.assertEqual(self.in_waves(run), 0, "all of it is less than a micro-batch")
                self.run_deck(f"{run}-waves", *roles, SMALL, SLOW if surely is None else faults(*waiting_generator(surely)), ranks=ranks)
                if surely is not None:
                    self.assertGreater(self.in_waves(f"{run}-waves"), 0)
                self.assert_equal_runs(f"{run}-waves", run)

    def test_partial_rollouts(self):
        """Reward ranks that have nothing else to do score what comes for later iterations; every sequence is learned from once. With train.deterministic
        the numbers are those without."""
        ahead = ["train.partial_rollout_enable=true", "train.async_depth=2", "generate.max_batch=3", SMALL]
        self.run_deck("ahead", *APART, *ahead[:-1], "train.deterministic=true", ranks=3)
        gated = faults(*waiting_generator(2, step=30))
        self.run_deck("ahead-waves", *APART, *ahead, "train.deterministic=true", gated, ranks=3)
        self.assertGreater(self.in_waves("ahead-waves"), 0)
        self.assert_equal_runs("ahead-waves", "ahead")
        for name, ranks, more in (("two", 4, [*APART[:2], "ranks.reward=2-3"]), ("finished", 3, [*APART, "train.partial_rollout_order=finished"])):
            with self.subTest(name):
                self.run_deck(name, *ahead, *more, gated, ranks=ranks)
                self.assertGreater(self.in_waves(name), 0)
                ids = sorted(sample["id"] for sample in self.samples(name))
                self.assertEqual(ids, [i << 40 | p << 20 | s << 8 for i in range(1, 4) for p in range(4) for s in range(4)])

    def test_a_long_pass_takes_what_comes(self):
        """Between its micro-batches a rank looks at its queues and its plugins: neither waits for the end of a pass. The reward rank begins its first pass when
        the generator has come to its 18th step. The generator goes on when that pass has begun, and sends what it finishes; from then on the two wait for
        each other three times, so that the messages are through however the ranks are scheduled."""
        self.deck = self.deck_with("judged.toml", RULE_SOURCE, PLUGIN)
        self.run_deck("short", *APART, SMALL, SLOW, ranks=3)
        gates = faults("open:1:generate step:18:1", "gate:2:rollout:1:1", "open:2:reference log-probs:1:2", "gate:1:generate step:19:2",
                       *handshakes(2, "log-prob micro-batch", (1, 2, 3), step=22, apart=1, first_gate=3))
        self.run_deck("long", *APART, SMALL, gates, ranks=3)
        self.assertGreater(self.counts("long")["sequences_received_while_scoring"], 0)
        self.assert_equal_runs("long", "short")

    def test_trainers_take_what_comes(self):
        """A rank that trains and scores looks at its queues and its plugins between the micro-batches of its own passes: plugins have something to do in all of an
        optimizer step. Numbers are those of trainers that do not. The trainer waits inside its passes until the generator, which writes for the next
        iteration meanwhile, has sent more: where that is in its steps, the first run tells."""
        self.deck = self.deck_with("judged.toml", RULE_SOURCE, PLUGIN)
        ahead = ["ranks.trainer=1", "ranks.generator=1", "train.partial_rollout_enable=true", "train.async_depth=1", "train.deterministic=true",
                 "generate.max_batch=3", "algo.kl.init_coef=0", "train.micro_batch_tokens=64", "rollout.micro_batch_tokens=64"]
        self.run_deck("quick", *ahead, ranks=2)
        rollouts = self.steps_of("quick", rank=1)
        middle = {n: (first + last) // 2 for n, first, last in rollouts if last - first > 20}
        self.assertLessEqual({2, 3}, middle.keys(), f"steps of the rollouts beside optimizer steps: {rollouts}")
        gates = faults(*handshakes(0, "actor step", (1, 2, 3), step=middle[2], first_gate=1),
                       *handshakes(0, "log-prob micro-batch", (2, 3, 4), step=middle[3], first_gate=7))
        self.run_deck("many", *ahead, gates, ranks=2)
        self.assert_equal_runs("many", "quick")
        counts = self.counts("many")
        self.assertGreater(counts["sequences_received_while_scoring"], 0, "log-probs of tokens that older weights wrote")
        self.assertGreater(counts["sequences_received_while_training"], 0)

    def test_models_do_not_wait_for_plugins(self):
        """The reference has had a batch when the wait for the plugin's answers begins."""
        self.deck = self.deck_with("judged.toml", RULE_SOURCE, PLUGIN)
        self.run_deck("judged", ranks=2)
        events = json.loads((self.folder / "judged" / "trace.json").read_text())["traceEvents"]
        for rank in range(2):
            begins = {name: [e["ts"] for e in events if e.get("pid") == rank and e["name"] == name] for name in ("reference log-probs", "reward sources")}
            self.assertEqual(len(begins["reward sources"]), 3)
            for model, plugin in zip(begins["reference log-probs"], begins["reward sources"], strict=True):
                self.assertLess(model, plugin)

    def test_a_stop_between_waves(self):
        """What models have had is had again after the start; the numbers are those of a run that was not stopped."""
        self.deck = self.deck_with("judged.toml", RULE_SOURCE, PLUGIN)
        self.run_deck("undisturbed", *APART, SMALL, SLOW, ranks=3)
        stop = faults(*waiting_generator(2), f"signal:2:reference log-probs:2:{int(signal.SIGUSR1)}")
        self.run_deck("stopped", *APART, SMALL, stop, ranks=3, code=STOPPED)
        self.run_deck("stopped", *APART, SMALL, SLOW, ranks=3)
        self.assert_equal_runs("stopped", "undisturbed")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Models score sequences while others are written and while plugins work: the run is that of models that wait for all of them, bit for bit, at every layout, and
wherever it is stopped."""

import json
import signal

from trireme_run import RULE_SOURCE, main
from wave_runs import APART, PLUGIN, SLOW, SMALL, WaveTest, faults, handshakes, waiting_generator

STOPPED = 75
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


class Waves(WaveTest):
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

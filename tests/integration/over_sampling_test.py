#!/usr/bin/env python3
"""More prompts are written than an iteration learns from, and those with long answers begin again: every drawn sequence is learned from once, in the
same iteration with the same bits whatever the layout, the slots and the queues are, and wherever a run was stopped or killed."""

import signal
import sys

from trireme_run import RULE_SOURCE, ProgramTest, main, timeless

STOPPED, LOCKED, CONFIGURATION = 75, 73, 78
ITERATIONS, PROMPTS, SAMPLES, MORE = 7, 4, 2, 3
PLUGIN = f"""[[reward.source]]
kind = "plugin"
command = ["{sys.executable}", "judge.py"]
"""
JUDGE = """
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    time.sleep(0.003)
    print(json.dumps({"id": request["id"], "reward": float(len(request["response"]) % 3)}), flush=True)
"""
# Long tails: answers end at one of a few letters.
DECK = [f"run.iterations={ITERATIONS}", f"rollout.over_sampling={MORE}", "rollout.max_new_tokens=32"]
LAYOUTS = {
    "2 colocated": (2, []),
    "1+1": (2, ["ranks.trainer=1", "ranks.generator=1"]),
    "1+1, reward apart, one slot, short queues": (3, ["ranks.trainer=1", "ranks.generator=1", "ranks.reward=1", "generate.max_batch=1",
                                                      "rollout.queue_messages=1"]),
    "1+2, three slots": (3, ["ranks.trainer=0-0", "ranks.generator=1-2", "generate.max_batch=3"]),
}


class OverSampling(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "judge.py").write_text(JUDGE)
        cls.deck_with("ppo.toml", RULE_SOURCE, PLUGIN)

    def ids(self):
        return [i << 40 | p << 20 | s << 8 for i in range(1, ITERATIONS + 1) for p in range(PROMPTS) for s in range(SAMPLES)]

    def assert_each_once(self, run):
        samples = self.samples(run)
        self.assertEqual(sorted(s["id"] for s in samples), self.ids())
        for iteration in range(1, ITERATIONS + 1):
            groups = [s["id"] >> 20 for s in samples if s["iteration"] == iteration]
            self.assertEqual(len(groups), PROMPTS * SAMPLES)
            self.assertTrue(all(groups.count(group) == SAMPLES for group in groups), "groups are whole")
        for sample in samples:
            self.assertTrue(-1 <= sample["iteration"] - (sample["id"] >> 40) <= 4, "none waits for longer")
        lines = self.metrics(run)
        self.assertEqual([line["carried_groups"] for line in lines], [MORE] * (ITERATIONS - 1) + [0])
        return lines

    def of_iterations(self, run):
        return [(s["iteration"], s["id"], s["output_ids"], s["reward"]) for s in sorted(self.samples(run), key=lambda s: (s["iteration"], s["id"]))]

    def test_layouts(self):
        self.succeed("ppo", "ppo.toml", "run.dir=alone", "ckpt.interval=0", *DECK, "actor.adam.lr=0", "critic.adam.lr=0")
        lines = self.assert_each_once("alone")
        samples = self.samples("alone")
        self.assertTrue(any(s["iteration"] > s["id"] >> 40 for s in samples), "somebody was carried over")
        self.assertGreater(sum(line["generation"].get("dropped_tokens", 0) for line in lines), 0)
        for line in lines:  # what was written and is not learned from is counted
            learned = sum(len(s["output_ids"]) for s in samples if s["iteration"] == line["iteration"])
            self.assertEqual(line["generation"]["tokens"] - line["generation"].get("dropped_tokens", 0), learned)
        # Weights that stay what they are: the answers are those of a run without over-sampling.
        plain = [key for key in DECK if "over_sampling" not in key]
        self.succeed("ppo", "ppo.toml", "run.dir=plain", "ckpt.interval=0", *plain, "actor.adam.lr=0", "critic.adam.lr=0")
        self.assertEqual({s["id"]: s["output_ids"] for s in samples}, {s["id"]: s["output_ids"] for s in self.samples("plain")})
        self.assertLess(sum(line["generation"]["steps"] for line in lines), sum(line["generation"]["steps"] for line in self.metrics("plain")))
        for name, (ranks, roles) in LAYOUTS.items():
            with self.subTest(layout=name):
                run = "layout-" + "".join(c for c in name if c.isalnum())
                self.succeed("ppo", "ppo.toml", f"run.dir={run}", "ckpt.interval=0", *DECK, *roles, "actor.adam.lr=0", "critic.adam.lr=0", ranks=ranks)
                self.assert_each_once(run)
                self.assertEqual(self.of_iterations(run), self.of_iterations("alone"))

    def test_replicas_of_two_ranks(self):
        self.succeed("ppo", "ppo.toml", "run.dir=tensor", "ckpt.interval=0", *DECK, "ranks.trainer=0-0", "ranks.generator=1-2", "generate.tensor_parallel=2",
                     ranks=3)
        self.assert_each_once("tensor")

    def test_evaluation_between(self):
        self.succeed("ppo", "ppo.toml", "run.dir=evaluated", "ckpt.interval=0", *DECK, 'eval.dataset=["prompts.jsonl"]', "eval.steps=2", ranks=2)
        self.assert_each_once("evaluated")

    def test_stopped_and_killed(self):
        """At places of different roles; the start after it ends with the bits of an undisturbed run."""
        ranks, roles = LAYOUTS["1+2, three slots"]
        common = ["ppo", "ppo.toml", *DECK, *roles]
        self.succeed(*common, "run.dir=undisturbed", ranks=ranks)
        wanted, samples = timeless(self.assert_each_once("undisturbed")), self.samples("undisturbed")
        places = {"write": "1:generate step:60", "other": "2:generate step:75", "score": "0:reward:3", "train": "0:actor step:5", "sync": "1:sync:4", "save": "0:checkpoint:3"}
        for name, place in places.items():
            for kind in ("signal", "kill"):
                with self.subTest(place=name, kind=kind):
                    run = f"{kind}-{name}"
                    fault = f"{kind}:{place}" + (f":{int(signal.SIGUSR1)}" if kind == "signal" else "")
                    result = self.run_program(*common, f"run.dir={run}", f'fault.at=["{fault}"]', ranks=ranks)
                    self.assertTrue(result.code == STOPPED if kind == "signal" else result.code not in (0, STOPPED), result.text)
                    for _ in range(60):  # until the lock of a killed run has gone still
                        result = self.run_program(*common, f"run.dir={run}", "run.take_over=true", ranks=ranks)
                        if result.code != LOCKED:
                            break
                    self.assertEqual(result.code, 0, result.text)
                    self.assertEqual(timeless(self.assert_each_once(run)), wanted)
                    self.assertEqual(self.samples(run), samples)

    def test_what_is_refused(self):
        for overrides, words in (([f"rollout.over_sampling={PROMPTS + 1}"], "is more than rollout.batch_size"),
                                 (["rollout.over_sampling=1", "train.async_depth=1"], 'train.partial_rollout_order = "finished" instead')):
            with self.subTest(words):
                self.assertIn(words, self.succeed("ppo", "ppo.toml", "run.dir=refused", *overrides, code=CONFIGURATION).text)

    def test_switched_off_between_two_starts(self):
        """What waits is begun with the next iteration: each drawn sequence is still learned from once."""
        self.succeed("ppo", "ppo.toml", "run.dir=changed", *DECK, 'fault.at=["signal:0:actor step:3:10"]', code=STOPPED)
        self.succeed("ppo", "ppo.toml", "run.dir=changed", *(key for key in DECK if "over_sampling" not in key), 'ckpt.allow_changes=["rollout.over_sampling"]')
        self.assertEqual(sorted(sample["id"] for sample in self.samples("changed")), self.ids())


if __name__ == "__main__":
    main()

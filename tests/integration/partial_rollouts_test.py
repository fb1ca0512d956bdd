#!/usr/bin/env python3
"""Generators ahead of the trainers that take new weights between two tokens: every sequence is learned from once, in order, none with a
token older than train.async_depth, and a stop or a kill at any place loses and repeats none."""

import json
import math
import signal
import time

from trireme_run import ENDS_AS_USUAL, ENDS_AT_ONCE, SABOTEUR_SOURCE, ProgramTest, main, read_lines, timeless

SLOW = """
import json, sys, time
for line in sys.stdin:
    time.sleep(0.01)
    print(json.dumps({"id": json.loads(line)["id"], "reward": 0.0}), flush=True)
"""

LOCKED = 73
STOPPED = 75
CONFIGURATION = 78
ITERATIONS = 6
# Few slots for many sequences of different lengths: some are always under way when weights come.
DECK = [f"run.iterations={ITERATIONS}", "train.partial_rollout_enable=true", "generate.max_batch=3", "rollout.max_new_tokens=24", "rollout.stop=[]",
        "train.max_epochs=2", "algo.advantage.is_correction_enable=true"]
LAYOUTS = {
    "1+1": (2, ["ranks.trainer=1", "ranks.generator=1"]),
    "1+1, reward apart": (3, ["ranks.trainer=0-0", "ranks.generator=1-1", "ranks.reward=2-2"]),
    "2+1, reward with the generator": (3, ["ranks.trainer=0-1", "ranks.generator=2-2", "ranks.reward=2-2"]),
    "1+2": (3, ["ranks.trainer=0-0", "ranks.generator=1-2"]),
}


class PartialRollouts(ProgramTest):
    environment = ENDS_AT_ONCE

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "saboteur.py").write_text(SLOW)
        deck = (cls.folder / "ppo.toml").read_text()
        (cls.folder / "ppo.toml").write_text(deck.replace("\n[actor]", SABOTEUR_SOURCE + "[actor]"))

    def ids(self, iterations):
        return [iteration << 40 | prompt << 20 | sample << 8 for iteration in iterations for prompt in range(4) for sample in range(2)]

    def assert_whole(self, run, depth):
        """Every drawn sequence once, in the iteration that it was drawn for."""
        self.assertEqual([s["id"] for s in self.samples(run)], self.ids(range(1, ITERATIONS + 1)))
        lines = self.metrics(run)
        self.assertEqual([line["iteration"] for line in lines], list(range(1, ITERATIONS + 1)))
        for line in lines:
            shares = {int(key.removeprefix("staleness_")): value for key, value in line.items() if key.startswith("staleness_")}
            self.assertEqual(sorted(shares), list(range(depth + 1)), "none older than allowed")
            self.assertAlmostEqual(sum(shares.values()), 1, places=9)
        self.assertEqual(lines[0]["staleness"], 0)
        return lines

    def batches_under_way(self, run):
        """The most at a time, on any rank."""
        events = json.loads((self.folder / run / "trace.json").read_text())["traceEvents"]
        return max(value for event in events if event["ph"] == "C" and event["name"] == "batches under way" for value in event["args"].values())

    def test_depths_and_layouts(self):
        for depth in (1, 2, 4):
            for name, (ranks, roles) in LAYOUTS.items():
                with self.subTest(depth=depth, layout=name):
                    run = f"depth-{depth}-{name}".replace(" ", "-").replace(",", "").replace("+", "-")
                    self.succeed("ppo", "ppo.toml", f"run.dir={run}", f"train.async_depth={depth}", "ckpt.interval=0", *DECK, *roles, ranks=ranks)
                    lines = self.assert_whole(run, depth)
                    self.assertGreater(max(line["staleness"] for line in lines), 0, "somebody was ahead")
                    self.assertEqual(self.batches_under_way(run), depth + 1, "as early as the bound allows: the next ones beside the one that is waited for")

    def assert_each_once(self, run):
        """Every drawn sequence once, in whatever iteration; as many in each."""
        samples = self.samples(run)
        self.assertEqual(sorted(s["id"] for s in samples), self.ids(range(1, ITERATIONS + 1)))
        for iteration in range(1, ITERATIONS + 1):
            groups = [s["id"] >> 20 for s in samples if s["iteration"] == iteration]
            self.assertEqual(len(groups), 8)
            self.assertTrue(all(groups.count(group) == 2 for group in groups), "groups are whole")
        return self.metrics(run)

    def test_what_is_finished_first(self):
        """The groups that are finished first are learned from first, the others are carried over, also over a stop or a kill and to other ranks."""
        # Slots for all that is under way, so that short answers overtake long ones.
        deck = [key for key in DECK if "stop" not in key and "max_batch" not in key] + ["generate.max_batch=16", "train.partial_rollout_order=finished"]
        carried = 0
        # Slow enough that trainers come while the two batches ahead are being written.
        slow = "fault.at=[" + ",".join(f'"delay:*:generate step:{step}:30"' for step in range(15, 100)) + "]"
        for name in ("1+1, reward apart", "1+2"):
            ranks, roles = LAYOUTS[name]
            with self.subTest(layout=name):
                run = "finished-" + "".join(c for c in name if c.isalnum())
                self.succeed("ppo", "ppo.toml", f"run.dir={run}", "train.async_depth=2", slow, *deck, *roles, ranks=ranks)
                lines = self.assert_each_once(run)
                carried += sum(line["carried_groups"] for line in lines)
                self.assertEqual(lines[-1]["carried_groups"], 0)
                self.assertGreaterEqual(self.batches_under_way(run), 3)
                self.assertTrue(all(0 < line["generation"]["occupancy"] <= 1 for line in lines if "generation" in line))
        self.assertGreater(carried, 0, "somebody was overtaken")
        ranks, roles = LAYOUTS["1+2"]
        cases = (("signal", f"signal:1:generate step:30:{int(signal.SIGUSR1)}", "1+1"), ("kill", "kill:2:generate step:30", "1+2"))
        for kind, fault, again in cases:
            with self.subTest(kind=kind, again=again):
                run = f"finished-{kind}"
                common = ["ppo", "ppo.toml", f"run.dir={run}", "train.async_depth=2", *deck]
                result = self.run_program(*common, *roles, f'fault.at=["{fault}"]', ranks=ranks)
                self.assertTrue(result.code == STOPPED if kind == "signal" else result.code not in (0, STOPPED), result.text)
                self.start_again([*common, *LAYOUTS[again][1]], LAYOUTS[again][0])
                self.assert_each_once(run)

    def test_generators_that_train(self):
        """They write the beginnings of the next batches beside the end of this one, with weights that nobody changes meanwhile: the trainer finds
        the log-probs of its own version bit for bit, and a stop loses nothing."""
        for depth in (1, 2):
            with self.subTest(depth=depth):
                run = f"together-{depth}"
                common = ["ppo", "ppo.toml", f"run.dir={run}", f"train.async_depth={depth}", "ckpt.interval=0", *DECK]
                self.succeed(*common, 'fault.at=["signal:1:actor step:10:10"]', ranks=2, code=STOPPED)
                self.succeed(*common, ranks=2)
                lines = self.assert_whole(run, depth)
                self.assertGreater(max(line["staleness"] for line in lines), 0, "somebody was ahead")
                self.assertLess(lines[0]["mismatch_max"], 1e-5)

    def test_keys_that_stay(self):
        """Answers go on with the keys and values of older weights, on generators of their own and on those that train and have room for both; nothing is lost, over
        a stop neither."""
        keep = ["train.async_depth=2", "train.partial_rollout_kv=keep", *DECK]
        for name, ranks, roles in (("apart", *LAYOUTS["1+1"]), ("together", 2, [])):
            with self.subTest(layout=name):
                common = ["ppo", "ppo.toml", f"run.dir=keys-{name}", *keep, *roles]
                slow = '"delay:*:generate step:*:5"'  # answers are under way when weights come, whatever the machine does
                self.succeed(*common, f'fault.at=[{slow}, "signal:0:actor step:5:10"]', ranks=ranks, code=STOPPED)
                self.succeed(*common, f"fault.at=[{slow}]", ranks=ranks)
                self.assert_whole(f"keys-{name}", 2)
                self.assertGreater(json.loads((self.folder / f"keys-{name}" / "summary.json").read_text())["counts"]["tokens_kept_from_older_weights"], 0)

    def test_replicas_of_two_ranks(self):
        """Both write a token together or none, also while they wait at different places; one of them has another role beside it."""
        for name, roles in (("mixed", ["ranks.trainer=0-0", "ranks.generator=1-2", "ranks.reward=2-2"]),
                            ("training", ["ranks.trainer=0-1", "ranks.generator=1-2", "ranks.reward=0-0"])):
            with self.subTest(layout=name):
                common = ["ppo", "ppo.toml", f"run.dir=replica-{name}", "train.async_depth=2", "generate.tensor_parallel=2", "ckpt.interval=0",
                          *DECK, *roles]
                if name == "mixed":
                    self.succeed(*common, 'fault.at=["signal:0:actor step:10:10"]', ranks=3, code=STOPPED)
                self.succeed(*common, ranks=3)
                lines = self.assert_whole(f"replica-{name}", 2)
                self.assertGreater(max(line["staleness"] for line in lines), 0, "somebody was ahead")
                self.assertLess(lines[0]["mismatch_max"], 1e-4)

    def test_short_queues(self):
        ranks, roles = LAYOUTS["1+1, reward apart"]
        result = self.succeed("ppo", "ppo.toml", "run.dir=short", "train.async_depth=2", "rollout.queue_messages=1", *DECK, *roles, ranks=ranks)
        lines = self.assert_whole("short", 2)
        # What is seen of it: the engines' work, idle shares, the queues.
        summary = json.loads((self.folder / "short" / "summary.json").read_text())
        self.assertEqual(summary["generation"]["tokens"], sum(line["generation"]["tokens"] for line in lines if "generation" in line))
        self.assertTrue(0 < summary["generation"]["occupancy"] <= 1)
        for role in summary["roles"]:
            self.assertEqual(role["iterations"]["count"], ITERATIONS)
            self.assertLessEqual(role["iterations"]["wait"], role["iterations"]["seconds"])
        self.assertRegex(result.text, r"an iteration took .*; idle: trainer \d+ %, generator \d+ %, reward \d+ %; with generators and trainers in turns")
        queues = {event["name"] for event in json.loads((self.folder / "short" / "trace.json").read_text())["traceEvents"] if event["ph"] == "C"}
        self.assertLessEqual({"sequences running", "sequences waiting", "finished sequences under way", "sequences to score", "batches under way"}, queues)

    def test_old_tokens_are_left_out(self):
        """Those that older weights wrote, and only those; the rest is corrected by segment, under top-p."""
        ranks, roles = LAYOUTS["1+1, reward apart"]
        self.succeed("ppo", "ppo.toml", "run.dir=masked", "train.async_depth=2", "algo.advantage.mask_older_than=0", "rollout.top_p=0.9",
                     "algo.advantage.is_correction_type=custom", "algo.advantage.is_correction_level=segment",
                     "algo.advantage.is_correction_mode=mask", *DECK, *roles, ranks=ranks)
        lines = self.assert_whole("masked", 2)
        for line in lines:
            tokens = round(8 * line["response_length"])
            self.assertEqual(line["masked_tokens"], round((1 - line["staleness_0"]) * tokens))
            self.assertTrue(math.isfinite(line["policy_loss"]))
        self.assertGreater(sum(line["masked_tokens"] for line in lines), 0)

    def test_evaluation_between(self):
        ranks, roles = LAYOUTS["1+1, reward apart"]
        self.succeed("ppo", "ppo.toml", "run.dir=evaluated", "train.async_depth=2", 'eval.dataset=["prompts.jsonl"]', "eval.steps=2", *DECK, *roles, ranks=ranks)
        lines = self.assert_whole("evaluated", 2)
        self.assertEqual(sum("eval_reward" in line for line in lines), ITERATIONS // 2)

    def start_again(self, arguments, ranks):
        """When the lock of a killed run has gone still."""
        deadline = time.monotonic() + 60
        while True:
            result = self.run_program(*arguments, "run.take_over=true", ranks=ranks)
            if result.code != LOCKED or time.monotonic() > deadline:
                self.assertEqual(result.code, 0, result.text)
                return result
            time.sleep(0.5)

    def test_stopped_and_killed(self):
        """At places of different roles, with sequences under way; the start after it goes on with them."""
        ranks, roles = LAYOUTS["1+1, reward apart"]
        places = {"generate": ("1", "generate step:330"), "train": ("0", "actor step:14"), "reward": ("2", "reward plugin:4"), "sync": ("1", "sync:5"),
                  "save": ("0", "checkpoint:4")}
        for name, (rank, place) in places.items():
            for kind in ("signal", "kill"):
                with self.subTest(place=name, kind=kind):
                    run = f"{kind}-{name}"
                    fault = f"{kind}:{rank}:{place}" + (f":{int(signal.SIGUSR1)}" if kind == "signal" else "")
                    common = ["ppo", "ppo.toml", f"run.dir={run}", "train.async_depth=2", *DECK, *roles]
                    result = self.run_program(*common, f'fault.at=["{fault}"]', ranks=ranks, env=ENDS_AS_USUAL if name == "save" else None)
                    self.assertTrue(result.code == STOPPED if kind == "signal" else result.code not in (0, STOPPED), result.text)
                    again = self.start_again(common, ranks)
                    if kind == "signal":  # a kill may come before the first checkpoint is there
                        self.assertIn("resumed after iteration", again.text)
                    self.assert_whole(run, 2)

    def test_deterministic(self):
        """Which weights write which token depends on the deck alone: a slow trainer, a slow generator, a kill and a stop at any place leave the numbers
        as they are, bit for bit."""
        for depth, name in ((1, "1+1, reward apart"), (2, "1+2"), (2, "2+1, reward with the generator")):
            ranks, roles = LAYOUTS[name]
            common = ["ppo", "ppo.toml", f"train.async_depth={depth}", "train.deterministic=true", 'eval.dataset=["prompts.jsonl"]', "eval.steps=4",
                      *DECK, *roles]
            run = f"deterministic-{depth}-" + "".join(c for c in name if c.isalnum())
            generator = roles[1].removeprefix("ranks.generator=").split("-")[0]
            self.succeed(*common, f"run.dir={run}", ranks=ranks)
            wanted, samples = self.assert_whole(run, depth), self.samples(run)
            self.assertGreater(max(line["staleness"] for line in wanted), 0, "somebody was ahead")
            faults = {"slow-trainer": "delay:0:actor step:*:30", "slow-generator": f"delay:{generator}:generate step:*:2",
                      "kill-write": f"kill:{generator}:generate step:150", "kill-train": "kill:0:actor step:14", "kill-sync": f"kill:{generator}:sync:5",
                      "stop-train": f"signal:0:actor step:14:{int(signal.SIGUSR1)}",
                      "stop-write": f"signal:{generator}:generate step:150:{int(signal.SIGUSR1)}", "stop-score": f"signal:0:reward:4:{int(signal.SIGUSR1)}"}
            few = ("slow-generator", "kill-train", "stop-write")
            for fault, at in faults.items():
                if fault not in few and name != "1+2":
                    continue
                with self.subTest(depth=depth, layout=name, fault=fault):
                    again = [*common, f"run.dir={run}-{fault}"]
                    result = self.run_program(*again, f'fault.at=["{at}"]', ranks=ranks)
                    self.assertEqual(result.code == 0, "slow" in fault, result.text)
                    if result.code:
                        self.start_again(again, ranks)
                    self.assertEqual(timeless(self.assert_whole(f"{run}-{fault}", depth)), timeless(wanted))
                    self.assertEqual(self.samples(f"{run}-{fault}"), samples)

    def test_what_is_refused(self):
        for overrides, words in ((["train.async_depth=2"], "without train.partial_rollout_enable"),
                                 (["train.partial_rollout_enable=true"], "nobody writes while weights change"),
                                 (["train.partial_rollout_enable=true", "train.async_depth=1", "train.partial_rollout_order=finished",
                                   "train.deterministic=true"], "train.deterministic"),
                                 (["train.partial_rollout_kv=keep"], "is for train.partial_rollout_enable"),
                                 (["train.partial_rollout_enable=true", "train.async_depth=1", "train.partial_rollout_kv=keep", "train.deterministic=true"],
                                  "begins anew at each version")):
            with self.subTest(words):
                result = self.succeed("ppo", "ppo.toml", "run.dir=refused", *overrides, code=CONFIGURATION)
                self.assertIn(words, result.text)

    def test_the_checkpoint_needs_what_it_was_saved_with(self):
        ranks, roles = LAYOUTS["1+1"]
        common = ["ppo", "ppo.toml", "run.dir=changed", *roles]
        self.succeed(*common, "train.async_depth=2", *DECK, 'fault.at=["signal:0:actor step:6:10"]', ranks=ranks, code=STOPPED)
        self.assertTrue(read_lines(self.folder / "changed" / "metrics.jsonl"))
        allowed = 'ckpt.allow_changes=["train.partial_rollout_enable", "train.async_depth"]'
        deck = [key for key in DECK if "partial" not in key]
        result = self.run_program(*common, "train.async_depth=1", allowed, *deck, ranks=ranks)
        if result.code == CONFIGURATION:
            self.assertIn("sequences that are not finished", result.text)
        else:  # at that moment all of them were
            self.assertEqual(result.code, 0, result.text)
            self.assertEqual([s["id"] for s in self.samples("changed")], self.ids(range(1, ITERATIONS + 1)))


if __name__ == "__main__":
    main()

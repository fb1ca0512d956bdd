#!/usr/bin/env python3
"""Episodes with an environment: what is learned from, metrics and samples; a kill in the middle and a start from the checkpoint give the bits
of an undisturbed run; replicas of two ranks, an environment that fails."""

import json
import re
import sys
import time

from trireme_run import ENDS_AT_ONCE, ROOT, ProgramTest, main, timeless

# Answers in an order of its own, by the seed and the turns alone. A turn of few characters is a good one.
ENVIRONMENT = """
import json, os, select, sys
episodes, waiting = {}, []
broken = os.environ.get("BROKEN_SEED")
while True:
    line = sys.stdin.buffer.raw.readline() if len(waiting) < 2 and (not waiting or select.select([sys.stdin], [], [], 0.002)[0]) else None
    if line:
        waiting.append(json.loads(line))
        continue
    if not waiting:
        break
    request = waiting.pop()
    answer = {"id": request["id"]}
    if request["type"] == "close":
        episodes.pop(request["episode"], None)
        continue
    if request["type"] == "reset":
        episodes[request["episode"]] = [request["seed"]]
        answer["text"] = f" ({request['seed'] % 7}) "
    else:
        told = episodes[request["episode"]]
        told.append(request["text"])
        if os.environ.get("DIES") and len(told) == 3 and told[0] % 3 == 1:
            os._exit(1)
        if os.environ.get("MOOD"):
            told.append(os.environ["MOOD"])
        answer["reward"] = 1 / (1 + len(request["text"])) + (told[0] + len(told)) % 3 / 8
        answer["metrics"] = {"characters": len(request["text"])}
        if len(told) > 2 + told[0] % 3:
            answer["done"] = True
        else:
            answer["text"] = f" <{(told[0] + sum(map(len, told[1:]))) % 97}> "
    print(json.dumps(answer), flush=True)
"""

END = "<|eos|>"  # of a turn, in its text in samples.jsonl
LOCKED = 73
STOPPED = 75
DECK_LINES = f"""
[environment]
command = ["{sys.executable}", "environment.py"]
max_turns = 4
"""
GROUPS = ["algo.advantage.estimator=group_norm"]
APART = ["ranks.trainer=0-0", "ranks.generator=1-1", "ranks.reward=0-0"]
DETERMINISTIC = ["train.deterministic=true"]


class Episodes(ProgramTest):
    environment = ENDS_AT_ONCE

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "environment.py").write_text(ENVIRONMENT)
        text = (cls.folder / "ppo.toml").read_text()
        begin, end = text.index("[[reward.source]]"), text.index("[actor]")
        text = text[:begin] + DECK_LINES + text[end:]
        (cls.folder / "ppo.toml").write_text(text.replace("max_len = 48", "max_len = 96").replace('stop = ["a", "e",', 'stop = ["a", "b", "c", "d", "e",'))

    def test_what_is_learned_from(self):
        self.succeed("ppo", "ppo.toml", "run.dir=plain")
        samples = self.samples("plain")
        self.assertEqual(len(samples), 3 * 8)
        for sample in samples:
            self.assertGreater(len(sample["turns"]), 0)
            self.assertLessEqual(len(sample["turns"]), 4)
            self.assertAlmostEqual(sum(turn["reward"] for turn in sample["turns"]), sample["reward"], places=5)
            self.assertRegex(sample["prompt"], r" \(\d\) $", "the environment has begun the episode")
            spoken = "".join(turn["response"] + turn.get("observation", "") for turn in sample["turns"])
            self.assertTrue(sample["response"].startswith(spoken))
            for turn in sample["turns"][:-1]:
                self.assertRegex(turn["observation"], r"^ <\d+> $")
        turns = [len(sample["turns"]) for sample in samples]
        self.assertGreater(max(turns), 2)
        for line in self.metrics("plain"):
            self.assertGreater(line["turns"], 1)
            self.assertGreater(line["observation_tokens"], 0)
            self.assertEqual(line["broken_episodes"], 0)
            self.assertGreater(line["reward_environment/characters"], 0)
            environment = line["environment"]
            self.assertGreaterEqual(environment["requests"], 8 * (1 + line["turns"]) - 1e-6)
            self.assertGreater(environment["wait_seconds"], 0)
            self.assertEqual([environment[name] for name in ("retries", "restarts", "broken", "begun_again")], [0, 0, 0, 0])

    def test_group_estimators_and_other_sources(self):
        """The reward of an episode is the sum over its turns; a rule adds to it."""
        self.deck_with("rule.toml", "[actor]", '[[reward.source]]\nkind = "rule"\nrule = "regex"\npattern = "[a-zA-Z0-9]"\nweight = 0.5\n[actor]')
        self.succeed("ppo", "rule.toml", "run.dir=groups", *GROUPS, "environment.rewards=last")
        for sample in self.samples("groups"):
            parts = sample["parts"]
            self.assertAlmostEqual(parts["environment"], sum(turn["reward"] for turn in sample["turns"]), places=5)
            self.assertAlmostEqual(sample["reward"], parts["environment"] + 0.5 * parts["rule0"], places=5)

    def test_calls_by_tool(self):
        """The calculator's calls are one character each: a digit is a sum, a letter is none. What
        the run counts on two generators is in its samples."""
        program = ROOT / "inputs" / "plugins" / "calculator.py"
        tools = ["7", "k", "absent"]
        self.succeed("ppo", "ppo.toml", "run.dir=tools", "rollout.batch_size=16",
                     f"environment.command={json.dumps([sys.executable, str(program)])}",
                     "environment.tool_calls=regex",
                     "environment.tool_pattern=(?<name>[0-9a-z])",
                     f"environment.tools={json.dumps(tools)}", ranks=2)
        samples = self.samples("tools")
        for line in self.metrics("tools"):
            wanted = {name: {"calls": 0, "failed": 0} for name in [*tools, "other"]}
            for sample in samples:
                if sample["iteration"] != line["iteration"]:
                    continue
                for turn in sample["turns"]:
                    for name in re.findall("[0-9a-z]", turn["response"].removesuffix(END)):
                        counts = wanted[name if name in tools else "other"]
                        counts["calls"] += 1
                        counts["failed"] += not name.isdigit()
            environment = line["environment"]
            self.assertEqual(environment["tools"], wanted)
            for name, of_tools in (("calls", "calls"), ("failed_calls", "failed")):
                total = sum(counts[of_tools] for counts in wanted.values())
                self.assertEqual(environment[name], total)
            self.assertGreater(environment["failed_calls"], 0)
            self.assertGreater(environment["calls"], environment["failed_calls"])
            self.assertGreater(wanted["7"]["calls"] + wanted["k"]["calls"], 0)

    def test_an_environment_that_dies(self):
        """With outage = "skip" the episode ends with the turns that it has; the others are whole."""
        result = self.succeed("ppo", "ppo.toml", "run.dir=dies", "environment.outage=skip", "environment.retries=1", "environment.broken_reward=-2",
                              env={**ENDS_AT_ONCE, "DIES": "1"})
        samples = self.samples("dies")
        self.assertEqual(len(samples), 3 * 8)
        broken = [sample for sample in samples if sample["finish_reason"] == "broken"]
        self.assertGreater(len(broken), 0)
        for sample in broken:
            self.assertEqual(sample["turns"][-1]["reward"], -2)
        self.assertEqual(sum(line["environment"]["broken"] for line in self.metrics("dies")), len(broken))
        self.assertAlmostEqual(sum(line["broken_episodes"] for line in self.metrics("dies")), len(broken) / 8)
        self.assertIn("the episode broke after", result.text)

    def test_replicas_of_two_ranks(self):
        """The answers reach both, also with partial rollouts and where groups are left for the lack of short ones."""
        partial = ["train.partial_rollout_enable=true", "train.async_depth=1", "generate.max_batch=3", "algo.advantage.is_correction_enable=true",
                   "ranks.trainer=0-0", "ranks.generator=1-2", "ranks.reward=2-2"]
        for name, more, ranks in (("over", ["rollout.over_sampling=2"], 2), ("partial", partial, 3)):
            with self.subTest(name=name):
                self.succeed("ppo", "ppo.toml", f"run.dir=pair-{name}", "generate.tensor_parallel=2", *more, ranks=ranks)
                samples = self.samples(f"pair-{name}")
                self.assertEqual(len({sample["id"] for sample in samples}), 3 * 8)
                self.assertGreater(max(len(sample["turns"]) for sample in samples), 1)

    def start_again(self, run, *overrides, ranks):
        """Until the ranks of the run that was killed are gone, its folder is rightly locked."""
        deadline = time.monotonic() + 60
        while True:
            result = self.run_program("ppo", "ppo.toml", f"run.dir={run}", "run.take_over=true", *overrides, ranks=ranks)
            if result.code != LOCKED or time.monotonic() > deadline:
                self.assertEqual(result.code, 0, result.text)
                return
            time.sleep(0.5)

    def test_a_kill_in_the_middle(self):
        """At each depth: unfinished episodes begin again with the same draws, or continue where the checkpoint has them."""
        deep = ["train.partial_rollout_enable=true", "generate.max_batch=3", "rollout.max_new_tokens=24", "data.max_len=128", "environment.max_turns=6", "algo.advantage.is_correction_enable=true"]
        for depth, more, ranks, roles in ((0, [], 1, []), (1, [], 2, APART), (2, deep, 2, APART)):
            with self.subTest(depth=depth):
                iterations = 8 if depth == 2 else 4
                deck = [*DETERMINISTIC, f"run.iterations={iterations}", *GROUPS, *roles, *more, f"train.async_depth={depth}"]
                self.succeed("ppo", "ppo.toml", f"run.dir=left-{depth}", *deck, ranks=ranks)
                steps = sum(line.get("generation", {"steps": 0})["steps"] for line in self.metrics(f"left-{depth}"))
                # Two iterations ahead, the generator is done when the trainers have hardly begun.
                place = "kill:0:actor step:9" if depth == 2 else f"kill:{1 if roles else 0}:generate step:{int(0.7 * steps)}"
                killed = self.run_program("ppo", "ppo.toml", f"run.dir=killed-{depth}", *deck, f'fault.at=["{place}"]', ranks=ranks)
                self.assertNotIn(killed.code, (0, STOPPED), killed.text)
                done = len(self.metrics(f"killed-{depth}"))
                self.assertIn(done, range(1, iterations), "there is a checkpoint, and something left to do")
                self.start_again(f"killed-{depth}", *deck, ranks=ranks)
                for run in ("left", "killed"):
                    self.assertEqual(len(self.metrics(f"{run}-{depth}")), iterations)
                self.assertEqual(self.samples(f"killed-{depth}"), self.samples(f"left-{depth}"))
                self.assertEqual(timeless(self.metrics(f"killed-{depth}")), timeless(self.metrics(f"left-{depth}")))
                # Turns that the checkpoint has were told to the environment again: which checkpoint that is depends on time.
                asked, again = ([sum(line["environment"][name] for line in self.metrics(f"{run}-{depth}")) for run in ("killed", "left")] for name in ("requests", "begun_again"))
                self.assertEqual(again, [0, 0])
                self.assertGreaterEqual(*asked)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Dynamic filtering: draws what is missing, learns from every group that has something to teach once and in the order of drawing, and goes on with what
was left over, also after a stop; what it does where there are too few."""

import signal
import sys

from trireme_run import RULE_SOURCE, ProgramTest, main, timeless

BAD_DATA = 65
STOPPED = 75
GROUPS, SAMPLES, ITERATIONS = 4, 2, 4
PLUGIN = f"""[[reward.source]]
kind = "plugin"
command = ["{sys.executable}", "judge.py"]
"""
# One group in RARE has rewards that differ.
JUDGE = """
import json, os, sys
rare = int(os.environ.get("RARE", "2"))
for line in sys.stdin:
    number = int(json.loads(line)["id"])
    group, sample = number >> 20, number >> 8 & 0xFFF
    print(json.dumps({"id": json.loads(line)["id"], "reward": float(sample % 2 if group * 2654435761 % 4294967296 // 7 % rare == 0 else 0)}), flush=True)
"""
DECK = ["algo.dynamic_filtering_enable=true", "algo.advantage.estimator=group_norm"]
WHOLE = [*DECK, f"run.iterations={ITERATIONS}"]


def teaches(group, rare=2):
    return group * 2654435761 % 4294967296 // 7 % rare == 0


class Filtering(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "judge.py").write_text(JUDGE)
        cls.deck_with("ppo.toml", RULE_SOURCE, PLUGIN)

    def groups(self, run):
        """Groups by iteration."""
        found = {}
        for sample in self.samples(run):
            found.setdefault(sample["iteration"], set()).add(sample["id"] >> 20)
        return [sorted(found[iteration]) for iteration in sorted(found)]

    def assert_nothing_is_lost(self, run):
        lines = self.metrics(run)
        learned = [group for groups in self.groups(run) for group in groups]
        drawn = [line["iteration"] << 20 | ordinal for line in lines for ordinal in range(int(line["filter_drawn"]))]
        to_learn = [group for group in drawn if teaches(group)]
        self.assertEqual(learned, to_learn[:len(learned)], "each once, the oldest first")
        self.assertEqual(len(to_learn) - len(learned), lines[-1]["filter_surplus"])
        self.assertEqual(len(self.samples(run)), len(learned) * SAMPLES)
        surplus = 0
        for line, groups in zip(lines, self.groups(run), strict=True):
            fresh = [group for group in drawn if group >> 20 == line["iteration"]]
            self.assertEqual(len(groups), GROUPS)
            self.assertEqual(line["filter_skipped"], sum(not teaches(group) for group in fresh))
            self.assertEqual(line["staleness_1"] > 0, surplus > 0, "of an older policy are those of the iteration before")
            surplus = line["filter_surplus"]
        return lines

    def test_draws_what_is_missing_and_goes_on_after_a_stop(self):
        """Stopped or killed with something left over, it ends with the bits of an undisturbed run."""
        self.succeed("ppo", "ppo.toml", "run.dir=undisturbed", *WHOLE, ranks=2)
        self.succeed("ppo", "ppo.toml", "run.dir=apart", "ckpt.interval=0", *WHOLE, "ranks.trainer=1", "ranks.generator=1", "ranks.reward=1", ranks=3)
        for run in ("undisturbed", "apart"):
            lines = self.assert_nothing_is_lost(run)
            self.assertGreater(lines[0]["filter_surplus"], 0, "something waits for the second iteration")
            self.assertTrue(any(line["filter_drawn"] % GROUPS for line in lines), "not whole batches each time")
        self.assertEqual(self.groups("apart"), self.groups("undisturbed"))
        lines = self.metrics("undisturbed")
        places = {"rollout": f"signal:1:rollout:7:{int(signal.SIGUSR1)}",  # of three draws in the first iteration, each in two regions
                  "kill": "kill:1:actor step:3"}
        for name, fault in places.items():
            with self.subTest(place=name):
                result = self.run_program("ppo", "ppo.toml", f"run.dir={name}", *WHOLE, f'fault.at=["{fault}"]', ranks=2)
                self.assertEqual(result.code == STOPPED, name != "kill", result.text)
                self.run_until_unlocked("ppo", "ppo.toml", f"run.dir={name}", *WHOLE)
                self.assertEqual(timeless(self.metrics(name)), timeless(lines))
                self.assertEqual(self.samples(name), self.samples("undisturbed"))

    def run_until_unlocked(self, *arguments):
        result = self.run_program(*arguments, "run.take_over=true", ranks=2)
        for _ in range(60):
            if result.code != 73:
                break
            result = self.run_program(*arguments, "run.take_over=true", ranks=2)
        self.assertEqual(result.code, 0, result.text)

    def test_too_few(self):
        common = ["ppo", "ppo.toml", *DECK, "run.iterations=1", "ckpt.interval=0", "algo.dynamic_filtering_patience=2"]
        rare = {"RARE": "16"}
        words = "prompts whose mean reward lies inside algo.dynamic_filtering_range"
        result = self.succeed(*common, "run.dir=on", ranks=2, env=rare)
        self.assertIn(words, result.text)
        self.assertEqual(len(self.groups("on")[0]), GROUPS, "drawn on until the batch was full")
        result = self.succeed(*common, "run.dir=smaller", "algo.dynamic_filtering_shortage=smaller", ranks=2, env=rare)
        self.assertIn(words, result.text)
        self.assertTrue(0 < len(self.groups("smaller")[0]) < GROUPS)
        self.assertEqual(self.groups("smaller")[0], self.groups("on")[0][:len(self.groups("smaller")[0])])
        result = self.succeed(*common, "run.dir=stop", "algo.dynamic_filtering_shortage=stop", ranks=2, env=rare, code=BAD_DATA)
        self.assertIn(words, result.text)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Dynamic filtering: draws what is missing, learns from every group that has something to teach once and in the order of drawing, and goes on with what
was left over, also after a stop and ahead of the trainers; what it does where there are too few."""

import json
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
# One group in RARE has rewards that differ. Writes down what it is asked.
JUDGE = """
import json, os, sys
rare = int(os.environ.get("RARE", "2"))
asked = open(os.environ.get("ASKED", os.devnull), "a")
for line in sys.stdin:
    number = int(json.loads(line)["id"])
    print(number, file=asked, flush=True)
    group, sample = number >> 20, number >> 8 & 0xFFF
    print(json.dumps({"id": json.loads(line)["id"], "reward": float(sample % 2 if group * 2654435761 % 4294967296 // 7 % rare == 0 else 0)}), flush=True)
"""
DECK = ["algo.dynamic_filtering_enable=true", "algo.advantage.estimator=group_norm"]
WHOLE = [*DECK, f"run.iterations={ITERATIONS}"]
LONG = 8
# Few slots for many sequences of different lengths: some are always under way when weights come.
AHEAD = [*DECK, f"run.iterations={LONG}", "generate.max_batch=5", "rollout.max_new_tokens=24", "rollout.stop=[]"]
PARTIAL = "train.partial_rollout_enable=true"
APART = (3, ["ranks.trainer=0-0", "ranks.generator=1-1", "ranks.reward=2-2"])
LAYOUTS = {"1+1": (2, ["ranks.trainer=1", "ranks.generator=1"]), "1+1, reward apart": APART, "1+2": (3, ["ranks.trainer=0-0", "ranks.generator=1-2"])}


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

    def asked(self, run):
        """Groups of which the plugin was asked for all answers."""
        ids = {int(line) for line in (self.folder / f"{run}.asked").read_text().split()}
        return sorted({number >> 20 for number in ids if all(number >> 20 << 20 | sample << 8 in ids for sample in range(SAMPLES))})

    def assert_in_order(self, run, depth, rare=2):
        """Of what was drawn each group with something to teach once, the oldest first, none older than allowed; and all that is left over is known."""
        lines = self.metrics(run)
        self.assertEqual([line["iteration"] for line in lines], list(range(1, LONG + 1)))
        self.assertEqual([len(groups) for groups in self.groups(run)], [GROUPS] * LONG)
        learned = [group for groups in self.groups(run) for group in groups]
        to_learn = [group for group in self.asked(run) if teaches(group, rare)]
        self.assertEqual(learned, to_learn[:len(learned)], "each once, the oldest first")
        self.assertEqual(len(self.samples(run)), len(learned) * SAMPLES)
        left = to_learn[len(learned):]
        self.assertGreaterEqual(len(left), lines[-1]["filter_surplus"])
        looked_at = sum(line["filter_skipped"] for line in lines) + len(learned) + lines[-1]["filter_surplus"]
        drawn = sum(line["filter_drawn"] for line in lines)
        self.assertTrue(looked_at <= drawn <= looked_at + (depth + 1) * GROUPS, "what is not looked at is under way")
        for line in lines:
            shares = {int(key.removeprefix("staleness_")): value for key, value in line.items() if key.startswith("staleness_")}
            self.assertEqual(sorted(shares), list(range(depth + 2)), "none older than allowed")
            self.assertAlmostEqual(sum(shares.values()), 1, places=9)
        self.assertGreater(max(line["staleness"] for line in lines), 0, "somebody was ahead")
        return lines

    def most_under_way(self, run):
        events = json.loads((self.folder / run / "trace.json").read_text())["traceEvents"]
        return max(value for event in events if event["ph"] == "C" and event["name"] == "batches under way" for value in event["args"].values())

    def test_ahead_of_the_trainers(self):
        for name, (ranks, roles) in LAYOUTS.items():
            for depth, rare, more in ((1, 2, [PARTIAL]), (2, 3, [PARTIAL]), (1, 2, [])):
                with self.subTest(layout=name, depth=depth, partial=bool(more)):
                    run = f"ahead-{depth}-{len(more)}-" + "".join(c for c in name if c.isalnum())
                    self.succeed("ppo", "ppo.toml", f"run.dir={run}", f"train.async_depth={depth}", *more, *AHEAD, *roles, "ckpt.interval=0", ranks=ranks,
                                 env={"RARE": str(rare), "ASKED": f"{run}.asked"})
                    lines = self.assert_in_order(run, depth, rare)
                    if rare == 2:
                        self.assertTrue(any(line["filter_drawn"] % GROUPS for line in lines), "not whole batches each time")
                    self.assertEqual(self.most_under_way(run), depth + 1 if more else 1)

    def test_ahead_stopped_and_killed(self):
        """With train.deterministic the start behind it has the bits of an undisturbed run; without, nothing is lost and nothing comes twice."""
        ranks, roles = APART
        places = {"plugin": (True, f"signal:2:reward plugin:9:{int(signal.SIGUSR1)}"), "learning": (True, f"signal:0:actor step:7:{int(signal.SIGUSR1)}"),
                  "kill": (False, "kill:1:generate step:90")}
        for mode, more in (("timed", []), ("deterministic", ["train.deterministic=true"]), ("whole", ["train.deterministic=true"])):
            depth = 1 if mode == "whole" else 2
            common = ["ppo", "ppo.toml", f"train.async_depth={depth}", *([] if mode == "whole" else [PARTIAL]), *more, *AHEAD, *roles]
            whole = f"{mode}-undisturbed"
            self.succeed(*common, f"run.dir={whole}", ranks=ranks, env={"ASKED": f"{whole}.asked"})
            lines = self.assert_in_order(whole, depth)
            for place, (stops, fault) in places.items():
                with self.subTest(mode=mode, place=place):
                    run = f"{mode}-{place}"
                    result = self.run_program(*common, f"run.dir={run}", f'fault.at=["{fault}"]', ranks=ranks, env={"ASKED": f"{run}.asked"})
                    self.assertEqual(result.code == STOPPED, stops, result.text)
                    self.run_until_unlocked(*common, f"run.dir={run}", ranks=ranks, env={"ASKED": f"{run}.asked"})
                    self.assert_in_order(run, depth)
                    if more:
                        self.assertEqual(timeless(self.metrics(run)), timeless(lines))
                        self.assertEqual(self.samples(run), self.samples(whole))

    def test_with_other_orders(self):
        """Filtering draws until enough is found, whatever is taken first: nothing is learned from twice, nothing without something to teach."""
        orders = {"finished": [PARTIAL, "train.async_depth=2", 'train.partial_rollout_order="finished"', *APART[1]], "shortest": ["rollout.over_sampling=3", *APART[1]]}
        for name, more in orders.items():
            with self.subTest(order=name):
                common = ["ppo", "ppo.toml", f"run.dir={name}", *AHEAD, *more]
                stopped = self.run_program(*common, f'fault.at=["signal:0:actor step:7:{int(signal.SIGUSR1)}"]', ranks=3)
                self.assertEqual(stopped.code, STOPPED, stopped.text)
                self.succeed(*common, ranks=3)
                learned = [group for groups in self.groups(name) for group in groups]
                self.assertEqual([len(groups) for groups in self.groups(name)], [GROUPS] * LONG)
                self.assertEqual(len(set(learned)), len(learned))
                self.assertTrue(all(teaches(group) for group in learned))
                self.assertEqual(len(self.samples(name)), len(learned) * SAMPLES)

    def run_until_unlocked(self, *arguments, ranks=2, env=None):
        result = self.run_program(*arguments, "run.take_over=true", ranks=ranks, env=env)
        for _ in range(60):
            if result.code != 73:
                break
            result = self.run_program(*arguments, "run.take_over=true", ranks=ranks, env=env)
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

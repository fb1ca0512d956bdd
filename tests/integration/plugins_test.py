#!/usr/bin/env python3
"""Reward plugins that fail: several processes, answers in any order, prompts that are left out, outages that are waited for."""

import math
import re
import signal

from trireme_run import PROMPTS, ProgramTest, main, timeless, write_lines

# Rewards by length. POISON: it dies of that prompt. BACK: it is down until it was started so often. LAST_FIRST: of what lies in its input.
JUDGE = """
import json, os, select, sys
if "BACK" in os.environ:
    with open("starts", "a+") as starts:
        starts.write(".")
        starts.flush()
        starts.seek(0)
        if len(starts.read()) < int(os.environ["BACK"]):
            sys.exit(3)
waiting = []
while True:
    line = sys.stdin.buffer.raw.readline() if not waiting or select.select([sys.stdin], [], [], 0)[0] else None
    if line:
        waiting.append(json.loads(line))
        continue
    if not waiting:
        break
    request = waiting.pop(-1 if "LAST_FIRST" in os.environ else 0)
    if request["prompt"] == os.environ.get("POISON"):
        os._exit(1)
    print(json.dumps({"id": request["id"], "reward": len(request["response"]) % 5}), flush=True)
"""

# Answers with parts: one of them only for some.
PARTS = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    length = len(request["response"])
    metrics = {"length": length, "ends with a digit": request["response"][-1:].isdigit()}
    metrics["even"] = length if length % 2 == 0 else None
    print(json.dumps({"id": request["id"], "reward": length / 10, "metrics": metrics}), flush=True)
"""

# One reward each for all answers to a prompt: how many of the others are shorter. They come whole, whatever rank wrote them.
RANKING = """
import json, os, sys
for line in sys.stdin:
    request = json.loads(line)
    group = request["group"]
    if len(group) != int(os.environ["ANSWERS"]) or "response" in request or request["prompt"] == os.environ.get("POISON"):
        os._exit(1)
    lengths = [len(answer["response"]) for answer in group]
    rewards = [sum(other < length for other in lengths) for length in lengths]
    print(json.dumps({"id": request["id"], "rewards": rewards, "metrics": [{"length": length} for length in lengths]}), flush=True)
"""

UNFIT = 69
STOPPED = 75
CONFIGURATION = 78
POISON = PROMPTS[2]
APART = ["ranks.trainer=0-0", "ranks.generator=1-1", "ranks.reward=2-2"]
GROUPS = ["algo.advantage.estimator=group_norm", "run.iterations=4"]


class Plugins(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "judge.py").write_text(JUDGE)
        text = (cls.folder / "ppo.toml").read_text()
        begin, end = text.index("[[reward.source]]"), text.index("[actor]")
        source = '[[reward.source]]\nkind = "plugin"\nname = "judge"\ncommand = ["python3", "judge.py"]\ntimeout = "20s"\n'
        (cls.folder / "ppo.toml").write_text(text[:begin] + source + text[end:])

    def run_deck(self, run, *overrides, ranks=2, **options):
        (self.folder / "starts").unlink(missing_ok=True)
        return self.succeed("ppo", "ppo.toml", f"run.dir={run}", "ckpt.interval=0", *overrides, ranks=ranks, **options)

    def prompts(self, run):
        return [sample["prompt"] for sample in self.samples(run)]

    def test_processes_and_outages_change_nothing(self):
        """Three processes a rank, and a plugin that comes back at its tenth start, give the bits of one that is there."""
        self.run_deck("plain")
        self.run_deck("shared", "reward.source.0.processes=3", env={"LAST_FIRST": "1"})
        result = self.run_deck("waited", "reward.outage=wait", "reward.retries=1", env={"BACK": "10"})
        self.assertIn('reward.outage = "wait"', result.text)
        for run in ("shared", "waited"):
            self.assertEqual(timeless(self.metrics("plain")), timeless(self.metrics(run)), run)
        for run, restarts in (("plain", 0), ("shared", 0), ("waited", 8)):  # one start of each rank is its first
            counted = [line["plugins"] for line in self.metrics(run)]
            self.assertEqual([one["requests"] for one in counted], [8] * 3)
            self.assertEqual(sum(one["restarts"] for one in counted) >= restarts, True, run)
            self.assertEqual(sum(one["restarts"] for one in counted) > 0, restarts > 0, run)
            self.assertEqual(sum(one["skipped_groups"] for one in counted), 0)

    def test_metrics_of_answers(self):
        """Averaged over the samples that are learned from, by name, through a stop inside an iteration; and those of an evaluation."""
        (self.folder / "parts.py").write_text(PARTS)
        write_lines(self.folder / "held.jsonl", [{"prompt": "1+1=", "label": "2"}])
        common = ['reward.source.0.command=["python3", "parts.py"]', "run.iterations=3", "eval.dataset=held.jsonl", "eval.steps=3"]
        self.run_deck("parts", *common, f'fault.at=["signal:0:actor step:3:{int(signal.SIGUSR1)}"]', code=STOPPED)
        result = self.run_deck("parts", *common)
        for line in self.metrics("parts"):
            samples = [one for one in self.samples("parts") if one["iteration"] == line["iteration"]]
            for name in ("length", "ends with a digit", "even"):
                values = [one["metrics"]["judge/" + name] for one in samples if "judge/" + name in one["metrics"]]
                mean = sum(values) / len(values) if values else None
                self.assertAlmostEqual(line.get("reward_judge/" + name), mean, places=5)
            self.assertAlmostEqual(line["reward"], line["reward_judge/length"] / 10, places=5)
        self.assertEqual(len(self.metrics("parts")), 3)
        self.assertIn("eval_reward_judge/length", self.metrics("parts")[-1])
        self.assertIn("mean reward_judge/length by iteration\n", result.text)

    def test_whole_groups(self):
        """A plugin that compares the answers to a prompt has all of them in one request, at any number of reward ranks and in an evaluation; a
        request that it does not answer is that of the prompt."""
        (self.folder / "ranking.py").write_text(RANKING)
        write_lines(self.folder / "held.jsonl", [{"prompt": "1+1=", "label": "2"}])
        common = ['reward.source.0.command=["python3", "ranking.py"]', "reward.source.0.whole_groups=true", "rollout.n_samples_per_prompt=4", "rollout.batch_size=2", "train.batch_size=4"]
        evaluated = [*common, "eval.dataset=held.jsonl", "eval.steps=3", "eval.n_samples_per_prompt=4"]
        for ranks in (1, 3):
            self.run_deck(f"ranked-{ranks}", *evaluated, ranks=ranks, env={"ANSWERS": "4"})
        for run in ("ranked-1", "ranked-3"):
            groups = {}
            for sample in self.samples(run):
                groups.setdefault((sample["iteration"], sample["prompt"]), []).append(sample)
            self.assertEqual([len(group) for group in groups.values()], [4] * 6)
            for group in groups.values():
                lengths = [sample["metrics"]["judge/length"] for sample in group]
                for sample, length in zip(group, lengths):
                    self.assertEqual(length, len(re.sub(r"<\|\w+\|>", "", sample["response"])))
                    self.assertEqual(sample["reward"], sum(other < length for other in lengths))
            self.assertEqual([line["plugins"]["requests"] for line in self.metrics(run)], [2, 2, 3], "one a prompt")
        self.assertEqual(*([line["reward"] for line in self.metrics(run)] for run in ("ranked-1", "ranked-3")))
        self.run_deck("unranked", *common, *GROUPS, "reward.outage=skip", "reward.retries=1", env={"ANSWERS": "4", "POISON": POISON})
        self.assertEqual(sorted(self.prompts("unranked")), sorted(prompt for prompt in PROMPTS if prompt != POISON for _ in range(4)))

    def test_a_prompt_is_left_out(self):
        """The plugin dies of one of the eight prompts: that one's samples are not learned from, whatever rank has them, all others are."""
        self.run_deck("skipped", "reward.outage=skip", "reward.retries=2", *GROUPS, env={"POISON": POISON})
        lines = self.metrics("skipped")
        self.assertEqual(sum(line["plugins"]["skipped_groups"] for line in lines), 2, "once in each pass over the prompts")
        self.assertEqual(sorted(self.prompts("skipped")), sorted(prompt for prompt in PROMPTS if prompt != POISON for _ in range(4)))
        self.assertTrue(all(math.isfinite(line["grad_norm"]) for line in lines))

    def test_what_is_left_out_is_asked_for_again_after_a_restart(self):
        """A batch that was scored ahead lies whole in the checkpoint."""
        common = ["reward.outage=skip", "reward.retries=2", "train.async_depth=1", "algo.advantage.estimator=group_norm", *APART]
        self.run_deck("first", "run.iterations=1", *common, ranks=3)
        poison = next(prompt for prompt in PROMPTS if prompt not in self.prompts("first"))  # of the second iteration
        # The trainer waits in iteration 1 until the batch of iteration 2 is scored, left-out prompts and all, and spread: three exchanges a batch.
        faults = f'fault.at=["gate:0:actor step:1:1", "open:2:exchange samples:6:1", "signal:0:actor step:2:{int(signal.SIGUSR1)}"]'
        self.run_deck("stopped", "run.iterations=4", *common, faults, ranks=3, code=STOPPED, env={"POISON": poison})
        self.assertIn("iteration 2: prompts left out: 1", (self.folder / "stopped" / "logs" / "rank-00002.log").read_text())
        self.run_deck("stopped", "run.iterations=4", *common, ranks=3)
        ids = [sample["id"] for sample in self.samples("stopped")]
        self.assertEqual(ids, [iteration << 40 | prompt << 20 | sample << 8 for iteration in range(1, 5) for prompt in range(4) for sample in range(2)])

    def test_nothing_is_left(self):
        result = self.run_deck("nothing", "reward.outage=skip", "reward.retries=1", env={"BACK": "100000"}, code=UNFIT)
        self.assertIn("nothing is left to learn from", result.text)
        result = self.run_deck("ended", "reward.retries=1", env={"BACK": "100000"}, code=UNFIT)
        self.assertIn("after 1 restarts", result.text)

    def test_what_is_refused(self):
        text = (self.folder / "ppo.toml").read_text()
        begin, end = text.index("[[reward.source]]"), text.index("[actor]")
        (self.folder / "rule.toml").write_text(text[:begin] + '[[reward.source]]\nkind = "rule"\nrule = "number"\n' + text[end:])
        result = self.succeed("ppo", "rule.toml", "reward.outage=skip", code=CONFIGURATION)
        self.assertIn("always answer", result.text)


if __name__ == "__main__":
    main()

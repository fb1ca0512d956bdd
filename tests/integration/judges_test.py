#!/usr/bin/env python3
"""Judges in a run: their scores are those of what `trireme generate` writes for the same questions, beside a rule and each other, at any number of
ranks; kills and starts from checkpoints give the bits of an undisturbed run; a job without a network that has an actor, an environment, a judge and a
teacher."""

import json
import re
import subprocess
import sys

from trireme_run import ENDS_AT_ONCE, MPI_FLAGS, MPIEXEC, ROOT, SHAPE, ProgramTest, main, read_lines, timeless, write_lines

STOPPED = 75
CONFIGURATION = 78
LETTERS = {letter: place / 2 - 1 for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
ASKED = "About {{ prompt }}\nthe answer is {{ response }}.\n{% if label %}Right is {{ label }}.{% endif %}"
JUDGE = f"""
[[reward.source]]
kind = "judge"
name = "strict"
path = "judge"
prompt_template = '''{ASKED}'''
system = "You judge."
score_pattern = "[a-z]"
score_words = {json.dumps([f"{letter}={value}" for letter, value in LETTERS.items()])}
no_score = -3
max_new_tokens = 12
max_batch = 4
max_len = 240
"""
VOTES = ["reward.source.0.votes=3", "reward.source.0.temperature=1.3", "reward.source.0.vote_rule=median"]
ENVIRONMENT = """
import json, sys
turns = {}
for line in sys.stdin:
    request = json.loads(line)
    if request["type"] == "close":
        continue
    if request["type"] == "reset":
        turns[request["episode"]] = 0
        answer = {"text": f" ({request['seed'] % 7}) "}
    else:
        turns[request["episode"]] += 1
        answer = {"reward": len(request["text"]) / 16, **({"done": True} if turns[request["episode"]] == 2 else {"text": " Go on. "})}
    print(json.dumps({"id": request["id"], **answer}), flush=True)
"""


class Judges(ProgramTest):
    environment = ENDS_AT_ONCE

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "wild").mkdir()
        (cls.folder / "wild" / "config.json").write_text(json.dumps(SHAPE | {"initializer_range": 0.5}))  # texts that depend on the question
        for name, shape, seed in (("judge", "wild", "9"), ("teacher", "shape", "5")):
            made = cls.run_program("init", "--shape", shape, "--output", name, "--tokenizer", ROOT / "inputs" / "tutorial" / "tokenizer", "--dtype", "fp32", "--seed", seed)
            if made.code:
                raise RuntimeError(made.text)
        text = (cls.folder / "ppo.toml").read_text()
        begin, end = text.index("[[reward.source]]"), text.index("[actor]")
        cls.rule = text[begin:end]
        (cls.folder / "ppo.toml").write_text(text[:begin] + JUDGE + text[end:])

    def judged(self, samples, system, folder):
        """Of each sample what `generate` writes after the question."""
        questions = []
        for sample in samples:
            response = re.sub(r"<\|\w+\|>", "", sample["response"])  # judges do not see special tokens
            text = f"About {sample['prompt']}\nthe answer is {response}.\n" + (f"Right is {sample['label']}." if sample["label"] else "")
            questions.append({"messages": [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": text}]})
        write_lines(self.folder / "questions.jsonl", questions)
        self.succeed("generate", "--model", folder, "--input", "questions.jsonl", "--output", "judgements.jsonl", "--temperature", "0", "--max-new-tokens", "12", "--dtype", "fp32", "--force")
        lines = sorted(read_lines(self.folder / "judgements.jsonl"), key=lambda line: line["index"])
        return [line["text"] for line in lines]

    def test_scores_are_those_of_the_texts(self):
        """Two judges, the second of the actor's own base, and a rule; the same at one rank and at three of which one rewards."""
        second = JUDGE.replace('"strict"', '"own"').replace('path = "judge"', 'path = "model"').replace('system = "You judge."', 'weight = 0.5\nscore_match = "first"')
        self.deck_with("three.toml", "[actor]", second + self.rule + "[actor]")
        labels = {row["prompt"]: row["label"] for row in read_lines(self.folder / "prompts.jsonl")}
        apart = ["ranks.trainer=0-0", "ranks.generator=1-1", "ranks.reward=2-2", "train.async_depth=1", "algo.advantage.is_correction_enable=true"]
        for run, ranks, more in (("one", 1, []), ("apart", 3, apart)):
            self.succeed("ppo", "three.toml", f"run.dir={run}", *more, ranks=ranks)
            samples = self.samples(run)
            self.assertEqual(len(samples), 3 * 8)
            for sample in samples:
                sample["label"] = labels[sample["prompt"]]
            none = 0
            for name, system, folder, place in (("strict", "You judge.", "judge", -1), ("own", "", "model", 0)):
                for sample, text in zip(samples, self.judged(samples, system, folder)):
                    found = re.findall("[a-z]", text)
                    none += not found
                    self.assertAlmostEqual(sample["parts"][name], LETTERS[found[place]] if found else -3, places=5, msg=repr(text))
                    self.assertEqual(sample["metrics"][name + "/scored_votes"], bool(found))
                    said = sample["judgements"][name]
                    self.assertEqual(said["texts"], [text])
                    self.assertIn(f"About {sample['prompt']}\nthe answer is ", said["question"])
            for sample in samples:
                parts = sample["parts"]
                self.assertAlmostEqual(sample["reward"], parts["strict"] + 0.5 * parts["own"] + parts["rule2"], places=5)
            counted = [line["judges"] for line in self.metrics(run)]
            self.assertEqual(sum(one["votes"] for one in counted), 2 * 24)
            self.assertEqual(sum(one["without_score"] for one in counted), none)
            for name, least in (("tokens", 2 * 24), ("shared_tokens", 0), ("seconds", 0)):  # questions begin alike
                self.assertGreater(sum(one[name] for one in counted), least, name)
        self.assertGreater(len({sample["parts"]["strict"] for sample in samples}), 2)

    def test_kills_and_votes(self):
        """At each depth a run that is killed and started again has the bits of an undisturbed one; so has one with other ranks' judges."""
        apart = ["ranks.trainer=0-0", "ranks.generator=1-1", "ranks.reward=0-1"]
        for depth, ranks, more in ((0, 1, []), (1, 2, apart)):
            deck = [*VOTES, *more, "train.deterministic=true", f"train.async_depth={depth}", "run.iterations=4", "algo.advantage.estimator=group_norm", *(["algo.advantage.is_correction_enable=true"] if depth else [])]
            self.succeed("ppo", "ppo.toml", f"run.dir=left-{depth}", *deck, ranks=ranks)
            killed = self.run_program("ppo", "ppo.toml", f"run.dir=killed-{depth}", *deck, 'fault.at=["kill:0:actor step:5"]', ranks=ranks)
            self.assertNotIn(killed.code, (0, STOPPED), killed.text)
            self.assertIn(len(self.metrics(f"killed-{depth}")), range(1, 4))
            again = self.run_program("ppo", "ppo.toml", f"run.dir=killed-{depth}", "run.take_over=true", *deck, ranks=ranks)
            self.assertEqual(again.code, 0, again.text)
            self.assertEqual(self.samples(f"killed-{depth}"), self.samples(f"left-{depth}"))
            self.assertEqual(timeless(self.metrics(f"killed-{depth}")), timeless(self.metrics(f"left-{depth}")))

    def test_a_stop_while_it_judges(self):
        """The texts wait in the checkpoint and are judged by the next start, with the same votes."""
        deck = [*VOTES, "run.iterations=2", "train.deterministic=true"]
        self.succeed("ppo", "ppo.toml", "run.dir=unstopped", *deck)
        for place in ("actor step:2", "judge:3"):
            self.succeed("ppo", "ppo.toml", "run.dir=stopped", *deck, f'fault.at=["signal:0:{place}:10"]', code=STOPPED)
        self.assertEqual(len(self.metrics("stopped")), 1)
        self.succeed("ppo", "ppo.toml", "run.dir=stopped", *deck)
        self.assertEqual(self.samples("stopped"), self.samples("unstopped"))
        self.assertEqual(timeless(self.metrics("stopped")), timeless(self.metrics("unstopped")))

    def test_an_actor_an_environment_a_judge_and_a_teacher(self):
        """In one job, which sees nothing but its loopback interface."""
        (self.folder / "environment.py").write_text(ENVIRONMENT)
        self.deck_with("all.toml", "[actor]", f'{self.rule}[environment]\ncommand = ["{sys.executable}", "environment.py"]\nmax_turns = 3\n[actor]')
        alone = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        has_namespace = subprocess.run([*alone, "true"], check=False, capture_output=True).returncode == 0
        launcher = [*(alone if has_namespace else []), MPIEXEC, *MPI_FLAGS]
        self.succeed("ppo", "all.toml", "run.dir=all", "data.max_len=96", "reference.path=teacher", "algo.distill.coef=0.5", "algo.kl.init_coef=0", "algo.advantage.estimator=reinforce", ranks=2, launcher=launcher)
        samples = self.samples("all")
        self.assertEqual(len(samples), 3 * 8)
        for sample in samples:
            parts = sample["parts"]
            self.assertAlmostEqual(parts["environment"], sum(turn["reward"] for turn in sample["turns"]), places=5)
            self.assertAlmostEqual(sample["reward"], sum(parts.values()), places=5)
        for line in self.metrics("all"):
            self.assertEqual(line["judges"]["votes"], 8)
            self.assertGreater(line["kl"], 0, "the teacher is another model")
            self.assertGreater(line["turns"], 1)

    def test_dry_run_and_plan(self):
        tried = self.succeed("ppo", "ppo.toml", "--dry-run")
        self.assertRegex(tried.out, r"judge strict: judge, questions about empty answers have up to \d+ tokens of 240, its text up to 12")
        wrong = self.run_program("ppo", "ppo.toml", "--dry-run", "reward.source.0.prompt_template={{ prompt }}")
        self.assertEqual(wrong.code, CONFIGURATION)
        self.assertIn("does not show the answer", wrong.text)
        planned = self.succeed("plan", "ppo.toml", "--gpus-per-node", "2", "--machine", "this")
        self.assertIn("judge 0", planned.out)


if __name__ == "__main__":
    main()

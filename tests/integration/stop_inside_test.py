#!/usr/bin/env python3
"""A stop request inside an iteration: the run leaves before its next optimizer step, out of a rollout or a wait for a plugin, and the start after
it ends with the numbers of a run that nobody disturbed, bit for bit. The request is a signal that one rank sends itself when it comes to a
named place, so nothing depends on timing.
"""

import math
import pathlib
import signal

from trireme_run import SABOTEUR_SOURCE, ProgramTest, lines_in, main, timeless, write_lines

STOPPED = 75
STEPS = 8  # optimizer steps of an iteration

# SLEEP="iteration seconds": the plugin answers late.
SLEEPER = """
import json, os, sys, time
at, seconds = os.environ.get("SLEEP", "0 0").split()
for line in sys.stdin:
    request = json.loads(line)
    if request["iteration"] == int(at):
        time.sleep(float(seconds))
    print(json.dumps({"id": request["id"], "reward": 0.0}), flush=True)
"""

APART = ("ranks.trainer=1", "ranks.generator=1")
AHEAD = (*APART, "train.async_depth=1")
EXTRAS = ("train.enable_ema=true", "actor.ptx_coef=0.1", 'data.pretrain_dataset=["texts.jsonl"]')
EVALUATED = ('eval.dataset=["prompts.jsonl"]', "eval.steps=1", "eval.n_samples_per_prompt=1")
FILTERED = ("algo.dynamic_filtering_enable=true", "algo.dynamic_filtering_range=[-10, 10]")


class StopInside(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "saboteur.py").write_text(SLEEPER)
        write_lines(cls.folder / "texts.jsonl", [{"text": f"{i} and {i} are {2 * i}."} for i in range(12)])
        deck = (cls.folder / "ppo.toml").read_text().replace("batch_size = 4\nrecompute", "batch_size = 2\nmax_epochs = 2\nrecompute")
        (cls.folder / "ppo.toml").write_text(deck.replace("\n[actor]", SABOTEUR_SOURCE + "[actor]"))
        cls.undisturbed_runs = {}

    def undisturbed(self, ranks, *overrides):
        key = (ranks, *overrides)
        if key not in self.undisturbed_runs:
            run = f"undisturbed-{len(self.undisturbed_runs)}"
            self.succeed("ppo", "ppo.toml", f"run.dir={run}", *overrides, ranks=ranks)
            self.undisturbed_runs[key] = run
        return self.undisturbed_runs[key]

    def stop(self, run, place, *overrides, ranks=2, number=signal.SIGUSR1):
        return self.succeed("ppo", "ppo.toml", f"run.dir={run}", *overrides, f'fault.at=["signal:{place}:{int(number)}"]', ranks=ranks, code=STOPPED)

    def assert_goes_on(self, run, *overrides, ranks=2):
        again = self.succeed("ppo", "ppo.toml", f"run.dir={run}", *overrides, ranks=ranks)
        reference = self.undisturbed(ranks, *overrides)
        self.assertEqual(timeless(self.metrics(run)), timeless(self.metrics(reference)))
        self.assertEqual(self.samples(run), self.samples(reference))
        return again

    def steps(self, run):
        return sorted(path.name for path in (self.folder / run / "ckpt").glob("step-*"))

    def test_in_every_phase(self):
        """Each on one rank alone; the other one hears of it by the messages of the watchdogs, or where they meet."""
        inside_train = r"stopping inside iteration 2 \(SIGUSR1 .*\); train, 3 optimizer steps done: saving"
        cases = {
            "rollout": ("1:rollout:3", "its rollout is made again: saving", []),  # a rollout is two regions an iteration: writing and waiting
            "plugin": ("0:reward plugin:2", "reward, 0 optimizer steps done: saving", []),
            "train": (f"1:actor step:{STEPS + 3}", inside_train, []),
            "reference": ("1:reference log-probs:2", "reward, 0 optimizer steps done: saving", []),
            "old-log-probs": ("0:old log-probs:2", "reward, 0 optimizer steps done: saving", []),
            "values": ("1:values:2", "reward, 0 optimizer steps done: saving", []),
            "values-apart": ("0:values:2", "reward, 0 optimizer steps done: saving", APART),
            "values-ahead": ("0:values:2", "reward, 0 optimizer steps done: saving", AHEAD),
            "values-filtered": ("0:values:2", "train, 0 optimizer steps done: saving", FILTERED),
            "apart": (f"0:actor step:{STEPS + 3}", inside_train, APART),
            "ahead": (f"0:actor step:{STEPS + 3}", inside_train, AHEAD),
            "ahead-plugin": ("0:reward plugin:2", "reward, 0 optimizer steps done: saving", AHEAD),
            "extras": (f"1:actor step:{STEPS + 5}", "train, 5 optimizer steps done: saving", EXTRAS),
            "evaluation": ("0:evaluate:2", "evaluate, 8 optimizer steps done: saving", EVALUATED),
            "filtered": ("0:reward plugin:2", "its rollout is made again: saving", FILTERED),
        }
        for name, (place, words, overrides) in cases.items():
            with self.subTest(name):
                result = self.stop(name, place, "ckpt.interval=0", *overrides)
                self.assertRegex(result.text, words)
                self.assertEqual(len(self.metrics(name)), 1, "of the finished iteration")
                self.assertEqual(len(self.steps(name)), 1)
                self.assert_goes_on(name, *overrides)

    def test_in_the_first_iteration(self):
        """No state of an earlier one is there to be saved again."""
        for name, place, overrides in (("first-rollout", "0:rollout:1", ()), ("first-plugin", "0:reward plugin:1", ()), ("first-train", "0:actor step:3", EXTRAS),
                                       ("first-extras", "1:rollout:1", EXTRAS), ("first-ahead", "0:reward plugin:1", AHEAD)):
            with self.subTest(name):
                self.stop(name, place, *overrides)
                self.assert_goes_on(name, *overrides)

    def test_a_pass_that_scores_is_left_between_micro_batches(self):
        """Of the four that a rank has in an iteration: it would die in the last one."""
        small = ("rollout.micro_batch_tokens=1",)
        result = self.succeed("ppo", "ppo.toml", "run.dir=scoring", *small, "ckpt.interval=0",
                              'fault.at=["signal:1:value micro-batch:5:10", "kill:0:value micro-batch:8", "kill:1:value micro-batch:8"]', ranks=2, code=STOPPED)
        self.assertRegex(result.text, r"stopping inside iteration 2 .*; reward, 0 optimizer steps done: saving")
        self.assert_goes_on("scoring", *small)

    def test_nothing_is_written_when_nothing_is_new(self):
        result = self.stop("saved", "0:rollout:3", "ckpt.interval=1")
        self.assertIn("nothing is done of it that the last checkpoint lacks", result.text)
        self.assertEqual(self.steps("saved"), ["step-000001"])
        self.assert_goes_on("saved")

    def test_several_stops_in_one_iteration(self):
        for begun, place in ((0, f"0:actor step:{STEPS + 2}"), (2, "1:actor step:2"), (4, "0:actor step:1")):
            result = self.stop("often", place)
            if begun:
                self.assertIn(f"resumed after iteration 1, inside the next one (train, {begun} optimizer steps done)", result.text)
            self.assertEqual(self.steps("often"), ["step-000001", "step-000002"], "the later one replaces the earlier")
        again = self.assert_goes_on("often")
        self.assertIn("(train, 5 optimizer steps done)", again.text)

    def test_other_rank_counts(self):
        reference = timeless(self.metrics(self.undisturbed(2)))
        for name, ranks, roles in (("to-1", 1, ()), ("to-3", 3, ()), ("to-2+1", 3, ("ranks.trainer=2", "ranks.generator=1"))):
            with self.subTest(name):
                self.stop(name, f"0:actor step:{STEPS + 3}")
                self.succeed("ppo", "ppo.toml", f"run.dir={name}", *roles, ranks=ranks)
                for ours, theirs in zip(timeless(self.metrics(name)), reference, strict=True):
                    for key in ("reward", "policy_loss", "value_loss", "kl", "return", "grad_norm"):
                        self.assertTrue(math.isclose(ours[key], theirs[key], rel_tol=1e-4, abs_tol=1e-5), f"{key}: {ours} {theirs}")

    def test_a_plugin_that_takes_its_time_holds_nobody_up(self):
        """By signal to one rank, by TERM with a grace shorter than the answer takes, by the file `stop`."""
        for name, overrides in (("file", ()), ("term", ("run.term_grace=20",))):
            with self.subTest(name):
                job = self.start("ppo", "ppo.toml", f"run.dir=late-{name}", *overrides, ranks=2, env={"SLEEP": "2 1000"})
                self.wait_for(lambda: lines_in(self.folder / f"late-{name}" / "metrics.jsonl") >= 1, job, "the first iteration")
                if name == "file":
                    (self.folder / "late-file" / "stop").touch()
                else:
                    job.send(signal.SIGUSR1)
                result = job.wait()
                self.assertEqual(result.code, STOPPED, result.text)  # it did not wait for the plugin
                said = "the file late-file/stop is there: the run saves and ends at the next place" if name == "file" else "a signal asks for a stop: the run saves"
                self.assertRegex(result.text, rf"{said}.*\n(.*\n)*stopping ", "said at once")
                self.assert_goes_on(f"late-{name}")

    def test_a_start_inside_an_iteration_has_its_whole_time(self):
        """What it took to start, or the time before it, is no work that a walltime must leave room for: this one is shorter than the machine is up."""
        for name, place, overrides in (("time-train", f"0:actor step:{STEPS + 3}", ()), ("time-evaluate", "0:evaluate:2", EVALUATED),
                                       ("time-ahead", "0:reward plugin:2", AHEAD)):
            with self.subTest(name):
                self.stop(name, place, *overrides)
                up = float(pathlib.Path("/proc/uptime").read_text().split()[0])
                self.succeed("ppo", "ppo.toml", f"run.dir={name}", f"run.walltime={min(max(up, 120), 1200):.0f}", *overrides, ranks=2)

    def test_the_deck_may_want_whole_iterations(self):
        self.stop("whole", f"0:actor step:{STEPS + 3}", "run.stop_within=iteration")
        self.assertEqual(len(self.metrics("whole")), 2)
        self.assert_goes_on("whole")


if __name__ == "__main__":
    main()

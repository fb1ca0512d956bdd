#!/usr/bin/env python3
"""When a run saves, and when it is done before its last iteration."""

from trireme_run import ProgramTest, main

EVALUATED = ('eval.dataset=["prompts.jsonl"]', "eval.steps=1", "eval.n_samples_per_prompt=1", "ckpt.best_metric=eval_reward")


class Intervals(ProgramTest):
    def steps(self, run):
        return sorted(int(path.name[5:]) for path in (self.folder / run / "ckpt").glob("step-*"))

    def test_by_time(self):
        self.succeed("ppo", "ppo.toml", "run.dir=seldom", "ckpt.interval=1000h", ranks=2)
        self.assertEqual(self.steps("seldom"), [3], "at the end only")
        self.succeed("ppo", "ppo.toml", "run.dir=often", "ckpt.interval=0.000001s", "ckpt.background=false", "ckpt.keep=9", ranks=2)
        self.assertEqual(self.steps("often"), [1, 2, 3], "whenever an iteration ends")

    def test_as_often_as_it_pays(self):
        """The first iteration is saved, to learn what that costs; with failures all the time the rest too, with hardly any none of it."""
        for run, rate, steps in (("fragile", "1e12", {1, 3}), ("sturdy", "1e-9", {1, 3})):
            result = self.succeed("ppo", "ppo.toml", f"run.dir={run}", "ckpt.interval=auto", f"ckpt.failure_rate={rate}", "ckpt.background=false",
                                  "ckpt.keep=9", ranks=2)
            self.assertLessEqual(steps, set(self.steps(run)))
            self.assertIn('ckpt.interval = "auto": a checkpoint every ', result.text)
        self.assertEqual(self.steps("sturdy"), [1, 3])

    def test_nonsense_is_refused(self):
        for value in ("sometimes", "-1", "0s", "1.5"):
            self.succeed("ppo", "ppo.toml", "run.dir=nonsense", f"ckpt.interval={value}", code=78)
        self.succeed("ppo", "ppo.toml", "run.dir=nonsense", "ckpt.patience=3", code=78)

    def test_a_target_ends_the_run_for_good(self):
        for run, overrides, words, iterations in (("reached", ("ckpt.target=-100",), "which reaches ckpt.target = -100", 1),
                                                  ("idle", ("ckpt.patience=1", "actor.adam.lr=0", "run.iterations=9"), "(ckpt.patience)", None)):
            with self.subTest(run):
                for _ in range(2):  # the same command again finds it done
                    result = self.succeed("ppo", "ppo.toml", f"run.dir={run}", *EVALUATED, *overrides, ranks=2)
                    self.assertIn(words, result.text)
                done = len(self.metrics(run))
                self.assertIn(done, self.steps(run))
                if iterations:
                    self.assertEqual(done, iterations)
                else:
                    self.assertLess(done, 9)


if __name__ == "__main__":
    main()

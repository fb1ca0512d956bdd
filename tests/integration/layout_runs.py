"""Runs of one deck and seed at layouts of trainer, generator and reward ranks, and how their numbers are compared."""

import json
import math

from trireme_run import ProgramTest

# name -> (ranks, overrides)
LAYOUTS = {
    "2 colocated": (2, []),
    "1+1": (2, ["ranks.trainer=1", "ranks.generator=1"]),
    "1+1, reward apart": (3, ["ranks.trainer=1", "ranks.generator=1", "ranks.reward=1"]),
    "2+1": (3, ["ranks.trainer=2", "ranks.generator=1"]),
    "3+1": (4, ["ranks.trainer=3", "ranks.generator=1"]),
    "3+1, reward with the generator": (4, ["ranks.trainer=0-2", "ranks.generator=3-3", "ranks.reward=3-3"]),
    "2+2 replicas": (4, ["ranks.trainer=0-1", "ranks.generator=2-3"]),
    "2+1, generator among the trainers": (2, ["ranks.trainer=0-1", "ranks.generator=1-1"]),
}
TENSOR_PARALLEL = (4, ["ranks.trainer=0-1", "ranks.generator=2-3", "generate.tensor_parallel=2"])

# Terms of order one cancel in the losses; below this a difference is rounding, whatever the relative one.
ROUNDING = 1e-6
RELATIVE = 1e-5


class LayoutTest(ProgramTest):
    deck = "ppo.toml"
    runs = 0

    def run_layout(self, name, ranks, overrides):
        self.runs += 1  # every run has a folder of its own: another deck would be refused there
        run = "".join(c if c.isalnum() else "-" for c in f"{self._testMethodName}-{name}-{self.runs}")
        self.succeed("ppo", self.deck, f"run.dir={run}", "ckpt.interval=0", *overrides, ranks=ranks)
        return run

    def first_samples(self, run):
        return [(s["id"], s["prompt"], s["output_ids"], s["reward"]) for s in self.samples(run) if s["iteration"] == 1]

    def assert_same_numbers(self, run, reference, keys):
        mine, theirs = self.metrics(run)[0], self.metrics(reference)[0]
        for key in keys:
            self.assertTrue(math.isclose(mine[key], theirs[key], rel_tol=RELATIVE, abs_tol=ROUNDING),
                            f"{run}: {key} = {mine[key]} against {theirs[key]}")
        self.assertEqual(mine["tokens"], theirs["tokens"], run)

    def compare_all(self, layouts, keys, overrides):
        reference = self.run_layout("1", 1, overrides)
        samples = self.first_samples(reference)
        self.assertGreater(len({len(s[2]) for s in samples}), 1, "answers should differ in length")
        self.assertGreater(len({s[3] for s in samples}), 1, "rewards should differ")
        for key in keys:
            self.assertGreater(abs(self.metrics(reference)[0][key]), 100 * ROUNDING, f"{key} says nothing")
        for name, (ranks, roles) in layouts.items():
            with self.subTest(layout=name):
                run = self.run_layout(name, ranks, roles + overrides)
                self.assertEqual(self.first_samples(run), samples)
                self.assert_same_numbers(run, reference, keys)

    def sync_lines(self, run):
        return [line for line in (self.folder / run / "log.txt").read_text().splitlines() if "weight sync " in line]

    def counts(self, run):
        return json.loads((self.folder / run / "summary.json").read_text())["counts"]

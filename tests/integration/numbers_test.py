#!/usr/bin/env python3
"""Numbers that go wrong: what a step that is left out had learned from is kept, a policy that collapses ends the run, replicas that differ are named."""

from trireme_run import PROMPTS, ProgramTest, main, read_lines, write_lines

ENDED = 70


class Numbers(ProgramTest):
    def test_the_batch_of_a_step_left_out_is_kept(self):
        result = self.succeed("ppo", "ppo.toml", "run.dir=nan", 'fault.at=["nan:1:grad:2"]', ranks=2)
        files = sorted((self.folder / "nan" / "not_finite").iterdir())
        self.assertEqual({path.name.rpartition("-")[2] for path in files}, {"0.jsonl", "1.jsonl"}, "each rank has its own")
        rows = [line for path in files for line in read_lines(path)]
        self.assertEqual(len(rows), 4, "of the batch")
        logged = {sample["id"] for sample in self.samples("nan")}
        for row in rows:
            self.assertIn(row["id"], logged)
            self.assertEqual(len(row["ids"]), len(row["advantages"]))
        self.assertIn("the sequences of that step are in ", result.text)

    def test_supervised_training_keeps_it_too(self):
        write_lines(self.folder / "pairs.jsonl", [{"prompt": text, "chosen": f"{i}.", "rejected": f"not {i}"} for i, text in enumerate(PROMPTS)])
        for command, lines, overrides in (("sft", 4, ()), ("rm", 8, ('data.dataset=["pairs.jsonl"]',)), ("dpo", 8, ('data.dataset=["pairs.jsonl"]',))):
            with self.subTest(command):
                result = self.succeed(command, "sft.toml", f"run.dir=nan-{command}", *overrides, 'fault.at=["nan:1:grad:2"]', ranks=2)
                kept = self.folder / f"nan-{command}" / "not_finite"
                self.assertEqual(sorted(path.name for path in kept.iterdir()), ["iteration-2-rank-0.jsonl", "iteration-2-rank-1.jsonl"])
                rows = [line for path in kept.iterdir() for line in read_lines(path)]
                self.assertEqual(len(rows), lines, "of the batch")
                self.assertEqual(len({row["prompt_row"] for row in rows}), 4)
                self.assertTrue(all(row["ids"] for row in rows))
                self.assertIn("the sequences of that step are in ", result.text)

    def test_a_run_that_diverges_ends(self):
        result = self.succeed("ppo", "ppo.toml", "run.dir=kl", "run.iterations=50", "train.divergence.kl=1e-9", "train.divergence.patience=2", ranks=2,
                              code=ENDED)
        self.assertIn("the run diverges: kl is ", result.text)
        self.assertLess(len(self.metrics("kl")), 50)
        self.succeed("ppo", "ppo.toml", "run.dir=calm", "train.divergence.kl=1e9", "train.divergence.reward_drop=100", ranks=2)

    def test_replicas_that_differ_are_named(self):
        hybrid = ("train.shard_group=1", "train.replica_check=1")
        self.succeed("ppo", "ppo.toml", "run.dir=equal", *hybrid, ranks=2)
        result = self.succeed("ppo", "ppo.toml", "run.dir=differ", *hybrid, 'fault.at=["nan:1:weight:1"]', ranks=2, code=ENDED)
        self.assertRegex(result.text, r"replicas differ: \S+ of the (actor|critic) \(weights\) on rank 1 is not that of rank 0")


if __name__ == "__main__":
    main()

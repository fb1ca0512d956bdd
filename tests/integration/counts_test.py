#!/usr/bin/env python3
"""The first ring's part of the layouts: what a run computes and moves, and weights that are healed."""

import shutil

from layout_runs import LayoutTest
from trireme_run import main, timeless


class Counts(LayoutTest):
    def test_counts_of_a_run(self):
        """What the loop itself computed and moved: every prompt once for its samples, every token once per pass, no padding, no copies."""
        for ranks, more in ((1, []), (2, []), (3, ["ranks.trainer=2", "ranks.generator=1"])):
            layout = ["run.iterations=2", "train.max_epochs=2", "rollout.n_samples_per_prompt=4", "ckpt.interval=0", *more]
            with self.subTest(ranks=ranks):
                self.succeed("ppo", self.deck, "run.dir=counted", *layout, ranks=ranks)
                counts, lines = self.counts("counted"), self.metrics("counted")
                tokens = sum(line["tokens"] for line in lines)
                answers = round(sum(line["response_length"] * 16 for line in lines))  # four prompts of four samples each
                self.assertEqual(counts["actor_positions_trained"], 2 * tokens, "each sequence once an epoch, nothing padded")
                self.assertEqual(counts["step_tokens"], 2 * tokens)
                self.assertLess(counts["step_tokens_if_full"], 1.2 * 2 * tokens, "trainers have about as much of each step, in each epoch")
                self.assertEqual(4 * counts["prompt_tokens_computed"], tokens - answers, "a prompt once for its samples")
                self.assertLessEqual(counts["tokens_decoded"], answers, "one row for a token")
                if more:
                    self.assertGreater(counts["weight_sync_bytes_copied"], 0)
                else:
                    self.assertEqual(counts["weight_sync_bytes_copied"], 0)
                    self.assertGreater(counts["kv_cache_bytes_kept"], 0, "beside trainers: this machine has room for both")
                    self.assertEqual(counts.get("kv_cache_bytes_given_back", 0), 0)
                    self.succeed("ppo", self.deck, "run.dir=lean", *layout, "generate.keep_kv_memory=false", ranks=ranks)
                    self.assertGreater(self.counts("lean")["kv_cache_bytes_given_back"], 0, "while the trainers of the same ranks work")
                    self.assertEqual(self.counts("lean").get("kv_cache_bytes_kept", 0), 0)
                    self.assertEqual(self.samples("lean"), self.samples("counted"))
                    self.assertEqual(timeless(self.metrics("lean")), timeless(lines))
                    shutil.rmtree(self.folder / "lean")
                shutil.rmtree(self.folder / "counted")

    def test_deltas_carry_the_changes_of_all_steps(self):
        """Several optimizer steps between two syncs: what any of them changed is sent, and the memory of both sides is compared."""
        layout = ["ranks.trainer=1", "ranks.generator=1", "weightsync.shared_memory=never", "model.dtype=bf16", "actor.adam.lr=2e-6",
                  "run.iterations=3", "train.max_epochs=3", "ckpt.interval=0", "run.log_level=debug"]
        result = self.succeed("ppo", self.deck, "run.dir=deltas", *layout, ranks=2)
        self.assertNotIn("sent again", result.text)
        self.assertGreater(self.metrics("deltas")[0]["optimizer_steps"], 1)
        self.assertTrue(any("deltas: 1/" in line for line in self.sync_lines("deltas")), self.sync_lines("deltas"))
        self.succeed("ppo", self.deck, "run.dir=whole", *layout, "weightsync.delta=false", ranks=2)
        self.assertFalse(any("deltas: 1/" in line for line in self.sync_lines("whole")))
        for line in self.metrics("deltas"):  # every group changes; the few values of an update this small do not make the whole
            changed = {key: share for key, share in line["weight_sync"].items() if key.startswith("changed_")}
            self.assertEqual(set(changed), {"changed_embedding", "changed_head", "changed_layers_0_0", "changed_layers_1_1"})
            self.assertTrue(all(0 < share < 1 for name, share in changed.items() if name != "changed_head"), changed)
        self.assertFalse([key for line in self.metrics("whole") for key in line["weight_sync"] if key.startswith("changed_")])
        self.assertEqual(self.samples("deltas"), self.samples("whole"))

    def test_memory_that_went_wrong_is_healed(self):
        """A generator's weights change under the run after a sync by deltas: it is seen, everything is sent again, and the run is the same."""
        layout = ["ranks.trainer=1", "ranks.generator=1", "weightsync.shared_memory=never", "run.iterations=3", "ckpt.interval=0"]
        self.succeed("ppo", self.deck, "run.dir=sound", *layout, ranks=2)
        result = self.succeed("ppo", self.deck, "run.dir=healed", *layout, 'fault.at=["nan:1:generator:3"]', ranks=2)
        self.assertIn("rank 1 differs from the trainers in 1 tensors: model.embed_tokens.weight: all weights are sent again", result.text)
        self.assertEqual([line.get("healed_syncs", 0) for line in self.metrics("healed")], [0, 1, 1])
        self.assertNotIn("healed_syncs", self.metrics("sound")[-1])
        self.assertEqual(self.samples("healed"), self.samples("sound"))


if __name__ == "__main__":
    main()

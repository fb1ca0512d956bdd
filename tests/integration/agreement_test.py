#!/usr/bin/env python3
"""Generator and trainer give the same log-probabilities, to the bit, on CPUs without tensor parallelism; old log-probs are then
those of the rollout. Tokens do not depend on how they were generated, and equal runs are equal."""

import json

from trireme_run import ProgramTest, main, timeless

TYPES = ("fp32", "bf16")
LEARNED = ("policy_loss", "value_loss", "grad_norm", "critic_grad_norm", "kl", "reward", "ppo_kl", "clip_ratio")


class Agreement(ProgramTest):
    def run_deck(self, run, *overrides, ranks=1):
        return self.succeed("ppo", "ppo.toml", f"run.dir={run}", "ckpt.interval=0", *overrides, ranks=ranks)

    def tokens_of(self, run, iteration):
        return sum(len(s["output_ids"]) for s in self.samples(run) if s["iteration"] == iteration)

    def assert_no_mismatch(self, run):
        for line in self.metrics(run):
            for key in ("mismatch_max", "mismatch_mean", "mismatch_p999", "mismatch_kl"):
                self.assertEqual(line[key], 0, f"{run}: {key} in iteration {line['iteration']}")

    def test_log_probs_are_the_same_bits(self):
        """Every sampled token of three iterations, whatever the layout; then without the pass: the same run."""
        for dtype in TYPES:
            for name, ranks, roles in (("1", 1, []), ("2", 2, ["train.micro_batch_tokens=40"]),
                                       ("3", 3, ["ranks.trainer=0-1", "ranks.generator=2-2"]), ("wide-head", 2, ["model.head_dtype=fp32"])):
                with self.subTest(dtype=dtype, ranks=name):
                    full, short = f"always-{dtype}-{name}", f"auto-{dtype}-{name}"
                    settings = [f"model.dtype={dtype}", "rollout.n_samples_per_prompt=4", "train.batch_size=8", *roles]
                    made = self.run_deck(full, "train.old_log_probs=always", *settings, ranks=ranks)
                    if "may differ" in made.text:
                        self.skipTest("this processor adds in other orders")
                    self.assert_no_mismatch(full)
                    for line in self.metrics(full):
                        self.assertEqual(line["mismatch_tokens"], self.tokens_of(full, line["iteration"]))
                    taken = self.run_deck(short, *settings, ranks=ranks)
                    self.assertIn("old log-probs: those of the rollout", taken.text)
                    self.assert_no_mismatch(short)
                    for ours, theirs in zip(self.metrics(short), self.metrics(full), strict=True):
                        self.assertGreater(ours["mismatch_tokens"], 0)
                        self.assertLess(ours["mismatch_tokens"], theirs["mismatch_tokens"])
                        self.assertEqual([ours[key] for key in LEARNED], [theirs[key] for key in LEARNED])

    def test_one_step_ahead_needs_the_pass(self):
        """With async_depth = 1 samples are a step old from the second iteration on: all of them are computed."""
        made = self.run_deck("ahead", "train.async_depth=1", "ranks.trainer=1", "ranks.generator=1", ranks=2)
        lines = self.metrics("ahead")
        if "may differ" not in made.text:
            self.assertLess(lines[0]["mismatch_tokens"], self.tokens_of("ahead", 1))
        for line in lines[1:]:
            self.assertEqual(line["mismatch_tokens"], self.tokens_of("ahead", line["iteration"]))
            self.assertGreater(line["mismatch_max"], 0)
            self.assertGreaterEqual(line["mismatch_max"], line["mismatch_p999"])
            self.assertGreaterEqual(line["mismatch_p999"], line["mismatch_mean"])
            self.assertGreater(line["mismatch_kl"], 0)

    def test_tensor_parallelism_is_measured(self):
        for dtype, limit in (("fp32", 2e-6), ("bf16", 2e-3)):
            run = f"tp-{dtype}"
            made = self.run_deck(run, f"model.dtype={dtype}", "generate.tensor_parallel=2", "run.iterations=2",
                                 "rollout.n_samples_per_prompt=8", ranks=2)
            self.assertIn("may differ: ", made.text)
            for line in self.metrics(run):
                self.assertEqual(line["mismatch_tokens"], self.tokens_of(run, line["iteration"]))
                self.assertLessEqual(line["mismatch_mean"], limit)
            print(f"\n    tensor parallel, {dtype}: {[line['mismatch_mean'] for line in self.metrics(run)]}", flush=True)

    def test_weights_in_8_bits_are_measured(self):
        """Every token is drawn from a policy that differs a little from the trained one; the correction sees by how much. The copy follows each sync."""
        for dtype, ranks, roles in (("fp32", 1, []), ("bf16", 2, []), ("bf16", 3, ["ranks.trainer=0-1", "ranks.generator=2-2"])):
            run = f"int8-{dtype}-{ranks}"
            settings = [f"model.dtype={dtype}", "rollout.n_samples_per_prompt=8", "train.batch_size=8", "run.iterations=2", "generate.weights=int8",
                        "run.log_level=info", *roles]
            made = self.run_deck(run, "algo.advantage.is_correction_enable=true", *settings, ranks=ranks)
            if not roles:  # rank 0 writes the log
                self.assertIn("weights in 8 bits: ", (self.folder / run / "log.txt").read_text())
            self.assertIn("may differ: generation multiplies with weights in 8 bits", made.text)
            self.assertNotIn("nothing corrects for it", made.text)
            for line in self.metrics(run):
                self.assertEqual(line["mismatch_tokens"], self.tokens_of(run, line["iteration"]))
                self.assertTrue(0 < line["mismatch_mean"] < 0.02, line)
            counts = json.loads((self.folder / run / "summary.json").read_text())["counts"]
            self.assertGreater(counts["rollout_weight_bytes_in_8_bits"], 0)
            print(f"\n    weights in 8 bits, {dtype}, {ranks} ranks: {[line['mismatch_mean'] for line in self.metrics(run)]}", flush=True)
        self.assertIn("nothing corrects for it", self.run_deck("uncorrected", *settings[:-2], ranks=1).text)

    def test_tokens_do_not_depend_on_how_they_are_generated(self):
        settings = ["rollout.n_samples_per_prompt=4", "train.batch_size=8", "run.iterations=2"]
        for dtype in TYPES:
            reference = f"reference-{dtype}"
            self.run_deck(reference, f"model.dtype={dtype}", *settings)
            for name, ranks, override in (("unshared", 1, "generate.prefix_sharing=false"), ("one-by-one", 1, "generate.max_batch=1"),
                                          ("chunks", 1, "generate.max_batch_tokens=5"), ("pages", 1, "generate.page_size=64"),
                                          ("guesses", 1, "generate.speculation_tokens=5"),
                                          ("few-pages", 1, f"generate.kv_memory={40 if dtype == 'fp32' else 20}KiB"),
                                          ("replicas", 3, "run.log_level=info")):
                with self.subTest(dtype=dtype, name=name):
                    run = f"{name}-{dtype}"
                    self.run_deck(run, f"model.dtype={dtype}", override, *settings, ranks=ranks)
                    first = [[s for s in self.samples(r) if s["iteration"] == 1] for r in (run, reference)]
                    self.assertEqual(first[0], first[1])
                    if ranks == 1:
                        self.assertEqual(self.samples(run), self.samples(reference))

    def test_equal_runs_are_equal(self):
        for run in ("first", "second"):
            self.succeed("ppo", "ppo.toml", f"run.dir={run}", "ckpt.interval=0", "ckpt.save_hf=end", "model.dtype=bf16", ranks=2)
        first, second = (timeless(self.metrics(run)) for run in ("first", "second"))
        self.assertEqual(first, second)
        self.assertEqual(self.samples("first"), self.samples("second"))
        weights = [(self.folder / run / "hf" / "model.safetensors").read_bytes() for run in ("first", "second")]
        self.assertEqual(weights[0], weights[1])
        for part in ("actor", "critic"):
            folders = []
            for run in ("first", "second"):
                self.succeed("convert", run, f"{run}-{part}", "--part", part, "--dtype", "fp32")
                folders.append((self.folder / f"{run}-{part}" / "model.safetensors").read_bytes())
            self.assertEqual(folders[0], folders[1], part)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Every word of the algorithm's keys from a deck: it runs, differs from its neighbours where the formula does, and where sums go over
sequences or the whole batch, gives the same numbers at two rank counts."""

import json
import math

from trireme_run import ROOT, RULE_SOURCE, ProgramTest, main, timeless

GROUP = ["rollout.n_samples_per_prompt=4", "train.batch_size=8"]
FEW = ["train.micro_batch_tokens=40"]  # several micro-batches a step
CORRECT = "algo.advantage.is_correction_enable=true"
CUSTOM = [CORRECT, "algo.advantage.is_correction_type=custom"]
OFF_POLICY = ["train.async_depth=1", "ranks.trainer=1", "ranks.generator=1"]

# name -> overrides
VARIANTS = {
    "gae": ["algo.advantage.lambd=0.95"],
    "reinforce": ["algo.advantage.estimator=reinforce", "algo.advantage.gamma=0.9"],
    "centered": ["algo.advantage.estimator=reinforce", "algo.advantage.gamma=0.9", "algo.advantage.no_std_norm=true"],
    "rloo": ["algo.advantage.estimator=rloo", *GROUP],
    "reinforce_baseline": ["algo.advantage.estimator=reinforce_baseline", *GROUP],
    "group_norm": ["algo.advantage.estimator=group_norm", *GROUP],
    "dr_grpo": ["algo.advantage.estimator=dr_grpo", *GROUP],
    "flash_reinforce": ["algo.advantage.estimator=flash_reinforce", *GROUP],
    "gspo": ["algo.advantage.estimator=group_norm", *GROUP, "actor.policy_loss_type=gspo"],
    "by sequence": ["algo.advantage.estimator=group_norm", *GROUP, "actor.loss_agg_mode=seq-mean-token-mean"],
    "clip higher": ["actor.eps_clip_low_high=[0.1, 0.3]", "actor.dual_clip=3", "critic.value_clip=none"],
    "entropy": ["actor.entropy_coef=0.1"],
    "kl in the loss, k2": ["algo.kl.use_loss=true", "algo.kl.estimator=k2", "algo.kl.init_coef=1"],
    "kl in the loss, k3": ["algo.kl.use_loss=true", "algo.kl.estimator=k3", "algo.kl.init_coef=1"],
    "kl in the loss, unbiased": ["algo.kl.use_loss=true", "algo.kl.unbiased_gradient=true", "algo.kl.init_coef=1"],
    "adaptive kl": ["algo.kl.target=0.01", "algo.kl.horizon=50", "algo.kl.init_coef=0.5"],
    "overlong": ["reward.overlong_buffer_len=6", "reward.overlong_penalty_factor=2"],
    "stop properly": ["reward.stop_properly_penalty_coef=-1", "rollout.max_new_tokens=4"],
    "tis": [CORRECT],
    "icepop": [CORRECT, "algo.advantage.is_correction_type=icepop"],
    "seq-mask-tis": [CORRECT, "algo.advantage.is_correction_type=seq-mask-tis"],
    "binary_kl": [*CUSTOM, "algo.advantage.is_correction_mode=mask", "algo.advantage.is_correction_gating=binary_kl",
                  "algo.advantage.is_correction_threshold=[0, 0.1]"],
    "tv by sequence": [*CUSTOM, "algo.advantage.is_correction_level=seq", "algo.advantage.is_correction_mode=mask",
                       "algo.advantage.is_correction_gating=tv", "algo.advantage.is_correction_threshold=[0, 0.5]"],
    "ratio by segment": [*CUSTOM, "algo.advantage.is_correction_level=segment", "algo.advantage.is_correction_mode=mask"],
    "cispo": ["algo.advantage.estimator=group_norm", *GROUP, *FEW, "actor.policy_loss_type=cispo", "actor.cispo_ratio_max=1.01",
              "actor.loss_agg_mode=seq-mean-token-sum"],
    "sapo, Dr. GRPO's sum": ["algo.advantage.estimator=dr_grpo", *GROUP, *FEW, "actor.policy_loss_type=sapo",
                             "actor.loss_agg_mode=seq-mean-token-sum-norm"],
    "gmpo": ["algo.advantage.estimator=reinforce_plus_plus_baseline", *GROUP, *FEW, "actor.policy_loss_type=gmpo"],
    "gspo_token, entropy filter": ["algo.advantage.estimator=reinforce_plus_plus_baseline_kl", *GROUP, *FEW,
                                   "actor.policy_loss_type=gspo_token", "actor.top_entropy_quantile=0.3"],
    "delta, off-policy mask": ["algo.advantage.estimator=reinforce_plus_plus", *GROUP, *FEW, "actor.delta=4",
                               "actor.off_policy_threshold=-10", "actor.loss_agg_mode=token-sum"],
    "vapo": ["algo.advantage.lambd_value=1", "algo.advantage.length_adaptive_alpha=0.05", "actor.positive_nll_coef=0.1", *FEW],
    "min-p": ["rollout.min_p=0.05", "rollout.repetition_penalty=1.2", CORRECT],
    "truncated": ["algo.advantage.estimator=group_norm", *GROUP, "rollout.max_new_tokens=4", "algo.advantage.mask_truncated=true",
                  "actor.loss_count_empty=true", "actor.loss_agg_mode=seq-mean-token-mean"],
}
ACROSS_RANKS = ("sapo, Dr. GRPO's sum", "gmpo", "gspo_token, entropy filter", "vapo", "centered", "rloo", "flash_reinforce", "gspo", "by sequence", "seq-mask-tis", "tv by sequence", "adaptive kl")
SAME = ("reward", "policy_loss", "kl_loss", "grad_norm", "kl_coefficient", "return", "filter_ratio")


class Algorithms(ProgramTest):
    def run_variant(self, name, overrides, ranks):
        run = "".join(c if c.isalnum() else "-" for c in name) + f"-{ranks}"
        self.succeed("ppo", "ppo.toml", f"run.dir={run}", "ckpt.interval=0", "run.iterations=2", "train.max_epochs=2", *overrides,
                     ranks=ranks)
        return self.metrics(run)

    def test_every_word(self):
        seen = {}
        for name, overrides in VARIANTS.items():
            with self.subTest(variant=name):
                lines = self.run_variant(name, overrides, 2)
                ours = seen[name] = lines[0]
                if name == "adaptive kl":
                    self.assertNotEqual(lines[1]["kl_coefficient"], 0.5)
                theirs = self.run_variant(name, overrides, 1)[0] if name in ACROSS_RANKS else ours
                for key in SAME:
                    self.assertTrue(math.isfinite(ours[key]), key)
                    self.assertTrue(math.isclose(ours[key], theirs[key], rel_tol=1e-4, abs_tol=1e-6), f"{key}: {ours[key]} {theirs[key]}")
        for one, other in (("gae", "clip higher"), ("reinforce", "centered"), ("rloo", "dr_grpo"), ("group_norm", "flash_reinforce"),
                           ("group_norm", "gspo"), ("group_norm", "by sequence"), ("gae", "entropy"),
                           ("kl in the loss, k2", "kl in the loss, k3"), ("kl in the loss, k3", "kl in the loss, unbiased"),
                           ("gae", "overlong"), ("gae", "stop properly")):
            self.assertNotEqual(seen[one]["grad_norm"], seen[other]["grad_norm"], f"{one} and {other}")
        self.assertIsNotNone(seen["entropy"]["entropy"])
        self.assertAlmostEqual(seen["gspo_token, entropy filter"]["loss_mask_ratio"], 0.7, delta=0.05)
        self.assertGreater(seen["delta, off-policy mask"]["loss_mask_ratio"], 0)
        self.assertLess(seen["delta, off-policy mask"]["loss_mask_ratio"], 1)
        self.assertTrue(0 < seen["vapo"]["positive_nll"] < 2 * math.log(272), "nats a token")
        self.assertGreater(seen["truncated"]["masked_tokens"], 0)

    def test_corrections_act_on_stale_samples(self):
        """One step behind, rollout and trainer differ: a narrow threshold drops tokens, a wide one none."""
        steps = ["actor.adam.lr=3e-2", "actor.warmup_ratio=0", "actor.lr_scheduler=constant_with_warmup"]
        dropped = {}
        for name, threshold in (("wide", "[0, 1000]"), ("narrow", "[0.999, 1.001]")):
            run = f"stale-{name}"
            self.succeed("ppo", "ppo.toml", f"run.dir={run}", *OFF_POLICY, *steps, CORRECT, "algo.advantage.is_correction_type=icepop",
                         f"algo.advantage.is_correction_threshold={threshold}", ranks=2)
            dropped[name] = self.metrics(run)[-1]["filter_ratio"]
        self.assertEqual(dropped["wide"], 0)
        self.assertGreater(dropped["narrow"], 0.5)

    def test_corrections_know_what_top_k_left(self):
        """Of one token that was left, drawn with probability 1, the weight is the policy's own probability of it: here far below a half. What is
        compared with the trainer stays the full distribution's."""
        for name, top_k, dropped in (("all", 0, 0), ("one", 1, 1)):
            run = f"top-{name}"
            self.succeed("ppo", "ppo.toml", f"run.dir={run}", "run.iterations=1", f"rollout.top_k={top_k}", CORRECT,
                         "algo.advantage.is_correction_type=icepop", ranks=2)
            (line,) = self.metrics(run)
            self.assertEqual(line["filter_ratio"], dropped, name)
            self.assertEqual(line["policy_loss"] == 0, bool(dropped), name)
            self.assertLess(abs(line["rollout_kl"]), 1e-5, name)

    def test_kl_in_the_loss_is_reported_and_steers_its_coefficient(self):
        """algo.kl.use_loss: `kl` is the KL of the loss, not that of the token rewards, which is 0; a target below it raises the
        coefficient, one above it lowers it."""
        steps = ["actor.adam.lr=3e-2", "actor.warmup_ratio=0", "actor.lr_scheduler=constant_with_warmup"]
        in_loss = ["algo.kl.use_loss=true", "algo.kl.estimator=k3", "algo.kl.init_coef=0.5", "algo.kl.horizon=50"]
        for name, target, grows in (("raised", 1e-9, True), ("lowered", 1e9, False)):
            self.succeed("ppo", "ppo.toml", f"run.dir=kl-{name}", *steps, *in_loss, f"algo.kl.target={target}", ranks=2)
            lines = self.metrics(f"kl-{name}")
            for line in lines:
                self.assertGreater(line["kl"], 0, "after the first step the policy is not the reference")
                self.assertEqual(line["kl"], line["kl_loss"])
            coefficients = [line["kl_coefficient"] for line in lines]
            self.assertEqual(coefficients[0], 0.5)
            factor = 1 + (0.2 if grows else -0.2) * 8 / 50  # 8 sequences an iteration
            for before, after in zip(coefficients, coefficients[1:]):
                self.assertTrue(math.isclose(after, before * factor, rel_tol=1e-9), f"{name}: {coefficients}")

    def test_kl_of_an_actor_that_waits_is_not_known(self):
        """While the critic trains alone, there is no KL in the loss: it is null, and the coefficient stays."""
        self.succeed("ppo", "ppo.toml", "run.dir=kl-waits", "critic.freezing_steps=1", "algo.kl.use_loss=true", "algo.kl.init_coef=0.5",
                     "algo.kl.target=1", "algo.kl.horizon=50", "run.iterations=2")
        self.assertEqual([(line["kl"], line["kl_coefficient"]) for line in self.metrics("kl-waits")], [(None, 0.5)] * 2)

    def test_each_reward_source_on_its_own(self):
        """GDPO: two sources, compared one by one, at 1 and 2 ranks; whitened over tokens or over sequences."""
        brief = '[[reward.source]]\nkind = "rule"\nname = "brief"\nrule = "none"\nlength_target = 3\nlength_weight = 0.5\n'
        self.deck_with("two.toml", RULE_SOURCE, RULE_SOURCE + brief)
        norms = []
        for estimator in ("group_norm", "gdpo", "gdpo_sequences"):
            for ranks in (1, 2):
                run = f"{estimator}-two-{ranks}"
                self.succeed("ppo", "two.toml", f"run.dir={run}", "run.iterations=1", f"algo.advantage.estimator={estimator}", *GROUP, ranks=ranks)
            ours, theirs = (self.metrics(f"{estimator}-two-{ranks}")[0]["grad_norm"] for ranks in (1, 2))
            self.assertTrue(math.isclose(ours, theirs, rel_tol=1e-4), f"{estimator}: {ours} {theirs}")
            norms.append(ours)
        self.assertEqual(len(set(norms)), 3, norms)

    def test_reference_follows_the_actor(self):
        """reference.sync_every = 2: before the update of iterations 1, 3 and 5 policy and reference are the same, also after a restart."""
        common = ["algo.advantage.estimator=group_norm", *GROUP, "actor.adam.lr=3e-2", "actor.warmup_ratio=0",
                  "actor.lr_scheduler=constant_with_warmup", "reference.sync_every=2", "ckpt.interval=1"]
        self.succeed("ppo", "ppo.toml", "run.dir=followed", "run.iterations=5", *common, ranks=2)
        lines = self.metrics("followed")
        self.assertEqual([abs(line["kl"]) > 1e-6 for line in lines], [False, True, False, True, False])
        for iterations in (3, 5):
            self.succeed("ppo", "ppo.toml", "run.dir=followed-halves", f"run.iterations={iterations}", *common, ranks=2)
        self.assertEqual(timeless(self.metrics("followed-halves")), timeless(lines))
        kept = sorted(path.name for path in (self.folder / "followed" / "reference").iterdir())
        self.assertEqual(kept, ["iteration-000002", "iteration-000004"])

    def test_teachers(self):
        """On-policy distillation of each kind, without a reward: the student comes closer to its teacher, at two rank counts by the same numbers."""
        made = self.run_program("init", "--shape", "shape", "--output", "teacher", "--tokenizer", ROOT / "inputs" / "tutorial" / "tokenizer",
                                "--dtype", "fp32", "--seed", "5")
        self.assertEqual(made.code, 0, made.text)
        common = ["reference.path=teacher", "algo.distill.coef=1", "algo.kl.init_coef=0", "algo.advantage.estimator=reinforce",
                  "algo.advantage.no_std_norm=true", "reward.source.0.rule=none", "reward.source.0.pattern=", "reward.source.0.length_target=0",
                  "reward.source.0.length_weight=0", "actor.warmup_ratio=0", "actor.lr_scheduler=constant_with_warmup", "actor.adam.lr=3e-3",
                  "rollout.n_samples_per_prompt=8", "train.batch_size=32", "run.iterations=12", "ckpt.interval=0", "rollout.save_samples=0"]
        for name, more in (("advantage", ["algo.distill.discount=0.5"]),
                           ("policy_gradient", ["algo.distill.loss_max=2"]),
                           ("k2", []), ("k3", ["algo.distill.loss_max=5"]),
                           ("distribution", ["algo.distill.beta=1", "algo.distill.top_k=40"])):
            with self.subTest(name):
                lines = {}
                for ranks in (1, 2):
                    run = f"teacher-{name}-{ranks}"
                    self.succeed("ppo", "ppo.toml", f"run.dir={run}", f"algo.distill.policy={name}", *common, *more, ranks=ranks)
                    lines[ranks] = self.metrics(run)
                kl = [line["kl"] for line in lines[1]]
                self.assertLess(sum(kl[-3:]), 0.8 * sum(kl[:3]), f"{name}: {kl}")
                for key in ("kl", "policy_loss", "kl_loss", "grad_norm"):
                    self.assertTrue(math.isclose(lines[1][0][key], lines[2][0][key], rel_tol=1e-4, abs_tol=1e-6), f"{name}: {key}")
                self.assertEqual(lines[1][0]["kl_loss"] != 0, name.startswith("k"))
                self.assertEqual("distill_loss" in lines[1][0], name == "distribution")

        few = [key for key in common if not key.startswith(("rollout.n_", "train.batch", "run.iterations"))]
        self.succeed("ppo", "ppo.toml", "run.dir=teacher-of-few", *few, "rollout.batch_size=2", "rollout.n_samples_per_prompt=1", "train.batch_size=2",
                     "run.iterations=1", ranks=3)  # one trainer has no answer

    def test_teacher_in_the_steps(self):
        """Whole distributions beside rewards: a run in two halves has the bits of a whole one; a
        student is no way from itself, with and without an adapter; trainers alone have the teacher,
        one of which has no answer."""
        common = ["algo.distill.coef=1", "algo.distill.policy=distribution",
                  "algo.distill.beta=0.5", "algo.kl.init_coef=0",
                  *FEW, "actor.warmup_ratio=0", "actor.lr_scheduler=constant_with_warmup"]
        groups = ["algo.advantage.estimator=group_norm", *GROUP]
        run = lambda name, *more, ranks=1: self.succeed("ppo", "ppo.toml", f"run.dir={name}",
                                                        *common, *more, ranks=ranks)
        tokenizer = ROOT / "inputs" / "tutorial" / "tokenizer"
        far = self.run_program("init", "--shape", "shape", "--output", "far", "--tokenizer",
                               tokenizer, "--dtype", "fp32", "--seed", "6")
        self.assertEqual(far.code, 0, far.text)
        run("taught", "reference.path=far", *groups, "run.iterations=4", ranks=2)
        for iterations in (2, 4):
            run("taught-halves", "reference.path=far", *groups, f"run.iterations={iterations}",
                ranks=2)
        lines = self.metrics("taught")
        self.assertEqual(timeless(self.metrics("taught-halves")), timeless(lines))
        for line in lines:
            self.assertGreater(line["distill_loss"], 0.01)
            self.assertEqual(line["kl"], line["distill_loss"])
        self.assertIn("reference_weights", lines[-1]["memory"])
        summary = json.loads((self.folder / "taught" / "summary.json").read_text())
        self.assertGreater(summary["counts"]["teacher_positions"], 0)

        no_rewards = ["reward.source.0.rule=none", "reward.source.0.pattern=",
                      "reward.source.0.length_target=0", "reward.source.0.length_weight=0"]
        for name, more in (("whole", []), ("adapter", ["actor.lora.rank=4", "actor.lora.alpha=8"])):
            run(f"self-{name}", "reference.path=model", *groups, *more, *no_rewards,
                "train.max_epochs=2", "actor.adam.lr=0", "run.iterations=2")
            for line in self.metrics(f"self-{name}"):
                self.assertLess(abs(line["distill_loss"]), 1e-9, name)
                self.assertLess(line["grad_norm"], 1e-6, name)
        one = ["rollout.batch_size=1", "rollout.n_samples_per_prompt=1", "train.batch_size=1",
               "algo.advantage.estimator=reinforce"]
        run("apart", "reference.path=far", *one, "run.iterations=1", "ranks.trainer=0-1",
            "ranks.generator=2-2", "ranks.reward=2-2", ranks=3)

    def test_critic_alone_first(self):
        """critic.freezing_steps = 1: two iterations train the critic alone."""
        self.succeed("ppo", "ppo.toml", "run.dir=frozen", "critic.freezing_steps=1", "actor.warmup_ratio=0", "run.iterations=3", ranks=2)
        lines = self.metrics("frozen")
        self.assertEqual([line["grad_norm"] > 0 for line in lines], [False, False, True])
        self.assertTrue(all(line["critic_grad_norm"] > 0 for line in lines))

    def test_average_is_saved_and_exported(self):
        self.succeed("ppo", "ppo.toml", "run.dir=averaged", "train.enable_ema=true", "ckpt.save_hf=end", "run.iterations=2", ranks=2)
        self.succeed("convert", "averaged", "average", "--part", "ema", "--dtype", "fp32")
        exported = self.folder / "averaged" / "hf-ema" / "model.safetensors"
        self.assertEqual((self.folder / "average" / "model.safetensors").read_bytes(), exported.read_bytes())

    def test_evaluation_and_best(self):
        """Own temperature and number of samples, pass@1 <= pass@k; the best checkpoint by pass@1."""
        self.succeed("ppo", "ppo.toml", "run.dir=evaluated", 'eval.dataset=["prompts.jsonl"]', "eval.steps=2", "eval.temperature=0.8",
                     "eval.n_samples_per_prompt=3", "ckpt.best_metric=eval_pass1", "ckpt.interval=0", "run.iterations=3", ranks=2)
        lines = self.metrics("evaluated")
        self.assertEqual(["eval_pass1" in line for line in lines], [False, True, True], "every second iteration, and the last")
        for line in lines[1:]:
            self.assertLessEqual(line["eval_pass1"], line["eval_pass3"])
        best = 2 if lines[1]["eval_pass1"] >= lines[2]["eval_pass1"] else 3
        self.assertEqual(str((self.folder / "evaluated" / "ckpt" / "best").readlink()), f"step-{best:06d}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Reward models, DPO and what goes with them: numbers that do not depend on the ranks, bitwise resume, exports, evaluation, the best
checkpoint, the pretraining loss; the tutorial's chain SFT -> RM -> PPO and SFT -> DPO, shortened; and the README's command for one's own model."""

import json
import math
import pathlib
import re
import shlex
import shutil

from trireme_run import ROOT, RULE_SOURCE, SFT_DECK, ProgramTest, main, read_safetensors, timeless, write_lines

BAD_DATA, LOCKED, CONFIGURATION = 65, 73, 78
RELATIVE, ROUNDING = 1e-5, 1e-6

QUESTIONS = ["1+2=", "12+30=", "7+8=", "what is 2+2? ", "9+1=", "100+1=", "3+3=", "five plus six is ", "4+4=", "6+1="]
PAIRS = [{"prompt": text, "chosen": f"{i}.", "rejected": f"{i} or {i + 1}, perhaps" if i % 2 else "?", "margin": 0.1 * (i % 3)}
         for i, text in enumerate(QUESTIONS)]
EVALUATION = ['eval.dataset=["held-out.jsonl"]', "eval.steps=2"]


class Pipelines(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_lines(cls.folder / "pairs.jsonl", PAIRS[:8])
        write_lines(cls.folder / "held-out.jsonl", PAIRS[8:])
        write_lines(cls.folder / "texts.jsonl", [{"text": text + "and so on"} for text in QUESTIONS])
        deck = SFT_DECK.replace("examples.jsonl", "pairs.jsonl").replace("iterations = 4", "iterations = 6")
        deck = deck.replace("adam.lr = 1e-3", 'adam.lr = 1e-3\nlr_scheduler = "constant_with_warmup"')
        for name in ("rm.toml", "dpo.toml"):
            (cls.folder / name).write_text(deck)

    def assert_close(self, run, reference, keys):
        for ours, theirs in zip(self.metrics(run), self.metrics(reference), strict=True):
            for key in keys:
                self.assertTrue(math.isclose(ours[key], theirs[key], rel_tol=RELATIVE, abs_tol=ROUNDING),
                                f"{run}: {key} {ours[key]} against {theirs[key]}")

    def same_at_other_ranks(self, command, keys, *overrides):
        """One rank and two (packed differently), and two shard groups of one: the same losses and norms at every step."""
        reference = f"{command}-{self._testMethodName}-1"
        self.succeed(command, f"{command}.toml", f"run.dir={reference}", *overrides)
        for name, more in (("2", []), ("groups", ["train.shard_group=1"]), ("narrow", ["train.micro_batch_tokens=24"])):
            run = f"{command}-{self._testMethodName}-{name}"
            self.succeed(command, f"{command}.toml", f"run.dir={run}", *overrides, *more, ranks=2)
            self.assert_close(run, reference, keys)
        return reference

    def resumes_bitwise(self, command, *overrides):
        """A run that stops at half and is started again ends with the metrics and the model of one that nobody disturbed."""
        whole, halves = f"{command}-whole", f"{command}-halves"
        common = [*overrides, "ckpt.save_hf=end", "train.enable_ema=true"]
        self.succeed(command, f"{command}.toml", f"run.dir={whole}", *common, ranks=2)
        job = self.start(command, f"{command}.toml", f"run.dir={halves}", *common, "fault.crash_at=ckpt.pruned", ranks=2)
        job.wait()
        done = len(self.metrics(halves))
        self.assertLess(done, 6, "the crash after the first checkpoint ends the run")
        self.succeed_after_a_crash(command, halves, common)
        self.assertEqual(timeless(self.metrics(halves)), timeless(self.metrics(whole)))
        for model in ("hf", "hf-ema"):
            ours, theirs = (read_safetensors(self.folder / run / model / "model.safetensors") for run in (halves, whole))
            self.assertEqual(ours, theirs)
        averaged = read_safetensors(self.folder / whole / "hf-ema" / "model.safetensors")
        self.assertNotEqual(averaged, read_safetensors(self.folder / whole / "hf" / "model.safetensors"))

    def succeed_after_a_crash(self, command, run, overrides):
        """mpirun may return before the ranks that it ends are gone; until then the folder is rightly locked."""
        for _ in range(100):
            result = self.run_program(command, f"{command}.toml", f"run.dir={run}", *overrides, ranks=2)
            if result.code != LOCKED:
                break
        self.assertEqual(result.code, 0, result.text)
        self.assertIn("resumed after iteration", result.text)

    def test_reward_model(self):
        keys = ["loss", "accuracy", "chosen_reward", "rejected_reward", "reward_mean", "reward_std", "grad_norm"]
        run = self.same_at_other_ranks("rm", keys, *EVALUATION, "ckpt.save_hf=end")
        lines = self.metrics(run)
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])
        self.assertEqual(["eval_loss" in line for line in lines], [False, True] * 3)
        config = json.loads((self.folder / run / "hf" / "config.json").read_text())
        self.assertEqual(config["architectures"], ["LlamaForSequenceClassification"])
        self.assertAlmostEqual(config["mean"], lines[-1]["eval_reward_mean"], places=6)
        self.assertAlmostEqual(config["std"], lines[-1]["eval_reward_std"], places=6)
        tensors = read_safetensors(self.folder / run / "hf" / "model.safetensors")
        self.assertEqual(tensors["score.weight"][1], [1, 64])
        self.assertNotIn("lm_head.weight", tensors)
        # `score` reads the model; a checkpoint of rm converts to the same one.
        write_lines(self.folder / "to-score.jsonl", [{"text": QUESTIONS[0]}])
        self.succeed("score", "--model", "model", "--reward-model", f"{run}/hf", "--input", "to-score.jsonl", "--output", "scores.jsonl")
        self.assertTrue(math.isfinite(json.loads((self.folder / "scores.jsonl").read_text())["reward"]))
        self.succeed("convert", f"{run}/ckpt/step-000006", "converted", "--dtype", "fp32")
        self.assertEqual(read_safetensors(self.folder / "converted" / "model.safetensors"), tensors)

    def rewards_of(self, run, reward_model, prompts):
        """What ppo's answers get: (prompt's record, response, finish_reason, reward)."""
        deck = (self.folder / "ppo.toml").read_text().replace(RULE_SOURCE, f'[[reward.source]]\nkind = "model"\npath = "{reward_model}"\n')
        (self.folder / "judged.toml").write_text(deck)
        self.succeed("ppo", "judged.toml", f"run.dir={run}", "run.iterations=1", 'data.prompt_dataset=["asked.jsonl"]', "ckpt.interval=0", "data.max_len=96",
                     "rollout.batch_size=8", "rollout.n_samples_per_prompt=4", "rollout.stop=[]", "rollout.max_new_tokens=4", "train.batch_size=32",
                     'rollout.logit_bias=["text:7=50", "text:8=50", "text:<|eos|>=50"]', "algo.advantage.estimator=group_norm", "algo.kl.init_coef=0")
        return [(prompts[line["prompt"]], line["response"].removesuffix("<|eos|>"), line["finish_reason"], line["reward"]) for line in self.samples(run)]

    def scores(self, name, reward_model, lines):
        write_lines(self.folder / f"{name}.jsonl", lines)
        self.succeed("score", "--model", "model", "--reward-model", reward_model, "--input", f"{name}.jsonl", "--output", f"{name}-scored.jsonl",
                     "--dtype", "fp32")
        return [json.loads(line) for line in (self.folder / f"{name}-scored.jsonl").read_text().splitlines()]

    def test_a_reward_model_reads_the_same_tokens_whoever_asks(self):
        """ppo, rm and score, texts and chats, whole answers and cut ones; with the tokenizer's file as it is and written anew, and with another template."""
        chats = [{"messages": [{"role": "user", "content": text}]} for text in QUESTIONS[4:8]]
        write_lines(self.folder / "asked.jsonl", [{"prompt": text} for text in QUESTIONS[:4]] + chats)
        rendered = lambda chat: "".join(f"<|bos|>{turn['role']}\n{turn['content']}<|eos|>" for turn in chat["messages"])
        prompts = {text: {"prompt": text} for text in QUESTIONS[:4]} | {rendered(chat) + "<|bos|>assistant\n": chat for chat in chats}
        self.succeed("rm", "rm.toml", "run.dir=rm-read", "run.iterations=2", "ckpt.interval=0", "ckpt.save_hf=end", 'eval.dataset=["held-out.jsonl"]',
                     "eval.steps=2", "actor.adam.lr=1e-2")
        judge = self.folder / "rm-read" / "hf"
        anew = shutil.copytree(judge, self.folder / "judge-anew")
        file = json.loads((anew / "tokenizer.json").read_text())
        file["model"]["merges"] = [" ".join(merge) if isinstance(merge, list) else merge.split(" ") for merge in file["model"]["merges"]]
        file["added_tokens"].reverse()
        (anew / "tokenizer.json").write_text(json.dumps(file, indent=3))
        brackets = shutil.copytree(anew, self.folder / "judge-brackets")
        config = json.loads((brackets / "tokenizer_config.json").read_text())
        config["chat_template"] = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
        (brackets / "tokenizer_config.json").write_text(json.dumps(config))

        answers = self.rewards_of("by-judge", judge, prompts)
        self.assertEqual({finish for _, _, finish, _ in answers}, {"stop", "length"})
        self.assertEqual(answers, self.rewards_of("by-anew", anew, prompts), "to the bit")
        asked = [prompt | {"response": response, "finish_reason": finish} for prompt, response, finish, _ in answers]
        scored = self.scores("as-asked", judge, asked)
        self.assertEqual(scored, self.scores("as-anew", anew, asked), "to the bit")
        for (prompt, response, finish, reward), line in zip(answers, scored, strict=True):
            self.assertAlmostEqual(line["reward"], reward, places=5, msg=f"{prompt} {response} {finish}")
            self.assertEqual(len(line["log_probs"]), len(response) + (finish == "stop"))

        # The reward model's own template; as texts that stand as they are.
        whole = [(prompt, response, finish, reward) for prompt, response, finish, reward in self.rewards_of("by-brackets", brackets, prompts)]
        end = {"stop": "<|eos|>", "length": ""}
        texts = ["<|bos|>" + "".join(f"[{turn['role']}] {turn['content']}<|eos|>" for turn in prompt["messages"]) + f"[assistant] {response}{end[finish]}"
                 if "messages" in prompt else prompt["prompt"] + response + end[finish] for prompt, response, finish, _ in whole]
        scored = self.scores("in-brackets", brackets, [{"text": text} for text in texts])
        for text, (_, _, _, reward), line in zip(texts, whole, scored, strict=True):
            self.assertAlmostEqual(line["reward"], reward, places=5, msg=text)
        self.assertNotEqual([reward for _, _, _, reward in whole], [reward for _, _, _, reward in answers])

        # Chats from `messages`, as the rendered texts up to the end token; held-out pairs as rm saw them.
        conversations = [{"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": f"{i}."}]}
                         for i, text in enumerate([*QUESTIONS, "na\u00efve? ", "8+8=\n"])]
        as_chats = self.scores("as-chats", judge, conversations)
        self.assertEqual(as_chats, self.scores("as-texts", judge, [{"text": rendered(chat)} for chat in conversations]))
        sides = [{"prompt": pair["prompt"], "response": pair[side]} for pair in PAIRS[8:] for side in ("chosen", "rejected")]
        mean = sum(line["reward"] for line in self.scores("held-out-sides", judge, sides)) / len(sides)
        self.assertAlmostEqual(mean, json.loads((judge / "config.json").read_text())["mean"], places=4)
        self.trains_and_restarts_alike(judge, anew, sides)

    def trains_and_restarts_alike(self, judge, anew, sides):
        """`rm` from either folder gives the same numbers, weights and scores to the bit; a run takes the new file for the one that it began with, and no other."""
        models = []
        for folder in (judge, anew):
            run = f"rm-from-{folder.name}"
            self.succeed("rm", "rm.toml", f"run.dir={run}", f"model.path={folder}", "run.iterations=1", "ckpt.interval=0", "ckpt.save_hf=end",
                         'eval.dataset=["held-out.jsonl"]', "eval.steps=1", "actor.adam.lr=1e-2")
            models.append(self.folder / run / "hf")
        numbers, again = (timeless(self.metrics(model.parent)) for model in models)
        self.assertEqual(numbers, again)
        self.assertEqual(*(read_safetensors(model / "model.safetensors") for model in models))
        self.assertEqual(*(json.loads((model / "config.json").read_text()) for model in models))
        self.assertEqual(*(self.scores(f"by-{model.parent.name}", model, sides) for model in models))

        common = ["ppo", "judged.toml", "run.dir=restarted", f"reward.source.0.path={judge}", 'data.prompt_dataset=["asked.jsonl"]', "data.max_len=96"]
        self.succeed(*common, "run.iterations=1")
        shutil.copy(anew / "tokenizer.json", judge)
        self.assertIn("resumed after iteration 1", self.succeed(*common, "run.iterations=2").text)
        config = json.loads((judge / "tokenizer_config.json").read_text())
        (judge / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": config["chat_template"] + " "}))
        refused = self.succeed(*common, "run.iterations=3", code=CONFIGURATION).text
        self.assertIn("reward.source.0.path.tokenizer: the files have other content than when the run began", refused)

    def test_reward_model_without_margin(self):
        self.same_at_other_ranks("rm", ["loss", "grad_norm"], "algo.rm.loss=logexp", "run.iterations=3")

    def test_dpo(self):
        keys = ["loss", "accuracy", "chosen_reward", "rejected_reward", "margin", "grad_norm"]
        run = self.same_at_other_ranks("dpo", keys, *EVALUATION, "algo.dpo.label_smoothing=0.1")
        lines = self.metrics(run)
        self.assertAlmostEqual(lines[0]["loss"], math.log(2), places=5, msg="policy and reference are the same before the first step")
        self.assertGreater(lines[-1]["margin"], 0)
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])
        self.assertIn("eval_margin", lines[-1])

    def test_ipo_and_nll(self):
        run = self.same_at_other_ranks("dpo", ["loss", "nll_loss", "grad_norm"], "algo.dpo.ipo=true", "algo.dpo.nll_loss_coef=0.5",
                                       "run.iterations=3")
        first = self.metrics(run)[0]
        self.assertTrue(math.isclose(first["loss"], (1 / (2 * 0.1)) ** 2 + 0.5 * first["nll_loss"], rel_tol=1e-5))

    def test_preference_losses(self):
        """A loss of each kind at 1 and 2 ranks with micro-batches, and what it says at a policy that is the reference."""
        labelled = [{"prompt": pair["prompt"], "completion": pair[side], "label": side == "chosen"}
                    for pair in PAIRS for side in ("chosen", "rejected")]
        write_lines(self.folder / "labelled.jsonl", labelled)
        steps, one = ["run.iterations=3", "actor.warmup_ratio=0"], 'data.dataset=["labelled.jsonl"]'
        expected = {"hinge": 1, "aot": math.log(2), "aot_unpaired": math.log(2), "orpo": None, "simpo": None, "kto": 0.5}
        for loss, at_start in expected.items():
            with self.subTest(loss=loss):
                more = ["algo.dpo.label_smoothing=0.1"] if loss == "simpo" else [one] if loss == "kto" else []
                self.succeed("dpo", "dpo.toml", f"run.dir={loss}-1", f"algo.dpo.loss={loss}", *steps, *more)
                self.succeed("dpo", "dpo.toml", f"run.dir={loss}-2", f"algo.dpo.loss={loss}", "train.micro_batch_tokens=30", *steps, *more,
                             ranks=2)
                self.assert_close(f"{loss}-2", f"{loss}-1", ["loss", "chosen_reward", "rejected_reward", "margin", "grad_norm"])
                first, _, last = self.metrics(f"{loss}-1")
                if at_start is not None:
                    self.assertAlmostEqual(first["loss"], at_start, places=4)
                    self.assertEqual(first["margin"], 0)
                self.assertLess(last["loss"], first["loss"])
                self.assertGreater(last["margin"], first["margin"])
                self.assertEqual("kl" in first, loss == "kto")
                self.assertEqual("nll_loss" in first, loss == "orpo")

    def test_wrong_columns(self):
        write_lines(self.folder / "wrong-label.jsonl", [{"prompt": "1+1=", "completion": "2", "label": True},
                                                        {"prompt": "1+1=", "completion": "3", "label": "no"}])
        for loss, data, words in (("kto", "pairs.jsonl", ["pairs.jsonl:1", "is a column of pairs"]),
                                  ("kto", "wrong-label.jsonl", ["wrong-label.jsonl:2", "expected true or false"]),
                                  ("hinge", "wrong-label.jsonl", ["wrong-label.jsonl:1", "a single answer"])):
            result = self.run_program("dpo", "dpo.toml", "run.dir=refused", f"algo.dpo.loss={loss}", f'data.dataset=["{data}"]')
            self.assertEqual(result.code, BAD_DATA, result.text)
            for word in words:
                self.assertIn(word, result.text)

    def test_resume(self):
        for command in ("rm", "dpo"):
            with self.subTest(command=command):
                self.resumes_bitwise(command, *EVALUATION)

    def test_a_restart_renders_the_date_with_which_the_run_began(self):
        """Other prompts would be refused; so is the date of another start, unless the deck allows it: then the checkpoint's still holds."""
        shutil.copytree(self.folder / "model", self.folder / "dated")
        (self.folder / "dated" / "chat_template.jinja").write_text(
            "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
        write_lines(self.folder / "chats.jsonl", [{"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "2"}]} for text in QUESTIONS])
        common = ["run.dir=dated-run", "model.path=dated", 'data.dataset=["chats.jsonl"]', "train.batch_size=2"]
        text = self.succeed("sft", "sft.toml", *common, "run.iterations=1", "data.date=2020-01-02").text
        self.assertIn("strftime_now formats 2020-01-02 (data.date)", text)
        self.succeed("sft", "sft.toml", *common, "run.iterations=2", code=CONFIGURATION)
        text = self.succeed("sft", "sft.toml", *common, "run.iterations=2", 'ckpt.allow_changes=["data.date"]').text
        self.assertIn("strftime_now formats 2020-01-02 (data.date)", text)
        self.assertIn("resumed after iteration 1", text)
        self.assertEqual(len(self.metrics("dated-run")), 2)

    def test_compute_type(self):
        """A run keeps the type in which it began; checkpoints and exports do not depend on it."""
        for began in ("fp32", "bf16"):
            with self.subTest(began=began):
                run = f"type-{began}"
                self.succeed("sft", "sft.toml", f"run.dir={run}", f"model.dtype={began}", "run.iterations=2", ranks=2)
                went_on = self.succeed("sft", "sft.toml", f"run.dir={run}", "model.dtype=auto", "run.iterations=4", "ckpt.save_hf=end", ranks=2)
                self.assertIn(f"compute type: {began} (the run began in it", went_on.text)
                self.assertNotIn("measured, bf16 and fp32", went_on.text, "the checkpoint decides")
                tensors = read_safetensors(self.folder / run / "hf" / "model.safetensors")
                self.assertEqual({kind for kind, _, _ in tensors.values()}, {"F32"}, "the type of the model that the run started from")
                self.succeed("convert", f"{run}/ckpt/step-000004", f"{run}-converted", "--dtype", "fp32")
                self.assertEqual(read_safetensors(self.folder / f"{run}-converted" / "model.safetensors"), tensors)
        # An older processor: fp32 by itself, a warning where the deck insists, and the type of the checkpoint where there is one.
        older = {"env": {"TRIREME_ISA": "portable"}, "ranks": 2}
        chosen = self.succeed("sft", "sft.toml", "run.dir=type-older", "model.dtype=auto", "run.iterations=1", **older)
        self.assertIn('compute type: fp32 (model.dtype = "auto"; 2 of 2 ranks do not multiply bf16 natively (the first is rank 0: portable)', chosen.text)
        insisted = self.succeed("sft", "sft.toml", "run.dir=type-insisted", "model.dtype=bf16", "run.iterations=1", **older)
        self.assertRegex(insisted.text, r'(?i)warning.*compute type: bf16 \(model.dtype = "bf16"; 2 of 2 ranks do not multiply bf16 natively')
        kept = self.succeed("sft", "sft.toml", "run.dir=type-bf16", "model.dtype=auto", "run.iterations=5", **older)
        self.assertIn("compute type: bf16 (the run began in it; 2 of 2 ranks do not multiply bf16 natively", kept.text)
        changed = self.succeed("sft", "sft.toml", "run.dir=type-fp32", "model.dtype=bf16", "run.iterations=5",
                               'ckpt.allow_changes=["model.dtype"]', ranks=2)
        self.assertIn('compute type: bf16 (model.dtype = "bf16", instead of fp32 in which the run began', changed.text)
        self.assertEqual([line["iteration"] for line in self.metrics("type-fp32")], [1, 2, 3, 4, 5])

    def test_best_checkpoint(self):
        """`best` follows the metric and stays when its checkpoint is older than what ckpt.keep keeps."""
        self.succeed("sft", "sft.toml", "run.dir=best", 'eval.dataset=["examples.jsonl"]', "eval.steps=1", "ckpt.best_metric=eval_loss",
                     "ckpt.keep=2", "run.iterations=8", "actor.adam.lr=3e-2", ranks=2)
        losses = [line["eval_loss"] for line in self.metrics("best")]
        best = losses.index(min(losses)) + 1
        link = self.folder / "best" / "ckpt" / "best"
        self.assertTrue(link.is_symlink())
        self.assertEqual(link.readlink(), pathlib.Path(f"step-{best:06d}"))
        steps = sorted(path.name for path in (self.folder / "best" / "ckpt").glob("step-*"))
        self.assertEqual(steps, sorted({f"step-{best:06d}", "step-000007", "step-000008"}))
        self.succeed("convert", "best/ckpt/best", "best-model")

    def test_best_checkpoint_outlives_keep_and_resume(self):
        """A learning rate that rises until it ruins the model: an early evaluation stays the best, over a restart too."""
        overrides = ['eval.dataset=["examples.jsonl"]', "eval.steps=1", "ckpt.best_metric=eval_loss", "ckpt.keep=2", "actor.adam.lr=1",
                     "actor.warmup_ratio=1"]
        for iterations in (4, 8):
            self.succeed("sft", "sft.toml", "run.dir=ruined", f"run.iterations={iterations}", *overrides, ranks=2)
        losses = [line["eval_loss"] for line in self.metrics("ruined")]
        finite = [loss for loss in losses if loss is not None]
        best = losses.index(min(finite)) + 1
        self.assertLess(best, 6, losses)
        steps = {path.name for path in (self.folder / "ruined" / "ckpt").glob("step-*")}
        self.assertEqual(steps, {f"step-{best:06d}", "step-000007", "step-000008"})
        self.assertEqual((self.folder / "ruined" / "ckpt" / "best").readlink(), pathlib.Path(f"step-{best:06d}"))

    def test_pretraining_loss(self):
        """PPO-ptx: the loss on the texts falls, at every layout in the same way, and survives a restart."""
        overrides = ["actor.ptx_coef=0.5", 'data.pretrain_dataset=["texts.jsonl", "examples.jsonl"]', "actor.ptx_batch_size=3",
                     "train.max_epochs=2", "actor.lr_scheduler=constant_with_warmup", "actor.warmup_ratio=0",
                     "critic.lr_scheduler=constant_with_warmup", "critic.warmup_ratio=0"]
        for run, ranks, more in (("ptx-1", 1, []), ("ptx-2", 2, []), ("ptx-3", 3, ["ranks.trainer=2", "ranks.generator=1"])):
            self.succeed("ppo", "ppo.toml", f"run.dir={run}", "run.iterations=4", *overrides, *more, ranks=ranks)
        lines = self.metrics("ptx-1")
        self.assertLess(lines[-1]["ptx_loss"], lines[0]["ptx_loss"])
        for run in ("ptx-2", "ptx-3"):
            self.assertTrue(math.isclose(self.metrics(run)[0]["ptx_loss"], lines[0]["ptx_loss"], rel_tol=RELATIVE))
        for iterations in (2, 4):
            self.succeed("ppo", "ppo.toml", "run.dir=ptx-halves", f"run.iterations={iterations}", *overrides, ranks=2)
        self.assertEqual(timeless(self.metrics("ptx-halves")), timeless(self.metrics("ptx-2")))

    def test_wrong_decks(self):
        for command, words, overrides in (
                ("dpo", ["algo.dpo.ipo with algo.dpo.label_smoothing"], ["algo.dpo.ipo=true", "algo.dpo.label_smoothing=0.1"]),
                ("rm", ["data.dataset is missing"], ["data.dataset=[]"]),
                ("rm", ["ckpt.best_metric", "eval_accuracy"], [*EVALUATION, "ckpt.best_metric=eval_reward"]),
                ("dpo", ["are for ppo"], ["actor.ptx_coef=1"]),
                ("rm", ["2 mistakes", "[ranks] is for ppo", "eval.steps without eval.dataset"], ["ranks.trainer=1", "eval.steps=2"])):
            result = self.run_program(command, f"{command}.toml", "run.dir=refused", *overrides)
            self.assertEqual(result.code, CONFIGURATION, result.text)
            self.assertEqual(result.text.count("error: "), 1, result.text)
            for word in words:
                self.assertIn(word, result.text)
        write_lines(self.folder / "bad-pairs.jsonl", [{"prompt": "1+1=", "chosen": "2"}])
        result = self.run_program("rm", "rm.toml", "run.dir=refused", 'data.dataset=["bad-pairs.jsonl"]', ranks=2)
        self.assertEqual(result.code, BAD_DATA, result.text)
        self.assertIn("bad-pairs.jsonl:1", result.text)
        self.succeed("rm", "rm.toml", "run.dir=of-rm", "run.iterations=1")
        result = self.run_program("dpo", "dpo.toml", "run.dir=of-rm")
        self.assertEqual(result.code, BAD_DATA, result.text)
        self.assertIn("`trireme rm`", result.text)

    def test_help(self):
        for command in ("rm", "dpo"):
            self.assertIn("deck", self.succeed(command, "--help").out)


class Tutorial(ProgramTest):
    """The decks of inputs/tutorial with fewer iterations; run.dir and paths between them lie in the folder of the test."""

    def tutorial(self, command, deck, run, *overrides):
        data = ROOT / "inputs" / "tutorial"
        paths = []
        if deck == "tiny-sft.toml":
            paths = [f"model.shape={data}/tiny-model", f'data.dataset=["{data}/data/tiny-sft.jsonl"]']
        elif command == "ppo":
            paths = ["model.path=sft/hf", f'data.prompt_dataset=["{data}/data/tiny-prompts.jsonl"]', "reward.source.0.path=rm/hf"]
        else:
            paths = ["model.path=sft/hf", f'data.dataset=["{data}/data/tiny-pairs.jsonl"]',
                     f'eval.dataset=["{data}/data/tiny-pairs-held-out.jsonl"]']
        if deck == "tiny-sft.toml":
            paths.append(f"model.tokenizer={data}/tokenizer")
        self.succeed(command, data / deck, f"run.dir={run}", *paths, *overrides, ranks=2)
        return self.metrics(run)

    def test_chain(self):
        sft = self.tutorial("sft", "tiny-sft.toml", "sft", "run.iterations=30")
        self.assertLess(sft[-1]["loss"], 0.7 * sft[0]["loss"])

        rm = self.tutorial("rm", "tiny-rm.toml", "rm", "run.iterations=40", "eval.steps=20",
                           "actor.lr_scheduler=constant_with_warmup")
        self.assertLess(rm[-1]["loss"], rm[0]["loss"])
        self.assertGreater(rm[-1]["eval_accuracy"], 0.6)

        dpo = self.tutorial("dpo", "tiny-dpo.toml", "dpo", "run.iterations=12", "eval.steps=6")
        self.assertGreater(dpo[-1]["eval_margin"], dpo[5]["eval_margin"])
        self.assertGreater(dpo[-1]["eval_margin"], 0.05)

        ppo = self.tutorial("ppo", "tiny-ppo-rm.toml", "ppo", "run.iterations=8", "ckpt.interval=0")
        for line in ppo:
            self.assertAlmostEqual(line["reward"], line["reward_model"], places=5, msg="the rule only looks on")
            self.assertTrue(0 <= line["reward_sum"] <= 1)
        memory = ppo[-1]["memory"]
        for kind in ("actor_master", "actor_moments", "critic_master", "critic_moments", "reference_weights", "reward_model_weights",
                     "kv_cache_peak"):
            self.assertGreater(memory.get(kind, 0), 0, f"{kind} of {memory}")
        self.assertEqual(memory["generator_weights"], 0, "ranks of a node read the trainers' weights in place")
        self.assertNotIn("reference_master", memory, "a frozen model has no fp32 weights")
        self.assertGreater(sum(line["reward"] for line in ppo[-3:]), sum(line["reward"] for line in ppo[:3]))

    def readme_command(self):
        """What the README says under "Your own model and prompts", behind `trireme`, with a model and prompts that are here."""
        section = (ROOT / "README.md").read_text().split("## Your own model and prompts")[1]
        lines = re.match(r"\s*\n((?:    .*\n)+)", section)[1].replace("\\\n", " ")
        words = shlex.split(lines.replace("/models/my-llama", "model").replace("my_prompts.jsonl", "prompts.jsonl"))
        return [str(ROOT / word) if word.startswith("inputs/") else word for word in words[words.index("build/release/trireme") + 1:]], int(words[2])

    def test_the_command_of_the_readme(self):
        """Valid on as many ranks as it starts, and on others, without a warning; the deck is refused as long as nobody says what the reward is."""
        shutil.copy(ROOT / "inputs" / "plugins" / "reward.py", self.folder / "my_reward.py")  # the dry run asks it
        command, ranks = self.readme_command()
        command += ["data.max_len=256", "rollout.max_new_tokens=128"]  # the model here is a tiny one
        for number in (ranks, 1, 16):
            done = self.succeed(*command, "--dry-run", "--ranks", number, "--ranks-per-node", 8)
            self.assertIn(f"ranks: {number} on ", done.out)
            self.assertNotIn("warning", done.text)
        done = self.succeed(*command, "--dry-run", ranks=ranks)
        self.assertIn(f"ranks: {ranks} on 1 node, {ranks} a node", done.out)
        silent = [word for word in command if not word.startswith("reward.")]
        self.assertLess(len(silent), len(command))
        self.assertIn("reward.source.0.command is missing", self.succeed(*silent, "--dry-run", code=CONFIGURATION).text)
        self.succeed(*silent, "reward.source.0.kind=rule", "reward.source.0.rule=number", "--dry-run")


if __name__ == "__main__":
    main()

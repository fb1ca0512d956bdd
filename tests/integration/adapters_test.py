#!/usr/bin/env python3
"""Adapters from outside: sft, rm, dpo and ppo train one and leave the base alone; exports and checkpoints hold it alone; scores with it apart, merged and disabled;
a crash and a restart change nothing; rollouts have the trainer's bits; what does not fit is refused by name."""

import json
import shutil

from trireme_run import PPO_DECK, RULE_SOURCE, SFT_DECK, ProgramTest, main, read_lines, read_safetensors, timeless, write_lines

USAGE, BAD_DATA, LOCKED, CONFIGURATION = 64, 65, 73, 78
LORA = ["actor.lora.rank=4", "actor.lora.alpha=8", "actor.lora.dropout=0.1"]
PAIRS = [{"prompt": f"{i}+1=", "chosen": f"{i + 1}.", "rejected": "?"} for i in range(8)]
PREFIX = "base_model.model."
SCORED = "0123456789abcdefghijklmnopqrstuvwxyz"
JUDGE_SOURCE = f"""[[reward.source]]
kind = "judge"
path = "model"
prompt_template = "{{{{ prompt }}}}{{{{ response }}}}"
score_pattern = "[0-9a-z]"
score_words = {json.dumps([f"{letter}={place}" for place, letter in enumerate(SCORED)])}
max_new_tokens = 8
max_len = 240
"""
MODEL_SOURCE = """[[reward.source]]
kind = "model"
path = "judge-run/hf"
"""


class Adapters(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_lines(cls.folder / "pairs.jsonl", PAIRS)
        write_lines(cls.folder / "texts.jsonl", [{"text": f"{i}+1={i + 1}."} for i in range(6)])
        for name in ("rm.toml", "dpo.toml"):
            (cls.folder / name).write_text(SFT_DECK.replace("examples.jsonl", "pairs.jsonl").replace("iterations = 4", "iterations = 2"))

    def log(self, run):
        return (self.folder / run / "log.txt").read_text()

    def adapter(self, folder):
        """{name: (type, shape, bytes)} of an export, and its config."""
        path = self.folder / folder
        self.assertEqual(sorted(p.name for p in path.glob("[!.]*")), ["adapter_config.json", "adapter_model.safetensors"])
        return read_safetensors(path / "adapter_model.safetensors"), json.loads((path / "adapter_config.json").read_text())

    def scores(self, name, *options, model="model"):
        self.succeed("score", "--model", model, "--input", "texts.jsonl", "--output", f"{name}.jsonl", *options)
        return [number for line in read_lines(self.folder / f"{name}.jsonl") for number in line["log_probs"]]

    def rewards(self, run):
        return sorted((sample["iteration"], sample["prompt"], sample["response"], sample["reward"]) for sample in read_lines(self.folder / run / "samples.jsonl"))

    def assert_near(self, ours, theirs, delta=1e-5):
        self.assertLess(max(abs(a - b) for a, b in zip(ours, theirs, strict=True)), delta)

    def test_sft_crash_restart_export_merge_and_score(self):
        common = ["sft", "sft.toml", *LORA, "ckpt.save_hf=end"]
        self.succeed(*common, "run.dir=whole", ranks=2)
        self.assertRegex(self.log("whole"), r"actor: .*[0-9]+ of [0-9]+ weights are trained, the others are frozen")
        tensors, config = self.adapter("whole/hf")
        self.assertEqual(len(tensors), 2 * 7 * 2)
        self.assertTrue(all(name.startswith(PREFIX) and tensor[0] == "F32" for name, tensor in tensors.items()))
        self.assertEqual((config["r"], config["lora_alpha"], config["task_type"], config["base_model_name_or_path"]), (4, 8, "CAUSAL_LM", "model"))
        self.assertEqual(config["target_modules"], ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"])
        listed = self.succeed("inspect", "whole/ckpt/step-000004").out
        self.assertIn("/actor/m/model.layers.0.self_attn.q_proj.lora_B.weight", listed)
        self.assertNotIn("/actor/weight/model.layers.0.self_attn.q_proj.weight", listed)

        self.start(*common, "run.dir=halves", "fault.crash_at=ckpt.pruned", ranks=2).wait()
        self.assertLess(len(self.metrics("halves")), 4)
        for _ in range(100):
            again = self.run_program(*common, "run.dir=halves", ranks=2)
            if again.code != LOCKED:
                break
        self.assertEqual(again.code, 0, again.text)
        self.assertIn("resumed after iteration", again.text)
        self.assertEqual(timeless(self.metrics("halves")), timeless(self.metrics("whole")))
        self.assertEqual(self.adapter("halves/hf")[0], tensors)

        base = self.scores("base")
        apart = self.scores("apart", "--adapter", "whole/hf")
        self.assertGreater(max(abs(a - b) for a, b in zip(apart, base)), 1e-3)
        self.assertEqual(self.scores("disabled", "--adapter", "whole/hf", "--adapter-as", "disabled"), base)
        self.assert_near(self.scores("merged", "--adapter", "whole/hf", "--adapter-as", "merged"), apart)
        self.succeed("convert", "whole/hf", "merged-model", "--merge", "--dtype", "fp32")
        self.assert_near(self.scores("converted", model="merged-model"), apart)
        self.succeed("convert", "whole/ckpt/step-000004", "from-checkpoint")
        self.assertEqual(self.adapter("from-checkpoint")[0], tensors)
        self.succeed("convert", "whole/ckpt/step-000004", "merged-checkpoint", "--merge", "--dtype", "fp32")
        self.assertEqual(read_safetensors(self.folder / "merged-checkpoint/model.safetensors"), read_safetensors(self.folder / "merged-model/model.safetensors"))

        # On from there: the same numbers as a start, and the words of the folder.
        self.succeed("sft", "sft.toml", "actor.lora.path=whole/hf", "run.dir=on", "run.iterations=1", "ckpt.save_hf=end", "actor.adam.lr=0")
        self.assertEqual(self.adapter("on/hf")[0], tensors)
        self.assertEqual({**self.adapter("on/hf")[1], "lora_dropout": 0}, {**config, "lora_dropout": 0})

    def test_numbers_do_not_depend_on_ranks(self):
        common = ["sft", "sft.toml", "actor.lora.rank=3", "actor.lora.targets=[\"q_proj\", \"down_proj\"]", "run.iterations=3"]
        for ranks in (1, 2):
            self.succeed(*common, f"run.dir=ranks{ranks}", ranks=ranks)
        for ours, theirs in zip(self.metrics("ranks1"), self.metrics("ranks2"), strict=True):
            for key in ("loss", "grad_norm"):
                self.assertAlmostEqual(ours[key], theirs[key], delta=1e-5 * abs(theirs[key]))

    def test_rm_and_dpo(self):
        self.succeed("rm", "rm.toml", *LORA, "run.dir=rm", "ckpt.save_hf=end", ranks=2)
        tensors, config = self.adapter("rm/hf")
        self.assertIn(PREFIX + "score.weight", tensors)
        self.assertEqual((config["task_type"], config["modules_to_save"]), ("SEQ_CLS", ["score"]))
        self.succeed("convert", "rm/hf", "judge", "--merge", "--dtype", "fp32")
        self.succeed("score", "--model", "model", "--reward-model", "judge", "--input", "texts.jsonl", "--output", "rewards.jsonl")
        self.assertTrue(all("reward" in line for line in read_lines(self.folder / "rewards.jsonl")))

        plain = ["dpo", "dpo.toml", "actor.lora.rank=4", "run.iterations=3"]
        self.succeed(*plain, "run.dir=dpo", "ckpt.save_hf=end", ranks=2)
        self.assertNotIn("reference: sharded", self.log("dpo"))
        shutil.copytree(self.folder / "model", self.folder / "reference")
        self.succeed(*plain, "run.dir=dpo-apart", "reference.path=reference", ranks=2)
        self.assertIn("reference: sharded", self.log("dpo-apart"))
        for ours, theirs in zip(self.metrics("dpo"), self.metrics("dpo-apart"), strict=True):
            for key in ("loss", "margin", "grad_norm"):
                self.assertEqual(ours[key], theirs[key])
        self.adapter("dpo/hf")

    def test_ppo(self):
        """Together and apart; the reference is the actor without its adapter, or a model of its own: the same numbers."""
        common = ["ppo", "ppo.toml", *LORA, "actor.lora.rslora=true", "algo.kl.init_coef=0.05",
                  *(f"{role}.{key}" for role in ("actor", "critic") for key in ("lr_scheduler=constant_with_warmup", "warmup_ratio=0"))]
        self.succeed(*common, "run.dir=together", "ckpt.save_hf=end", ranks=2)
        self.assertNotIn("reference: sharded", self.log("together"))
        apart = ["ranks.trainer=1", "ranks.generator=1", "ranks.reward=1", "weightsync.shared_memory=never"]
        self.succeed(*common, *apart, "run.dir=apart", ranks=2)
        size = sum(len(tensor[2]) for tensor in self.adapter("together/hf")[0].values())
        for run in ("together", "apart"):
            for line in self.metrics(run):
                self.assertEqual(line["mismatch_max"], 0, f"{run}: {line}")
        self.assertEqual({line["weight_sync"]["bytes"] for line in self.metrics("apart")}, {size})
        shutil.copytree(self.folder / "model", self.folder / "own-reference")
        self.succeed(*common, "run.dir=own", "reference.path=own-reference", ranks=2)
        for ours, theirs in zip(self.metrics("own"), self.metrics("together"), strict=True):
            for key in ("reward", "kl", "policy_loss", "grad_norm"):
                self.assertEqual(ours[key], theirs[key], key)

        self.succeed(*common, "run.dir=halves-ppo", "run.iterations=1", ranks=2)
        self.succeed(*common, "run.dir=halves-ppo", "ckpt.save_hf=end", ranks=2)
        self.assertEqual(timeless(self.metrics("halves-ppo")), timeless(self.metrics("together")))
        self.assertEqual(self.adapter("halves-ppo/hf"), self.adapter("together/hf"))

        answers = ["generate", "--model", "model", "--adapter", "together/hf", "--input", "prompts.jsonl", "--temperature", "0", "--max-new-tokens", "6"]
        self.succeed(*answers, "--output", "apart-answers.jsonl")
        self.succeed(*answers, "--output", "merged-answers.jsonl", "--adapter-as", "merged")
        texts = [{line["index"]: line["text"] for line in read_lines(self.folder / f"{how}-answers.jsonl")} for how in ("apart", "merged")]
        self.assertEqual(*texts)
        # Two ranks of one replica: the same texts, log-probs but for the order of sums.
        for ranks in (1, 2):
            self.succeed(*answers, "--log-probs", "--tp", str(ranks), "--output", f"tp{ranks}.jsonl", ranks=ranks)
        whole, cut = ({line["index"]: line for line in read_lines(self.folder / f"tp{ranks}.jsonl")} for ranks in (1, 2))
        for index, line in whole.items():
            self.assertEqual(line["text"], cut[index]["text"])
            self.assert_near(line["log_probs"], cut[index]["log_probs"], 1e-4)
        self.succeed(*common, "run.dir=tp", "generate.tensor_parallel=2", "run.iterations=2", ranks=2)
        self.assertLess(max(line["mismatch_max"] for line in self.metrics("tp")), 1e-3)

    def test_one_base_for_four_roles(self):
        """Actor, critic and reward model are adapters on one model, which is the reference, too: one copy of it in memory, and the numbers of models with a base each."""
        self.succeed("rm", "rm.toml", "actor.lora.rank=2", "run.dir=judge-run", "ckpt.save_hf=end")
        shutil.copytree(self.folder / "model", self.folder / "copy")
        (self.folder / "roles.toml").write_text(PPO_DECK.replace(RULE_SOURCE, MODEL_SOURCE))
        common = ["ppo", "roles.toml", "actor.lora.rank=4", "critic.lora.rank=3", 'critic.lora.targets=["q_proj", "up_proj"]', "algo.kl.init_coef=0.05",
                  "train.micro_batch_tokens=64", "critic.save_value_network=true", "ckpt.save_hf=end",
                  *(f"{role}.{key}" for role in ("actor", "critic") for key in ("lr_scheduler=constant_with_warmup", "warmup_ratio=0"))]
        self.succeed(*common, "run.dir=one", ranks=2)
        self.assertRegex(self.log("one"), r"critic: .*the others are the actor's")
        self.assertIn("its base is the actor's", self.log("one"))
        self.assertNotIn("reference: sharded", self.log("one"))
        # Critic and reward model on another folder with the same model: each with a base of its own.
        self.succeed(*common, "run.dir=own-critic", "critic.path=copy", ranks=2)
        self.assertNotRegex(self.log("own-critic"), r"critic: .*the others are the actor's")
        shutil.copytree(self.folder / "judge-run/hf", self.folder / "judge-on-copy")
        config = self.folder / "judge-on-copy/adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "copy"}))
        self.succeed(*common, "run.dir=own-judge", "reward.source.0.path=judge-on-copy", ranks=2)
        self.assertNotIn("its base is the actor's", self.log("own-judge"))
        for other in ("own-critic", "own-judge"):
            for ours, theirs in zip(self.metrics("one"), self.metrics(other), strict=True):
                for key in ("reward", "kl", "policy_loss", "value_loss", "grad_norm", "critic_grad_norm"):
                    self.assertEqual(ours[key], theirs[key], f"{other}: {key}")
            self.assertEqual(self.rewards("one"), self.rewards(other))
            self.assertEqual(self.adapter("one/hf")[0], self.adapter(f"{other}/hf")[0])
        self.assertEqual(self.adapter("one/hf-critic")[1]["modules_to_save"], ["score"])

        # Memory, planned and had.
        def weights(run, model):
            return self.metrics(run)[-1]["memory"][f"{model}_weights"]
        self.assertLess(3 * weights("one", "critic"), weights("own-critic", "critic"))
        self.assertLess(3 * weights("one", "reward_model0"), weights("own-judge", "reward_model0"))
        plans = {run: self.succeed("plan", *common[1:], *keys, "--machine", "this", "--gpus-per-node", "2", "--nodes", "1").text
                 for run, keys in (("one", []), ("own-critic", ["critic.path=copy"]), ("apart", ["ranks.reward=1"]))}
        self.assertIn("on the actor's base", plans["one"])
        self.assertNotIn("critic: on the actor's base", plans["own-critic"])
        self.assertIn("it has a base of its own", plans["apart"])

        # On from a checkpoint, and the critic as a model.
        self.succeed(*common, "run.dir=halves-one", "run.iterations=1", ranks=2)
        self.succeed(*common, "run.dir=halves-one", ranks=2)
        self.assertEqual(timeless(self.metrics("halves-one")), timeless(self.metrics("one")))
        last = sorted((self.folder / "one/ckpt").glob("step-*"))[-1]
        self.succeed("convert", last, "critic-adapter", "--part", "critic")
        self.assertEqual(self.adapter("critic-adapter")[0], self.adapter("one/hf-critic")[0])

    def test_several_adapters_in_one_batch(self):
        for name, keys in (("first", ["actor.lora.rank=4"]), ("second", ["actor.lora.rank=3", 'actor.lora.targets=["q_proj", "down_proj"]'])):
            self.succeed("sft", "sft.toml", *keys, f"run.dir={name}", "run.iterations=3", "ckpt.save_hf=end", "actor.adam.lr=0.02")
        prompts = [{"prompt": f"{i % 3}+{i % 2}="} | ({"adapter": name} if name else {}) for i in range(6) for name in ("first", "second", None)]
        write_lines(self.folder / "named.jsonl", prompts)
        common = ["generate", "--model", "model", "--temperature", "1", "--max-new-tokens", "6", "--log-probs", "--n", "2"]
        several = ["--adapter", "first=first/hf", "--adapter", "second=second/hf"]
        self.succeed(*common, *several, "--input", "named.jsonl", "--output", "several.jsonl")
        together = {(line["index"], line["sample"]): (line["output_ids"], line["log_probs"]) for line in read_lines(self.folder / "several.jsonl")}
        self.assertEqual(len(together), 2 * len(prompts))
        for name in ("first", "second", None):
            self.succeed(*common, *(["--adapter", f"{name}/hf"] if name else []), "--input", "named.jsonl", "--output", f"only-{name}.jsonl")
            for line in read_lines(self.folder / f"only-{name}.jsonl"):
                if prompts[line["index"]].get("adapter") == name:
                    self.assertEqual(together[line["index"], line["sample"]], (line["output_ids"], line["log_probs"]))
        for options, code, word in ((["--adapter", "first=first/hf"], BAD_DATA, 'adapter "second" is not one of --adapter (first)'),
                                    ([*several, "--adapter", "second/hf"], USAGE, "write NAME=second/hf"),
                                    ([*several, "--adapter", "first=second/hf"], USAGE, 'there is an adapter "first" already'),
                                    ([*several, "--adapter-as", "merged"], USAGE, "with adapters by name")):
            refused = self.succeed(*common, *options, "--input", "named.jsonl", "--output", "never.jsonl", code=code)
            self.assertIn(word, refused.text)
        refused = self.succeed(*common, *several, "--input", "named.jsonl", "--output", "second/hf/adapter_config.json", "--force", code=USAGE)
        self.assertIn("would destroy what is read", refused.text)

    def test_adapter_as_a_judge(self):
        """Its folder has no tokenizer; its judgements are those of the folder that it merges to, and not those of its base."""
        self.succeed("sft", "sft.toml", "actor.lora.rank=4", "actor.adam.lr=0.05", "run.dir=judges", "run.iterations=3", "ckpt.save_hf=end")
        self.succeed("convert", "judges/hf", "merged-judge", "--merge", "--dtype", "fp32")
        (self.folder / "judged.toml").write_text(PPO_DECK.replace(RULE_SOURCE, JUDGE_SOURCE))
        rewards = {}
        for path in ("judges/hf", "merged-judge", "model"):
            name = path.split("/")[0]
            self.succeed("ppo", "judged.toml", f"reward.source.0.path={path}", f"run.dir=by-{name}", "run.iterations=1")
            rewards[name] = self.rewards(f"by-{name}")
        self.assertEqual(rewards["judges"], rewards["merged-judge"])
        self.assertNotEqual(rewards["judges"], rewards["model"])

    def test_what_does_not_fit(self):
        for options, word in ((["actor.lora.rank=4", 'actor.lora.targets=["wq"]'], 'the model has no module "wq"'),
                              (["actor.lora.rank=65"], "rank = 65 is more than a dimension of model.layers.0.self_attn.v_proj"),
                              (["actor.lora.rank=4", 'actor.lora.targets=["lm_head"]'], "lm_head cannot be adapted or saved"),
                              (["actor.lora.alpha=4"], "actor.lora has keys, but no rank and no path"),
                              (["actor.lora.rank=4", "generate.weights=int8"], "adapters on quantised bases are not supported"),
                              (["critic.lora.rank=4", "algo.advantage.estimator=group_norm"], "critic.lora with algo.advantage.estimator"),
                              (["critic.lora.alpha=4"], "critic.lora has keys, but no rank and no path"),
                              (["actor.lora.rank=4", "reference.sync_every=2"], "the reference is the model without its adapter")):
            for how in (["--dry-run"], []):
                refused = self.succeed("ppo", "ppo.toml", "run.dir=refused", *options, *how, code=CONFIGURATION)
                self.assertIn(word, refused.text)

        # Another base.
        self.succeed("sft", "sft.toml", "run.dir=made", "actor.lora.rank=2", "run.iterations=1", "ckpt.save_hf=end")
        (self.folder / "wide").mkdir()
        shape = json.loads((self.folder / "shape" / "config.json").read_text()) | {"hidden_size": 96}
        (self.folder / "wide" / "config.json").write_text(json.dumps(shape))
        self.succeed("init", "--shape", "wide", "--output", "wide-model", "--tokenizer", "model", "--dtype", "fp32")
        refused = self.succeed("sft", "sft.toml", "run.dir=refused", "model.path=wide-model", "actor.lora.path=made/hf", code=BAD_DATA)
        self.assertIn("another base", refused.text)
        refused = self.succeed("score", "--model", "wide-model", "--adapter", "made/hf", "--input", "texts.jsonl", "--output", "never.jsonl", code=BAD_DATA)
        self.assertIn("another base", refused.text)
        self.succeed("convert", "made/hf", "never", code=USAGE)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Adapters from outside: sft, rm, dpo and ppo train one and leave the base alone; exports and checkpoints hold it alone; scores with it apart, merged and disabled;
a crash and a restart change nothing; rollouts have the trainer's bits; what does not fit is refused by name."""

import json
import shutil

from trireme_run import SFT_DECK, ProgramTest, main, read_lines, read_safetensors, timeless, write_lines

USAGE, BAD_DATA, LOCKED, CONFIGURATION = 64, 65, 73, 78
LORA = ["actor.lora.rank=4", "actor.lora.alpha=8", "actor.lora.dropout=0.1"]
PAIRS = [{"prompt": f"{i}+1=", "chosen": f"{i + 1}.", "rejected": "?"} for i in range(8)]
PREFIX = "base_model.model."


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

    def test_what_does_not_fit(self):
        for options, word in ((["actor.lora.rank=4", 'actor.lora.targets=["wq"]'], 'the model has no module "wq"'),
                              (["actor.lora.rank=65"], "rank = 65 is more than a dimension of model.layers.0.self_attn.v_proj"),
                              (["actor.lora.rank=4", 'actor.lora.targets=["lm_head"]'], "lm_head cannot be adapted or saved"),
                              (["actor.lora.alpha=4"], "actor.lora has keys, but no rank and no path"),
                              (["actor.lora.rank=4", "generate.weights=int8"], "adapters on quantised bases are not supported"),
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

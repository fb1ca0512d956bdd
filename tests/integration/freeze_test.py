#!/usr/bin/env python3
"""actor.freeze from outside: frozen tensors leave a run as they came, bit for bit; checkpoints and weight syncs hold what is trained;
a crash and a restart change nothing; another base, other patterns and patterns that fit nothing are refused by name."""

import re
import shutil

from trireme_run import ROOT, SFT_DECK, ProgramTest, main, read_safetensors, timeless, write_lines

BAD_DATA, LOCKED, CONFIGURATION = 65, 73, 78
PATTERNS = ["model.embed_tokens.*", "model.layers.{0..0}.*"]
FREEZE = 'actor.freeze=["' + '", "'.join(PATTERNS) + '"]'
PAIRS = [{"prompt": f"{i}+1=", "chosen": f"{i + 1}.", "rejected": "?"} for i in range(8)]


def is_frozen(name):
    return name.startswith(("model.embed_tokens.", "model.layers.0."))


class Freeze(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_lines(cls.folder / "pairs.jsonl", PAIRS)
        for name in ("rm.toml", "dpo.toml"):
            (cls.folder / name).write_text(SFT_DECK.replace("examples.jsonl", "pairs.jsonl").replace("iterations = 4", "iterations = 2"))
        cls.source = read_safetensors(cls.folder / "model" / "model.safetensors")
        cls.trained_bytes = sum(len(tensor[2]) for name, tensor in cls.source.items() if not is_frozen(name))

    def assert_trained_in_part(self, folder, frozen=is_frozen):
        """Frozen tensors are the source's, the others are not."""
        tensors = read_safetensors(self.folder / folder / "model.safetensors")
        for name, tensor in tensors.items():
            if name in self.source:
                self.assertEqual(tensor == self.source[name], frozen(name), f"{folder}: {name}")
        return tensors

    def datasets(self, checkpoint):
        return self.succeed("inspect", checkpoint).out

    def crash_and_restart(self, command, run, iterations):
        """mpirun may return before the ranks that it ends are gone; until then the folder is rightly locked."""
        self.start(*command, "fault.crash_at=ckpt.pruned", ranks=2).wait()
        self.assertLess(len(self.metrics(run)), iterations)
        for _ in range(100):
            again = self.run_program(*command, ranks=2)
            if again.code != LOCKED:
                break
        self.assertEqual(again.code, 0, again.text)
        self.assertIn("resumed after iteration", again.text)

    def test_sft_crash_restart_export_and_convert(self):
        common = ["sft", "sft.toml", FREEZE, "ckpt.save_hf=end", "train.enable_ema=true"]
        self.succeed(*common, "run.dir=whole", ranks=2)
        self.assertRegex((self.folder / "whole" / "log.txt").read_text(), r"actor: .*[0-9]+ of [0-9]+ weights are trained, the others are frozen")
        tensors = self.assert_trained_in_part("whole/hf")
        self.assert_trained_in_part("whole/hf-ema")
        listed = self.datasets("whole/ckpt/step-000004")
        for name in self.source:
            for group in ("weight", "m", "v", "ema"):
                self.assertEqual(f"/actor/{group}/{name}" in listed, not is_frozen(name), f"{group} {name}")

        self.crash_and_restart([*common, "run.dir=halves"], "halves", 4)
        self.assertEqual(timeless(self.metrics("halves")), timeless(self.metrics("whole")))
        self.assertEqual(read_safetensors(self.folder / "halves/hf/model.safetensors"), tensors)
        self.assertEqual(read_safetensors(self.folder / "halves/hf-ema/model.safetensors"), read_safetensors(self.folder / "whole/hf-ema/model.safetensors"))

        for part, folder in (("actor", "hf"), ("ema", "hf-ema")):
            self.succeed("convert", "whole/ckpt/step-000004", f"converted-{part}", "--part", part, "--dtype", "fp32")
            self.assertEqual(read_safetensors(self.folder / f"converted-{part}/model.safetensors"),
                             read_safetensors(self.folder / "whole" / folder / "model.safetensors"))

        # As on one rank, up to the order of sums.
        self.succeed(*common, "run.dir=one")
        for ours, theirs in zip(self.metrics("one"), self.metrics("whole"), strict=True):
            for key in ("loss", "grad_norm"):
                self.assertAlmostEqual(ours[key], theirs[key], delta=1e-5 * abs(theirs[key]))

    def test_another_base_and_other_patterns_are_refused(self):
        base = shutil.copytree(self.folder / "model", self.folder / "base")
        common = ["sft", "sft.toml", "run.dir=bases", "model.path=base"]
        self.succeed(*common, FREEZE, "run.iterations=2")
        self.succeed("init", "--shape", "shape", "--output", "other", "--tokenizer", "model", "--dtype", "fp32", "--seed", "9")
        kept = (base / "model.safetensors").read_bytes()
        (base / "model.safetensors").write_bytes((self.folder / "other" / "model.safetensors").read_bytes())
        refused = self.succeed(*common, FREEZE, code=CONFIGURATION)
        self.assertIn("model.path.weights: the files have other content than when the run began", refused.text)
        refused = self.succeed("convert", "bases/ckpt/step-000002", "from-other", code=BAD_DATA)
        self.assertIn("the weights in base (model.path of the checkpoint's deck) are not those that the run started from", refused.text)
        (base / "model.safetensors").write_bytes(kept)
        self.succeed("convert", "bases/ckpt/step-000002", "from-base")
        allowed = ['ckpt.allow_changes=["actor.freeze"]']
        for patterns, word in (('["model.embed_tokens.*"]', "has no /actor/weight/model.layers.0."),
                               ('["model.embed_tokens.*", "model.layers.*"]', "has /actor/weight/model.layers.1.")):
            for more in ([], allowed):
                refused = self.succeed(*common, f"actor.freeze={patterns}", *more, code=BAD_DATA)
                self.assertIn(word, refused.text)
                self.assertIn("actor.freeze", refused.text)
        self.succeed(*common, FREEZE)

    def test_patterns_that_fit_nothing_or_everything(self):
        for patterns, word in (('["model.layers.{0..0}.*", "model.layers.{2..9}.*"]', '"model.layers.{2..9}.*" fits no parameter of the model'),
                               ('["lm_head.weight"]', "its head is the embedding, model.embed_tokens.weight"),
                               ('["*"]', "nothing is left to train"), ('["model.layers.{1-2}.*"]', "is not a pattern")):
            for how in (["--dry-run"], []):
                refused = self.succeed("sft", "sft.toml", "run.dir=refused", f"actor.freeze={patterns}", *how, code=CONFIGURATION)
                self.assertIn(word, refused.text)
        self.succeed("sft", "sft.toml", "run.dir=refused", FREEZE, "--dry-run")

    def test_rm_and_dpo(self):
        for command in ("rm", "dpo"):
            self.succeed(command, f"{command}.toml", f"run.dir={command}", FREEZE, "ckpt.save_hf=end", ranks=2)
            tensors = self.assert_trained_in_part(f"{command}/hf")
            self.assertEqual("score.weight" in tensors, command == "rm")
            self.succeed("convert", f"{command}/ckpt/step-000002", f"{command}-converted", "--dtype", "fp32")
            self.assertEqual(read_safetensors(self.folder / f"{command}-converted/model.safetensors"), tensors)

    def test_ppo(self):
        """Roles on the same ranks and apart, whose syncs move what is trained; the critic's own patterns; a restart."""
        common = ["ppo", "ppo.toml", FREEZE, 'critic.freeze=["*norm.weight"]', "ckpt.save_hf=end", "critic.save_value_network=true"]
        self.succeed(*common, "run.dir=together", ranks=2)
        apart = ["ranks.trainer=1", "ranks.generator=1", "ranks.reward=1", "weightsync.shared_memory=never"]
        self.succeed(*common, *apart, "run.dir=apart", ranks=2)
        self.succeed(*common, "run.dir=sliced", "ranks.trainer=1", "ranks.generator=2", "generate.tensor_parallel=2", ranks=3)
        for run in ("together", "apart", "sliced"):
            self.assert_trained_in_part(f"{run}/hf")
            self.assert_trained_in_part(f"{run}/hf-critic", lambda name: name.endswith("norm.weight"))
        for run in ("apart", "sliced"):
            self.assertEqual({line["weight_sync"]["bytes"] for line in self.metrics(run)}, {self.trained_bytes})
        self.succeed("convert", "apart/ckpt/step-000003", "critic", "--part", "critic", "--dtype", "fp32")
        self.assertEqual(read_safetensors(self.folder / "critic/model.safetensors"), read_safetensors(self.folder / "apart/hf-critic/model.safetensors"))

        self.crash_and_restart([*common, *apart, "run.dir=halves-ppo"], "halves-ppo", 3)
        self.assertEqual(timeless(self.metrics("halves-ppo")), timeless(self.metrics("apart")))
        for model in ("hf", "hf-critic"):
            self.assertEqual(*(read_safetensors(self.folder / run / model / "model.safetensors") for run in ("halves-ppo", "apart")))

    def test_plan(self):
        """Half of an 8B model's blocks and its embedding: half of the state that goes with training, the same weights."""
        deck = ["sft.toml", "--command", "sft", "--machine", "h100", "--nodes", "1", "--gpus-per-node", "8", f"model.path={ROOT}/inputs/models/llama3-8b",
                "data.max_len=2048"]
        half = 'actor.freeze=["model.embed_tokens.*", "model.layers.{0..15}.*"]'
        whole, part = (self.succeed("plan", *deck, *more).out for more in ([], [half]))
        entry = lambda text, what: float(re.search(rf"([0-9.]+) [ ~] actor: {what}", text)[1])
        self.assertRegex(part, r"actor: .*, 4015132672 of its 8030261248 parameters are trained")
        share = (16 * 218112000 + 128256 * 4096 + 4096) / 8030261248
        for what in ("Adam's moments", "fp32 master weights", "fp32 gradients"):
            self.assertAlmostEqual(entry(part, what) / entry(whole, what), share, delta=0.01, msg=what)
        self.assertEqual(entry(part, "own weight slices"), entry(whole, "own weight slices"))
        self.assertLess(entry(part, "stage inputs"), 0.6 * entry(whole, "stage inputs"))
        refused = self.succeed("plan", *deck, 'actor.freeze=["model.layers.{32..40}.*"]', code=CONFIGURATION)
        self.assertIn("actor.freeze: \"model.layers.{32..40}.*\" fits no parameter", refused.text)


if __name__ == "__main__":
    main()

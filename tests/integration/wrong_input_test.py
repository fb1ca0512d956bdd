#!/usr/bin/env python3
"""Wrong decks, models, data, plugins and disks: one clear message, once for the job, and the exit code that says what kind of
mistake it is."""

import errno
import os
import shutil
import subprocess
import sys
import unittest

from trireme_run import ENDS_AT_ONCE, RULE_SOURCE, ProgramTest, adversity, main, write_lines

USAGE, BAD_DATA, INPUT_MISSING, UNFIT, IO_ERROR, CONFIGURATION = 64, 65, 66, 69, 74, 78

PLUGIN = """
import json, os, sys, time
behaviour = sys.argv[1]
for number, line in enumerate(sys.stdin):
    answer = {"id": json.loads(line)["id"], "reward": float("nan") if behaviour == "nan" else 1.0}
    if behaviour == "crash":
        os.abort()
    if behaviour == "hang":
        time.sleep(1000)
    if behaviour == "slow" and number == 0:
        time.sleep(9)
    if behaviour == "short" and number == 1:
        sys.exit(0)
    print(json.dumps(answer), flush=True)
"""

PLUGIN_SOURCE = """[[reward.source]]
kind = "plugin"
name = "judge"
timeout = {timeout}
command = ["{python}", "plugin.py", "{behaviour}"]
"""


class WrongThings(ProgramTest):
    environment = ENDS_AT_ONCE

    def refuse(self, code, *words, deck="ppo.toml", overrides=(), ranks=(2,), env=None, met_by="all"):
        """The exit code, exactly one error line, and each of `words` in it. Errors that ranks meet far into a run (`met_by` = "each"), each with
        its own plugin, may be seconds apart on a loaded machine: then the first ends the job, and each that still speaks names itself and says the same."""
        for count in ranks:
            with self.subTest(ranks=count):
                run = f"run.dir=refused-{self._testMethodName}"
                result = self.run_program("ppo", deck, run, *overrides, ranks=count, env=env)
                print(f"    {count} rank(s): {result.seconds:.1f} s", flush=True)
                self.assertEqual(result.code, code, result.text)
                messages = result.text.split("error: ")[1:]
                apart = met_by == "each" and "MPI_ABORT" in result.text
                self.assertTrue(1 <= len(messages) <= (count if apart else 1), result.text)
                for message in messages:
                    for word in (*words, *(["rank "] if apart else [])):
                        self.assertIn(word, message)
                for debris in ("terminate called", "what():", "Segmentation", "Exception raised from", *([] if apart else ["MPI_ABORT"])):
                    self.assertNotIn(debris, result.text)

    def model_copy(self, name):
        shutil.copytree(self.folder / "model", self.folder / name)
        return self.folder / name

    def test_unknown_key(self):
        self.refuse(CONFIGURATION, "train.batch_sise", "nearest: train.batch_size", overrides=["train.batch_sise=4"], ranks=(1, 2))
        deck = self.deck_with("misspelt.toml", "batch_size = 4\nn_samples", "batchsize = 4\nn_samples")
        self.refuse(CONFIGURATION, "misspelt.toml:", "rollout.batchsize", "rollout.batch_size", deck=deck)

    def test_wrong_type_and_all_mistakes_at_once(self):
        deck = self.deck_with("types.toml", "seed = 3\niterations = 3", 'seed = "three"\niterations = -1')
        self.refuse(CONFIGURATION, "types.toml:4", "run.seed", "types.toml:5", "run.iterations", deck=deck)

    def test_not_toml(self):
        (self.folder / "broken.toml").write_text("[run]\nseed = = 3\n")
        self.refuse(CONFIGURATION, "broken.toml:2", deck="broken.toml")

    def test_missing_deck(self):
        self.refuse(INPUT_MISSING, "nowhere.toml", deck="nowhere.toml")

    def test_missing_model(self):
        self.refuse(INPUT_MISSING, "model.path", "no-such-model", overrides=["model.path=no-such-model"])

    def test_truncated_safetensors(self):
        file = self.model_copy("truncated") / "model.safetensors"
        os.truncate(file, file.stat().st_size * 2 // 3)
        self.refuse(BAD_DATA, "truncated/model.safetensors", "truncated", overrides=["model.path=truncated"], ranks=(1, 2))

    def test_corrupted_safetensors_header(self):
        file = self.model_copy("corrupted") / "model.safetensors"
        with file.open("r+b") as data:
            data.seek(12)
            data.write(b"\xff\xff")
        self.refuse(BAD_DATA, "corrupted/model.safetensors", "header", overrides=["model.path=corrupted"])

    def test_missing_weights(self):
        (self.model_copy("bare") / "model.safetensors").unlink()
        self.refuse(INPUT_MISSING, "bare", "safetensors", overrides=["model.path=bare"])

    def test_unsupported_architecture(self):
        config = self.model_copy("gpt2") / "config.json"
        config.write_text(config.read_text().replace("LlamaForCausalLM", "GPT2LMHeadModel"))
        self.refuse(BAD_DATA, "GPT2LMHeadModel", "supported: LlamaForCausalLM", overrides=["model.path=gpt2"])

    def test_sequences_longer_than_a_model(self):
        """At the start and not where the first long prompt comes up; every model is looked at."""
        self.refuse(CONFIGURATION, "data.max_len = 300", "256 positions of the actor", "the critic", overrides=["data.max_len=300"], ranks=(1, 2))
        self.refuse(CONFIGURATION, "model.max_len = 300", "256 positions", overrides=["model.max_len=300"])
        config = self.model_copy("short") / "config.json"
        config.write_text(config.read_text().replace('"max_position_embeddings": 256', '"max_position_embeddings": 40'))
        self.assertIn(": 40", config.read_text())
        self.refuse(CONFIGURATION, "data.max_len = 48", "40 positions of reference.path = short", "set data.max_len = 40",
                    overrides=["reference.path=short"])
        self.refuse(CONFIGURATION, "data.max_len = 48", "40 positions of the critic", overrides=["critic.path=short"])
        judged = self.deck_with("judged.toml", RULE_SOURCE, '[[reward.source]]\nkind = "model"\npath = "short"\n')
        self.refuse(CONFIGURATION, "40 positions of reward.source.0.path = short", deck=judged, overrides=["algo.advantage.estimator=reinforce"])
        self.refuse(CONFIGURATION, "reward.source.0.max_len = 41", deck=judged,
                    overrides=["algo.advantage.estimator=reinforce", "reward.source.0.max_len=41"])

    def test_stop_token_outside_the_vocabulary(self):
        self.refuse(CONFIGURATION, "rollout.stop_token_ids", "272", overrides=["rollout.stop_token_ids=[5, 272]"])
        self.refuse(CONFIGURATION, "rollout.min_new_tokens 9", "rollout.max_new_tokens 8", overrides=["rollout.min_new_tokens=9"], ranks=(1,))

    def test_vocabulary_too_small_for_the_tokenizer(self):
        config = self.model_copy("narrow") / "config.json"
        config.write_text(config.read_text().replace("272", "200"))
        self.refuse(BAD_DATA, "200", overrides=["model.path=narrow"])

    def test_overlong_prompt_stops(self):
        self.refuse(BAD_DATA, "prompts.jsonl:4", "the limit is", overrides=["data.max_len=10", "data.overlong_prompt=stop"])

    def test_overlong_prompt_is_skipped_and_counted(self):
        """Two of the eight prompts do not fit; the run goes on with the others."""
        result = self.succeed("ppo", "ppo.toml", "run.dir=skipping", "data.max_len=10", "run.iterations=2", ranks=2)
        self.assertEqual(result.text.count("2 longer than 9 tokens left out"), 1, result.text)
        self.assertTrue(all(len(s["prompt"]) < 10 for s in self.samples("skipping")))

    def test_empty_prompt_file(self):
        (self.folder / "empty.jsonl").write_text("")
        self.refuse(BAD_DATA, "empty.jsonl", "no records", overrides=["data.prompt_dataset=empty.jsonl"])

    def test_prompts_that_cannot_be_read(self):
        """An error of the file system is one, and not an unknown exception: the batch scripts start again after a pause."""
        for call in ("1", "2"):
            env = adversity("storage", STORAGE="prompts.jsonl", STORAGE_OPS="read", STORAGE_CALLS=f"{call}-{call}", STORAGE_DO=f"error:{errno.EIO}")
            self.refuse(IO_ERROR, "cannot read prompts.jsonl (Input/output error)", ranks=(1, 2), env=env)

    def test_no_prompt_left(self):
        write_lines(self.folder / "long.jsonl", [{"prompt": "x" * 100, "label": "1"}])
        self.refuse(BAD_DATA, "long.jsonl", overrides=["data.prompt_dataset=long.jsonl"])

    def test_line_that_is_no_json(self):
        (self.folder / "torn.jsonl").write_text('{"prompt": "1+1="}\n{"prompt": "1+\n')
        self.refuse(BAD_DATA, "torn.jsonl:2", overrides=["data.prompt_dataset=torn.jsonl"])

    def test_a_label_that_is_missing_late(self):
        """At the start, with file and line, whatever the order of the prompts; of evaluation sets too, and of a source's own column."""
        rows = [{"prompt": f"{i}+1=", "label": str(i), "answer": i} for i in range(8)]
        del rows[6]["label"], rows[5]["answer"]
        write_lines(self.folder / "unlabelled.jsonl", rows)
        deck = self.deck_with("exact.toml", RULE_SOURCE, '[[reward.source]]\nkind = "rule"\nrule = "exact"\n')
        self.refuse(BAD_DATA, "unlabelled.jsonl:7: no label", deck=deck, overrides=["data.prompt_dataset=unlabelled.jsonl", "data.shuffle=false"])
        self.refuse(BAD_DATA, "unlabelled.jsonl:6: no column", deck=deck, ranks=(1,), overrides=[
            "data.prompt_dataset=unlabelled.jsonl", "reward.source.0.label_key=answer"])
        self.refuse(BAD_DATA, "unlabelled.jsonl:7: no label", deck=deck, ranks=(1,), overrides=["eval.dataset=unlabelled.jsonl", "eval.steps=1"])

    def plugin(self, behaviour):
        (self.folder / "plugin.py").write_text(PLUGIN)
        # Short only where it is the mistake: a loaded machine needs more than a second for an interpreter.
        timeout = 1 if behaviour == "hang" else 60
        source = PLUGIN_SOURCE.format(python=sys.executable, behaviour=behaviour, timeout=timeout)
        return self.deck_with(f"plugin-{behaviour}.toml", RULE_SOURCE, source)

    def test_plugin_crashes(self):
        self.refuse(UNFIT, "judge", "signal 6", "1 restart", deck=self.plugin("crash"), overrides=["reward.retries=1"], ranks=(1, 2), met_by="each")

    def test_plugin_hangs(self):
        self.refuse(UNFIT, "judge", "within", deck=self.plugin("hang"), overrides=["reward.retries=0"], met_by="each")

    def test_plugin_within_its_time_is_no_hang(self):
        """It thinks for longer than run.hang_timeout, but not than it may."""
        deck = self.plugin("slow")
        self.succeed("ppo", deck, "run.dir=slow-plugin", "run.iterations=1", "run.hang_timeout=4")

    def test_plugin_returns_nan(self):
        self.refuse(BAD_DATA, "judge", "NaN", deck=self.plugin("nan"), met_by="each")

    def test_plugin_answers_too_few(self):
        self.refuse(BAD_DATA, "judge", "ended after 1 of", deck=self.plugin("short"), met_by="each")

    def test_plugin_fails_on_one_rank(self):
        """The others wait in a collective: the job ends all the same, and the message names the rank."""
        result = self.run_program("ppo", self.plugin("short"), "run.dir=one-rank", "ranks.reward=1-1", ranks=2)
        self.assertEqual(result.code, BAD_DATA, result.text)
        self.assertEqual(result.text.count("error: rank 1 "), 1, result.text)

    def test_plugin_that_does_not_exist(self):
        deck = self.deck_with("plugin-none.toml", RULE_SOURCE, '[[reward.source]]\nkind = "plugin"\ncommand = ["./no-such-program"]\n')
        self.refuse(INPUT_MISSING, "no-such-program", deck=deck)

    def test_more_ranks_in_roles_than_there_are(self):
        self.refuse(CONFIGURATION, "ranks.trainer", "4", overrides=["ranks.trainer=4"], ranks=(1, 2))
        self.refuse(CONFIGURATION, "generate.tensor_parallel = 3", overrides=["generate.tensor_parallel=3"])

    def test_what_is_not_built_is_refused(self):
        self.refuse(CONFIGURATION, "train.optimizer_offload", "CPUs", overrides=["train.optimizer_offload=true"])
        self.refuse(CONFIGURATION, "train.reduce_dtype", "fp16", overrides=["train.reduce_dtype=fp16"], ranks=(1,))
        self.refuse(CONFIGURATION, "fault.at", overrides=["fault.at=[\"kill:0:1\"]"], ranks=(1,))
        self.refuse(CONFIGURATION, "run.production", overrides=["fault.at=[\"kill:0:train:1\"]", "run.production=true"], ranks=(1,))

    def test_command_line(self):
        for arguments in (["ppo"], ["no-such-command"], ["generate", "--model", "model"], []):
            result = self.run_program(*arguments)
            self.assertEqual(result.code, USAGE, result.text)
            self.assertEqual(result.text.count("error: "), 1, result.text)
        said = self.run_program("ppo", "ppo.toml", "--actor.adam.lr", "1e-6").text
        self.assertIn("keys of a deck are written actor.adam.lr=VALUE, without dashes", said)
        self.assertIn("did you mean", self.run_program("ppo", "ppo.toml", "model.dtype=bf61").text)
        self.assertIn('here it is "bf16"', self.run_program("ppo", "ppo.toml", "model.dtype=fp16").text)
        self.assertIn("standard input cannot be read twice", self.run_program("generate", "--model", "model", "--input", "-", "--output", "-").text)

    def test_checkpoint_of_another_model(self):
        self.succeed("ppo", "ppo.toml", "run.dir=other", "run.iterations=1")
        shape = self.folder / "shape" / "config.json"
        (self.folder / "deep").mkdir()
        (self.folder / "deep" / "config.json").write_text(shape.read_text().replace('"intermediate_size": 96', '"intermediate_size": 80'))
        self.succeed("init", "--shape", "deep", "--output", "model-80", "--tokenizer", "model")
        result = self.run_program("ppo", "ppo.toml", "run.dir=other", "run.iterations=2", "model.path=model-80", ranks=2)
        self.assertEqual(result.code, BAD_DATA, result.text)
        self.assertIn("80", result.text)
        self.assertIn("96", result.text)

    @unittest.skipUnless(os.geteuid() == 0, "mounting a small tmpfs needs root")
    def test_no_space_left(self):
        for ranks in (1, 2):
            small = self.folder / f"small-{ranks}"
            small.mkdir()
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], capture_output=True, check=False)
            if mounted.returncode:
                self.skipTest("this machine does not let us mount a tmpfs")
            try:
                result = self.run_program("ppo", "ppo.toml", f"run.dir={small}/run", ranks=ranks)
                self.assertEqual(result.code, IO_ERROR, result.text)
                self.assertEqual(result.text.count("error: "), 1, result.text)
                self.assertIn(str(small), result.text)
                steps = [path.name for path in (small / "run" / "ckpt").iterdir() if not path.name.startswith(".")]  # the lock stays
                self.assertEqual(steps, [], "nothing is left of the checkpoint that did not fit")
            finally:
                subprocess.run(["umount", "-l", small], check=False)


if __name__ == "__main__":
    main()

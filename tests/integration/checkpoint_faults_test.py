#!/usr/bin/env python3
"""Checkpoints that were copied, stepped back from, cannot be read for a moment, or do not fit; and a file system that keeps pages."""

import itertools
import json
import os
import shutil
import signal
import struct
import unittest

from trireme_run import ENDS_AT_ONCE, SABOTEUR_SOURCE, Job, ProgramTest, adversity, main, read_safetensors, timeless

# SABOTAGE="iteration": SIGTERM to the rank that asks then, and no answer for long.
SABOTEUR = """
import json, os, sys, time
at = int(os.environ.get("SABOTAGE", "0"))
for line in sys.stdin:
    request = json.loads(line)
    if request["iteration"] == at:
        os.kill(os.getppid(), 15)
        time.sleep(25)
    print(json.dumps({"id": request["id"], "reward": 0.0}), flush=True)
"""

BAD_DATA = 65
INPUT_MISSING = 66
IO_ERROR = 74
STOPPED = 75
LOST = 76
KILLED = 137


class Checkpoints(ProgramTest):
    environment = ENDS_AT_ONCE

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "saboteur.py").write_text(SABOTEUR)
        cls.deck_with("sabotaged.toml", "\n[actor]", SABOTEUR_SOURCE + "[actor]")

    def go(self, run, iterations, *overrides, code=0, deck="ppo.toml", **options):
        return self.succeed("ppo", deck, f"run.dir={run}", f"run.iterations={iterations}", *overrides, code=code, **options)

    def steps(self, run):
        return sorted(int(path.name[5:]) for path in (self.folder / run / "ckpt").glob("step-*"))

    def fence(self, run, step):
        return json.loads((self.folder / run / "ckpt" / f"step-{step:06d}" / "manifest.json").read_text())["fence"]

    def step(self, run, step):
        return self.folder / run / "ckpt" / f"step-{step:06d}"

    # ---- which one is the newest ----

    def test_copied_folder_of_checkpoints(self):
        """What a new run folder saves is newer than what was copied into it, whatever start of its run had written that."""
        for iterations in (1, 2, 3):
            self.go("original", iterations)
        self.assertEqual(self.fence("original", 3), 3)
        (self.folder / "copy").mkdir()
        shutil.copytree(self.folder / "original" / "ckpt", self.folder / "copy" / "ckpt")
        result = self.go("copy", 6, "ckpt.keep=2")
        self.assertIn("resumed after iteration 3", result.text)
        self.assertEqual(self.steps("copy"), [5, 6])
        self.assertEqual(self.fence("copy", 6), 4)
        result = self.go("copy", 7, "ckpt.keep=2")
        self.assertIn("resumed after iteration 6", result.text)

    def test_named_checkpoint_in_the_own_folder(self):
        """A deliberate step back, once, even when nothing could be saved the first time; what was newer stays."""
        self.go("back", 4, "ckpt.keep=9")
        wish = f"ckpt.resume={self.step('back', 2)}"
        self.go("back", 5, "ckpt.keep=2", wish, "fault.crash_at=ckpt.begin", code=KILLED)
        result = self.go("back", 5, "ckpt.keep=2", wish, "run.walltime=5", code=STOPPED)
        self.assertIn("resumed after iteration 2", result.text)
        self.assertEqual(self.steps("back"), [2, 3, 4])
        self.assertGreater(self.fence("back", 3), self.fence("back", 4))
        self.succeed("convert", "back", "newest")
        self.succeed("convert", self.step("back", 3), "third")
        self.assertEqual(read_safetensors(self.folder / "newest" / "model.safetensors"),
                         read_safetensors(self.folder / "third" / "model.safetensors"), "the latest save, not the greatest number")
        result = self.go("back", 5, "ckpt.keep=2", wish)
        self.assertIn("was obeyed by an earlier start", result.text)
        self.assertIn("resumed after iteration 3", result.text)
        self.assertEqual([line["iteration"] for line in self.metrics("back")], [1, 2, 3, 4, 5])

    def test_nothing_newer_than_the_step_back_is_removed(self):
        self.go("kept", 4, "ckpt.keep=9")
        self.go("kept", 3, "ckpt.keep=2", f"ckpt.resume={self.step('kept', 1)}")
        self.assertEqual(self.steps("kept"), [2, 3, 4], "2 and 3 are new, 1 is beyond ckpt.keep, 4 is of the branch that was left")
        self.assertLess(self.fence("kept", 4), self.fence("kept", 2))

    def test_named_checkpoint_of_another_run(self):
        self.go("source", 2)
        wish = f"ckpt.resume={self.step('source', 2)}/"
        self.go("taken", 4, wish, "fault.crash_at=ckpt.begin", code=KILLED)
        self.assertEqual(self.steps("taken"), [])
        result = self.go("taken", 4, wish, "run.walltime=5", code=STOPPED)
        self.assertIn("resumed after iteration 2", result.text)
        shutil.rmtree(self.folder / "source")
        result = self.go("taken", 4, wish)
        self.assertIn("resumed after iteration 3", result.text)
        self.assertEqual(self.steps("taken"), [3, 4])
        self.go("fresh", 4, wish, code=INPUT_MISSING)

    def test_a_renamed_checkpoint_is_not_taken_for_the_newest(self):
        self.go("renamed", 2)
        shutil.move(self.step("renamed", 1), self.step("renamed", 9))
        result = self.go("renamed", 3)
        self.assertIn("step-000009 holds step 1 by its manifest", result.text)
        self.assertIn("resumed after iteration 2", result.text)

    def test_names_of_any_bytes(self):
        """A run in a folder whose name is no UTF-8, from a checkpoint that is named and obeyed once."""
        place = os.fsencode(self.folder) + b"/m\xfcller"
        os.mkdir(place)
        for name in ("model", "prompts.jsonl", "ppo.toml"):
            os.symlink(os.fsencode(self.folder / name), place + b"/" + name.encode())

        def go(iterations, *more):
            result = Job(["ppo", "ppo.toml", f"run.iterations={iterations}", *more], place).wait()
            self.assertEqual(result.code, 0, result.text)
            return result

        go(2)
        wish = "ckpt.resume=run/ckpt/step-000001"
        self.assertIn("resumed after iteration 1", go(2, "run.dir=other", wish).text)
        self.assertIn("was obeyed by an earlier start", go(3, "run.dir=other", wish).text)

    def test_leaving_at_once_after_a_step_back(self):
        """Whether all is saved does not depend on the steps of the branch that was left."""
        self.go("left", 4, deck="sabotaged.toml")
        result = self.go("left", 9, f"ckpt.resume={self.step('left', 2)}", "ckpt.interval=0", "run.term_grace=2", "run.stop_within=iteration", code=LOST,
                         deck="sabotaged.toml", env={"SABOTAGE": "4"})
        self.assertIn("iterations 3 to 4 are lost", result.text)

    def test_a_crash_where_names_cannot_be_exchanged(self):
        """A later stop inside an iteration replaces the checkpoint of an earlier one. Where the file system cannot exchange two names, the old one is
        moved aside first; a kill then loses neither."""
        self.go("whole", 3, "train.max_epochs=2", ranks=2)
        stop = 'fault.at=["signal:0:actor step:%d:10"]'
        for point, done in (("ckpt.moved_aside", 1), ("ckpt.moved_in", 2)):
            with self.subTest(point=point):
                run = point[5:]
                self.go(run, 3, "train.max_epochs=2", stop % 5, ranks=2, code=STOPPED)
                self.assertEqual(self.steps(run), [1, 2])
                env = adversity("storage", STORAGE="/step-000002", STORAGE_OPS="exchange", STORAGE_DO="error:22")
                self.go(run, 3, "train.max_epochs=2", stop % 1, f"fault.crash_at={point}", ranks=2, code=KILLED, env=env)
                self.assertEqual(self.steps(run), [1] if done == 1 else [1, 2])
                result = self.go(run, 3, "train.max_epochs=2", ranks=2)
                self.assertIn(f"resumed after iteration 1, inside the next one (train, {done} optimizer steps done)", result.text)
                self.assertEqual(result.text.count("was moved aside when an earlier start ended"), 2 - done)
                self.assertEqual([path.name for path in (self.folder / run / "ckpt").iterdir() if path.name.startswith(".step")], [])
                self.assertEqual(timeless(self.metrics(run)), timeless(self.metrics("whole")))

    # ---- what cannot be read, and what does not fit ----

    def test_read_error_is_no_reason_to_go_back(self):
        self.go("unread", 2, ranks=2)
        for file in ("step-000002/data.h5", "step-000001/manifest.json"):
            with self.subTest(file=file):
                result = self.go("unread", 3, ranks=2, code=IO_ERROR, env=adversity("read_error", READ_ERROR=file))
                self.assertIn(file, result.text)
        self.assertIn("resumed after iteration 2", self.go("unread", 3, ranks=2).text)

    def test_checkpoint_that_does_not_fit(self):
        """The first one has a moving average, the newest has none: a run that wants one is not quietly sent back."""
        self.go("unfit", 1, "train.enable_ema=true")
        self.go("unfit", 2, "ckpt.allow_changes=train.enable_ema")
        result = self.go("unfit", 3, "train.enable_ema=true", ranks=2, code=BAD_DATA)
        self.assertIn("does not fit this run (it has no /actor/ema/model.embed_tokens.weight)", result.text)
        self.assertIn("step-000002", result.text)
        self.assertNotIn("DAMAGED", result.text)
        self.assertEqual(self.steps("unfit"), [1, 2])

    def test_changed_keys_are_refused_unless_allowed(self):
        self.go("changed", 1)
        changed = ("run.seed=9", "actor.adam.lr=1", "reward.source.0.length_target=5", "ckpt.keep=7")
        keys = ("run.seed: 3 -> 9", "actor.adam.lr: 0.001 -> 1.0", "reward.source.0.length_target: 4 -> 5")
        result = self.go("changed", 2, *changed, code=78, ranks=2)
        for words in ("this deck computes something else than the checkpoint's; changed keys:", *keys,
                      'ckpt.allow_changes = ["actor.adam.lr", "reward.source.0.length_target", "run.seed"]',
                      "changed since the checkpoint, without a change of what is computed:", "run.iterations: 1 -> 2", "ckpt.keep: 3 -> 7"):
            self.assertIn(words.split(" = ")[0], result.text)
        self.go("changed", 2, "ckpt.path=elsewhere", *changed, f"ckpt.resume={self.step('changed', 1)}", code=78)
        deck = (self.folder / "changed" / "deck.toml").read_text()
        self.assertIn("seed = 3\n", deck, "what was refused is not the deck by which scripts look for checkpoints")
        self.assertNotIn("elsewhere", deck)
        self.go("changed", 2, *changed, 'ckpt.allow_changes=["actor.", "run.seed"]', code=78)
        result = self.go("changed", 2, *changed, 'ckpt.allow_changes=["actor.", "run.seed", "reward.source"]')
        for words in ("warning: this deck computes something else than the checkpoint's, as ckpt.allow_changes allows", *keys):
            self.assertIn(words, result.text)
        result = self.go("changed", 2, *changed)
        self.assertNotIn(" -> 9", result.text)

    def test_changed_files_under_the_same_names_are_noticed(self):
        shutil.copytree(self.folder / "model", self.folder / "reference")
        wish = ("reference.path=reference", "algo.kl.init_coef=0.1")
        self.go("files", 1, *wish)
        prompts = self.folder / "prompts.jsonl"
        text = prompts.read_text()
        try:
            prompts.write_text(text.replace('"label"', '"note": 1, "label"'))
            self.assertIn("data.prompt_dataset.fields: the files have other content", self.go("files", 2, *wish, code=78).text)
            prompts.write_text(text.replace("1+2=", "2+1="))
            result = self.go("files", 2, *wish, code=78, ranks=2)
            self.assertIn("data.prompt_dataset: the files have other content than when the run began", result.text)
            self.go("files", 2, *wish, "ckpt.allow_changes=data.prompt_dataset", ranks=2)
        finally:
            prompts.write_text(text)
        weights = self.folder / "reference" / "model.safetensors"
        data = bytearray(weights.read_bytes())
        for place in (-1, len(data) // 2):
            data[place] ^= 1
            weights.write_bytes(data)
            result = self.go("files", 3, *wish, "ckpt.allow_changes=data.prompt_dataset", code=78)
            self.assertIn("reference.path: the files have other content", result.text)
            data[place] ^= 1

    def test_a_changed_tokenizer_and_model_description_are_noticed(self):
        """Prompts have the same tokens and weights the same shapes, but answers have other texts, and positions other frequencies."""
        shutil.copytree(self.folder / "model", self.folder / "mine")
        self.go("described", 1, "model.path=mine")

        def change(file, what):
            path = self.folder / "mine" / file
            before = path.read_text()
            content = json.loads(before)
            what(content)
            path.write_text(json.dumps(content))
            return path, before

        def swap(tokenizer):
            ids = tokenizer["model"]["vocab"]
            ids["q"], ids["z"] = ids["z"], ids["q"]

        for file, what, name in (("tokenizer.json", swap, "model.tokenizer"), ("config.json", lambda shape: shape.update(rope_theta=5000.0), "model.path")):
            with self.subTest(file=file):
                path, before = change(file, what)
                result = self.go("described", 2, "model.path=mine", code=78, ranks=2)
                self.assertIn(f"{name}: the files have other content than when the run began", result.text)
                path.write_text(before)
        self.go("described", 2, "model.path=mine")

    def test_a_changed_description_of_reference_and_critic_is_noticed(self):
        """Weights as they were, other frequencies: what the reference says and what the critic learns would change."""
        for name in ("yardstick", "judge"):
            shutil.copytree(self.folder / "model", self.folder / name)
        wish = ("reference.path=yardstick", "algo.kl.init_coef=0.1", "critic.path=judge")
        self.go("judged", 1, *wish)
        for folder, key, name in (("yardstick", "reference.path", "reference.path.config"), ("judge", "critic.path", "critic.path")):
            with self.subTest(key=key):
                path = self.folder / folder / "config.json"
                before = path.read_text()
                path.write_text(json.dumps(json.loads(before) | {"rope_theta": 5000.0}))
                result = self.go("judged", 2, *wish, code=78, ranks=2)
                self.assertIn(f"\n{name}: the files have other content than when the run began", result.text)
                path.write_text(before)
        path = self.folder / "yardstick" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": 5000.0}))
        self.go("judged", 2, *wish, "ckpt.allow_changes=reference.path")

    # ---- the folder of checkpoints is the run folder ----

    def test_checkpoints_in_the_run_folder_itself(self):
        """Also by another name of it: resumed, stepped back, pruned, with the numbers of a run that has them in ckpt/."""
        (self.folder / "flat").mkdir()
        (self.folder / "alias").symlink_to("flat")
        for path, iterations in (("flat", 2), ("alias", 4)):
            self.go("deep", iterations, ranks=2)
            result = self.go("flat", iterations, f"ckpt.path={path}", "ckpt.keep=2", ranks=2)
        self.assertIn("resumed after iteration 2", result.text)
        self.assertEqual(sorted(path.name for path in (self.folder / "flat").glob("step-*")), ["step-000003", "step-000004"])
        self.assertFalse((self.folder / "flat" / "ckpt").exists())
        self.assertEqual(timeless(self.metrics("flat")), timeless(self.metrics("deep")))
        back = self.go("flat", 4, "ckpt.path=flat", "ckpt.keep=2", f"ckpt.resume={self.folder}/flat/step-000003", ranks=2)
        self.assertIn("resumed after iteration 3", back.text)
        self.succeed("inspect", "--verify", "flat")
        self.succeed("convert", "flat", "flat-model")

    def test_a_metrics_file_that_lost_its_end(self):
        self.go("cut", 2)
        file = self.folder / "cut" / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        file.write_text(lines[0] + lines[1][:-5])
        result = self.go("cut", 3)
        self.assertIn("metrics.jsonl has", result.text)
        self.assertEqual([line["iteration"] for line in self.metrics("cut")], [1, 3])

    # ---- files that several nodes write ----

    def test_clients_that_keep_pages(self):
        """No byte of a neighbour is lost, whichever way a client changes parts of pages."""
        for mode in ("readable", "every"):
            with self.subTest(mode=mode):
                self.go(f"pages-{mode}", 1, ranks=4, env=adversity("page_cache", PAGE_CACHE=mode))
                self.succeed("inspect", "--verify", f"pages-{mode}/ckpt")

    # ---- exports ----

    def cut_in_two(self, source, target):
        """A copy of a model with its weights in two files, all values changed: an older export of the same shape."""
        shutil.copytree(self.folder / source, self.folder / target)
        weights = self.folder / target / "model.safetensors"
        tensors = read_safetensors(weights)
        weights.unlink()
        parts = [sorted(tensors)[0::2], sorted(tensors)[1::2]]
        index = {"metadata": {}, "weight_map": {}}
        for number, names in enumerate(parts):
            file = f"model-{number + 1:05}-of-00002.safetensors"
            header, data = {}, b""
            for name in names:
                kind, shape, values = tensors[name]
                header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
                data += bytes(len(values))
                index["weight_map"][name] = file
            text = json.dumps(header).encode()
            (self.folder / target / file).write_bytes(struct.pack("<Q", len(text)) + text + data)
        (self.folder / target / "model.safetensors.index.json").write_text(json.dumps(index))

    def test_a_crash_in_an_export_over_an_older_one(self):
        """Killed before each change of a name in the folder: the old weights, the new ones, or a refusal; the next export goes through."""
        self.cut_in_two("model", "older")
        shutil.copytree(self.folder / "older", self.folder / "target")
        self.succeed("convert", "model", "target", "--dtype", "fp32", "--force")
        new = read_safetensors(self.folder / "target" / "model.safetensors")
        seen = []
        for call in itertools.count(1):
            shutil.rmtree(self.folder / "target")
            shutil.copytree(self.folder / "older", self.folder / "target")
            crash = adversity("storage", STORAGE="target", STORAGE_OPS="rename,unlink", STORAGE_CALLS=f"{call}-{call}", STORAGE_DO="kill")
            result = self.run_program("convert", "model", "target", "--dtype", "fp32", "--force", env=crash)
            if result.code == 0:
                break
            self.assertEqual(result.code, -signal.SIGKILL, result.text)
            read = self.run_program("convert", "target", "read", "--dtype", "fp32", "--force")
            if read.code == 0:
                values = read_safetensors(self.folder / "read" / "model.safetensors")
                seen.append("new" if values == new else "old")
                if values != new:
                    self.assertFalse(any(any(data) for _, _, data in values.values()), "neither the old weights nor the new ones")
            else:
                self.assertEqual(read.code, 66, read.text)
                self.assertIn("did not end", read.text)
                seen.append("refused")
            if seen[-1] == "refused" and seen.count("refused") == 1:
                self.succeed("convert", "model", "target", "--dtype", "fp32", "--force")
                self.assertEqual(read_safetensors(self.folder / "target" / "model.safetensors"), new)
        self.assertEqual(seen, sorted(seen, key=["old", "refused", "new"].index), "in this order")
        self.assertEqual(set(seen), {"old", "refused", "new"})


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What tools and exports write: never over an input or over what is there, once under a launcher, whole or not at all; and what they keep of
the model that they come from."""

import gzip
import json
import os
import pathlib
import shutil
import struct
import subprocess

from trireme_run import ENDS_AT_ONCE, MPI_FLAGS, MPIEXEC, PROGRAM, ROOT, SFT_DECK, ProgramTest, child_environment, main, read_lines, read_safetensors, write_lines

USAGE, BAD_DATA, INPUT_MISSING, UNFIT, IO_ERROR = 64, 65, 66, 69, 74
GENERATION = {"bos_token_id": 257, "do_sample": True, "eos_token_id": [258, 256], "temperature": 0.7, "top_p": 0.8, "top_k": 20,
              "repetition_penalty": 1.05}


def write_safetensors(path, tensors):
    """{name: (type, shape, bytes)} into one file."""
    header, data = {}, b""
    for name, (kind, shape, values) in sorted(tensors.items()):
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def content(folder):
    """Without the record of the job."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".trireme-done"}


class Outputs(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_lines(cls.folder / "texts.jsonl", [{"text": "hi"}, {"text": "ho"}])
        write_lines(cls.folder / "pairs.jsonl", [{"prompt": f"{i}+1=", "chosen": f"{i + 1}.", "rejected": "?"} for i in range(8)])
        (cls.folder / "rm.toml").write_text(SFT_DECK.replace("examples.jsonl", "pairs.jsonl").replace("iterations = 4", "iterations = 2"))

    def test_no_input_is_written_over(self):
        model, shape = self.folder / "model", self.folder / "shape"
        (self.folder / "alias").symlink_to("model")
        (self.folder / "texts-alias.jsonl").symlink_to("texts.jsonl")
        before = content(model), content(shape), (self.folder / "texts.jsonl").read_bytes(), (self.folder / "prompts.jsonl").read_bytes()
        tokenize, generate = ["tokenize", "--model", "model", "--input"], ["generate", "--model", "model", "--input"]
        for command in (["convert", "model", "model"], ["convert", "model", "model/"], ["convert", "model", "alias"], ["convert", "alias", "model"],
                        ["init", "--shape", "shape", "--output", "shape"],
                        ["init", "--shape", "shape", "--tokenizer", "model", "--output", "model"],
                        [*tokenize, "texts.jsonl", "--output", "texts.jsonl"], [*tokenize, "texts.jsonl", "--output", "texts-alias.jsonl"],
                        [*tokenize, "texts.jsonl", "--output", "model/config.json"],
                        [*generate, "prompts.jsonl", "--output", "prompts.jsonl"],
                        ["score", "--model", "model", "--input", "texts.jsonl", "--output", "texts.jsonl"]):
            for force in ([], ["--force"]):
                refused = self.succeed(*command, *force, code=USAGE)
                self.assertIn("would destroy what is read", refused.text, command)
        self.assertEqual(before, (content(model), content(shape), (self.folder / "texts.jsonl").read_bytes(), (self.folder / "prompts.jsonl").read_bytes()))

    def test_what_is_there_needs_force(self):
        """Files and models; other files of a folder stay; /dev/null is no output that is there."""
        out, folder = self.folder / "there.jsonl", self.folder / "there"
        commands = (["tokenize", "--model", "model", "--input", "texts.jsonl", "--output", "there.jsonl"],
                    ["score", "--model", "model", "--input", "texts.jsonl", "--output", "there.jsonl"],
                    ["convert", "model", "there", "--dtype", "fp32"], ["init", "--shape", "shape", "--output", "there"])
        for command in commands:
            out.write_text("mine\n")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "thesis.tex").write_text("mine")
            refused = self.succeed(*command, code=USAGE)
            self.assertIn("give --force to replace", refused.text)
            self.assertEqual((out.read_text(), content(folder)), ("mine\n", {"thesis.tex": b"mine"}), command)
            self.succeed(*command, "--force")
            self.assertEqual((folder / "thesis.tex").read_text(), "mine")
            self.assertTrue(out.read_text() != "mine\n" or "model.safetensors" in content(folder))
        self.succeed("tokenize", "--model", "model", "--input", "texts.jsonl", "--output", "/dev/null")
        self.assertTrue(pathlib.Path("/dev/null").is_char_device())

    def test_a_finished_output_is_done(self):
        """The same job again, of each tool that makes an output: no work, exit code 0, also under a launcher; another job is refused, --force replaces."""
        shutil.copy(self.folder / "texts.jsonl", self.folder / "done-texts.jsonl")
        model, texts = ["--model", "model"], ["--input", "done-texts.jsonl"]
        generate = ["generate", *model, "--input", "prompts.jsonl", "--max-new-tokens", "2", "--output", "answers.jsonl"]
        score, tokenize = (["score", *model, *texts, "--output", "scores.jsonl"], ["tokenize", *model, *texts, "--output", "ids.jsonl"])
        convert = ["convert", "model", "copied"]
        for command, name, ranks in ((generate, "answers.jsonl", 2), (score, "scores.jsonl", 2), (tokenize, "ids.jsonl", 1), (convert, "copied", 2),
                                     (["init", "--shape", "shape", "--output", "made"], "made", 1)):
            self.succeed(*command)
            again = self.succeed(*command, ranks=ranks)
            self.assertEqual(again.text.count(f"already done: {name} is the output of this job"), 1, again.text)
            self.assertNotIn("tokens/s", again.text)
        before = (self.folder / "scores.jsonl").read_bytes()
        hotter = [*score, "--temperature", "2"]
        self.assertIn("scores.jsonl is of another job (temperature: 1 -> 2)", self.succeed(*hotter, code=USAGE).text)
        self.assertEqual((self.folder / "scores.jsonl").read_bytes(), before)
        self.succeed(*hotter, "--force")
        self.assertNotEqual((self.folder / "scores.jsonl").read_bytes(), before)
        self.assertIn("copied is of another job (dtype: bf16 -> fp32)", self.succeed(*convert, "--dtype", "fp32", code=USAGE).text)
        with (self.folder / "done-texts.jsonl").open("a") as lines:
            lines.write('{"text": "more"}\n')
        self.assertIn("ids.jsonl is of another job (input: ", self.succeed(*tokenize, code=USAGE).text)
        self.assertEqual(list(self.folder.glob("*.partial")), [])

    def on_terminal(self, *arguments):
        """What a person sees of two ranks under mpirun in a terminal, to its last word: which may come after the launcher's end."""
        master, slave = os.openpty()
        command = [MPIEXEC, *MPI_FLAGS, "-n", "2", PROGRAM, *arguments]
        process = subprocess.Popen(command, cwd=self.folder, stdin=slave, stdout=slave, stderr=slave, env=child_environment(ENDS_AT_ONCE))
        os.close(slave)
        seen = b""
        try:
            while part := os.read(master, 1 << 16):
                seen += part
        except OSError:  # nobody has the terminal any more
            pass
        os.close(master)
        return process.wait(), [line for line in seen.decode(errors="replace").splitlines() if line.strip()]

    def test_the_error_is_the_last_line_of_a_terminal(self):
        """Behind what mpirun says of it: before MPI, on all ranks alike, and on one alone."""
        said = 0
        alone = ["run.dir=alone", "run.iterations=1", 'fault.at=["alloc_fail:1:train:1"]']
        for arguments, last in ((["sft", "missing.toml"], "error: .*missing.toml"), (["sft", "sft.toml", "run.dir=/dev/null/x"], "error: .*/dev/null"),
                                (["sft", "sft.toml", *alone], "error: rank 1 .*memory")):
            code, lines = self.on_terminal(*arguments)
            self.assertNotEqual(code, 0)
            self.assertRegex(lines[-1], last, "\n".join(lines))
            said += sum("mpirun" in line for line in lines[:-1])  # sometimes it says nothing
        self.assertGreater(said, 0, "or this shows nothing")

    def test_one_rank_writes(self):
        """Under a launcher: the output is whole and every line comes once."""
        for command, line in ((["convert", "model", "by-two", "--dtype", "fp32"], "wrote by-two"),
                              (["init", "--shape", "shape", "--output", "made-by-two"], "made-by-two: llama"),
                              (["inspect", "by-two"], "model.norm.weight"),
                              (["generate", "--model", "model", "--input", "prompts.jsonl", "--output", "two.jsonl", "--max-new-tokens", "2"], "8 answers"),
                              (["score", "--model", "model", "--input", "texts.jsonl", "--output", "two-scores.jsonl"], "compute type"),
                              (["tokenize", "--model", "model", "--input", "texts.jsonl", "--output", "two-ids.jsonl"], None)):
            result = self.succeed(*command, ranks=2)
            if line:
                self.assertEqual(result.text.count(line), 1, result.text)
        self.assertEqual(content(self.folder / "by-two"), content(self.folder / "model"))
        self.assertEqual(len(read_lines(self.folder / "two-ids.jsonl")), 2)
        self.assertEqual(len(read_lines(self.folder / "two-scores.jsonl")), 2)
        self.assertEqual(list(self.folder.glob("*.partial")), [])

    def test_score_ends_where_a_number_is_not_finite(self):
        """Also where one rank alone has the line."""
        broken = self.folder / "broken"
        shutil.copytree(self.folder / "model", broken)
        tensors = read_safetensors(broken / "model.safetensors")
        kind, shape, values = tensors["model.norm.weight"]
        for what, bits in (("nan", 0x7FC00000), ("inf", 0x7F800000)):
            write_safetensors(broken / "model.safetensors", tensors | {"model.norm.weight": (kind, shape, struct.pack("<I", bits) + values[4:])})
            for ranks in (1, 2):
                write_lines(self.folder / "lines.jsonl", [{"text": "hello"}] * ranks)
                result = self.succeed("score", "--model", "broken", "--input", "lines.jsonl", "--output", "not-finite.jsonl", code=BAD_DATA, ranks=ranks)
                self.assertIn("lines.jsonl:1: a log-probability is not finite", result.text, what)
                self.assertEqual(list(self.folder.glob("not-finite*")), [])

    def test_convert_from_elsewhere(self):
        """The model of a checkpoint's deck is not there, in three ways; --model-config helps."""
        self.succeed("sft", "sft.toml", "run.dir=moved", "run.iterations=1")
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()

        def convert(*options, code):
            done = subprocess.run([PROGRAM, "convert", "../moved", *options], cwd=elsewhere, capture_output=True, text=True, env=child_environment())
            self.assertEqual(done.returncode, code, done.stderr)
            return done.stderr

        for options in ([], ["--model-config", "gone"]):
            message = convert("out", *options, code=INPUT_MISSING)
            self.assertIn("--model-config is gone" if options else "model.path of the checkpoint's deck is model, which is not there", message)
            self.assertIn("as --model-config", message)
        (elsewhere / "model").mkdir()
        self.assertIn("which has no config.json", convert("out", code=INPUT_MISSING))
        self.assertFalse((elsewhere / "out").exists())
        convert("out", "--model-config", "../model", code=0)
        self.assertTrue((elsewhere / "out" / "tokenizer.json").exists())

    def test_a_working_folder_that_was_removed(self):
        gone = self.folder / "gone"
        for arguments, code in ((["ppo", self.folder / "ppo.toml"], UNFIT), (["inspect", self.folder / "model"], UNFIT), (["--version"], 0)):
            gone.mkdir()
            command = 'rmdir "$PWD" && exec "$@"'
            done = subprocess.run(["sh", "-c", command, "sh", PROGRAM, *arguments], cwd=gone, capture_output=True, text=True, env=child_environment())
            self.assertEqual(done.returncode, code, done.stderr)
            if code:
                self.assertIn("the working folder cannot be used", done.stderr)

    def test_an_end_of_the_job_in_the_past(self):
        env = {"SLURM_JOB_ID": "123", "SLURM_JOB_END_TIME": "1000", "PATH": os.environ["PATH"]}
        result = self.succeed("ppo", "ppo.toml", "run.dir=stale", "run.iterations=2", env=env)
        self.assertRegex(result.text, "warning: SLURM_JOB_END_TIME = 1000 is .* in the past: it is not the end of this job, and is ignored")
        self.assertEqual(len(self.metrics("stale")), 2)

    def test_files_that_are_something_else(self):
        rows = [{"prompt": "1+1=", "label": "2"}]
        (self.folder / "zipped.jsonl").write_bytes(gzip.compress(json.dumps(rows[0]).encode()))
        (self.folder / "array.jsonl").write_text(json.dumps(rows, indent=2))
        for name, problem in (("zipped", "is compressed with gzip: unpack it, `gzip -dc zipped.jsonl > NEW`"), ("array", "is one JSON array")):
            result = self.succeed("ppo", "ppo.toml", "--dry-run", f'data.prompt_dataset=["{name}.jsonl"]', code=BAD_DATA)
            self.assertIn(f"{name}.jsonl {problem}", result.text)
        shutil.copytree(self.folder / "model", self.folder / "pointer")
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1200\n"
        for name in ("model.safetensors", "tokenizer.json", "config.json"):
            (self.folder / "pointer" / name).write_text(pointer)
            result = self.succeed("tokenize" if name == "tokenizer.json" else "score", "--model", "pointer", "--input", "texts.jsonl", "--output", "-",
                                  code=BAD_DATA)
            self.assertIn(f"pointer/{name} is a pointer of Git LFS, not the file that it stands for: fetch that, `cd pointer && git lfs pull`", result.text)
            shutil.copy(self.folder / "model" / name, self.folder / "pointer")

    def test_two_heads_and_the_head_alone(self):
        """Tied by config.json: another stored head is the head, a head alone is the embedding too; what convert writes says the same."""
        tensors = read_safetensors(self.folder / "model" / "model.safetensors")
        kind, shape, values = tensors["model.embed_tokens.weight"]
        head = struct.pack(f"<{shape[0] * shape[1]}f", *(-x for x in struct.unpack(f"<{shape[0] * shape[1]}f", values)))

        def folder(name, weights, **config):
            shutil.copytree(self.folder / "model", self.folder / name)
            write_safetensors(self.folder / name / "model.safetensors", weights)
            text = json.loads((self.folder / name / "config.json").read_text()) | config
            (self.folder / name / "config.json").write_text(json.dumps(text))

        def scores(name):
            result = self.succeed("score", "--model", name, "--input", "texts.jsonl", "--output", "-")
            return result.out, result.err

        two = tensors | {"lm_head.weight": (kind, shape, head)}
        folder("two-heads", two)
        folder("untied", two, tie_word_embeddings=False)
        alone = {name: value for name, value in tensors.items() if name != "model.embed_tokens.weight"} | {"lm_head.weight": (kind, shape, values)}
        folder("head-alone", alone)
        folder("twice", tensors | {"lm_head.weight": (kind, shape, values)})
        wanted, _ = scores("untied")
        tied, _ = scores("model")
        self.assertNotEqual(wanted, tied)
        out, log = scores("two-heads")
        self.assertEqual(out, wanted)
        self.assertEqual(log.count("the stored head is used"), 1, log)
        for name in ("head-alone", "twice"):
            self.assertEqual(scores(name)[0], tied, name)
        for name, tie in (("two-heads", False), ("head-alone", True)):
            self.succeed("convert", name, f"{name}-copy", "--dtype", "fp32")
            self.assertEqual(json.loads((self.folder / f"{name}-copy" / "config.json").read_text())["tie_word_embeddings"], tie)
            self.assertEqual(scores(f"{name}-copy")[0], scores(name)[0])
        # A run from two heads trains, plans and exports both; so does a checkpoint of it.
        plans = [self.succeed("plan", "sft.toml", f"model.path={name}", "--command", "sft", "--machine", "h100", "--gpus-per-node", "1").out
                 for name in ("two-heads", "untied", "model")]
        self.assertEqual(plans[0], plans[1])
        self.assertNotEqual(plans[0], plans[2])
        self.succeed("sft", "sft.toml", "run.dir=two-run", "model.path=two-heads", "run.iterations=1", "ckpt.save_hf=end")
        exported = read_safetensors(self.folder / "two-run" / "hf" / "model.safetensors")
        self.assertIn("lm_head.weight", exported)
        self.succeed("convert", "two-run", "two-run-copy", "--dtype", "fp32")
        self.assertEqual(read_safetensors(self.folder / "two-run-copy" / "model.safetensors"), exported)

    def published(self, name):
        """The model as a folder from the hub may be."""
        folder = self.folder / name
        shutil.copytree(self.folder / "model", folder)
        (folder / "generation_config.json").write_text(json.dumps(GENERATION))
        config = json.loads((folder / "config.json").read_text()) | {"pretraining_tp": 1, "custom": {"x": [1, 2.5]}, "transformers_version": "4.51.0"}
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
        (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
        (folder / "cache.md").write_text("card")
        (folder / "README.md").symlink_to("cache.md")
        (folder / "LICENSE").write_text("MIT")
        (folder / "pytorch_model.bin").write_bytes(b"weights")
        (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {}}')
        return folder

    def assert_kept(self, source, export, **changed):
        """All small files of `source`, and its config.json but for what training changed."""
        ours, theirs = content(source), content(export)
        left = {"model.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json"}
        self.assertEqual(set(theirs), set(ours) - left | {"model.safetensors"})
        for name in set(ours) - left - {"config.json"}:
            self.assertEqual(theirs[name], ours[name], name)
            self.assertFalse((export / name).is_symlink())
        config, wanted = json.loads(theirs["config.json"]), json.loads(ours["config.json"]) | changed
        self.assertEqual(config, wanted)

    def test_exports_keep_what_came(self):
        """convert, and the chain SFT -> RM -> PPO with exports of the policy and the critic; the source is gone when the last export is made."""
        source = self.published("published")
        log = self.succeed("convert", "published", "converted").text
        self.assert_kept(source, self.folder / "converted", torch_dtype="bfloat16")
        self.assertIn("not copied: pytorch_model.bin (", log)
        self.assertIn("pytorch_model.bin.index.json (an index of weights that are not copied)", log)
        self.succeed("sft", "sft.toml", "model.path=published", "run.dir=chain-sft", "run.iterations=1", "ckpt.save_hf=end", ranks=2)
        log = (self.folder / "chain-sft" / "log.txt").read_text()
        self.assertEqual(log.count("not copied: pytorch_model.bin ("), 1)
        self.assert_kept(source, self.folder / "chain-sft" / "hf")
        self.succeed("rm", "rm.toml", "model.path=chain-sft/hf", "run.dir=chain-rm", "ckpt.save_hf=end")
        reward = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1, "value_head_prefix": "score"}
        config = json.loads((self.folder / "chain-rm" / "hf" / "config.json").read_text())
        self.assertLessEqual(reward.items(), config.items())
        self.assertEqual({key: config[key] for key in ("custom", "pretraining_tp")}, {"custom": {"x": [1, 2.5]}, "pretraining_tp": 1})
        self.assertEqual((self.folder / "chain-rm" / "hf" / "LICENSE").read_text(), "MIT")
        moving = self.folder / "moving"
        shutil.copytree(self.folder / "chain-sft" / "hf", moving)
        plug = self.folder / "plug.py"  # removes the policy's folder in the first iteration
        plug.write_text("import json, shutil, sys\nfor line in sys.stdin:\n    shutil.rmtree('moving', ignore_errors=True)\n"
                        "    print(json.dumps({'id': json.loads(line)['id'], 'reward': 1}), flush=True)\n")
        deck = (self.folder / "ppo.toml").read_text() + '[[reward.source]]\nkind = "model"\nname = "judge"\npath = "chain-rm/hf"\n' \
            '[[reward.source]]\nkind = "plugin"\nname = "plug"\ncommand = ["python3", "plug.py"]\n'
        (self.folder / "chain.toml").write_text(deck)
        self.succeed("ppo", "chain.toml", "model.path=moving", "run.dir=chain-ppo", "run.iterations=1", "ckpt.save_hf=end",
                     "critic.save_value_network=true", ranks=2)
        self.assertFalse(moving.exists())
        self.assert_kept(self.folder / "chain-sft" / "hf", self.folder / "chain-ppo" / "hf")
        critic = json.loads((self.folder / "chain-ppo" / "hf-critic" / "config.json").read_text())
        self.assertLessEqual(reward.items(), critic.items())
        self.assertEqual(critic["custom"], {"x": [1, 2.5]})
        # A checkpoint of the run, by --model-config since the policy's folder is gone.
        self.succeed("convert", "chain-ppo", "chain-converted", "--model-config", "published", "--dtype", "fp32")
        self.assert_kept(source, self.folder / "chain-converted")

    def test_an_export_that_cannot_be_written_ends_with_74(self):
        """A folder stands where a small file goes: the run is done, the export is not."""
        self.published("blocked")
        (self.folder / "blocked-run" / "hf" / "LICENSE").mkdir(parents=True)
        (self.folder / "blocked-run" / "hf" / "LICENSE" / "x").write_text("")
        result = self.succeed("sft", "sft.toml", "model.path=blocked", "run.dir=blocked-run", "run.iterations=1", "ckpt.save_hf=end", code=IO_ERROR)
        self.assertIn("what the export keeps of the model cannot be written", result.text)


if __name__ == "__main__":
    main()

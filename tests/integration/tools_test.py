#!/usr/bin/env python3
"""The tools: generate, score, tokenize, inspect, convert, and the trace of a run."""

import contextlib
import fcntl
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time

from trireme_run import PATIENCE, PROGRAM, Job, ProgramTest, child_environment, main, read_lines, read_safetensors, write_lines


class Tools(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        prompts = [{"prompt": f"{i}+{(7 * i) % 100}="} for i in range(98)]
        prompts.append({"messages": [{"role": "user", "content": "What is 1+1?"}]})
        prompts.append({"input_ids": [10, 20, 30]})
        write_lines(cls.folder / "hundred.jsonl", prompts)
        result = cls.run_program("ppo", "ppo.toml", "run.dir=run", "ckpt.save_hf=end", "run.iterations=5", ranks=2)
        if result.code:
            raise RuntimeError(result.text)

    def test_exports_with_every_checkpoint_and_of_the_critic(self):
        """Those of the checkpoints that are there, and those of the end; also for a start that goes on with the checkpoints in the run folder itself."""
        def go(iterations):
            self.succeed("ppo", "ppo.toml", "run.dir=exports", "ckpt.path=exports", f"run.iterations={iterations}", "ckpt.interval=1",
                         "ckpt.save_hf=checkpoint", "ckpt.keep=2", "critic.save_value_network=true", ranks=2)
            return sorted(path.name for path in (self.folder / "exports").glob("hf*"))

        self.assertEqual(go(3), ["hf", "hf-critic", "hf-step-000002", "hf-step-000002-critic"])
        for folder in ("hf-step-000002", "hf-step-000002-critic", "hf", "hf-critic"):
            listing = self.succeed("inspect", f"exports/{folder}").text
            self.assertEqual("score.weight" in listing, folder.endswith("critic"), listing)
        self.assertEqual(go(5), ["hf", "hf-critic", "hf-step-000004", "hf-step-000004-critic"])
        self.assertEqual(sorted(path.name for path in (self.folder / "exports").glob("step-*")), ["step-000004", "step-000005"])
        self.assertEqual(list((self.folder / "exports").glob(".*.tmp")), [])

    def generate(self, output, *options, ranks=1):
        self.succeed("generate", "--model", "model", "--input", "hundred.jsonl", "--output", output, "--max-new-tokens", "8",
                     "--seed", "5", "--dtype", "fp32", *options, ranks=ranks)
        return read_lines(self.folder / output)

    def test_generate(self):
        options = ["--n", "2", "--temperature", "1", "--log-probs"]
        lines = self.generate("out-1.jsonl", *options)
        self.assertEqual(sorted((line["index"], line["sample"]) for line in lines), [(i, s) for i in range(100) for s in (0, 1)])
        for line in lines:
            self.assertEqual(set(line), {"index", "sample", "text", "output_ids", "finish_reason", "log_probs"})
            self.assertTrue(1 <= len(line["output_ids"]) <= 8)
            self.assertEqual(len(line["log_probs"]), len(line["output_ids"]))
            self.assertIn(line["finish_reason"], ("stop", "length"))
            self.assertTrue(all(value <= 0 for value in line["log_probs"]))
        by_place = lambda answers: sorted(answers, key=lambda a: (a["index"], a["sample"]))
        for ranks in (2, 3):
            again = self.generate(f"out-{ranks}.jsonl", *options, ranks=ranks)
            self.assertEqual(by_place(again), by_place(lines), f"{ranks} replicas give the same texts")

    def test_generate_stops(self):
        """Special tokens as texts, token ids, and the least number of tokens before either; on one rank and on a replica of two."""
        def answers(output, *options, ranks=1):
            self.succeed("generate", "--model", "model", "--input", "hundred.jsonl", "--output", output, "--max-new-tokens", "40", "--n", "4",
                         "--seed", "5", "--dtype", "fp32", "--ignore-eos", *options, ranks=ranks)
            return read_lines(self.folder / output)

        pad, ends = 256, set(range(0, 272, 3))
        free = answers("unstopped.jsonl")
        self.assertTrue(any(pad in line["output_ids"] for line in free))
        for ranks in (1, 2):
            more = ["--tp", str(ranks)]
            stopped = answers(f"stopped-{ranks}.jsonl", "--stop", "<|pad|>", *more, ranks=ranks)
            self.assertTrue(any(line["output_ids"][-1] == pad for line in stopped))
            for line in stopped:
                self.assertNotIn(pad, line["output_ids"][:-1])
                self.assertEqual(line["finish_reason"] == "stop", line["output_ids"][-1] == pad)
            for least in (0, 7):
                lines = answers(f"ids-{ranks}-{least}.jsonl", "--stop-token-ids", ",".join(map(str, sorted(ends))), "--min-new-tokens", str(least),
                                *more, ranks=ranks)
                lengths = {len(line["output_ids"]) for line in lines}
                self.assertEqual(min(lengths), least + 1, "the first end token may be the next one")
                for line in lines:
                    self.assertFalse(ends & set(line["output_ids"][:-1]))

    def test_generate_with_tensor_parallel_ranks(self):
        """Greedy, three groups of heads on two ranks; log-probs agree to fp32 rounding."""
        options = ["--temperature", "0", "--log-probs"]
        alone = {line["index"]: line for line in self.generate("greedy-1.jsonl", *options)}
        together = {line["index"]: line for line in self.generate("greedy-2.jsonl", *options, "--tp", "2", ranks=2)}
        self.assertEqual(alone.keys(), together.keys())
        different = [i for i in alone if alone[i]["output_ids"] != together[i]["output_ids"]]
        self.assertLessEqual(len(different), 1)
        for i in alone.keys() - set(different):
            for a, b in zip(alone[i]["log_probs"], together[i]["log_probs"], strict=True):
                self.assertTrue(math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5), (i, a, b))

    def test_generate_streams_to_standard_output(self):
        result = self.succeed("generate", "--model", "model", "--input", "hundred.jsonl", "--output", "-", "--max-new-tokens", "4",
                              "--temperature", "0")
        self.assertEqual(len([json.loads(line) for line in result.out.splitlines()]), 100)

    def test_generate_goes_on_where_it_was_killed(self):
        """Killed on two ranks in the middle, the last line torn: three ranks add what is missing, nothing twice, the same texts."""
        options = ["generate", "--model", "model", "--input", "hundred.jsonl", "--n", "2", "--max-new-tokens", "64", "--seed", "5", "--dtype", "fp32",
                   "--ignore-eos", "--output"]
        self.succeed(*options, "whole.jsonl")
        want = {(line["index"], line["sample"]): line for line in read_lines(self.folder / "whole.jsonl")}
        partial, job = self.folder / "killed.jsonl.partial", self.folder / "killed.jsonl.job"
        killed = Job([*options, "killed.jsonl", "--max-batch", "1"], self.folder, ranks=2)
        end = time.monotonic() + PATIENCE
        while not partial.exists() or partial.read_bytes().count(b"\n") < 8:
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(killed.process.poll(), "it is still at work")
            time.sleep(0.002)
        for process in pathlib.Path("/proc").glob("[0-9]*"):  # a launcher gives its ranks process groups of their own
            with contextlib.suppress(OSError):
                if b"killed.jsonl" in (process / "cmdline").read_bytes() and (process / "cwd").readlink() == self.folder:
                    os.kill(int(process.name), signal.SIGKILL)
        killed.wait()
        with open(partial, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the last of them is gone
        self.assertFalse((self.folder / "killed.jsonl").exists())
        os.truncate(partial, partial.stat().st_size - 9)
        kept = partial.read_bytes().count(b"\n")
        self.refuse_options(options, "killed.jsonl", "temperature: 1 -> 0.5", "--temperature", "0.5")
        again = self.succeed(*options, "killed.jsonl", ranks=3)
        self.assertIn(f"goes on behind {kept} of 200 answers", again.text)
        self.assertIn("bytes behind the last whole line are dropped", again.text)
        self.assertRegex(again.text, rf"100 prompts, 200 answers \({kept} of them by earlier runs\), {(200 - kept) * 64} tokens in .* tokens/s; .* % full")
        lines = read_lines(self.folder / "killed.jsonl")
        self.assertEqual(len(lines), 200)
        self.assertEqual({(line["index"], line["sample"]): line for line in lines}, want)
        self.assertFalse(partial.exists() or job.exists())

    def refuse_options(self, options, output, message, *changes):
        result = self.run_program(*options, output, *changes)
        self.assertEqual(result.code, 78, result.text)
        self.assertIn(message, result.text)

    def test_generate_with_biases(self):
        options = ["generate", "--model", "model", "--input", "hundred.jsonl", "--max-new-tokens", "3", "--ignore-eos", "--dtype", "fp32", "--output"]
        self.succeed(*options, "sevens.jsonl", "--logit-bias", "text:7=100", "--log-probs")
        sevens = read_lines(self.folder / "sevens.jsonl")
        self.assertEqual({line["text"] for line in sevens}, {"777"})
        self.assertTrue(all(value < -2 for line in sevens for value in line["log_probs"]), "they stay those of the model")
        self.refuse_options(options, "none.jsonl", '"7=much": write', "--logit-bias", "7=much")
        self.refuse_options(options, "none.jsonl", 'the text "77" is 2 tokens', "--logit-bias", "text:77=1")

    def test_generate_with_guesses(self):
        """The same answers and log-probs, in fewer steps; on a replica of two ranks as well."""
        biases = [f"--logit-bias=text:{digit}=30" for digit in "17"]  # what stood there before comes again
        write_lines(self.folder / "five.jsonl", [{"prompt": f"{i}+{7 * i}="} for i in range(5)])
        options = ["generate", "--model", "model", "--input", "five.jsonl", "--max-new-tokens", "24", "--max-batch", "3", "--ignore-eos",
                   "--log-probs", "--seed", "5", *biases]
        for dtype, ranks in (("fp32", 1), ("bf16", 1), ("fp32", 2)):
            with self.subTest(dtype=dtype, ranks=ranks):
                name = f"{dtype}-{ranks}.jsonl"
                layout = ["--dtype", dtype, "--tp", str(ranks), "--output"]
                plain = self.succeed(*options, *layout, "plain-" + name, ranks=ranks)
                self.assertNotIn("guessed", plain.text)
                guessed = self.succeed(*options, "--speculation-tokens", "5", *layout, "guessed-" + name, ranks=ranks)
                accepted, proposed = map(int, re.search(r"(\d+) of (\d+) guessed tokens accepted", guessed.text).groups())
                self.assertTrue(0 < accepted < proposed, guessed.text)
                lines = [sorted(read_lines(self.folder / (kind + name)), key=lambda line: line["index"]) for kind in ("plain-", "guessed-")]
                self.assertEqual(lines[0], lines[1])
        refused = self.run_program(*options, "--speculation-tokens", "5", "--backend", "torch", "--output", "none.jsonl")
        self.assertEqual(refused.code, 78, refused.text)
        self.assertIn("need the fused generation kernels", refused.text)

    def test_generate_with_weights_in_8_bits(self):
        """Other log-probs than the model's, a little; the same whatever the batch."""
        options = ["generate", "--model", "model", "--input", "hundred.jsonl", "--max-new-tokens", "5", "--ignore-eos", "--log-probs", "--dtype", "bf16"]
        lines = {}
        for name, more in (("model", []), ("alone", ["--weights", "int8", "--max-batch", "1"]), ("together", ["--weights", "int8"])):
            self.succeed(*options, *more, "--output", name + ".jsonl")
            lines[name] = sorted(read_lines(self.folder / (name + ".jsonl")), key=lambda line: line["index"])
        self.assertEqual(lines["alone"], lines["together"])
        distances = [abs(a["log_probs"][0] - b["log_probs"][0]) for a, b in zip(lines["model"], lines["together"]) if a["output_ids"][0] == b["output_ids"][0]]
        self.assertGreater(len(distances), 50)
        self.assertTrue(0 < max(distances) < 0.2, distances)
        self.refuse_options([*options, "--output"], "none.jsonl", "are for the fused generation kernels", "--weights", "int8", "--backend", "torch")

    def test_generate_takes_any_number_of_prompts(self):
        """Thirty times as many prompts need no more memory."""
        peaks = []
        for count in (200, 6000):
            write_lines(self.folder / "many.jsonl", [{"prompt": "the same beginning " * 11 + f" {i}+{i % 7}="} for i in range(count)])
            child = subprocess.Popen([PROGRAM, "generate", "--model", "model", "--input", "many.jsonl", "--output", f"many-{count}.jsonl",
                                      "--max-new-tokens", "1", "--dtype", "fp32"], cwd=self.folder, env=child_environment(),
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(child.returncode, 0)
            self.assertEqual(len(read_lines(self.folder / f"many-{count}.jsonl")), count)
            peaks.append(usage.ru_maxrss)  # KiB
        self.assertLess(peaks[1] - peaks[0], 6 * 1024, peaks)

    def test_score_agrees_with_generate(self):
        """Greedy answers scored as ids: their log-probs are those that the generator gave."""
        answers = [line for line in self.generate("for-score.jsonl", "--temperature", "0", "--log-probs") if line["index"] == 99]
        write_lines(self.folder / "scored-in.jsonl", [{"input_ids": [10, 20, 30] + answers[0]["output_ids"]}, {"text": "1+1=2"}])
        for ranks in (1, 2):
            output = f"scored-{ranks}.jsonl"
            self.succeed("score", "--model", "model", "--input", "scored-in.jsonl", "--output", output, "--dtype", "fp32", ranks=ranks)
            first, second = sorted(read_lines(self.folder / output), key=lambda line: line["index"])
            self.assertEqual(len(first["log_probs"]), 2 + len(answers[0]["output_ids"]), "one for each token after the first")
            for scored, sampled in zip(first["log_probs"][2:], answers[0]["log_probs"], strict=True):
                self.assertTrue(math.isclose(scored, sampled, abs_tol=1e-5), (scored, sampled))
            self.assertTrue(second["log_probs"])
            self.assertTrue(all(value <= 0 for value in second["log_probs"]))

    def test_tokenize_round_trip(self):
        texts = ["1+1=2", "naïve café", "日本語 🚀", " two  spaces \n\ttab", "<|eos|> inside"]
        write_lines(self.folder / "texts.jsonl", [{"text": text} for text in texts])
        self.succeed("tokenize", "--model", "model", "--input", "texts.jsonl", "--output", "ids.jsonl")
        self.succeed("tokenize", "--model", "model", "--decode", "--input", "ids.jsonl", "--output", "back.jsonl")
        # Encoding adds the begin token, as HF's tokenizer(text) does; decoding shows it.
        self.assertEqual([line["text"] for line in read_lines(self.folder / "back.jsonl")], ["<|bos|>" + text for text in texts])
        for line in read_lines(self.folder / "ids.jsonl"):
            self.assertTrue(line["ids"] and all(0 <= i < 272 for i in line["ids"]), line)

    def test_tokenize_chat(self):
        write_lines(self.folder / "chat.jsonl", [{"messages": [{"role": "user", "content": "hi"}]}])
        self.succeed("tokenize", "--model", "model", "--chat", "--input", "chat.jsonl", "--output", "chat-out.jsonl")
        (line,) = read_lines(self.folder / "chat-out.jsonl")
        self.assertIn("hi", line["text"])
        self.assertTrue(line["ids"])

    def test_what_tokenize_says_to_templates_and_texts(self):
        """The options of the tools that the deck has as keys of [data]; which texts come of it the unit tests know."""
        shutil.copytree(self.folder / "model", self.folder / "dated")
        (self.folder / "dated" / "chat_template.jinja").write_text(
            "{{ strftime_now('%d %b %Y') }}|{{ x }}|{% for t in tools %}{{ t.name }}{% endfor %}|{% for m in messages %}{{ m.content }}.{% endfor %}")
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "It is"}]
        write_lines(self.folder / "chat.jsonl", [{"prompt": messages, "tools": [{"name": "f"}]}])
        command = ["tokenize", "--model", "dated", "--chat", "--input", "chat.jsonl", "--output", "-"]
        result = self.succeed(*command, "--date", "2020-01-02", "--chat-template-kwargs", '{"x": 1}')
        self.assertEqual(json.loads(result.out)["text"], "02 Jan 2020|1|f|hi.It is")
        for wrong in (["--date", "yesterday"], ["--chat-template-kwargs", "[]"], ["--chat-template-kwargs", '{"messages": 1}']):
            self.succeed(*command, *wrong, code=64)
        write_lines(self.folder / "rendered.jsonl", [{"text": "<|bos|>1"}])
        command = ["tokenize", "--model", "model", "--input", "rendered.jsonl", "--output", "-"]
        self.assertEqual(json.loads(self.succeed(*command).out)["ids"], [257, 49])
        self.assertEqual(json.loads(self.succeed(*command, "--special-tokens", "always").out)["ids"], [257, 257, 49])

    def test_tokenize_with_hostile_templates(self):
        """A chat template comes with a stranger's model: refused soon, in little memory, by the exit code of bad data."""
        write_lines(self.folder / "chat.jsonl", [{"messages": [{"role": "user", "content": "hi"}]}])
        twice = "{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
        mebibyte = "{% for i in range(20) %}{% set ns.l = ns.l + ns.l %}{% endfor %}"
        hostile = {
            "cycle": "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}",
            "chain": "{{ 1" + "+1" * 100_000 + " }}",
            "depth": "{% set ns = namespace(l=1) %}" + "{% for i in range(1000) %}" * 2 + "{% set ns.l = [ns.l] %}" + "{% endfor %}" * 2,
            "shared": "{% set ns = namespace(l=1) %}" + twice + "{{ ns.l | tojson }}",
            "text": "{% set ns = namespace(l='a') %}" + mebibyte + "{{ ns.l | replace('a', ns.l) }}",
        }
        for name, template in hostile.items():
            with self.subTest(name):
                shutil.copytree(self.folder / "model", self.folder / name)
                (self.folder / name / "chat_template.jinja").write_text(template)
                command = [PROGRAM, "tokenize", "--model", name, "--chat", "--input", "chat.jsonl", "--output", "hostile-out.jsonl"]
                limited = lambda: resource.setrlimit(resource.RLIMIT_AS, (4_000_000 << 10, 4_000_000 << 10))
                result = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=300, preexec_fn=limited,
                                        env=child_environment())
                self.assertEqual(result.returncode, 65, result.stdout + result.stderr)
                self.assertIn("chat_template.jinja: chat template, line 1, column ", result.stderr)

    def test_inspect(self):
        text = self.succeed("inspect", "run", "--verify").out
        self.assertIn("step-000005", text)
        self.assertRegex(text, r"/actor/weight/model\.embed_tokens\.weight\s+272 x 64\s+f32")
        self.assertIn("/critic/weight/score.weight", text)
        self.assertIn("model.norm.weight", self.succeed("inspect", "model").out)
        self.assertIn("model.norm.weight", self.succeed("inspect", "model/model.safetensors").out)
        self.assertIn("rollout", self.succeed("inspect", "run/trace.json").out)

    def test_converted_checkpoint_is_the_export(self):
        self.succeed("convert", "run", "converted", "--dtype", "fp32")
        exported = read_safetensors(self.folder / "run" / "hf" / "model.safetensors")
        self.assertEqual(read_safetensors(self.folder / "converted" / "model.safetensors"), exported)
        self.assertEqual(len(exported), 20)
        self.assertNotEqual(exported, read_safetensors(self.folder / "model" / "model.safetensors"), "training changed something")
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            self.assertTrue((self.folder / "converted" / name).is_file(), name)
        # The export starts another run, and gives the same answers as the checkpoint.
        self.succeed("convert", "run/hf", "again", "--dtype", "fp32")
        self.assertEqual(read_safetensors(self.folder / "again" / "model.safetensors"), exported)

    def test_damaged_checkpoint_is_found(self):
        run = self.folder / "damaged"
        self.succeed("ppo", "ppo.toml", "run.dir=damaged", "run.iterations=1")
        data = run / "ckpt" / "step-000001" / "data.h5"
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
        result = self.run_program("inspect", "damaged", "--verify")
        self.assertEqual(result.code, 65, result.text)
        self.assertIn("data.h5", result.text)

    def events(self, run):
        trace = json.loads((self.folder / run / "trace.json").read_text())
        return trace if isinstance(trace, list) else trace["traceEvents"]

    def test_trace(self):
        """All ranks on one clock, slices nested, and top-level phases of the main thread cover its time."""
        events = self.events("run")
        names = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"]
        self.assertEqual(len(names), 2)
        for rank in (0, 1):
            slices = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
            threads = {e["tid"] for e in slices}
            for thread in threads:
                self.assert_nested([e for e in slices if e["tid"] == thread])
            main_thread = [e for e in slices if e["tid"] == min(threads)]
            phases = {e["name"] for e in main_thread if e["cat"] == "phase"}
            self.assertLessEqual({"start", "rollout", "reward", "exchange", "train", "sync", "report", "checkpoint", "export"}, phases)
            share = self.covered_by_phases(main_thread)
            print(f"\n    rank {rank}: phases cover {100 * share:.2f} % of the time", flush=True)
            self.assertGreater(share, 0.98)
        begins = [min(e["ts"] for e in events if e["ph"] == "X" and e["pid"] == rank and e["name"] == "train") for rank in (0, 1)]
        duration = max(e["dur"] for e in events if e["ph"] == "X" and e["name"] == "iteration")
        self.assertLess(abs(begins[0] - begins[1]), duration, "one clock: ranks train at the same time")

    def assert_nested(self, slices):
        open_until = []
        for e in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
            end = e["ts"] + e["dur"]
            while open_until and open_until[-1] <= e["ts"] + 1e-6:
                open_until.pop()
            if open_until:
                self.assertLessEqual(end, open_until[-1] + 1e-3, e)
            open_until.append(end)

    @staticmethod
    def covered_by_phases(slices):
        """Share of the time from the first slice to the last. Between two phases counts what there was at the least between two of these names: a
        process may lose its core anywhere."""
        begin = min(e["ts"] for e in slices)
        end = max(e["ts"] + e["dur"] for e in slices)
        gaps, until, before = {}, begin, "begin"
        for e in sorted((e for e in slices if e["cat"] == "phase"), key=lambda e: e["ts"]):
            gaps.setdefault((before, e["name"]), []).append(max(0.0, e["ts"] - until))
            if e["ts"] + e["dur"] > until:
                until, before = e["ts"] + e["dur"], e["name"]
        gaps["end"] = [end - until]
        return 1 - sum(min(each) * len(each) for each in gaps.values()) / (end - begin)

    def test_help_and_version(self):
        version = self.succeed("--version", env={"LD_DEBUG": "libs"})
        config = self.succeed("--config", env={"LD_DEBUG": "libs"})
        self.assertEqual(version.out, config.out.splitlines(keepends=True)[0])
        self.assertRegex(config.err, "calling init: .*libtorch_cpu")
        self.assertNotIn("calling init", version.err.replace("calling preinit", ""), "it answers before libraries begin")
        self.assertEqual(version.out, self.succeed("--version", env={"PMI_RANK": "0"}).out)
        self.assertEqual("", self.succeed("--version", env={"PMI_RANK": "1"}).out)
        listed = self.succeed("--help").out
        for command in ("ppo", "sft", "generate", "score", "tokenize", "init", "convert", "inspect"):
            self.assertIn(command, listed)
            self.assertIn("--help", self.succeed(command, "--help").out)


if __name__ == "__main__":
    main()

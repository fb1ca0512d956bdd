#!/usr/bin/env python3
"""Commands of the documents as they are written, in a folder with what they name: those that tests/documented.json gives to this test.

They run in the order of a reader: the tutorials first. In place of the words of COPIES stand things of a newcomer's machine; training ends after two iterations."""

import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import unittest

from trireme_run import MPI_FLAGS, PROGRAM, ROOT, ProgramTest, child_environment, main, write_lines

LISTED = json.loads((ROOT / "tests/documented.json").read_text())
PAGES = ["README.md", "docs/user/tutorials.md", "docs/user/run.md"]  # then all others
# A tiny model with room for the lengths that documents ask for.
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 640, "max_position_embeddings": 1100, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "tie_word_embeddings": True, "initializer_range": 0.05, "torch_dtype": "float32"}
# Names of a reader's machine, and what there is here.
COPIES = {"/models/my-llama": "DIR", "/models/my-sft-model": "DIR", "/models/Qwen2.5-0.5B-Instruct": "DIR", "/scratch/me": ".", "step-000010": "step-000002",
          "[--reward-model DIR]": "", "[--decode | --chat]": ""}
FITS, NEEDS_MORE_MEMORY = 0, 78
WRAPPER = """#!/bin/bash
# Two iterations of what trains, whatever the command says.
arguments=()
for word in "$@"; do [[ $word = run.iterations=* ]] || arguments+=("$word"); done
case "$*" in
  *--dry-run*) ;;
  sft*|rm*|dpo*|ppo*) arguments+=(run.iterations=2) ;;
esac
exec {program} "${{arguments[@]}}"
"""


class Documented(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.folder
        for name in ("inputs", "docs"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "build/release").mkdir(parents=True)
        (folder / "bin").mkdir()
        program = folder / "build/release/trireme"
        program.write_text(WRAPPER.format(program=PROGRAM))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        (folder / "bin/trireme").symlink_to(program)
        (folder / "shape/config.json").write_text(json.dumps(SHAPE))
        made = cls.run_program("init", "--shape", "shape", "--output", "DIR", "--tokenizer", ROOT / "inputs/tutorial/tokenizer", "--dtype", "fp32")
        assert made.code == 0, made.text
        (folder / "deck.toml").write_text((folder / "ppo.toml").read_text())
        write_lines(folder / "texts.jsonl", [{"text": "1+2="}])
        write_lines(folder / "chats.jsonl", [{"prompt": "1+2=", "response": "3"}])
        sums = [{"prompt": f"{i}+{i}=", "label": str(2 * i)} for i in range(1, 9)]
        shutil.copy(ROOT / "inputs/plugins/reward.py", folder / "my_reward.py")
        for name in ("prompts.jsonl", "held-out.jsonl", "my_prompts.jsonl"):
            write_lines(folder / name, sums)
        pair = {"chosen": "\n\nHuman: 1+1?\n\nAssistant: 2", "rejected": "\n\nHuman: 1+1?\n\nAssistant: 11"}
        for name in ("hh-train.jsonl", "hh-test.jsonl"):
            write_lines(folder / name, [pair] * 64)
        for name, text in re.findall(r"```toml\n# ([\w-]+\.toml)\n(.*?)```", (ROOT / "docs/user/recipes.md").read_text(), re.DOTALL):
            (folder / name).write_text(cls.here(text).replace('device = "cuda"', 'device = "cpu"'))

    @staticmethod
    def here(text):
        for name, copy in COPIES.items():
            text = text.replace(name, copy)
        return text

    def prepare(self, command):
        """What a page has its reader do by hand before this command."""
        if "runs/mine/hf" in command and not (self.folder / "runs/mine").exists():
            shutil.copytree(self.folder / "runs/tiny-sft", self.folder / "runs/mine")
            (self.folder / "models").mkdir(exist_ok=True)
            shutil.copytree(self.folder / "runs/tiny-rm/hf", self.folder / "models/my-reward-model")
        if " score " in command:
            write_lines(self.folder / "answers.jsonl", [{"prompt": "1+2=", "response": "3"}])
        for output in re.findall(r"--output (\S+\.jsonl)", command):  # another page's, of another job
            for path in self.folder.glob(output + "*"):
                path.unlink()

    def test_every_command(self):
        environment = child_environment({
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_hwloc_base_binding_policy": "none"} if any("oversubscribe" in flag for flag in MPI_FLAGS) else {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"})
        ran = set()  # a deck names the command of a page again
        for page in [*PAGES, *(name for name in LISTED if name not in PAGES)]:
            for command, test in LISTED[page].items():
                if test != "integration/documented" or command in ran:
                    continue
                ours = self.here(command)
                self.prepare(ours)
                done = subprocess.run(["bash", "-c", ours], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
                codes = (FITS, NEEDS_MORE_MEMORY) if "trireme plan" in command else (0,)
                self.assertIn(done.returncode, codes, f"{page}: {command}\nrun as: {ours}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
                ran.add(command)
                if command.startswith("mpirun") and "iteration 1/2" in done.stdout:
                    self.assertLessEqual(done.stdout.split("iteration 1/2")[0].count("\n"), 12, f"the start of {command} takes more than 12 lines\n{done.stdout}")
        self.assertGreater(len(ran), 25)


if __name__ == "__main__":
    main()

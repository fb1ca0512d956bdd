#!/usr/bin/env python3
"""Twenty steps of sft, of GRPO and of a reward model on a small random model of each family: they learn, and a run that crashes in its tenth checkpoint and
is started again ends with the bits of the one that nobody disturbed. Where the model has several KV heads two ranks generate as one replica."""

import json
import shutil

from trireme_run import ENDS_AT_ONCE, PROMPTS, ROOT, ProgramTest, main, read_safetensors, timeless, write_lines

LOCKED = 73
# Two layers of sizes that every family takes; the family's own keys beside them.
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 272,
         "max_position_embeddings": 128, "initializer_range": 0.2, "bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 256, "torch_dtype": "float32"}
FAMILIES = {
    "Llama": {"mlp_bias": True},
    "Mistral": {"sliding_window": 8},                                                  # windows of all layers
    "Qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},  # biases
    "Qwen3": {"head_dim": 16},                                                         # norms of heads of q and k
    "SmolLM3": {"no_rope_layers": [1, 0]},
    "Granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.6, "attention_multiplier": 0.4, "logits_scaling": 0.7},
    "Olmo2": {},                                                                       # norms of whole rows, behind
    "Ministral3": {"head_dim": 8, "sliding_window": 40, "rope_parameters": {           # queries scaled by their position
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 8.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.2}},
    "Gemma2": {"head_dim": 8, "sliding_window": 8, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 20},
    "Glm": {"head_dim": 20, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "Gemma3": {"head_dim": 8, "sliding_window": 8, "sliding_window_pattern": 2},       # two rotations, (1 + w) norms, GeGLU, some windows
    "Phi3": {"sliding_window": 8, "partial_rotary_factor": 0.5},                       # fused weights, windows of all layers
    "Cohere2": {"sliding_window": 8, "sliding_window_pattern": 2, "logit_scale": 1.0},  # a parallel block, centred norms
    "Apertus": {},                                                                     # xIELU
    "Glm4": {"head_dim": 8},                                                           # four norms, neighbours in pairs
    "Olmo3": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},  # two rotations
}
ONE_RANK = {"Olmo2", "Olmo3"}  # refuse tensor parallelism
SFT = """
[run]
dir = "{run}"
iterations = 20
seed = 3
[model]
path = "{model}"
dtype = "fp32"
[data]
dataset = ["examples.jsonl"]
max_len = 48
[train]
batch_size = 4
[actor]
adam.lr = 1e-2
[ckpt]
interval = 10
background = false
"""
RM = SFT.replace("examples.jsonl", "pairs.jsonl").replace("adam.lr = 1e-2", "adam.lr = 5e-3")
GRPO = """
[run]
dir = "{run}"
iterations = 20
seed = 3
[model]
path = "{model}"
dtype = "fp32"
[data]
prompt_dataset = ["prompts.jsonl"]
max_len = 48
[rollout]
batch_size = 4
n_samples_per_prompt = 8
max_new_tokens = 6
save_samples = -1
[generate]
tensor_parallel = {degree}
[[reward.source]]
kind = "rule"
rule = "regex"
pattern = "^[a-zA-Z0-9]"
[algo]
advantage.estimator = "group_norm"
[actor]
lr_scheduler = "constant_with_warmup"
adam.lr = 2e-2
[train]
batch_size = 32
[ckpt]
interval = 10
background = false
"""


class FamilyRuns(ProgramTest):
    environment = ENDS_AT_ONCE

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_lines(cls.folder / "pairs.jsonl", [{"prompt": text, "chosen": f"{i}.", "rejected": f"{9 - i}?"} for i, text in enumerate(PROMPTS)])
        for name, keys in FAMILIES.items():
            shape = cls.folder / f"shape-{name}"
            shape.mkdir()
            (shape / "config.json").write_text(json.dumps({"architectures": [f"{name}ForCausalLM"]} | SIZES | keys))
            made = cls.run_program("init", "--shape", shape, "--output", name, "--tokenizer", ROOT / "inputs" / "tutorial" / "tokenizer", "--dtype", "fp32")
            if made.code:
                raise RuntimeError(made.text)

    def restart_until_free(self, *arguments, ranks):
        """mpirun may return before the ranks that it ends are gone; until then the folder is rightly locked."""
        for _ in range(100):
            again = self.run_program(*arguments, ranks=ranks)
            if again.code != LOCKED:
                break
        self.assertEqual(again.code, 0, again.text)
        self.assertIn("resumed after iteration 10", again.text)

    def run_with_a_crash(self, command, deck, name, ranks=1, **values):
        """The metrics of twenty steps, with and without a crash the same; so are samples and the exported weights."""
        runs = [f"{command}-{name}", f"{command}-{name}-crashed"]
        for run in runs:
            (self.folder / f"{run}.toml").write_text(deck.format(run=run, model=name, **values))
        self.succeed(command, f"{runs[0]}.toml", ranks=ranks)
        self.run_program(command, f"{runs[1]}.toml", "fault.crash_at=ckpt.pruned", ranks=ranks)
        self.assertLess(len(self.metrics(runs[1])), 20)
        self.restart_until_free(command, f"{runs[1]}.toml", ranks=ranks)
        whole, crashed = (timeless(self.metrics(run)) for run in runs)
        self.assertEqual(crashed, whole)
        weights = [read_safetensors(self.folder / run / "hf" / "model.safetensors") for run in runs]
        self.assertEqual(weights[1], weights[0])
        if command == "ppo":
            self.assertEqual(self.samples(runs[1]), self.samples(runs[0]))
        for run in runs:
            shutil.rmtree(self.folder / run)
        return whole

    def test_sft(self):
        for name in FAMILIES:
            with self.subTest(family=name):
                losses = [line["loss"] for line in self.run_with_a_crash("sft", SFT, name)]
                self.assertLess(losses[-1], losses[0] / 2)

    def test_rm(self):
        for name in FAMILIES:
            with self.subTest(family=name):
                lines = self.run_with_a_crash("rm", RM, name)
                self.assertLess(sum(line["loss"] for line in lines[-5:]) / 5, 0.5, lines[-1])

    def test_grpo(self):
        for name in FAMILIES:
            with self.subTest(family=name):
                degree = 1 if name in ONE_RANK else 2
                rewards = [line["reward"] for line in self.run_with_a_crash("ppo", GRPO, name, ranks=degree, degree=degree)]
                self.assertGreater(sum(rewards[-5:]) / 5, sum(rewards[:5]) / 5 + 0.2, rewards)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Every architecture against transformers, on small random models that transformers itself writes: log-probs, greedy answers of both
generation engines, loss and gradient norm of a training step, what `convert` writes.

    architectures.py [NAME...] PROGRAM        NAME: a key of MODELS; none: all

Norm weights and biases are random too: at 1 and 0 they would hide a mix-up. Exit code 125 where the environment is missing.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

from compare import Program, enter_environment, reference_log_probs

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "inputs" / "tutorial" / "tokenizer"
SIZES = {"vocab_size": 272, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 80,
         "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "initializer_range": 0.15, "bos_token_id": 257, "eos_token_id": 258,
         "pad_token_id": 256}
MODELS = {
    "llama": ("LlamaConfig", {"attention_bias": True, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", {"sliding_window": 19, "head_dim": 12, "tie_word_embeddings": False}),
    "ministral3": ("Ministral3Config", {"head_dim": 12, "sliding_window": 50, "tie_word_embeddings": False, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 8.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.2}}),
    "qwen2": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1, "tie_word_embeddings": True}),
    "olmo3": ("Olmo3Config", {"attention_bias": True, "tie_word_embeddings": True, "sliding_window": 13, "layer_types": [
        "full_attention", "sliding_attention", "sliding_attention"], "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 64},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}}),
    "gemma2": ("Gemma2Config", {"head_dim": 12, "sliding_window": 9, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0,
                                "query_pre_attn_scalar": 20, "attention_bias": True}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 12, "sliding_window": 9, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
                                    "query_pre_attn_scalar": 20, "tie_word_embeddings": False}),
    "glm": ("GlmConfig", {"head_dim": 20, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "glm4": ("Glm4Config", {"head_dim": 12, "attention_bias": True, "tie_word_embeddings": True}),
    "phi3": ("Phi3Config", {"original_max_position_embeddings": 64, "tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75, "short_factor": [1.0, 1.1, 1.2], "long_factor": [1.5, 2.0, 3.0]}}),
    "cohere2": ("Cohere2Config", {"attention_bias": True, "sliding_window": 9, "layer_norm_eps": 1e-4, "logit_scale": 0.3, "layer_types": [
        "full_attention", "sliding_attention", "sliding_attention"]}),
    "apertus": ("ApertusConfig", {"attention_bias": True, "tie_word_embeddings": False}),
    "llama_dynamic": ("LlamaConfig", {"mlp_bias": True, "max_position_embeddings": 128, "rope_parameters": {
        "rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}),
    "smollm3": ("SmolLM3Config", {"no_rope_layers": [1, 0, 1], "tie_word_embeddings": True}),
    "granite": ("GraniteConfig", {"attention_bias": True, "tie_word_embeddings": True, "embedding_multiplier": 3.0, "residual_multiplier": 0.6,
                                  "attention_multiplier": 0.4, "logits_scaling": 0.7}),
    "olmo2": ("Olmo2Config", {"attention_bias": True, "tie_word_embeddings": False}),
    "qwen3": ("Qwen3Config", {"head_dim": 20, "attention_bias": True, "tie_word_embeddings": False}),
}
TOLERANCE = 1e-5  # fp32 log-probs of order 5
STEP = 1e-5       # relative: loss and gradient norm
PROMPTS = ["one and two", "x", "a longer prompt that says nothing", "1 + 2 = "]


def make_model(name, folder):
    import torch
    import transformers
    kind, options = MODELS[name]
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**{**SIZES, **options}), dtype=torch.float32,
                                                          attn_implementation="eager")  # the others leave soft caps out
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, folder)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def scores(program, model, hf, folder):
    import torch
    rows = [hf(text)["input_ids"] for text in PROMPTS if len(hf(text)["input_ids"]) > 1] + [[(7 * i * i) % 256 for i in range(n)] for n in (2, 40, 200)]
    ours = program.lines("score", [{"input_ids": row} for row in rows], "--model", folder, "--dtype", "fp32")
    with torch.no_grad():
        worst = max(abs(a - b) for row, answer in zip(rows, ours, strict=True)
                    for a, b in zip(answer["log_probs"], reference_log_probs(model, row), strict=True))
    print(f"log-probs: largest distance {worst:.1e}")
    return [] if worst <= TOLERANCE else [f"log-probs differ by {worst}"]


def answers(program, model, hf, folder):
    import torch
    differences = []
    for backend in ("fused", "torch"):
        ours = program.lines("generate", [{"prompt": text} for text in PROMPTS], "--model", folder, "--max-new-tokens", 24, "--temperature", 0,
                             "--dtype", "fp32", "--backend", backend)
        for text, answer in zip(PROMPTS, ours, strict=True):
            prompt = torch.tensor([hf(text)["input_ids"]])
            expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=24, pad_token_id=256)
            if answer["output_ids"] != expected[0, prompt.shape[1]:].tolist():
                differences.append(f"{backend}: {text!r} gives {answer['output_ids']} instead of {expected[0, prompt.shape[1]:].tolist()}")
    return differences


def training_step(program, model, hf, folder):
    """Loss and gradient norm of the first step, which are those of the weights as they were read."""
    import torch
    rows = [{"prompt": text, "response": " " + text[::-1]} for text in PROMPTS]
    data = program.folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    deck = program.folder / "deck.toml"
    deck.write_text("")
    program.run("sft", deck, f"run.dir={program.folder / 'run'}", "run.iterations=1", "run.device=cpu", f"model.path={folder}", f'data.dataset=["{data}"]',
                "data.shuffle=false", f"train.batch_size={len(rows)}", "model.dtype=fp32", "actor.max_norm=0", "ckpt.interval=0")
    found = json.loads((program.folder / "run" / "metrics.jsonl").read_text().splitlines()[0])
    total, tokens = 0.0, 0
    model.zero_grad()
    for row in rows:
        prompt = hf(row["prompt"])["input_ids"]
        ids = prompt + hf(row["response"], add_special_tokens=False)["input_ids"] + [hf.eos_token_id]
        logits = model(torch.tensor([ids])).logits[0, :-1]
        total = total - torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[len(prompt) - 1:].sum()
        tokens += len(ids) - len(prompt)
    loss = total / tokens
    loss.backward()
    norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
    differences = []
    for key, expected in (("loss", loss.item()), ("grad_norm", norm.item())):
        print(f"{key}: {found[key]} against {expected}")
        if abs(found[key] - expected) > STEP * abs(expected):
            differences.append(f"{key} = {found[key]} instead of {expected}")
    return differences


def export(program, model, hf, folder):
    import torch
    import transformers
    copy = program.folder / "copy"
    program.run("convert", folder, copy, "--dtype", "fp32")
    again = transformers.AutoModelForCausalLM.from_pretrained(copy, dtype=torch.float32, attn_implementation="eager").eval()
    differences = [f"export: {name} differs" for (name, a), b in zip(model.state_dict().items(), again.state_dict().values(), strict=True)
                   if not torch.equal(a, b)]
    ids = torch.tensor([hf(PROMPTS[2])["input_ids"]])
    with torch.no_grad():
        if type(again) is not type(model) or not torch.equal(model(ids).logits, again(ids).logits):
            differences.append("export: another model")
    return differences


def main():
    *names, program_path = sys.argv[1:]
    program_path = os.path.abspath(program_path)
    enter_environment(__file__)
    failed = False
    for name in names or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            program = Program(program_path, folder)
            target = pathlib.Path(folder) / "model"
            model, hf = make_model(name, target)
            differences = [f"{name}: {d}" for check in (scores, answers, training_step, export) for d in check(program, model, hf, target)]
        print("\n".join(differences) or f"{name}: equal to transformers", flush=True)
        failed = failed or bool(differences)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

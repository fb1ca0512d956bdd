#!/usr/bin/env python3
"""Model folders as people have them, against transformers: what an export keeps loads there to the same settings and templates; a tied model with
two heads, or with the head alone, has the same log-probs; weights of 8 bits with scales have torch's values.

    folders.py PROGRAM        exit code 125 where the environment is missing
"""

import json
import os
import pathlib
import sys
import tempfile

from architectures import TOLERANCE, make_model, scores
from compare import Program, enter_environment

GENERATION = {"eos_token_id": [258, 256], "do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
TEMPLATES = {"default": "{% for m in messages %}{{ m['content'] }}{% endfor %}", "tools": "{{ tools }}{{ messages[0]['content'] }}"}
CHAT = [{"role": "user", "content": "hi"}]


def published(folder):
    """A model with settings of its own, saved by transformers."""
    import transformers
    model, hf = make_model("llama", folder)
    hf.chat_template = TEMPLATES
    hf.save_pretrained(folder)
    model.generation_config.update(**GENERATION)
    model.generation_config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"custom_key": {"x": [1, 2.5]}}, indent=2))
    return transformers.AutoConfig.from_pretrained(folder)


def compare_settings(name, source, export, config, changed=()):
    """What transformers makes of both folders."""
    import transformers
    differences = []
    ours = transformers.AutoConfig.from_pretrained(export).to_dict()
    left = set(changed) | {"_name_or_path", "transformers_version"}
    for key, value in config.to_dict().items():
        if key not in left and ours.get(key) != value:
            differences.append(f"{name}: config {key} = {ours.get(key)} instead of {value}")
    generation = [transformers.GenerationConfig.from_pretrained(folder).to_dict() for folder in (source, export)]
    if generation[0] != generation[1]:
        differences.append(f"{name}: generation config {generation[1]} instead of {generation[0]}")
    tokenizers = [transformers.AutoTokenizer.from_pretrained(folder) for folder in (source, export)]
    for template in TEMPLATES:
        texts = [hf.apply_chat_template(CHAT, tools=None, chat_template=template, tokenize=False) for hf in tokenizers]
        if texts[0] != texts[1]:
            differences.append(f"{name}: chat template {template}: {texts[1]!r} instead of {texts[0]!r}")
    return differences


def train(program, command, model, *options):
    """One step; the folder of its export."""
    rows = [{"prompt": f"{i}+1=", "response": f"{i + 1}", "chosen": f"{i + 1}", "rejected": "?"} for i in range(4)]
    data, deck, run = program.folder / "rows.jsonl", program.folder / "deck.toml", program.folder / f"{command}-run"
    keep = {"sft": ("prompt", "response"), "rm": ("prompt", "chosen", "rejected")}[command]
    data.write_text("".join(json.dumps({key: row[key] for key in keep}) + "\n" for row in rows))
    deck.write_text("")
    program.run(command, deck, f"run.dir={run}", "run.iterations=1", "run.device=cpu", f"model.path={model}", f'data.dataset=["{data}"]', "train.batch_size=4",
                "model.dtype=fp32", "ckpt.interval=0", "ckpt.save_hf=end", *options)
    return run / "hf"


def exports(program):
    import transformers
    source = program.folder / "published"
    config = published(source)
    program.run("convert", source, program.folder / "copy", "--dtype", "fp32")
    tuned = train(program, "sft", source)
    reward = train(program, "rm", tuned)
    differences = compare_settings("convert", source, program.folder / "copy", config) + compare_settings("sft", source, tuned, config)
    differences += compare_settings("rm", source, reward, config, ("architectures", "num_labels", "id2label", "label2id", "value_head_prefix"))
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(reward, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"] or model.num_labels != 1:
        differences.append(f"rm: {info}, {model.num_labels} labels")
    if transformers.AutoModelForCausalLM.from_pretrained(tuned).generation_config.eos_token_id != GENERATION["eos_token_id"]:
        differences.append("sft: another generation config in the model")
    return differences


def heads(program):
    """As transformers reads the folder, and as it reads what `convert` makes of it."""
    import safetensors.torch
    import torch
    import transformers
    differences = []
    for name in ("two heads", "head alone"):
        folder = program.folder / name.replace(" ", "-")
        model, hf = make_model("llama", folder)
        tensors = {key: value.clone() for key, value in model.state_dict().items() if key != "lm_head.weight"}
        head = tensors["model.embed_tokens.weight"]
        if name == "two heads":
            tensors["lm_head.weight"] = head.flip(0).contiguous()
        else:
            tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        program.run("convert", folder, f"{folder}-copy", "--dtype", "fp32")
        for read in (folder, pathlib.Path(f"{folder}-copy")):
            theirs = transformers.AutoModelForCausalLM.from_pretrained(read, dtype=torch.float32).eval()
            stored = theirs.lm_head.weight.detach()
            if not torch.equal(stored, tensors["lm_head.weight"]):
                differences.append(f"{name}: transformers reads another head of {read.name}")
            differences += [f"{name}: {read.name}: {d}" for d in scores(program, theirs, hf, read)]
    return differences


def in_8_bits(tensors, scale_type, block):
    """As FineGrainedFP8Config stores them, and their values. `block`: rows and columns of a scale, or None."""
    import torch
    stored, values = {}, {}
    for name, tensor in tensors.items():
        stored[name] = values[name] = tensor
        if tensor.dim() != 2 or "_proj." not in name:
            continue
        rows, columns = tensor.shape
        each = block or (rows, columns)
        padded = torch.zeros(-(-rows // each[0]) * each[0], -(-columns // each[1]) * each[1])
        padded[:rows, :columns] = tensor
        blocks = padded.view(padded.shape[0] // each[0], each[0], -1, each[1])
        scale = (blocks.abs().amax((1, 3), keepdim=True) / 448).to(scale_type).clamp(min=2.0**-126 if scale_type == torch.float8_e8m0fnu else 1e-8)
        codes = (blocks / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored[name] = codes.reshape(padded.shape)[:rows, :columns].contiguous()
        values[name] = (codes.float() * scale.float()).reshape(padded.shape)[:rows, :columns].contiguous()
        stored[f"{name}_scale_inv"] = scale.reshape(scale.shape[0], -1) if block else scale.reshape(())
        stored[name.replace("weight", "activation_scale")] = torch.tensor(0.5, dtype=torch.bfloat16)
    return stored, values


def eight_bits(program):
    """Values and log-probs of checkpoints in fp8, and that what is made of them is an ordinary float model."""
    import safetensors.torch
    import torch
    import transformers
    differences = []
    for kind, scale_type, block in (("qwen3", torch.float32, (32, 16)), ("ministral3", torch.bfloat16, None), ("phi3", torch.bfloat16, (7, 48))):
        folder = program.folder / kind
        model, hf = make_model(kind, folder)
        stored, values = in_8_bits(safetensors.torch.load_file(folder / "model.safetensors"), scale_type, block)
        safetensors.torch.save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "static" if block is None else "dynamic", "weight_block_size": block}
        (folder / "config.json").write_text(json.dumps(config))
        copy = program.folder / f"{kind}-copy"
        program.run("convert", folder, copy, "--dtype", "fp32")
        if "quantization_config" in json.loads((copy / "config.json").read_text()):
            differences.append(f"{kind}: the export says that it is quantised")
        made = safetensors.torch.load_file(copy / "model.safetensors")
        differences += [f"{kind}: another {name}" for name, value in values.items() if not torch.equal(made[name], value)]
        theirs = transformers.AutoModelForCausalLM.from_pretrained(copy, dtype=torch.float32, attn_implementation="eager").eval()
        differences += [f"{kind}: {d}" for d in scores(program, theirs, hf, folder)]
        if kind != "qwen3":
            continue
        again = train(program, "sft", folder)
        if "quantization_config" in json.loads((again / "config.json").read_text()) or any("scale" in name for name in safetensors.torch.load_file(again / "model.safetensors")):
            differences.append(f"{kind}: training exports scales")
    return differences


def main():
    program_path = os.path.abspath(sys.argv[1])
    enter_environment(__file__)
    failed = False
    for case in (exports, heads, eight_bits):
        with tempfile.TemporaryDirectory() as folder:
            differences = case(Program(program_path, pathlib.Path(folder)))
        print("\n".join(differences) or f"{case.__name__}: as in transformers (log-probs within {TOLERANCE})", flush=True)
        failed = failed or bool(differences)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""What all peer scripts share: model shapes, arguments, the result as one JSON line on rank 0.

The peers are what people run today on the same LibTorch: FSDP2, Hugging Face generate, gloo collectives, torch.save and DCP. They run in
the virtual environment of the comparison tests (./bootstrap.sh interop), with large pages and without returning memory to the system
between steps (see ENVIRONMENT in perf/run), which makes them 8-9 % faster.
"""

import argparse
import json
import os
import pathlib
import re
import time

SHAPES = {
    "135M": dict(num_hidden_layers=30, hidden_size=576, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
                 intermediate_size=1536, vocab_size=49152),
    "25M": dict(num_hidden_layers=8, hidden_size=384, num_attention_heads=6, num_key_value_heads=2, head_dim=64,
                intermediate_size=1024, vocab_size=16384),
    "1M": dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16, intermediate_size=64, vocab_size=16384),
    "1B": dict(num_hidden_layers=16, hidden_size=2048, num_attention_heads=32, num_key_value_heads=8, head_dim=64, intermediate_size=8192, vocab_size=128256),
    "8B": dict(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128, intermediate_size=14336, vocab_size=128256,
               tie_word_embeddings=False),
}


def parameters(shape):
    s = SHAPES[shape]
    hidden, ffn, layers, vocab = s["hidden_size"], s["intermediate_size"], s["num_hidden_layers"], s["vocab_size"]
    kv = s["num_key_value_heads"] * s["head_dim"]
    return vocab * hidden + layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * ffn + 2 * hidden) + hidden


def arguments(**extra):
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="135M", choices=list(SHAPES))
    parser.add_argument("--repetitions", type=int, default=1)
    for name, default in extra.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    return parser.parse_args()


def model(shape, dtype=None):
    """Random weights; tied embeddings."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(max_position_embeddings=2048, rope_theta=10000.0, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=None, pad_token_id=0,
                         **dict(tie_word_embeddings=True) | SHAPES[shape])
    config._attn_implementation = "sdpa"
    torch.manual_seed(1234)
    large = shape == "8B"  # which two copies of are more than a GPU has
    made = LlamaForCausalLM._from_config(config, dtype=dtype if large and dtype is not None else torch.float32)
    return made if dtype is None else made.to(dtype)


def start_gloo():
    import torch
    import torch.distributed as dist
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return dist.get_rank(), dist.get_world_size()


def rank():
    return int(os.environ.get("RANK", "0"))


def report(**values):
    if rank() == 0:
        print(json.dumps(values), flush=True)


def last_level_caches(caches="/sys/devices/system/cpu"):
    """Bytes of all caches of the highest level that the system names; 0 where it names none."""
    level_bytes = {}  # (level, who shares it) -> bytes
    for folder in pathlib.Path(caches).glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level, shared, size = (int((folder / "level").read_text()), (folder / "shared_cpu_list").read_text().strip(), (folder / "size").read_text())
        except (OSError, ValueError):
            continue
        found = re.fullmatch(r"(\d+)([KMG]?)\s*", size)
        if found:
            level_bytes[level, shared] = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]
    highest = max((level for level, _ in level_bytes), default=0)
    return sum(size for (level, _), size in level_bytes.items() if level == highest)


def bandwidth_block(caches="/sys/devices/system/cpu"):
    """Bytes to read for a figure of the memory and not of a cache: four times the last-level caches, 256 MiB at least; 2 GiB where they are not known."""
    return max(4 * last_level_caches(caches), 256 << 20) if last_level_caches(caches) else 2 << 30


def use(device):
    """Tensors are made there from now on; what `timed` times is waited for there."""
    import torch
    torch.set_default_device(device)
    global _wait
    _wait = torch.cuda.synchronize if device == "cuda" else lambda: None


def _wait():
    pass


def timed(action, repetitions, warm_up=1, barrier=lambda: None):
    """Seconds of each repetition, sorted."""
    seconds = []
    for i in range(warm_up + repetitions):
        _wait()
        barrier()
        start = time.perf_counter()
        action()
        _wait()
        barrier()
        if i >= warm_up:
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)

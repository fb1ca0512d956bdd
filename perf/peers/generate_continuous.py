"""Hugging Face's continuous batching, greedy, fixed length: a peer of perf_decode on GPUs."""

import warnings

from common import SHAPES, arguments, model, report, use

warnings.filterwarnings("ignore")
a = arguments(batch=1, prompt=128, new=128, dtype="bf16", device="cuda")

import torch  # noqa: E402
from transformers import GenerationConfig  # noqa: E402

torch.set_grad_enabled(False)
use(a.device)
net = model(a.shape, torch.bfloat16 if a.dtype == "bf16" else torch.float32).eval()
net.set_attn_implementation("paged|sdpa")
ids = torch.randint(2, SHAPES[a.shape]["vocab_size"], (a.batch, a.prompt), generator=torch.Generator(a.device).manual_seed(0)).tolist()


def decode():
    """Seconds from where all have their first token to where all have their last one, by the times that it notes itself."""
    settings = GenerationConfig(max_new_tokens=a.new, min_new_tokens=a.new, do_sample=False, eos_token_id=-1, pad_token_id=0)
    out = net.generate_batch(inputs=ids, generation_config=settings, record_timestamps=True, progress_bar=False)
    assert len(out) == a.batch and all(len(answer.generated_tokens) == a.new for answer in out.values())
    times = [answer.timestamps for answer in out.values()]
    return max(each[-1] for each in times) - max(each[0] for each in times)


seconds = sorted(decode() for _ in range(a.repetitions))
report(decode_tokens_per_s_best=a.batch * (a.new - 1) / seconds[0], decode_tokens_per_s_median=a.batch * (a.new - 1) / seconds[len(seconds) // 2])

"""Hugging Face generate, greedy, fixed length: the peer of perf_decode. Decode is the whole call less a call for one token."""

import os
import warnings

from common import SHAPES, arguments, model, report, timed, use

warnings.filterwarnings("ignore")
a = arguments(batch=1, prompt=128, new=128, dtype="bf16", device="cpu")

import torch  # noqa: E402

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
torch.set_grad_enabled(False)
use(a.device)
net = model(a.shape, torch.bfloat16 if a.dtype == "bf16" else torch.float32).eval()
ids = torch.randint(2, SHAPES[a.shape]["vocab_size"], (a.batch, a.prompt), generator=torch.Generator(a.device).manual_seed(0))


def generate(new):
    out = net.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, min_new_tokens=new, eos_token_id=None,
                       pad_token_id=0)
    assert out.shape[1] == a.prompt + new


prefill = timed(lambda: generate(1), a.repetitions)
whole = timed(lambda: generate(a.new), a.repetitions, warm_up=0)
middle = len(whole) // 2
report(decode_tokens_per_s_best=a.batch * (a.new - 1) / (whole[0] - prefill[0]),
       decode_tokens_per_s_median=a.batch * (a.new - 1) / (whole[middle] - prefill[middle]),
       prefill_tokens_per_s_best=a.batch * a.prompt / prefill[0], prefill_tokens_per_s_median=a.batch * a.prompt / prefill[middle],
       tokens_per_s_best=a.batch * a.new / whole[0])

"""An RL-shaped rollout by Hugging Face generate in static batches: the peer of perf_rollout.

Every sample is a row of its own, prompts are padded on the left, a batch runs until its longest response is complete (min_new_tokens = that), and
only tokens up to a sample's own length count as useful.
"""

import os
import time
import warnings

from common import SHAPES, arguments, model, report

warnings.filterwarnings("ignore")
a = arguments(dtype="bf16", prompts="", responses="", samples=8, prefix=32, max_batch=64)

import torch  # noqa: E402

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
torch.set_grad_enabled(False)
net = model(a.shape, torch.bfloat16 if a.dtype == "bf16" else torch.float32).eval()
vocabulary = SHAPES[a.shape]["vocab_size"]
prompts = [int(n) for n in a.prompts.split(",")]
responses = [int(n) for n in a.responses.split(",")]


def tokens(p):
    return [(t * 7919 + (0 if t < a.prefix else p + 1) * 104729) % vocabulary for t in range(prompts[p])]


def generate(rows):
    texts = [tokens(row // a.samples) for row in rows]
    width, new = max(map(len, texts)), max(responses[row] for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, text in enumerate(texts):
        ids[i, width - len(text):] = torch.tensor(text)
        mask[i, width - len(text):] = 1
    net.generate(ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=new, min_new_tokens=new, eos_token_id=None, pad_token_id=0)


generate(range(2))  # warm-up
start = time.perf_counter()
for first in range(0, len(responses), a.max_batch):
    generate(range(first, min(first + a.max_batch, len(responses))))
seconds = time.perf_counter() - start
report(seconds=seconds, useful_tokens_per_s=sum(responses) / seconds)

"""llama.cpp, greedy, fixed length, sequences side by side: the peer of perf_decode."""

import os
import random
import time

from common import arguments, report
from llama import Llama

a = arguments(batch=1, prompt=128, new=128, dtype="bf16")
draw = random.Random(0)
net = Llama(a.shape, a.dtype, a.batch, a.batch * (a.prompt + a.new + 8), int(os.environ.get("OMP_NUM_THREADS", "1")))
prompts = [[draw.randrange(3, net.vocabulary) for _ in range(a.prompt)] for _ in range(a.batch)]


def run():
    """Seconds of the prompts, and of all further tokens."""
    net.clear()
    start, now, at_once = time.perf_counter(), [], max(1, net.most_tokens // a.prompt)
    for first in range(0, a.batch, at_once):
        rows = range(first, min(a.batch, first + at_once))
        net.decode([(token, i, row, i == a.prompt - 1) for row in rows for i, token in enumerate(prompts[row])])
        now += [net.argmax((i + 1) * a.prompt - 1) for i in range(len(rows))]
    begun = time.perf_counter()
    for step in range(a.new - 1):
        net.decode([(now[row], a.prompt + step, row, True) for row in range(a.batch)])
        now = [net.argmax(row) for row in range(a.batch)]
    return begun - start, time.perf_counter() - begun


run()
seconds = [run() for _ in range(a.repetitions)]
report(decode_tokens_per_s_best=a.batch * (a.new - 1) / min(decode for _, decode in seconds),
       prefill_tokens_per_s_best=a.batch * a.prompt / min(prefill for prefill, _ in seconds))

"""An RL-shaped rollout by llama.cpp: the peer of perf_rollout.

A prompt is computed once and its cells are shared by its samples; up to `slots` samples are decoded side by side, and a finished one is replaced at
the next step. Sampling from the whole distribution, by llama.cpp's own sampler.
"""

import os
import time

from common import arguments, report
from llama import Llama

a = arguments(dtype="bf16", prompts="", responses="", samples=8, prefix=32, slots=64)
prompts = [int(n) for n in a.prompts.split(",")]
responses = [int(n) for n in a.responses.split(",")]
cells = a.slots * (max(prompts) + max(responses))
net = Llama(a.shape, a.dtype, a.slots + 1, cells, int(os.environ.get("OMP_NUM_THREADS", "1")), shared=True)
sample = net.sampler(greedy=False)
prompt_sequence = a.slots  # holds the prompt whose samples are being handed out


def tokens(p):
    return [(t * 7919 + (0 if t < a.prefix else p + 1) * 104729) % net.vocabulary for t in range(prompts[p])]


def run(rows):
    """Every row's response at its full length."""
    net.clear()
    waiting, free, active, current = list(reversed(rows)), list(range(a.slots)), {}, None  # active: slot -> [row, token, position, left]
    while waiting or active:
        while waiting and free:
            row = waiting.pop()
            if current != row // a.samples:
                current = row // a.samples
                net.api.llama_memory_seq_rm(net.memory, prompt_sequence, 0, -1)
                text = tokens(current)
                for first in range(0, len(text), net.most_tokens):
                    part = text[first:first + net.most_tokens]
                    net.decode([(token, first + i, prompt_sequence, first + i == len(text) - 1) for i, token in enumerate(part)])
                last = len(part) - 1
                first_tokens = [sample(last) for _ in range(a.samples)]
            slot, length = free.pop(), prompts[current]
            net.api.llama_memory_seq_cp(net.memory, prompt_sequence, slot, 0, length)
            active[slot] = [row, first_tokens[row % a.samples], length, responses[row] - 1]
        for slot in [slot for slot, state in active.items() if state[3] == 0]:
            net.api.llama_memory_seq_rm(net.memory, slot, 0, -1)
            del active[slot]
            free.append(slot)
        if not active:
            continue
        order = list(active)
        net.decode([(active[slot][1], active[slot][2], slot, True) for slot in order])
        for i, slot in enumerate(order):
            active[slot] = [active[slot][0], sample(i), active[slot][2] + 1, active[slot][3] - 1]


run(list(range(2)))  # warm-up
start = time.perf_counter()
run(list(range(len(responses))))
seconds = time.perf_counter() - start
report(seconds=seconds, useful_tokens_per_s=sum(responses) / seconds)

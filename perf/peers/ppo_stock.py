"""One PPO iteration of stock parts: HF generate, log-probs of the policy and a frozen reference, one epoch under DDP with fused AdamW.

The policy has a value head on the same trunk, so per iteration there is one generation, two forward passes and one training pass. The deck
perf/ppo/iteration.toml, beside which this runs, has no value head and leaves the policy's forward pass out where its generation gave the same
log-probs. --dtype bf16: autocast, and a bf16 copy of the weights for generation.
--lengths N,N,...: tokens of each prompt instead of --prompts equal ones, the first 32 the same in all, each answered --samples times; --stop FIRST-LAST:
token ids that end an answer. Rows are padded to the longest of their batch: of --max-batch rows while generating, of a micro-batch in the passes.
--micro-batch: rows of a pass, gradients of those of a mini-batch added up; all of a mini-batch at once without.
"""

import contextlib
import copy
import warnings

from common import SHAPES, arguments, model, report, start_gloo, timed, use

warnings.filterwarnings("ignore")
a = arguments(dtype="bf16", prompts=32, prompt=32, new=32, mini_batch=8, lengths="", samples=1, stop="", max_batch=64, micro_batch=0, device="cpu")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

rank, world = start_gloo()
use(a.device)
half = a.dtype == "bf16"
vocabulary, step_size, prefix = SHAPES[a.shape]["vocab_size"], a.mini_batch // world, 32
piece = a.micro_batch or step_size
assert step_size % piece == 0, "a mini-batch has so many micro-batches"
prompts = [int(n) for n in a.lengths.split(",")] if a.lengths else [a.prompt] * a.prompts
own = [n for n in prompts[rank::world] for _ in range(a.samples)]
first_stop, last_stop = map(int, a.stop.split("-")) if a.stop else (vocabulary, vocabulary)


class Policy(nn.Module):
    """Language model and value head on one trunk; log-probs' logits and values of the response tokens."""

    def __init__(self):
        super().__init__()
        self.lm = model(a.shape)
        self.value = nn.Linear(SHAPES[a.shape]["hidden_size"], 1)

    def forward(self, ids, mask, new):
        hidden = self.lm.model(input_ids=ids, use_cache=False, **places(mask)).last_hidden_state[:, -new - 1:-1]
        return self.lm.lm_head(hidden), self.value(hidden).squeeze(-1)


def places(mask):
    """Nothing where all rows are as long as each other, which is faster."""
    return dict(attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)) if a.lengths else {}


def log_probs(logits, tokens):
    return torch.log_softmax(logits.float(), -1).gather(-1, tokens[..., None]).squeeze(-1)


policy, reference = Policy(), model(a.shape).eval().requires_grad_(False)
generator = copy.deepcopy(policy.lm).to(torch.bfloat16).requires_grad_(False) if half else policy.lm
net = nn.parallel.DistributedDataParallel(policy)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=True)


def autocast():
    return torch.autocast(a.device, torch.bfloat16, enabled=half)


def generate(lengths):
    """Token ids, mask of prompts and answers [rows, prompt + new]; prompts are padded on the left."""
    width = max(lengths)
    ids, mask = torch.zeros(len(lengths), width, dtype=torch.long), torch.zeros(len(lengths), width, dtype=torch.long)
    for row, n in enumerate(lengths):
        ids[row, width - n:] = torch.randint(2, vocabulary, (n,))
        ids[row, width - n:width - n + min(n, prefix)] = torch.arange(2, 2 + min(n, prefix))
        mask[row, width - n:] = 1
    stop = dict(eos_token_id=list(range(first_stop, last_stop + 1))) if a.stop else dict(eos_token_id=None, min_new_tokens=a.new)
    ids = generator.generate(ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=a.new, pad_token_id=0, **stop)
    ended = ((ids[:, width:] >= first_stop) & (ids[:, width:] <= last_stop)).long()
    return ids, torch.cat([mask, (ended.cumsum(1) - ended == 0).long()], 1), width


@torch.no_grad()
def rollout():
    """Micro-batches of (ids, mask, number of answer columns), each cut to its longest prompt and answer."""
    if generator is not policy.lm:
        for source, target in zip(policy.lm.parameters(), generator.parameters()):
            target.copy_(source)
    batches = []
    for start in range(0, len(own), a.max_batch):
        ids, mask, width = generate(own[start:start + a.max_batch])
        for i in range(0, len(ids), piece):
            rows = slice(i, i + piece)
            used = mask[rows].any(0).nonzero().flatten()
            columns = slice(int(used[0]), int(used[-1]) + 1)
            batches.append((ids[rows, columns], mask[rows, columns], columns.stop - width))
    return batches


@torch.no_grad()
def evaluate(batches):
    """Of each micro-batch: log-probs of the policy, values, log-probs of the reference [rows, new], fp32."""
    results = []
    with autocast():
        for ids, mask, new in batches:
            tokens = ids[:, -new:]
            logits, value = net(ids, mask, new)
            frozen = reference(ids, use_cache=False, logits_to_keep=new + 1, **places(mask)).logits[:, :-1]
            results.append((log_probs(logits, tokens), value.float(), log_probs(frozen, tokens)))
    return results


def advantages(old, values, frozen, tokens, mask):
    reward = -0.05 * (old - frozen) * mask
    last = mask.sum(1) - 1
    reward[torch.arange(len(last)), last] += ((tokens % 7 == 0) * mask).sum(1) / mask.sum(1)
    gain, result = torch.zeros(len(old)), torch.zeros_like(reward)
    for k in reversed(range(old.shape[1])):
        following = values[:, k + 1] * mask[:, k + 1] if k + 1 < old.shape[1] else 0.0
        gain = (reward[:, k] + following - values[:, k] + 0.95 * gain) * mask[:, k]
        result[:, k] = gain
    return result, result + values


def iteration():
    batches = rollout()
    results = evaluate(batches)
    parts = [advantages(*result, ids[:, -new:], mask[:, -new:]) for result, (ids, mask, new) in zip(results, batches)]
    drawn = torch.cat([gain[mask[:, -new:] == 1] for (gain, _), (_, mask, new) in zip(parts, batches)])
    mean, spread = drawn.mean(), drawn.std() + 1e-8
    for index, ((ids, mask, new), (old, _, _), (gain, returns)) in enumerate(zip(batches, results, parts)):
        ends = (index + 1) % (step_size // piece) == 0
        with contextlib.nullcontext() if ends else net.no_sync():
            with autocast():
                logits, value = net(ids, mask, new)
                ratio = (log_probs(logits, ids[:, -new:]) - old).exp()
            answer = mask[:, -new:]
            advantage = (gain - mean) / spread
            clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            loss = (-clipped * answer).sum() / answer.sum() + 0.1 * ((value.float() - returns).pow(2) * answer).sum() / answer.sum()
            (loss * piece / step_size).backward()
        if not ends:
            continue
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


torch.manual_seed(rank)
seconds = timed(iteration, a.repetitions, barrier=dist.barrier)
report(seconds_best=seconds[0], seconds_median=seconds[len(seconds) // 2])
dist.destroy_process_group()

"""One training step of what people run today on the same LibTorch, activation checkpointing by --recompute, fused AdamW: the peers of perf_train.

--kind fsdp: FSDP2 over gloo, one thread a rank; bf16: parameters gathered in bf16, gradients reduced in fp32.
--kind ddp: DistributedDataParallel over gloo; --kind single: one process with all threads. Both with bf16 by autocast.
--lora RANK: peft's adapter of all linear layers of the blocks, over a base in --dtype.
--device cuda, --compile 1: on a GPU, by torch.compile.
--lengths P+R,P+R,...: sequences of a prompt and a response instead of equal ones, dealt out to the ranks in turn, longest first, padded to the
longest of their micro-batch of --micro-batch sequences; only response tokens bear a loss. Tokens are real ones.
"""

import contextlib
import resource
import warnings

from common import SHAPES, arguments, model, report, start_gloo, timed, use

warnings.filterwarnings("ignore")
a = arguments(kind="fsdp", sequences=2, tokens=512, dtype="bf16", recompute=1, lengths="", micro_batch=4, device="cpu", compile=0, lora=0)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402

rank, world = start_gloo()
use(a.device)
net = model(a.shape, torch.bfloat16 if a.lora and a.dtype == "bf16" else None)
net.train()
net.config.use_cache = False
if a.lora:
    from peft import LoraConfig, get_peft_model
    net = get_peft_model(net, LoraConfig(task_type="CAUSAL_LM", r=a.lora, lora_alpha=2 * a.lora, target_modules="all-linear"))
    if a.recompute:
        net.enable_input_require_grads()
if a.recompute:
    net.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
if a.kind == "fsdp":
    options = dict(mesh=init_device_mesh(a.device, (world,)), reshard_after_forward=True)
    if a.dtype == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (net.get_base_model() if a.lora else net).model.layers:
        fully_shard(layer, **options)
    fully_shard(net, **options)
if a.compile:
    net.compile()
run = torch.nn.parallel.DistributedDataParallel(net) if a.kind == "ddp" else net
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-6, fused=True)
generator = torch.Generator(a.device).manual_seed(rank)
vocabulary = SHAPES[a.shape]["vocab_size"]


def equal_batch():
    ids = torch.randint(0, vocabulary, (a.sequences, a.tokens), generator=generator)
    return [(ids, torch.ones_like(ids), ids)]


def ragged_batches(lengths):
    """(ids, attention mask, labels) of this rank's micro-batches; the same number on every rank."""
    own = sorted(lengths, key=sum, reverse=True)[rank::world]
    batches = []
    for first in range(0, len(own), a.micro_batch):
        part = own[first:first + a.micro_batch]
        width = max(map(sum, part))
        ids = torch.randint(0, vocabulary, (len(part), width), generator=generator)
        mask = torch.zeros_like(ids)
        labels = torch.full_like(ids, -100)
        for row, (prompt, response) in enumerate(part):
            mask[row, :prompt + response] = 1
            labels[row, prompt:prompt + response] = ids[row, prompt:prompt + response]
        batches.append((ids, mask, labels))
    return batches


lengths = [tuple(map(int, pair.split("+"))) for pair in a.lengths.split(",")] if a.lengths else []
batches = ragged_batches(lengths) if lengths else equal_batch()
tokens = sum(map(sum, lengths)) if lengths else a.sequences * a.tokens * world


def step():
    for index, (ids, mask, labels) in enumerate(batches):
        last = index + 1 == len(batches)
        if a.kind == "fsdp":
            net.set_requires_gradient_sync(last)
        with run.no_sync() if a.kind == "ddp" and not last else contextlib.nullcontext():
            with torch.autocast(a.device, torch.bfloat16, enabled=a.dtype == "bf16" and a.kind != "fsdp"):
                loss = run(input_ids=ids, attention_mask=mask if lengths else None, labels=labels).loss / len(batches)
            loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


seconds = timed(step, a.repetitions, barrier=dist.barrier)
report(tokens_per_s_best=tokens / seconds[0], tokens_per_s_median=tokens / seconds[len(seconds) // 2],
       peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
dist.destroy_process_group()

"""Reduce-scatter and all-gather of fp32 over gloo: the peer of perf_collectives. --mib is the size of the whole buffer.

gloo carries out a reduce-scatter as an all-reduce; that is what FSDP2 gets.
"""

from common import arguments, report, start_gloo, timed

a = arguments(mib=64)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

rank, world = start_gloo()
count = (a.mib << 20) // 4 // world * world
whole, part = torch.ones(count), torch.ones(count // world)
scatter = timed(lambda: dist.reduce_scatter_tensor(part, whole), a.repetitions, barrier=dist.barrier)
gather = timed(lambda: dist.all_gather_into_tensor(whole, part), a.repetitions, barrier=dist.barrier)
middle = len(scatter) // 2
report(reduce_scatter_ms_best=1e3 * scatter[0], reduce_scatter_ms_median=1e3 * scatter[middle], all_gather_ms_best=1e3 * gather[0],
       all_gather_ms_median=1e3 * gather[middle])
dist.destroy_process_group()

"""What the machine can do: GEMM rates of the library, read and copy bandwidth. All cores."""

import os

from common import arguments, bandwidth_block, report, timed

a = arguments()

import torch  # noqa: E402

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
torch.set_grad_enabled(False)
rounds = max(5, a.repetitions)


def gemm(m, n, k, dtype):
    x, w = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
    return 2e-9 * m * n * k / timed(lambda: torch.nn.functional.linear(x, w), rounds, warm_up=2)[0]


block = torch.ones(bandwidth_block() // 4, dtype=torch.float32)
target = torch.empty_like(block)
report(
    block_bytes=block.nbytes,
    gemm_fp32_gflops=max(gemm(4096, 1536, 576, torch.float32), gemm(4096, 576, 1536, torch.float32)),
    gemm_bf16_gflops=max(gemm(4096, 1536, 576, torch.bfloat16), gemm(4096, 576, 1536, torch.bfloat16)),
    head_fp32_gflops=gemm(2048, 49152, 576, torch.float32), head_bf16_gflops=gemm(2048, 49152, 576, torch.bfloat16),
    read_gb_per_s=block.nbytes / 1e9 / timed(block.sum, rounds, warm_up=2)[0],
    copy_gb_per_s=2 * block.nbytes / 1e9 / timed(lambda: target.copy_(block), rounds, warm_up=2)[0])

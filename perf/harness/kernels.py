"""Rows of the group `kernels`: T7, T8, T10. Each repetition is one benchmark of a kernels' program."""

import json
import re
import sys
import tempfile

from . import machine
from .rows import Peer, Row, peer


def kernel(program, benchmark, figure, threads=1, arguments=()):
    """A counter of the benchmark whose name begins so, or its `real_time`."""
    pattern = re.sub(r"([+()])", r"\\\1", benchmark)  # of the little that the program's expressions know

    def measure():
        text = machine.run_ours(program, [*arguments, f"--benchmark_filter=^{pattern}/", "--benchmark_format=json"], threads=threads)
        found = json.loads(text[text.index("{"):])["benchmarks"] if "{" in text else []
        if len(found) != 1:
            raise machine.Failed(f"{program} has {len(found)} benchmarks '{benchmark}'")
        return float(found[0][figure])
    measure.command = f"{program} --benchmark_filter='^{benchmark}/'"
    return measure


def tokenizer_rows(quick):
    """Over 1 MB in 24 languages and of code (tests/interop/corpus.py), as one text, on one thread."""
    sys.path.insert(0, str(machine.ROOT / "tests" / "interop"))
    import corpus
    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False, newline="") as file:
        file.write("".join(corpus.corpus()))
    rows = []
    for kind in ["real_llama3"] if quick else ["real_llama3", "real_mistral_v3", "cl100k_nfc", "unigram_t5"]:
        folder = str(corpus.KINDS / kind)
        for what in ("encode", "decode"):
            rows.append(Row("T10", f"{what} 1.2 MB in 24 languages and code, {kind}, one thread", "MB/s",
                            kernel("perf_text", f"file/{what}", "MB/s", arguments=[folder, file.name]),
                            [Peer("HF tokenizers", peer("tokenize_hf.py", "MB/s", folder, file.name, what), 0.5)]))
    return rows


def kernel_rows(quick):
    rows = tokenizer_rows(quick)
    for threads in [1] if quick else [1, machine.cores()]:
        def optimizer(name, threads=threads):
            return kernel("perf_adamw", name, "GB/s", threads)
        rows.append(Row("T7", f"optimizer's pass: norm, clip, AdamW, cast, changed bits, 33.5 M values, {threads} threads", "GB/s", optimizer("norm+clip+adamw+cast+changed"),
                        [Peer("copy", optimizer("copy"), 0.85), Peer("LibTorch's fused AdamW", optimizer("libtorch"))]))
    for dtype, vocabulary in [("f32", 49152), ("bf16", 49152)] + ([] if quick else [("f32", 128256), ("bf16", 128256)]):
        def head(name, figure, dtype=dtype, vocabulary=vocabulary):
            return kernel("perf_head", f"{dtype}/{name}/{vocabulary}", figure)
        what = f"log-probs, 512 tokens x {vocabulary}, {dtype}, forward and backward"
        for name, target in (("chunks", 1 / 1.05), ("chunks, logits kept", 1 / 1.05)):
            rows.append(Row("T8", f"{what}, {name}", "ms", head(name, "real_time"), [Peer("log_softmax(linear)", head("log_softmax(linear)", "real_time"), target)], lower=True))
        rows.append(Row("T8", f"{what}, chunks: temporary memory", "MiB", head("chunks", "temporary_MiB"),
                        [Peer("log_softmax(linear)", head("log_softmax(linear)", "temporary_MiB"), 8)], lower=True))
    return rows

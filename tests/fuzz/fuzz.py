#!/usr/bin/env python3
"""Builds tests/fuzz/targets.cpp with clang's libFuzzer, ASan and UBSan, and lets each target run for some seconds from a small corpus.

    tests/fuzz/fuzz.py [--seconds 5] [--target NAME]... [--build FOLDER]
Exit code 125 without clang++. What was found stays in FOLDER/findings.
"""

import argparse
import concurrent.futures
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ["tests/fuzz/targets.cpp",
           *(f"src/base/{name}.cpp" for name in ("command", "error", "fault_point", "files", "log", "progress", "samples", "shard_layout", "text")),
           *(f"src/text/{name}.cpp" for name in ("added_tokens", "bpe", "byte_alphabet", "chat_template", "jinja_eval", "jinja_functions", "jinja_lexer",
                                                  "jinja_operators", "jinja_parser", "jinja_value", "json_text", "pre_tokenizer", "regex", "tokenizer",
                                                  "tokenizer_config", "tokenizer_export", "tokenizer_json", "utf8", "vocabulary")),
           *(f"src/config/{name}.cpp" for name in ("changes", "convert", "deck", "fault", "hints", "key_table", "keys_algo", "keys_model", "keys_output",
                                                    "keys_reward", "keys_rollout", "keys_run", "keys_train", "model_shape", "options", "placement", "ranks",
                                                    "toml_reader", "validate", "warnings")),
           *(f"src/model/{name}.cpp" for name in ("block", "gguf_parser", "gguf_shape", "gguf_types", "safetensors_header", "stored_type")),
           *(f"src/checkpoint/{name}.cpp" for name in ("digest", "index", "manifest")),
           "src/job/facts.cpp"]
INCLUDES = ["include", "src", "."]
FLAGS = ["-std=c++20", "-O1", "-g1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined", "-DNDEBUG"]
LIBRARIES = ["-lfmt", "-lspdlog", "-lpcre2-8", "-lutf8proc", "-lxxhash", "-lcrypto"]

# A first text each, and dictionaries' worth of words where a format has some.
SEEDS = {
    "safetensors_header": [b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'],
    "safetensors_index": [b'{"metadata":{"total_size":24},"weight_map":{"a":"model-00001-of-00002.safetensors"}}'],
    "gguf": [b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x14\0\0\0\0\0\0\0general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama"],
    "model_config": [b'{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,'
                     b'"num_attention_heads":6,"num_key_value_heads":3,"vocab_size":272,"max_position_embeddings":256,"rms_norm_eps":1e-05}'],
    "deck": [b'[run]\ndir = "run"\nwalltime = "1h30m"\n[[reward.source]]\nkind = "rule"\nrule = "regex"\npattern = "[0-9]"\n[ckpt]\ninterval = "auto"\n'],
    "chat_template": [b"{% for m in messages %}{{ m['role'] + ': ' + m.content|trim }}{% endfor %}{% set ns = namespace(a=[1, 2]) %}{{ ns.a|tojson }}",
                      b"{%- if messages[0]['role'] == 'system' -%}{{ messages[0].content.strip()|replace('e', 'a') }}{%- endif %}{{ 'x' * 3 }}"],
    "tokenizer": [b'{"version":"1.0","added_tokens":[{"id":3,"content":"<s>","special":true}],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel",'
                  b'"add_prefix_space":false},"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}'],
    "checkpoint_index": [b"TRIDX\0\0\0"], "manifest": [b'{"step":1,"fence":1,"version":"0","files":[]}'],
    "samples": [b"TSAMPL02" + bytes(8) * 10], "delta": [b"\x01\0\0\0\x05\0ab" + bytes(4)], "scheduler": [b"1-02:03:04\n", b"    Resource_List.walltime = 01:00:00\n"],
}


def build(folder, compiler):
    """Objects that are newer than all sources are taken as they are."""
    headers = [path for top in ("include", "src") for path in (ROOT / top).rglob("*.hpp")]
    newest = max(path.stat().st_mtime for path in headers)
    folder.mkdir(parents=True, exist_ok=True)
    extra = ["-isystem", "/usr/include/hdf5/openmpi", "-isystem", "/usr/lib/x86_64-linux-gnu/openmpi/include"]

    def compile_one(source):
        made = folder / (source.replace("/", "_") + ".o")
        path = ROOT / source
        if made.exists() and made.stat().st_mtime > max(newest, path.stat().st_mtime):
            return made
        subprocess.run([compiler, *FLAGS, *(f"-I{ROOT / one}" for one in INCLUDES), *extra, "-c", path, "-o", made], check=True)
        return made

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, SOURCES))
    program = folder / "fuzz"
    subprocess.run([compiler, *FLAGS, *objects, *LIBRARIES, "-o", program], check=True)
    return program


def run(program, target, seconds, start, folder):
    corpus = folder / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[target]):
        (corpus / f"seed-{number}").write_bytes(seed)
    findings = folder / "findings" / target
    findings.mkdir(parents=True, exist_ok=True)
    command = [program, f"-max_total_time={seconds}", f"-seed={start}", "-timeout=5", "-rss_limit_mb=2048", "-max_len=4096", "-print_final_stats=1",
               f"-artifact_prefix={findings}/", corpus]
    done = subprocess.run(command, env={"TRIREME_FUZZ": target, "ASAN_OPTIONS": "detect_leaks=0", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
                          errors="replace")
    runs = [line.split()[-1] for line in done.stderr.splitlines() if line.startswith("stat::number_of_executed_units")]
    print(f"{target:20} {runs[0] if runs else '?':>10} runs, {'no finding' if done.returncode == 0 else 'FOUND'}", flush=True)
    if done.returncode != 0:
        print(done.stderr[-6000:])
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="0: another one each time")
    parser.add_argument("--target", action="append", choices=SEEDS)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "fuzz")
    arguments = parser.parse_args()
    compiler = shutil.which("clang++")
    if compiler is None:
        print("there is no clang++: not fuzzed")
        sys.exit(125)
    program = build(arguments.build, compiler)
    results = [run(program, target, arguments.seconds, arguments.seed, arguments.build) for target in arguments.target or SEEDS]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Builds tests/fuzz/targets.cpp with clang's libFuzzer, ASan and UBSan, and gives each target many inputs made from a small corpus: a number of them
(the same inputs on each machine), or as many as some seconds allow.

    tests/fuzz/fuzz.py [--runs 15000 | --seconds 60] [--seed 0] [--target NAME]... [--build FOLDER]
    tests/fuzz/fuzz.py --coverage        the lines of each parser that seeds and corpus reach, instead
Exit code 125 without clang++. What was found stays in FOLDER/findings.
"""

import argparse
import concurrent.futures
import pathlib
import re
import shutil
import subprocess
import sys

from seeds import SEEDS

ROOT = pathlib.Path(__file__).resolve().parents[2]


def sources(module, *names):
    return [f"src/{module}/{name}.cpp" for name in names]


def all_sources(module):
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src" / module).glob("*.cpp"))


# Compiled together: headers are read and templates made once for each.
UNITS = {
    "text": all_sources("text"),
    "config": all_sources("config"),
    "model": sources("model", "block", "gguf_parser", "gguf_shape", "gguf_types", "operations", "parameter_table", "safetensors_header", "spec", "stored_type")
             + sources("checkpoint", "digest", "index", "manifest"),
    "lines": sources("data", "answer", "chat_encoder", "jsonl", "messages", "preference_set", "prompt_set", "record", "score_input", "sft_set"),
    "reward": sources("reward", "asked", "checks", "request", "rule") + sources("plugin", "answers"),
    "environment": sources("environment", "answers", "tool_calls"),
    "answers": sources("reward", "last_number", "latex_text", "math_answer", "math_compare", "math_evaluate", "math_expression", "math_functions",
                       "math_lexer", "math_normal", "math_parser", "math_plain", "math_sample", "math_sets", "math_value", "math_verl"),
    "base": sources("base", "command", "decimal", "error", "fault_gates", "fault_point", "files", "foreign_file", "philox", "progress", "samples", "shard_layout", "text") + sources("job", "facts"),
    "targets": ["tests/fuzz/targets.cpp"],
    "log": sources("base", "log"),
}
# The log reads nothing: without sanitizers, which take the compiler of spdlog's templates a quarter of a minute.
PLAIN = {"log": ["-fno-sanitize=all"]}
# What is read there comes from others.
PARSERS = ["src/base/samples.cpp", *(f"src/data/{name}.cpp" for name in ("answer", "chat_encoder", "jsonl", "messages", "preference_set", "prompt_set",
                                                                              "record", "score_input", "sft_set")),
           "src/reward/asked.cpp", "src/plugin/answers.cpp", "src/plugin/lines.hpp", "src/environment/answers.cpp", "src/environment/tool_calls.cpp", *(f"src/checkpoint/{name}.cpp" for name in ("index", "manifest")),
           *(f"src/config/{name}.cpp" for name in ("convert", "model_shape", "toml_reader")), "src/job/facts.cpp",
           *(f"src/model/{name}.cpp" for name in ("gguf_parser", "gguf_shape", "gguf_types", "safetensors_header")),
           *(f"src/text/{name}.cpp" for name in ("chat_template", "jinja_call", "jinja_eval", "jinja_evaluate", "jinja_expression_parser", "jinja_format", "jinja_lexer",
                                                  "jinja_list_filters", "jinja_methods", "jinja_operators", "jinja_parser", "jinja_print",
                                                  "jinja_text_filters", "jinja_texts", "jinja_value", "jinja_value_filters", "python_text", "json_text", "template_date", "template_variables", "tokenizer_json", "tokenizer_rules", "character_map", "word_model")),
           "src/weightsync/delta_stream.hpp"]
# What stands beside it in these files: writing, opening of files, help.
BESIDE = {"src/base/samples.cpp": ("to_string", "request_id", "Samples::add", "Samples::append(const Samples& other)"),
          "src/checkpoint/index.cpp": ("stored_type", "Pieces::block"),
          "src/checkpoint/manifest.cpp": ("size_of_file", "read_manifest", "require_step", "metadata_digest", "utc_now"),
          "src/config/convert.cpp": ("type_name", "type_of_words", "Limits::describe"),
          "src/data/jsonl.cpp": ("check_regular", "append_quoted", "append_number", "append_list", "JsonObject::key", "JsonObject::add",
                                 "JsonObject::add_json"),
          "src/environment/answers.cpp": ("request", "rest_of", "calls_json", "reset_text", "step_text", "close_text", "line_of", "looks_like_answer"),
          "src/job/facts.cpp": ("process_environment", "ask_system"), "src/text/json_text.cpp": ("read_json_file",)}
INCLUDES = ["include", "src", "."]
FLAGS = ["-std=c++20", "-DNDEBUG", "-fsanitize=fuzzer"]
CHECKED = ["-O1", "-g1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined"]
COUNTED = ["-O0", "-fprofile-instr-generate", "-fcoverage-mapping"]
LIBRARIES = ["-lfmt", "-lspdlog", "-lpcre2-8", "-lutf8proc", "-lxxhash", "-lcrypto"]
TOGETHER = 2  # as many cores as CI has


def build(folder, compiler, flags):
    """Objects that are newer than all that they are made of are taken as they are."""
    headers = [path for top in ("include", "src") for path in (ROOT / top).rglob("*.hpp")]
    newest = max(path.stat().st_mtime for path in headers)
    folder.mkdir(parents=True, exist_ok=True)
    cache = ["env", f"CCACHE_BASEDIR={ROOT}", "CCACHE_NOHASHDIR=1", "ccache"] if flags is CHECKED and shutil.which("ccache") else []
    extra = ["-isystem", "/usr/include/hdf5/openmpi", "-isystem", "/usr/lib/x86_64-linux-gnu/openmpi/include"]

    def compile_unit(name):
        files = [ROOT / source for source in UNITS[name]]
        made, unit = folder / f"{name}.o", folder / f"{name}.cpp"
        if made.exists() and made.stat().st_mtime > max(newest, *(path.stat().st_mtime for path in files)):
            return made
        unit.write_text("".join(f'#include "{source}"\n' for source in UNITS[name]))
        subprocess.run([*cache, compiler, *FLAGS, *flags, *PLAIN.get(name, []), *(f"-I{ROOT / one}" for one in INCLUDES), *extra, "-c", unit, "-o", made],
                       check=True)
        return made

    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        objects = list(pool.map(compile_unit, UNITS))
    program = folder / "fuzz"
    subprocess.run([compiler, *FLAGS, *flags, *objects, *LIBRARIES, "-o", program], check=True)
    return program


def corpus_of(target, folder):
    """With the seeds in it."""
    corpus = folder / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[target]):
        (corpus / f"seed-{number}").write_bytes(seed)
    return corpus


def environment(target, **more):
    return {"TRIREME_FUZZ": target, "ASAN_OPTIONS": "detect_leaks=0", "PATH": "/usr/bin:/bin"} | more


def run(program, target, amount, start, folder):
    corpus = corpus_of(target, folder)
    findings = folder / "findings" / target
    findings.mkdir(parents=True, exist_ok=True)
    command = [program, amount, f"-seed={start}", "-timeout=30", "-rss_limit_mb=2048", "-max_len=8192", "-print_final_stats=1",
               f"-artifact_prefix={findings}/", corpus]
    done = subprocess.run(command, env=environment(target), capture_output=True, text=True, errors="replace")
    runs = [line.split()[-1] for line in done.stderr.splitlines() if line.startswith("stat::number_of_executed_units")]
    print(f"{target:20} {runs[0] if runs else '?':>10} runs, {'no finding' if done.returncode == 0 else 'FOUND'}", flush=True)
    if done.returncode != 0:
        print(done.stderr[-6000:])
    return done.returncode == 0


def lines_beside(text, names):
    """Numbers of the lines of these functions, each of which ends with a brace of its own line."""
    inside, found = False, set()
    for number, line in enumerate(text, 1):
        begins = any(re.match(rf"\S.*(\b|^){re.escape(name)}" + ("" if "(" in name else r"\("), line) for name in names)
        if inside or begins:
            found.add(number)
        inside = (inside or begins) and not (line == "}" or (begins and line.endswith("}")))
    return found


def coverage(folder, compiler, targets):
    """Each input once; False when one of them is a finding."""
    counted = folder / "coverage"
    program = build(counted, compiler, COUNTED)
    good = True
    for target in targets:
        command = [program, "-runs=0", "-max_len=1048576", corpus_of(target, folder)]
        done = subprocess.run(command, env=environment(target, LLVM_PROFILE_FILE=str(counted / f"{target}.profraw")), capture_output=True)
        good = good and done.returncode == 0
    profile = counted / "all.profdata"
    subprocess.run(["llvm-profdata", "merge", "-sparse", *(counted / f"{target}.profraw" for target in targets), "-o", profile], check=True)
    told = subprocess.run(["llvm-cov", "export", "--format=lcov", program, f"-instr-profile={profile}"], check=True, capture_output=True, text=True).stdout
    counts = {}
    for line in told.splitlines():
        if line.startswith("SF:"):
            here = counts.setdefault(line[3:], {})
        elif line.startswith("DA:"):
            number, count = line[3:].split(",")[:2]
            here[int(number)] = int(count)
    all_lines = all_covered = 0
    for name in PARSERS:
        left_out = lines_beside((ROOT / name).read_text().splitlines(), BESIDE.get(name, ()))
        found = {number: count for number, count in counts[str(ROOT / name)].items() if number not in left_out}
        missed = sorted(number for number, count in found.items() if count == 0)
        all_lines, all_covered = all_lines + len(found), all_covered + len(found) - len(missed)
        print(f"{name:34} {len(found) - len(missed):5} of {len(found):5} lines, {100 - 100 * len(missed) / len(found):5.1f} %"
              + (f"  not: {' '.join(map(str, missed[:20]))}" if missed else ""))
    print(f"{'all':34} {all_covered:5} of {all_lines:5} lines, {100 * all_covered / all_lines:5.1f} %")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--runs", type=int, default=15000)
    amount.add_argument("--seconds", type=int)
    parser.add_argument("--seed", type=int, default=1, help="0: another one each time")
    parser.add_argument("--target", action="append", choices=SEEDS)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--coverage", action="store_true")
    arguments = parser.parse_args()
    compiler = shutil.which("clang++")
    if compiler is None:
        print("there is no clang++: not fuzzed")
        sys.exit(125)
    targets = arguments.target or list(SEEDS)
    if arguments.coverage:
        sys.exit(0 if coverage(arguments.build, compiler, targets) else 1)
    program = build(arguments.build, compiler, CHECKED)
    amount = f"-runs={arguments.runs}" if arguments.seconds is None else f"-max_total_time={arguments.seconds}"
    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        results = list(pool.map(lambda target: run(program, target, amount, arguments.seed, arguments.build), targets))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()

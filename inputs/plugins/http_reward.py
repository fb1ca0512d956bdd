#!/usr/bin/env python3
# A reward plugin that asks a server in OpenRLHF's format (its --remote_rm_url, reward.remote_url):
#   POST {"query": [prompt + response, ...], "prompts": [...], "labels": [...]}  ->  {"rewards": [...]}
# In a deck:
#   [[reward.source]]
#   kind = "plugin"
#   command = ["python3", "inputs/plugins/http_reward.py", "http://localhost:5000/get_reward"]
# Requests that have come meanwhile are asked together, up to --batch of them. A server that is away or answers with an
# error is asked again (--tries, after 1, 2, 4 ... seconds); then the plugin ends, and reward.retries and reward.outage count.
# Other columns of the data go along as "extra"; {"extra_logs": {name: [...]}} of the answer become metrics.
import argparse
import http.client
import json
import select
import sys
import time
import urllib.request


def arguments():
    parser = argparse.ArgumentParser(description="Rewards from a server in OpenRLHF's format")
    parser.add_argument("url", help="where rewards are asked for, for instance http://localhost:5000/get_reward")
    parser.add_argument("--batch", type=int, default=64, help="most samples of one question (64)")
    parser.add_argument("--tries", type=int, default=5, help="of one question (5)")
    parser.add_argument("--timeout", type=float, default=180, help="seconds that one answer may take (180)")
    return parser.parse_args()


def lines_that_have_come(stream, most):
    """One line at least; [] at the end of the input."""
    waiting, lines = b"", []
    while True:
        while b"\n" in waiting:
            line, waiting = waiting.split(b"\n", 1)
            lines.append(json.loads(line))
            if len(lines) == most:
                yield lines
                lines = []
        if lines and not select.select([stream], [], [], 0)[0]:
            yield lines
            lines = []
        more = stream.read(1 << 16)
        if not more:
            if lines:
                yield lines
            return
        waiting += more


def ask(options, requests):
    question = {"query": [one["prompt"] + one["response"] for one in requests], "prompts": [one["prompt"] for one in requests],
                "labels": [one["label"] for one in requests]}
    if any(one.get("extra") for one in requests):
        question["extra"] = [one.get("extra", {}) for one in requests]
    post = urllib.request.Request(options.url, json.dumps(question).encode(), {"Content-Type": "application/json"})
    for attempt in range(options.tries):
        try:
            with urllib.request.urlopen(post, timeout=options.timeout) as answer:
                return json.load(answer)
        except (OSError, ValueError, http.client.HTTPException) as error:
            print(f"http_reward.py: {options.url}: {error} (try {attempt + 1} of {options.tries})", file=sys.stderr, flush=True)
            if attempt + 1 < options.tries:
                time.sleep(2**attempt)
    sys.exit(f"http_reward.py: {options.url} gave no answer in {options.tries} tries: is the server up?")


def column(answer, name, count):
    values = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(values, list) or len(values) != count:
        found = f"{len(values)} of them" if isinstance(values, list) else "none"
        sys.exit(f"http_reward.py: the answer's \"{name}\" must be a list of {count} numbers, found {found}")
    return values


def main():
    options = arguments()
    for requests in lines_that_have_come(sys.stdin.buffer.raw, options.batch):
        answer = ask(options, requests)
        rewards = column(answer, "rewards", len(requests))
        logs = answer.get("extra_logs") or {}
        metrics = {name: column(logs, name, len(requests)) for name in logs}
        for i, request in enumerate(requests):
            line = {"id": request["id"], "reward": rewards[i]}
            if metrics:
                line["metrics"] = {name: values[i] for name, values in metrics.items()}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

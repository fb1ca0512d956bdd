#!/usr/bin/env python3
# An environment with a shell (docs/user/environments.md): calls of shell(command) run in a sandbox without network. When the policy calls
# no more, the command in the record's column "check" decides: exit code 0 is the reward 1. In a deck: [environment]
# command = ["python3", "inputs/plugins/sandbox_shell.py"], tool_calls = "hermes", processes = 8.
import json, os, shutil, sys, tempfile

import sandbox

checks = {}


def step(request, folder):
    said, failed = [request["error"]] if "error" in request else [], []
    for i, call in enumerate(request["calls"]):
        command = call["arguments"].get("command") if isinstance(call["arguments"], dict) else None
        code, text = sandbox.run(command, folder) if isinstance(command, str) else (2, "error: shell needs a text \"command\"")
        failed += [i] if code else []
        said.append(f"{text}\n(exit code {code})" if code else text)
    if said:
        return {"messages": [{"role": "tool", "content": text} for text in said], "failed": failed,
                "metrics": {"calls": len(request["calls"])}}
    code, _ = sandbox.run(checks[request["episode"]], folder)
    return {"reward": float(code == 0), "done": True, "metrics": {"calls": 0}}


with tempfile.TemporaryDirectory(prefix="trireme-shell-") as root:
    sandbox.require(root)
    for line in sys.stdin:
        request = json.loads(line)
        folder, answer = os.path.join(root, request["episode"]), {}
        if request["type"] == "reset":
            os.mkdir(folder)
            checks[request["episode"]] = request["extra"]["check"]
        elif request["type"] == "step":
            answer = step(request, folder)
        if request["type"] == "close" or answer.get("done"):
            shutil.rmtree(folder, ignore_errors=True)
        if request["type"] != "close":
            print(json.dumps({"id": request["id"], **answer}), flush=True)

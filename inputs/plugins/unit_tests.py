#!/usr/bin/env python3
# An environment for code (docs/user/environments.md): the last Python block of a turn is run with the tests of the record's column "tests"
# (a text with assertions) in a sandbox without network. What fails is shown to the policy, which may try again; the reward is 1 when
# all pass. In a deck: [environment] command = ["python3", "inputs/plugins/unit_tests.py"], max_turns = 3, processes = 8.
import json, os, re, secrets, sys, tempfile

import sandbox

tests = {}


def step(request):
    blocks = re.findall(r"```(?:python|py)?\n(.*?)```", request["text"], re.DOTALL)
    if not blocks:
        return {"messages": [{"role": "user", "content": "Give the code in a block: ```python ... ```."}], "metrics": {"passed": 0}}
    end = secrets.token_hex()  # an answer that leaves the program does not pass
    with tempfile.TemporaryDirectory(dir=root) as folder:
        for name, text in (("answer.py", blocks[-1]), ("tests.py", f"from answer import *\n{tests[request['episode']]}\nprint('{end}')")):
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        code, text = sandbox.run("python3 -B tests.py", folder)
    if code == 0 and text.rstrip().endswith(end):
        return {"reward": 1.0, "done": True, "metrics": {"passed": 1}}
    return {"messages": [{"role": "user", "content": f"The tests do not pass:\n{text}"}], "metrics": {"passed": 0}}


with tempfile.TemporaryDirectory(prefix="trireme-tests-") as root:
    sandbox.require(root)
    for line in sys.stdin:
        request = json.loads(line)
        if request["type"] == "reset":
            tests[request["episode"]] = request["extra"]["tests"]
        answer = step(request) if request["type"] == "step" else {}
        if request["type"] == "close" or answer.get("done"):
            tests.pop(request["episode"], None)
        if request["type"] != "close":
            print(json.dumps({"id": request["id"], **answer}), flush=True)

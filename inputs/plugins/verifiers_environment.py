#!/usr/bin/env python3
# Environments of the package verifiers, its MultiTurnEnv and those made of it (docs/user/environments.md): its own rollout is run with a
# client that asks the policy. In a deck: [environment] command = ["python3", "inputs/plugins/verifiers_environment.py", "NAME", "{}"].
import asyncio, json, os, sys, traceback

try:
    import verifiers as vf
    vf.MultiTurnEnv
except (ImportError, AttributeError):
    sys.exit("the package verifiers, with MultiTurnEnv, is missing (this program plays its environments): pip install 'verifiers<0.2'")

requests, turns = {}, {}  # by episode: the one to answer, and what the policy writes


class Policy(vf.Client):
    async def get_response(self, prompt, state, **_):
        episode, new = state["info"]["episode"], prompt[len(state.get("seen", state["prompt"])):]
        said = [message.model_dump(exclude_none=True) for message in new]
        answer(episode, messages=[m for m in said if m["role"] != "assistant"])
        request, state["seen"] = await turns[episode].get(), [*prompt, None]
        calls = [vf.ToolCall(id=str(n), name=c["name"], arguments=json.dumps(c["arguments"])) for n, c in enumerate(request.get("calls", []))]
        message = vf.ResponseMessage(content=request["text"], tool_calls=calls or None, finish_reason="stop", is_truncated=False)
        return vf.Response(id=request["id"], created=0, model="policy", message=message)


def answer(episode, **fields):
    print(json.dumps({"id": requests.pop(episode)["id"], **fields}), flush=True)


async def play(environment, episode, policy):
    try:
        request = requests[episode]
        info = request.get("extra", {}) | {"episode": episode}
        row = {"prompt": request["messages"], "answer": request["label"], "info": info, "example_id": 0}
        state = await environment.rollout(row, policy, "policy")
        if state["error"]:
            raise state["error"]
        await environment.rubric.score_rollout(state)
        answer(episode, reward=state["reward"], done=True, metrics=state["metrics"])
    except Exception:  # it is not the policy's fault
        traceback.print_exc()
        os._exit(1)


async def main():
    environment = vf.load_environment(sys.argv[1], **json.loads("".join(sys.argv[2:]) or "{}"))
    Policy.__abstractmethods__ = frozenset()
    policy, tasks = object.__new__(Policy), {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        episode = request["episode"]
        if request["type"] == "close":
            tasks.pop(episode).cancel()
            continue
        requests[episode] = request
        if request["type"] == "reset":
            turns[episode] = asyncio.Queue()
            tasks[episode] = asyncio.create_task(play(environment, episode, policy))
        else:
            turns[episode].put_nowait(request)


asyncio.run(main())

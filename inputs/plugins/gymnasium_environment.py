#!/usr/bin/env python3
# Environments of Gymnasium (docs/user/environments.md): an observation is shown as a text, the last number or JSON list of a turn is the
# action. In a deck: [environment] command = ["python3", "inputs/plugins/gymnasium_environment.py", "Taxi-v3", "{\"render_mode\": \"ansi\"}"].
import json, re, sys

try:
    import gymnasium
except ImportError:
    sys.exit("the package gymnasium is missing (this program plays its environments): pip install gymnasium")

games, chats = {}, {}


def said(episode, text):
    return {"messages": [{"role": "user", "content": text}]} if chats[episode] else {"text": f"\n{text}\n"}


def shown(episode, observation):
    game = games[episode]
    return said(episode, game.render() if game.render_mode == "ansi" else json.dumps(game.observation_space.to_jsonable([observation])[0], default=str))


def play(request):
    episode = request["episode"]
    if request["type"] == "reset":
        games[episode], chats[episode] = gymnasium.make(sys.argv[1], **json.loads("".join(sys.argv[2:]) or "{}")), "messages" in request
        return shown(episode, games[episode].reset(seed=request["seed"] % 2**31)[0])
    actions, space = re.findall(r"\[[-+.,eE\d\s]*\]|-?\d+(?:\.\d+)?", request["text"]), games[episode].action_space
    action = space.from_jsonable([json.loads(actions[-1])])[0] if actions else None
    if not actions or not space.contains(action):
        return said(episode, f"No action of {space} in this turn.") | {"metrics": {"actions": 0}}
    observation, reward, terminated, truncated, _ = games[episode].step(action)
    return shown(episode, observation) | {"reward": float(reward), "done": bool(terminated or truncated), "metrics": {"actions": 1}}


for line in sys.stdin:
    request = json.loads(line)
    answer = play(request) if request["type"] != "close" else {"done": True}
    if answer.get("done"):
        games.pop(request["episode"]).close()
    if request["type"] != "close":
        print(json.dumps({"id": request["id"], **answer}), flush=True)

#!/usr/bin/env python3
# An environment (docs/user/environments.md): the policy guesses a number from 1 to 100, which the seed decides, and is told "higher" or
# "lower". In a deck: [environment] command = ["python3", "inputs/plugins/guessing_game.py"], max_turns = 10.
import json, random, re, sys

games = {}


def play(request):
    game = games[request["episode"]]
    guesses = re.findall(r"\d+", request["text"])
    number = random.Random(game["seed"]).randint(1, 100)
    guess = int(guesses[-1][:9]) if guesses else None
    if guess == number:
        return {"reward": 1.0, "done": True, "metrics": {"turns": request["turn"] + 1}}
    said = "Say a number from 1 to 100." if guess is None else "higher" if guess < number else "lower"
    answer = {"reward": -0.1 if guess is None else 0.0}
    if "messages" in game:
        return answer | {"messages": [{"role": "user", "content": said}]}
    return answer | {"text": f"\n{said}\n"}  # a plain prompt goes on with plain text


for line in sys.stdin:
    request = json.loads(line)
    if request["type"] == "reset":
        games[request["episode"]] = request
    answer = play(request) if request["type"] == "step" else {}
    if request["type"] == "close" or answer.get("done"):
        games.pop(request["episode"], None)
    if request["type"] != "close":
        print(json.dumps({"id": request["id"], **answer}), flush=True)

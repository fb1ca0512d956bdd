"""The tool task of the comparison: the calculator of inputs/plugins, spoken to as our program does."""
import json
import re
import subprocess
import sys

from settings import ROOT, TOOLS

CALL = re.compile(TOOLS["pattern"].replace("(?<", "(?P<"))


class Calculator:
    """One process of the environment. A call of the tool and the reward of a last turn are episodes of their own: the program looks at nothing else."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, ROOT / TOOLS["environment"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.requests = 0

    def _episode(self, label, **turn):
        self.requests += 1
        name = str(self.requests)
        step = {"id": "1", "type": "step", "episode": name, "turn": 0, "calls": [], **turn}
        self._ask({"id": "0", "type": "reset", "episode": name, "messages": [], "label": label})
        answer = self._ask(step)
        if not answer.get("done"):
            self._send({"id": "2", "type": "close", "episode": name})
        return answer

    def _send(self, request):
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def _ask(self, request):
        self._send(request)
        return json.loads(self.process.stdout.readline())

    def call(self, expression):
        return self._episode("", text="", calls=[{"name": "", "arguments": expression}])["messages"][0]["content"]

    def reward(self, last_turn, label):
        """Of an episode with this last turn; a call has no answer there."""
        if CALL.search(last_turn):
            return 0.0
        return self._episode(label, text=last_turn)["reward"]

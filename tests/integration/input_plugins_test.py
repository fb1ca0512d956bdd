#!/usr/bin/env python3
"""The plugins of inputs/plugins as the program starts them: JSON lines in, JSON lines out. http_reward.py asks a server of this test."""

import http.server
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "inputs/plugins"
INTEROP = pathlib.Path(os.environ.get("TRIREME_CACHE", pathlib.Path.home() / ".cache/trireme")) / "venv/bin/python"


def python_with(package):
    """This interpreter or that of ./bootstrap.sh interop, whichever has the package; None where neither has."""
    if importlib.util.find_spec(package):
        return sys.executable
    found = INTEROP.exists() and subprocess.run([INTEROP, "-c", f"import {package}"], stderr=subprocess.DEVNULL, cwd="/").returncode == 0
    return str(INTEROP) if found else None


def request(number, response, label, **others):
    return {"v": 1, "id": str(number), "prompt": f"p{number}", "response": response, "label": label, "finish_reason": "stop", "iteration": 1, **others}


def talk(command, requests):
    lines = "".join(json.dumps(one) + "\n" for one in requests)
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done, {one["id"]: one for one in map(json.loads, done.stdout.splitlines())}


class Server(http.server.BaseHTTPRequestHandler):
    """OpenRLHF's examples/scripts/serve_remote_rm.py in short: the reward is the number of letters beyond the prompt."""

    questions = []
    failures = 0  # answers with an error that come first
    cuts = 0  # answers that end too early, which come first
    broken = None  # an answer instead of a right one

    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = type(self)
        kind.questions.append((self.path, self.headers["Content-Type"], question))
        if kind.failures > 0:
            kind.failures -= 1
            self.send_error(503)
            return
        rewards = [float(len(query) - len(prompt)) for query, prompt in zip(question["query"], question["prompts"])]
        answer = kind.broken or {"rewards": rewards, "extra_logs": {"labels": [float(len(label)) for label in question["labels"]]}}
        body = json.dumps(answer).encode()
        missing = 1 if kind.cuts > 0 else 0
        kind.cuts -= missing
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + missing))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class HttpReward(unittest.TestCase):
    def setUp(self):
        Server.questions, Server.failures, Server.cuts, Server.broken = [], 0, 0, None
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.command = [sys.executable, str(PLUGINS / "http_reward.py"), f"http://127.0.0.1:{self.server.server_port}/get_reward"]

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def test_asks_in_the_form_of_openrlhf(self):
        requests = [request(i, "x" * i, "1" * (i % 3)) for i in range(10)]
        done, answers = talk([*self.command, "--batch", "4"], requests)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({key: one["reward"] for key, one in answers.items()}, {str(i): float(i) for i in range(10)})
        self.assertEqual(answers["5"]["metrics"], {"labels": 2.0})
        self.assertEqual(sum(len(question["query"]) for _, _, question in Server.questions), 10)
        self.assertLessEqual(max(len(question["query"]) for _, _, question in Server.questions), 4)
        path, kind, question = Server.questions[0]
        self.assertEqual((path, kind), ("/get_reward", "application/json"))
        self.assertEqual(sorted(question), ["labels", "prompts", "query"])
        self.assertEqual(question["query"][0], question["prompts"][0] + requests[0]["response"])

    def test_other_columns_go_along_with_their_digits(self):
        line = json.dumps(request(1, "a", "b")).replace('"iteration"', '"extra": {"seed": 18446744073709551617}, "iteration"')
        subprocess.run(self.command, input=line + "\n", stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(Server.questions[0][2]["extra"], [{"seed": 18446744073709551617}])

    def test_a_server_that_is_away_for_a_moment_is_asked_again(self):
        Server.failures = 1
        done, answers = talk(self.command, [request(1, "abc", "")])
        self.assertEqual((done.returncode, answers["1"]["reward"]), (0, 3.0), done.stderr)
        self.assertIn("try 1 of 5", done.stderr)

    def test_an_answer_that_was_cut_is_asked_for_again(self):
        Server.cuts = 1
        done, answers = talk(self.command, [request(1, "abc", "")])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(answers["1"]["reward"], 3.0)

    def test_a_server_that_stays_away_ends_the_plugin(self):
        Server.failures = 9
        done, answers = talk([*self.command, "--tries", "1"], [request(1, "abc", "")])
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(answers, {})
        self.assertIn("gave no answer in 1 tries", done.stderr)

    def test_answers_that_make_no_sense_are_refused(self):
        for broken, part in (({"rewards": [1, 2]}, "found 2 of them"), ({"scores": [1]}, "found none"), ([1], "found none"),
                             ({"rewards": [1], "extra_logs": {"a": []}}, "\"a\" must be a list of 1")):
            Server.broken = broken
            done, answers = talk(self.command, [request(1, "abc", "")])
            self.assertNotEqual(done.returncode, 0, broken)
            self.assertEqual(answers, {})
            self.assertIn(part, done.stderr)


class OtherPlugins(unittest.TestCase):
    def test_the_shortest_one(self):
        done, answers = talk([sys.executable, str(PLUGINS / "reward.py")], [request(1, "it is 42", "42"), request(2, "no", "42")])
        self.assertEqual([answers["1"]["reward"], answers["2"]["reward"]], [1.0, 0.0], done.stderr)

    @unittest.skipUnless(python_with("math_verify"), "math-verify is neither here nor in ./bootstrap.sh interop's environment")
    def test_math_verify_counts_as_its_table_says(self):
        rows = [json.loads(line) for line in (ROOT / "tests/gold/answers/answers.jsonl").read_text().splitlines()][::7]
        done, answers = talk([python_with("math_verify"), str(PLUGINS / "math_verify.py")],
                             [request(i, row["answer"], row["label"]) for i, row in enumerate(rows)])
        self.assertEqual(done.returncode, 0, done.stderr)
        for i, row in enumerate(rows):
            self.assertEqual(answers[str(i)]["reward"], float(row["math"]), row)

    def test_math_verify_says_what_is_missing(self):
        python = python_with("math_verify")
        if python is None:
            done, _ = talk([sys.executable, str(PLUGINS / "math_verify.py")], [])
            self.assertIn("pip install math-verify", done.stderr)
        else:
            done, _ = talk([python, str(PLUGINS / "math_verify.py")], [request(1, "5", "")])
            self.assertIn("no label to compare with", done.stderr)
        self.assertNotEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)

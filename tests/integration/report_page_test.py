#!/usr/bin/env python3
"""report.html in a browser: what `trireme report` makes of run folders that this test writes. Skipped without Chromium.

    report_page_test.py                        the test
    report_page_test.py --pictures FOLDER RUN  screenshots of a run's report (light, dark, narrow, whole) into FOLDER
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

import browser
from trireme_run import PROGRAM, SKIPPED, child_environment

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x00\x1b[31m\u202e</pre></style>"
PHASES = ("rollout", "reward", "exchange", "train", "sync", "report")


def write_lines(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def make_run(folder, iterations=60, seed=0, **deck):
    """A run of `trireme ppo` as its folder shows it: restarted after iteration 20, evaluated every 10."""
    (folder / "logs").mkdir(parents=True)
    lines, samples = [], []
    for i in range(1, iterations + 1):
        level = 1 - math.exp(-i / 25) + 0.03 * math.sin(i * 1.7 + seed)
        line = {"iteration": i, "reward": level, "reward_std": 0.4 - 0.3 * level, "kl": 0.002 * i, "reward_format": level, "reward_accuracy": 0.01,
                "response_length": 60 + i, "response_length_min": 4, "response_length_max": 128, "truncated": min(0.9, i / 60), "policy_loss": -0.01,
                "clip_ratio": 0.05, "grad_norm": 1 / i, "lr": 1e-6 * i, "groups_without_spread": 0.8, "tokens": 8000, "time": 1.79e9 + 60 * i,
                "epoch": i / 30, "mismatch_max": None, "seconds": {name: 1.0 + 0.1 * n for n, name in enumerate(PHASES)} | {"total": 8.0},
                "busy": {"trainer": 0.9, "generator": 0.5 + i / 200},
                "memory": {"host_peak": 3 << 30, "planned_host_peak": 4 << 30, "actor_master": 540 << 20, "actor_moments": 1080 << 20,
                           "reference_weights": 270 << 20, "reward_a_b_weights": 1 << 20, "kv_cache_peak": 64 << 20, "device_peak": 2 << 30,
                           "planned_device_peak": 3 << 30, "device_tensors": 1 << 30, "planned_device_tensors": 2 << 30}, "generation": {"occupancy": 0.7, "tokens_per_second": 2000.0}}
        if i % 10 == 0:
            line |= {"eval_reward": 0.3, "eval_pass1": 0.2}
        lines.append(line)
        for k in range(4):
            samples.append({"iteration": i, "id": k, "prompt": f"prompt {k}", "response": f"answer {i} of {k} {HOSTILE}", "output_ids": [1, 2, 3],
                            "label": "7", "reward": level + 0.1 * k, "parts": {"format": 1.0}, "metrics": {"judge/accuracy": 0.25}, "finish_reason": "stop"})
    write_lines(folder / "metrics.jsonl", lines)
    write_lines(folder / "samples.jsonl", samples)
    start = {"time": 1.79e9, "after": 0, "ranks": 2, "nodes": 1, "version": "1", "folder": "/work", "ended": 1.79e9 + 1500, "exit_code": 75, "how": "stopped"}
    again = start | {"time": 1.79e9 + 1600, "after": 20, "ended": 1.79e9 + 5000, "exit_code": 0, "how": "done"}
    (folder / "status.json").write_text(json.dumps({"command": "ppo", "name": f"run {HOSTILE}", "model": "models/SmolLM2-135M-Instruct",
                                                    "iterations": 60, "starts": [start, again]}))
    (folder / "deck.toml").write_text("[run]\nname = \"x\"\nseed = %d\n\n[actor]\nadam.lr = %s\n" % (seed, deck.get("lr", 1e-6)))
    (folder / "log.txt").write_text(f"[2026-11-27 01:11:36.105] warning: {HOSTILE}\n".replace("\x00", "").encode(errors="replace").decode())
    return folder


class ReportPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.store = tempfile.TemporaryDirectory(prefix="trireme-report-")
        cls.folder = pathlib.Path(cls.store.name)
        cls.browser = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.store.cleanup()

    def report(self, *arguments):
        result = subprocess.run([PROGRAM, "report", *map(str, arguments)], cwd=self.folder, capture_output=True, text=True, env=child_environment(), timeout=300, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def look(self, page, width, scheme):
        """Opens the page; what must hold of each."""
        self.browser.open(page, width, scheme)
        self.assertEqual(self.browser.complaints(), [])
        self.assertEqual([url for url in self.browser.requests() if not url.startswith(("file:", "data:"))], [], "no network")
        for tag in ("script", "img", "iframe", "object", "embed"):
            self.assertEqual(self.browser.evaluate(f"document.querySelectorAll('{tag}').length"), 0, tag)
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), width, "nothing is wider than the screen")
        charts = self.browser.evaluate("""[...document.querySelectorAll('figure')].map(figure => {
            const svg = figure.querySelector('svg'), box = svg.getBoundingClientRect(), text = svg.querySelector('text.x').getBoundingClientRect();
            const inside = [...svg.querySelectorAll('path.line,path.area,path.band,circle')].map(mark => mark.getBoundingClientRect())
                .every(mark => mark.left >= box.left - 1 && mark.right <= box.right + 1 && mark.top >= box.top - 1 && mark.bottom <= box.bottom + 1);
            const labels = [...svg.querySelectorAll('text.y')].map(label => label.getBoundingClientRect());
            return {title: figure.querySelector('h3').textContent, width: box.width, text: text.height, inside, labels: labels.length,
                    cut: labels.some(label => label.left < box.left - 6), marks: svg.querySelectorAll('path.line,path.area,circle').length};
        })""")
        for chart in charts:
            where = f"{chart} at {width} in {scheme}"
            self.assertGreater(chart["width"], 250, where)
            self.assertGreater(chart["text"], 9, where)
            self.assertTrue(chart["inside"], where)
            self.assertGreaterEqual(chart["labels"], 2, where)
            self.assertFalse(chart["cut"], where)
            self.assertGreater(chart["marks"], 0, where)
        # Text against what is behind it (WCAG: at least 4.5).
        worst = self.browser.evaluate("""(() => {
            const number = colour => colour.match(/[\\d.]+/g).map(Number);
            const light = colour => number(colour).slice(0, 3).map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
                .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
            const ground = element => { for (let e = element; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
                if (!/, 0\\)$/.test(c)) return c; } return 'rgb(255,255,255)'; };
            return Math.min(...[...document.querySelectorAll('h1,h2,h3,small,p,td,th,pre,b,span,.badge')].map(e => {
                const a = light(getComputedStyle(e).color), b = light(ground(e)); return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }));
        })()""")
        self.assertGreater(worst, 4.5, f"contrast at {width} in {scheme}")
        return {chart["title"] for chart in charts}

    def test_one_run(self):
        self.report(make_run(self.folder / "one run"))
        page = self.folder / "one run" / "report.html"
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (320, "dark")):
            titles = self.look(page, width, scheme)
        self.assertLessEqual({"Reward", "Parts of the reward", "Evaluation", "KL to the reference", "Length of answers", "Cut off at the limit",
                              "Groups without spread", "Clipped tokens", "Gradient norm", "Learning rate", "Seconds of an iteration", "Tokens per second",
                              "Occupancy", "Busy ranks", "Host memory", "GPU memory"}, titles)
        text = self.browser.evaluate("document.body.textContent")
        self.assertIn("<script>alert(1)</script>", text, "samples are texts")
        cells = self.browser.evaluate("[...document.querySelectorAll('tr')].map(row => [...row.children].map(cell => cell.textContent).join(' | '))")
        for row in ("Model | Weights | Master weights | Moments | KV cache", "actor | – | 540.0 MiB | 1.1 GiB | –", "generator | – | – | – | 64.0 MiB",
                    "reference | 270.0 MiB | – | – | –", "reward_a_b | 1.0 MiB | – | – | –", "tensors | 1.0 GiB | 2.0 GiB"):
            self.assertIn(row, cells)
        for note in ("The reward rises", "of the groups have no spread", "Lengths run to the limit", "format rises", "iteration 60 of 60"):
            self.assertIn(note, text)
        self.assertGreater(self.browser.evaluate("document.querySelectorAll('.restart').length"), 10, "restarts are on the axes")
        self.assertGreater(self.browser.evaluate("document.querySelectorAll('ins').length"), 0, "answers are compared")
        self.assertLess(page.stat().st_size, 1 << 20)
        self.assertTrue(self.browser.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(c => c < 60)"), "dark")
        # The choice of samples works without a script.
        self.browser.evaluate("document.getElementById('worst').checked = true")
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('.best.sample,.any.sample')].filter(e => e.offsetHeight).length"), 0)
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('.worst.sample')].filter(e => e.offsetHeight).length"), 3)

    def test_several_runs(self):
        runs = [make_run(self.folder / "a", seed=1), make_run(self.folder / "b", seed=2), make_run(self.folder / "c", iterations=40, lr=1e-5)]
        self.report(*runs, "--output", "beside.html")
        page = self.folder / "beside.html"
        for width, scheme in ((1280, "light"), (390, "dark")):
            titles = self.look(page, width, scheme)
        self.assertIn("Reward", titles)
        text = self.browser.evaluate("document.body.textContent")
        self.assertIn("(2 runs of one deck)", text, "seeds are one line with a band")
        self.assertIn("actor.adam.lr", text, "where the decks differ")
        self.assertGreater(self.browser.evaluate("document.querySelectorAll('path.band').length"), 3)


def pictures(folder, run):
    page = pathlib.Path(run) / "report.html"
    window = browser.Browser()
    try:
        for name, width, scheme, height in (("light", 1280, "light", 1150), ("dark", 1280, "dark", 1150), ("narrow", 390, "light", 1150),
                                            ("whole", 1280, "light", None)):
            window.open(page, width, scheme)
            window.screenshot(pathlib.Path(folder) / f"report-{name}.png", height or window.evaluate("document.documentElement.scrollHeight"))
    finally:
        window.close()


if __name__ == "__main__":
    if browser.program() is None:
        print("skipped: no Chromium on this machine (Debian's package `chromium`, or TRIREME_CHROMIUM)")
        sys.exit(SKIPPED)
    if sys.argv[1:2] == ["--pictures"]:
        pictures(*sys.argv[2:])
    else:
        unittest.main()

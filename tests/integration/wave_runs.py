"""Runs whose models score sequences while others are written, and gates that make ranks overlap."""

import json
import sys

from trireme_run import ProgramTest, timeless

PLUGIN = f"""[[reward.source]]
kind = "plugin"
command = ["{sys.executable}", "judge.py"]
"""
JUDGE = """
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    time.sleep(0.01)
    print(json.dumps({"id": request["id"], "reward": float(len(request["response"]) % 3)}), flush=True)
"""
# Answers of many lengths.
DECK = ["run.iterations=3", "rollout.batch_size=4", "rollout.n_samples_per_prompt=4", "rollout.max_new_tokens=24", "train.batch_size=8", "train.max_epochs=2",
        "algo.advantage.estimator=group_norm", "ckpt.interval=0"]
SMALL = "rollout.micro_batch_tokens=24"


def faults(*texts):
    return "fault.at=[" + ", ".join(f'"{text}"' for text in texts) + "]"


def waiting_generator(models, step=16):
    """A generator, which is rank 1, has written some of the first answers and goes on when a model of rank `models` has begun with them. What else the
    ranks do at the same time is left to them: slow steps make it likely that there are more such waves."""
    return (f"open:{models}:reference log-probs:1:1", f"gate:1:generate step:{step}:1", "delay:*:generate step:*:2")


def handshakes(rank, place, passes, step, first_gate, apart=2):
    """At each of these passes of `place` that rank and the generator, which is rank 1, wait for each other: the generator at `step` and every `apart` steps
    after it, and writes a step before the rank goes on. Three of them and messages are through, however the ranks are scheduled."""
    for i, number in enumerate(passes):
        there, back = first_gate + 2 * i, first_gate + 2 * i + 1
        yield from (f"open:{rank}:{place}:{number}:{there}", f"gate:1:generate step:{step + apart * i}:{there}",
                    f"open:1:generate step:{step + apart * i + 1}:{back}", f"gate:{rank}:{place}:{number}:{back}")


APART = ["ranks.trainer=0-0", "ranks.generator=1-1", "ranks.reward=2-2"]
SLOW = faults("delay:*:generate step:*:4")  # of no matter to the result


class WaveTest(ProgramTest):
    deck = "ppo.toml"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "judge.py").write_text(JUDGE)

    def run_deck(self, run, *overrides, **options):
        return self.succeed("ppo", self.deck, f"run.dir={run}", *DECK, *overrides, **options)

    def counts(self, run):
        return json.loads((self.folder / run / "summary.json").read_text())["counts"]

    def in_waves(self, run):
        return self.counts(run).get("sequences_scored_in_waves", 0)

    def assert_equal_runs(self, run, other):
        self.assertEqual(self.samples(run), self.samples(other))
        self.assertEqual(timeless(self.metrics(run)), timeless(self.metrics(other)))

    def steps_of(self, run, rank):
        """[(first, last)] of the generate steps of that rank in each rollout phase, counted from 1 over the run, with the phase's iteration."""
        events = [e for e in json.loads((self.folder / run / "trace.json").read_text())["traceEvents"] if e.get("pid") == rank and "dur" in e]
        steps = sorted(e["ts"] for e in events if e["name"] == "generate step")
        phases = sorted((e["ts"], e["ts"] + e["dur"], e["args"]["n"]) for e in events if e["name"] == "rollout")
        return [(n, sum(ts < begin for ts in steps) + 1, sum(ts < end for ts in steps)) for begin, end, n in phases]

#!/usr/bin/env python3
"""The first ring's part of the waves: models take what comes from queues and plugins while they score."""

from trireme_run import RULE_SOURCE, main
from wave_runs import APART, PLUGIN, SLOW, SMALL, WaveTest, faults, handshakes


class LongPass(WaveTest):
    def test_a_long_pass_takes_what_comes(self):
        """Between its micro-batches a rank looks at its queues and its plugins: neither waits for the end of a pass. The reward rank begins its first pass when
        the generator has come to its 18th step. The generator goes on when that pass has begun, and sends what it finishes; from then on the two wait for
        each other three times, so that the messages are through however the ranks are scheduled."""
        self.deck = self.deck_with("judged.toml", RULE_SOURCE, PLUGIN)
        self.run_deck("short", *APART, SMALL, SLOW, ranks=3)
        gates = faults("open:1:generate step:18:1", "gate:2:rollout:1:1", "open:2:reference log-probs:1:2", "gate:1:generate step:19:2",
                       *handshakes(2, "log-prob micro-batch", (1, 2, 3), step=22, apart=1, first_gate=3))
        self.run_deck("long", *APART, SMALL, gates, ranks=3)
        self.assertGreater(self.counts("long")["sequences_received_while_scoring"], 0)
        self.assert_equal_runs("long", "short")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""TRL's GRPOTrainer with a tool on the calculator's tutorial. Started by compare.py.

    trl_tools.py --model HF_FOLDER --samples samples.jsonl --seed 1 --output curves.json

The tool and the reward are those of the environment's program, as in our runs. Prompts come from our run's samples.jsonl: the same ones in the same
iterations. TRL runs the tool's loop by itself; it is told how a call is written, and that an episode has one call at most.
"""
import pathlib
import re

import peer
from settings import TOOLS
from tool_task import Calculator
from trl_grpo import configuration


def response_template(tokenizer):
    """What qwen3_template of TRL is for Qwen 3: calls as `environment.tool_pattern` has them, turns as the tutorial's chat template."""
    opens, closes = TOOLS["pattern"].split("(?<arguments>.*?)")
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "{content}"}}}
    return {"defaults": {"role": "assistant"}, "start_anchor": f"{tokenizer.bos_token}assistant\n",
            "fields": {"tool_calls": {"open": opens, "close_pattern": re.escape(closes), "repeats": True, "content": "text", "transform": call},
                       "content": {"close_pattern": re.escape(tokenizer.eos_token), "content": "text"}}}


def template_with_calls(template):
    """TRL refuses a chat template that does not show calls. It renders the user's turns and the tool's with it and appends what was sampled as it is, so what is put in here for
    calls is never seen by the model."""
    shown = template.replace("message['content'] + eos_token", "message['content'] }}{% for call in message['tool_calls'] or [] %}{{ call['function'] | tojson }}{% endfor %}{{ eos_token")
    assert shown != template
    return shown


def conversations(rows, tokenizer):
    """The turns of the user that our run's chat template rendered, and their labels."""
    turn = re.compile(re.escape(tokenizer.bos_token) + r"user\n(.*)" + re.escape(tokenizer.eos_token + tokenizer.bos_token) + "assistant\n")
    return [{"prompt": [{"role": "user", "content": turn.fullmatch(row["prompt"])[1]}], "label": row["label"]} for row in rows]


def main():
    options = peer.arguments(samples=pathlib.Path)
    import datasets
    import transformers
    import trl
    calculator, tokenizer = Calculator(), peer.load_tokenizer(options.model)
    tokenizer.chat_template = template_with_calls(tokenizer.chat_template)
    tokenizer.response_template = response_template(tokenizer)

    def tool(expression: str) -> str:
        """
        Computes an expression.

        Args:
            expression: Numbers, + - * / and brackets.
        """
        return calculator.call(expression)

    tool.__name__ = "calculator"

    def reward(prompts, completions, label, **_):
        def one(turns, wanted):
            last = turns[-1]
            called = last["role"] == "tool" or last.get("tool_calls")
            return 0.0 if called else calculator.reward(last["content"], wanted)
        return [one(turns, wanted) for turns, wanted in zip(completions, label, strict=True)]

    curves = peer.Curves(trainer="trl GRPOTrainer, tools", version=trl.__version__, transformers=transformers.__version__, seed=options.seed)

    def collect(logs):
        if "reward" in logs:
            curves.add(reward=logs["reward"], kl=logs["kl"], response_length=logs["completions/mean_length"], calls=logs["tools/call_frequency"],
                       grad_norm=logs["grad_norm"], lr=logs["learning_rate"])

    rows = conversations(peer.prompts_of(options.samples, TOOLS["n"]), tokenizer)
    assert len(rows) == TOOLS["iterations"] * TOOLS["prompts"]
    config = configuration(options, TOOLS, max_tool_calling_iterations=TOOLS["turns"] - 1, max_completion_length=64)
    trainer = trl.GRPOTrainer(model=peer.load_model(options.model), reward_funcs=reward, args=config, train_dataset=datasets.Dataset.from_list(rows),
                              processing_class=tokenizer, tools=[tool], callbacks=[peer.log_callback(collect)])
    trainer.train()
    curves.write(options.output)


if __name__ == "__main__":
    main()

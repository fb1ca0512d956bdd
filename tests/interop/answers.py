#!/usr/bin/env python3
"""rule = "math" against math-verify itself, on pairs of an answer and a label that are made anew in each run, from a fixed seed.

    answers.py REWARD_UNIT [--seed N] [--pairs N]        exit code 125 where the environment is missing

The pairs and math-verify's verdicts go to the unit test that has the table of tests/gold/answers, by TRIREME_ANSWERS.
"""

import argparse
import json
import logging
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from compare import enter_environment

LEAST = 8  # of each kind: equal ones, and unequal ones


class Pairs:
    """Makes answers and labels of one kind: texts of a value in different forms, and of another value that is near."""

    def __init__(self, seed):
        self.draw = random.Random(seed)

    def number(self, low=-30, high=30):
        return self.draw.randint(low, high)

    def one_of(self, *forms):
        return self.draw.choice(forms)

    def quotient(self, a, b):
        short = [rf"\frac{a}{b}", rf"\frac{a}{{{b}}}"] if 0 < a < 10 and 0 < b < 10 else []
        return self.one_of(rf"\frac{{{a}}}{{{b}}}", rf"\dfrac{{{a}}}{{{b}}}", rf"\tfrac{{{a}}}{{{b}}}", f"{a}/{b}", *short)

    def fraction(self):
        a, b, k, sign = self.number(1, 20), self.number(2, 12), self.number(1, 3), self.one_of("", "-")
        return sign + self.quotient(a, b), self.one_of(
            sign + self.quotient(a * k, b * k), sign + self.quotient(a, b + 1), sign + self.quotient(b, a), rf"\frac{{{sign}{a}}}{{{b}}}",
            sign + repr(round(a / b, self.one_of(2, 4, 6, 8))), f"{sign}{a // b}", rf"{sign}{a // b}\frac{{{a % b}}}{{{b}}}", rf"\frac{{{sign}{a}}}{{-{b}}}")

    def short_fraction(self):
        a, b = self.number(1, 9), self.number(1, 9)
        forms = [(rf"\frac{a}{b}", rf"\frac{{{a}}}{{{b}}}"), (rf"\dfrac{a}{b}", f"{a}/{b}"), (rf"\frac {a} {b}", str(a / b)), (rf"\frac{{{a}}}{b}", rf"\frac{a}{b}"),
                 (rf"\sqrt{a}", rf"\sqrt{{{a}}}"), (rf"2\sqrt{a}", rf"\sqrt{{{4 * a}}}"), (rf"\frac\pi{b}", rf"\frac{{\pi}}{{{b}}}"), (rf"\frac{{\sqrt{a}}}{b}", rf"\frac{{1}}{{{b}}}\sqrt{{{a}}}"),
                 (rf"-\frac{a}{b}", rf"\frac{{-{a}}}{{{b}}}"), (rf"x^{a}", rf"x^{{{a}}}"), (rf"\frac{a}{{{10 + b}}}", rf"\frac{{{a}}}{{{10 + b}}}")]
        answer, label = self.one_of(*forms)
        return answer, self.one_of(label, label, rf"\frac{{{b}}}{{{a}}}", self.one_of(*forms)[1])

    def decimal(self):
        value = self.one_of(self.number(-99, 99) / self.one_of(1, 2, 4, 5, 8, 10, 100, 3, 7), self.draw.random() * 100)
        digits = self.one_of(1, 2, 3, 6, 7)
        text = f"{value:.{digits}f}"
        return text, self.one_of(text + "0", text, f"{value:.{digits + 1}f}", f"{value + 10**-digits:.{digits}f}", f"{value:.0f}", repr(value),
                                 rf"\frac{{{round(value * 100)}}}{{100}}", rf"{text}\times 10^0", rf"{value * 100:.{digits}f}\times10^{{-2}}", f"{value + 6e-7:.8f}")

    def thousands(self):
        value = self.one_of(self.number(1000, 99999), self.number(10**6, 10**9), self.number(10**12, 10**21))
        text = f"{value:,}"
        return (self.one_of(text, str(value), text.replace(",", "{,}"), text.replace(",", r",\!"), text + ".00", r"\$" + text, "-" + text),
                self.one_of(str(value), text, str(value + 1), str(value // 1000), "-" + text, text.replace(",", "{,}"), f"{value}.0", f"{value * 10:,}"))

    def unit(self):
        units = ("cm", "m", "kg", "dollars", "inches", "hours", "apples", "square units", "miles per hour", "students", "points", "degrees")
        value = self.one_of(self.number(), 2.5, 12.25, r"\frac{1}{2}", r"3\pi", r"2\sqrt{3}")
        other = self.one_of(value, value, self.number())

        def measured(number):
            unit = self.one_of(*units)
            return self.one_of(rf"{number}\text{{ {unit}}}", rf"{number} \text{{{unit}}}", f"{number} {unit}", rf"{number}\mathrm{{ {unit}}}", rf"{number}\mbox{{ {unit}}}",
                               rf"{number}\text{{ {unit}}}^2", rf"\${number}")
        return measured(value), self.one_of(str(other), measured(other), str(other))

    def percent(self):
        value = self.one_of(self.number(1, 100), self.number(1, 100), 12.5, 33.3, 0.5, 99.9)
        forms = [rf"{value}\%", f"{value}%", rf"{value} \%", rf"{value}\text{{ percent}}", f"{value} percent"]
        return self.one_of(*forms), self.one_of(*forms, str(value), str(value / 100), rf"\frac{{{value}}}{{100}}", rf"{value * 2}\%", str(value * 2), str(int(value)))

    def degrees(self):
        value, other = self.one_of(self.number(1, 360), 22.5), self.number(1, 360)

        def angle(number):
            return self.one_of(rf"{number}^\circ", rf"{number}^{{\circ}}", rf"{number}\text{{ degrees}}", f"{number} degrees", rf"{number}\degree", rf"{number}^\circ\text{{C}}", f"{number}\u00b0")
        return angle(value), self.one_of(angle(value), str(value), str(value), angle(other), str(other))

    def text(self):
        words = ("A", "B", "C", "D", "Monday", "Evelyn", "even", "odd", "north", "yes", "no", "red", "ellipse", "Friday", "undefined")
        word, other = self.one_of(*words), self.one_of(*words)

        def written(text):
            return self.one_of(rf"\text{{{text}}}", rf"\text{{({text})}}", rf"\textbf{{({text})}}", rf"\mathrm{{{text}}}", text, text.lower(), rf"\text{{ {text} }}", rf"\mbox{{{text}}}")
        return written(word), self.one_of(written(word), word, written(other), other)

    def interval(self):
        a, b = sorted((self.number(), self.number()))
        low, high = self.one_of((str(a), str(b)), (str(a), str(b)), (r"-\infty", str(b)), (str(a), r"\infty"), (rf"\frac{{{a}}}{{2}}", str(b)), (r"-\pi", r"\pi"))

        def bounded(left, right, low=low, high=high):
            big, bigger = self.one_of(("", ""), (r"\left", r"\right"))
            return f"{big}{left}{low},{self.one_of('', ' ')}{high}{bigger}{right}"
        left, right = self.one_of("(", "["), self.one_of(")", "]")
        other = bounded(self.one_of("(", "["), self.one_of(")", "]"))
        return bounded(left, right), self.one_of(bounded(left, right), bounded(left, right), bounded(left, right), other, other, bounded(left, right, high, low), rf"x \in {bounded(left, right)}",
                                                 bounded(left, right, low, str(b + 1)))

    def set(self):
        members = [self.one_of(str(self.number()), rf"\frac{{{self.number(1, 9)}}}{{{self.number(2, 9)}}}", rf"\sqrt{{{self.number(2, 9)}}}", str(self.number(1, 19) / 2))
                   for _ in range(self.number(2, 4))]
        others = list(members)
        change = self.draw.random()
        if change < 0.5:
            self.draw.shuffle(others)
        elif change < 0.9:
            others[self.number(0, len(others) - 1)] = str(self.number(31, 60))
        else:
            others.pop()

        def listed(parts):
            return self.one_of(rf"\{{{','.join(parts)}\}}", rf"\{{{', '.join(parts)}\}}", rf"\left\{{{','.join(parts)}\right\}}", ", ".join(parts), rf"\lbrace {','.join(parts)}\rbrace")
        return listed(members), listed(others)

    def inner(self):
        """Of a kind that may be in a box."""
        return self.one_of(self.fraction, self.decimal, self.thousands, self.percent, self.set)()

    def box(self):
        answer, label = self.inner()
        return self.one_of(rf"So \boxed{{{answer}}}.", rf"$\boxed{{{answer}}}$", rf"First \boxed{{7}}, and then we find that it really is \boxed{{{answer}}}", rf"\[ \boxed{{{answer}}} \]",
                           rf"The answer is ${answer}$.", rf"The final answer is \({answer}\)."), label

    def frame(self):
        answer, label = self.inner()
        return self.one_of(rf"$\fbox{{{answer}}}$", rf"so $\fbox{{{answer}}}$.", rf"\[\fbox{{{answer}}}\]"), label

    def hashes(self):
        value = self.one_of(self.number(-50, 500), f"{self.number(1000, 99999):,}", "3.5", "0.25", "1,234.50")
        return (self.one_of(f"We get 5+3=8.\n#### {value}", f"#### {value}", f"so 12 apples\n#### {value}\n", f"#### {value}.", f"#### ${value}", f"#### {value} dollars"),
                self.one_of(str(value), str(value).replace(",", ""), f"work 3+4 <<3+4=7>>7\n#### {value}", str(self.number()), f"{value}0"))

    def kinds(self):
        return {"fraction": self.fraction, r"\frac12": self.short_fraction, "decimal": self.decimal, "thousands": self.thousands, "unit": self.unit, "percent": self.percent,
                "degrees": self.degrees, r"\text": self.text, "interval": self.interval, "set": self.set, r"\boxed": self.box, r"\fbox": self.frame, "####": self.hashes}


def verdict(answer, label):
    """On the label in a box, as verl and TRL ask; without time limits, which a busy machine would reach."""
    from math_verify import parse, verify
    wanted = parse("\\boxed{" + label.rsplit("####", 1)[-1] + "}", parsing_timeout=None)
    return bool(verify(wanted, parse(answer, parsing_timeout=None), timeout_seconds=None))


def rows(seed, pairs):
    """So many of each kind, and more until there are enough of both verdicts."""
    for kind, make in Pairs(seed).kinds().items():
        seen = [0, 0]
        while sum(seen) < pairs or min(seen) < LEAST:
            answer, label = make()
            if kind not in (r"\boxed", r"\fbox", "####"):
                answer = "\\boxed{" + answer + "}"
            equal = verdict(answer, label)
            seen[equal] += 1
            yield {"kind": kind, "answer": answer, "label": label, "math": equal}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=20261127)
    parser.add_argument("--pairs", type=int, default=40)
    arguments = parser.parse_args()
    enter_environment(__file__)
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder) / "answers.jsonl"
        made = list(rows(arguments.seed, arguments.pairs))
        table.write_text("".join(json.dumps(row) + "\n" for row in made))
        print(f"{len(made)} pairs, {sum(row['math'] for row in made)} of them equal by math-verify", flush=True)
        done = subprocess.run([os.path.abspath(arguments.program), "--gtest_filter=MathRule.CountsAsMathVerifyAndVerlDo"], env=os.environ | {"TRIREME_ANSWERS": str(table)})
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()

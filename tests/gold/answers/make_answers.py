#!/usr/bin/env python3
"""Writes answers.jsonl: pairs of an answer and a label, and whether math-verify and verl's graders count them as equal.

    python3 -m venv venv && venv/bin/pip install math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0
    pip download --no-deps verl==0.9.1 && unzip verl-0.9.1-*.whl -d verl
    venv/bin/python make_answers.py --verl verl > answers.jsonl
"math" is math-verify's verdict on the label in a box, as verl and TRL ask for it; "math_verl" that of verl's graders of MATH and GSM8K
(verl/utils/reward_score/math_reward.py and gsm8k.py, read as files: verl itself is not installed). The tests need the table only.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import logging
import pathlib
import re

from math_verify import parse, verify

# Without a box of their own, answers are put into one.
PAIRS = {
    "fraction": [
        (r"\frac{1}{2}", r"\dfrac{1}{2}"), (r"\tfrac{3}{4}", r"\frac{6}{8}"), (r"\frac{1}{2}", r"\frac{1}{3}"), (r"\frac{1}{2}", r"\frac{2}{1}"),
        (r"3/4", r"\frac{3}{4}"), (r"-\frac{1}{2}", r"\frac{-1}{2}"), (r"\frac{1}{-2}", r"-\frac{1}{2}"), (r"-\frac{1}{2}", r"\frac{1}{2}"),
        (r"3\frac{1}{2}", r"\frac{7}{2}"), (r"3\frac{1}{2}", r"\frac{3}{2}"), (r"\frac{4}{2}", "2"), (r"\frac{5}{2}", "2"),
        (r"\frac{22}{7}", "3.142857"), (r"\frac{22}{7}", "3.14"), (r"\frac{x}{2}", r"\frac{1}{2}x"), (r"\frac{x}{2}", r"\frac{2}{x}"),
        (r"\frac{1}{3}", "0.333333"), (r"\frac{1}{3}", "0.3333"), ("7/3", "3/7"), (r"\frac{12345678901234567891}{2}", r"\frac{12345678901234567890}{2}")],
    r"\frac12": [
        (r"\frac12", r"\frac{1}{2}"), (r"\frac1{2}", r"\frac{1}{2}"), (r"\frac{1}2", r"\frac{1}{2}"), (r"\dfrac12", "0.5"), (r"\frac12", r"\frac{2}{1}"),
        (r"\frac 3 4", r"\frac{3}{4}"), (r"\frac34", r"\frac{4}{3}"), (r"\frac1{72}", r"\frac{1}{72}"), (r"\frac1{72}", r"\frac{17}{2}"),
        (r"\sqrt3", r"\sqrt{3}"), (r"\sqrt 2", r"2^{1/2}"), (r"\sqrt3", "3"), (r"2\sqrt3", r"\sqrt{12}"), (r"2\sqrt3", r"\sqrt{6}"),
        (r"\frac\pi2", r"\frac{\pi}{2}"), (r"\frac{\pi}{2}", r"\frac\pi3"), (r"-\frac12", r"\frac12"), (r"\frac12x", r"\frac{x}{3}"), (r"\frac59", r"\frac{5}{8}"),
        (r"\frac{\sqrt2}2", r"\frac{1}{\sqrt{2}}")],
    "decimal": [
        ("0.50", "0.5"), (".5", "0.5"), ("0.5", "0.51"), ("2.0", "2"), ("2.1", "2"), ("-.25", r"-\frac{1}{4}"), ("-0.25", "0.25"), ("1.50", "1.05"),
        ("3.14159265", r"\pi"), ("3.14", r"\pi"), ("1.41421356", r"\sqrt{2}"), ("1.414", r"\sqrt{2}"), ("0.1", "0.10000000000000001"), ("0.1", "0.11"),
        (r"2.5\times 10^3", "2500"), (r"2.5\times10^{-3}", "0.025"), ("1.2.3", "1.2"), ("007.5", "7.5"), ("1e3", "1000"),
        ("123456789012345678.5", "123456789012345679.5")],
    "thousands": [
        ("1,234", "1234"), ("1{,}234", "1234"), (r"1,\!234", "1234"), ("12,345,678", "12345678"), ("1,234.50", "1234.5"), ("-1,234", "-1234"),
        (r"\$1,234", "1234"), ("1234", "1{,}234"), ("1,234,567", "1{,}234{,}567"), ("1,234", "234"), ("1,234", "1235"), ("1, 234", "1234"), ("12,34", "1234"), ("1 234", "1234"),
        (r"1\,234", "1234"), ("1,234", "1.234"), ("1,234,567", "1234568"), ("123,456", "-123456"), ("12,345,678,901,234,567,890", "12345678901234567891"),
        ("12,345,678,901,234,567,890", "12345678901234567890")],
    "unit": [
        (r"5\text{ cm}", "5"), (r"5 \text{ cm}^2", "5"), (r"5\mbox{ inches}", "5"), ("5 apples", "5"), (r"18\text{ dollars}", "18"), (r"\$18", "18"),
        (r"5\text{ cm}", r"5\text{ m}"), (r"5\,\text{kg}", "5"), ("12 square units", "12"), (r"10\mathrm{~km}", "10"), (r"5\text{ cm}", "6"),
        ("5 apples", "6"), (r"5\text{ cm}", r"50\text{ mm}"), ("5 x", "5"), (r"\$18", "180"), (r"5 pears", "5"), (r"3\pi\text{ m}^3", r"3\pi"),
        (r"3\pi\text{ m}", "3"), ("7 people", "7"), (r"\frac{1}{2}\text{ hour}", r"\frac{1}{3}"), ("12 miles", "13")],
    "percent": [
        (r"50\%", "50"), ("50", r"50\%"), (r"50\%", "0.5"), (r"50\%", r"\frac{1}{2}"), ("50 percent", "50"), (r"50\text{ percent}", "50"), (r"50\%", "5"),
        (r"12.5\%", "0.125"), (r"12.5\%", "12.5"), (r"50\%", r"55\%"), (r"50\%", "0.05"), (r"33.3\%", "0.333"), (r"33.3\%", r"\frac{1}{3}"),
        (r"100\%", "1"), (r"100\%", "10"), (r"7 \%", "7"), ("25%", r"\frac{1}{4}"), ("25%", "4"), (r"-5\%", "5"), (r"50\text{\%}", "51")],
    "degrees": [
        (r"90^\circ", "90"), (r"90^{\circ}", "90"), ("90", r"90^\circ"), (r"90^\circ", r"90^{\circ}"), (r"90\text{ degrees}", "90"), ("90 degrees", "90"),
        (r"22.5^\circ", "22.5"), (r"\frac{45}{2}^\circ", "22.5"), (r"-40^\circ", "-40"), (r"20^\circ\text{C}", "20"), (r"90^\circ", "9"), (r"90^\circ", r"91^\circ"),
        (r"90^\circ", r"\frac{\pi}{2}"), ("90\u00b0", "90"), (r"90\degree", "90"), (r"180^\circ", r"\pi"), (r"20^\circ C", "20"), (r"-40^\circ", "40"),
        (r"60^\circ", r"30^\circ"), (r"45^{\circ}", "54"), (r"x^\circ", "x")],
    r"\text": [
        (r"\text{A}", "A"), (r"\textbf{(C)}", "C"), (r"\text{(B)}", r"\text{B}"), (r"\mathrm{A}", "A"), (r"\mathbf{7}", "7"), (r"\text{Monday}", "Monday"), ("Evelyn", r"\text{Evelyn}"),
        (r"\text{even}", r"\text{ even }"), (r"\text{yes}", r"\text{Yes}"), (r"\text{A}", "B"), (r"\text{even}", r"\text{odd}"), ("even", "odd"),
        (r"\text{Monday}", "Friday"), (r"\textbf{(C)}", "D"), (r"\text{no}", r"\text{north}"), (r"\text{A}", r"\text{AB}"), (r"\text{7}", "8"),
        ("north", "north"), (r"\text{ellipse}", "parabola"), (r"\mbox{red}", "blue"), (r"\text{A and B}", r"\text{A}")],
    "interval": [
        ("(1,2)", r"\left(1, 2\right)"), ("[1,2)", "[1, 2)"), ("(1,2]", "(1,2)"), ("[1,2]", "(1,2)"), (r"(-\infty,3)", "x<3"), (r"(-\infty,3]", "x<3"), ("x<3", r"(-\infty,3)"),
        (r"(-\infty,2)\cup(3,\infty)", r"(3, \infty) \cup (-\infty, 2)"), (r"(-\infty,2)\cup(3,\infty)", r"(-\infty,2)\cup[3,\infty)"), (r"[0.5,1]", r"[\frac12,1]"),
        ("(1,2)", "(2,1)"), (r"[1,\infty)", r"[1,\infty]"), (r"[1,2]", r"1\le x\le 2"), ("[1,2]", "1<x<2"), (r"x\in[1,2]", "[1,2]"), ("(1,2)", "(1,3)"), ("x>3", "3<x"), (r"x\ge 3", "x>3"),
        (r"(-\sqrt2,\sqrt2)", r"(-\sqrt{2},\sqrt{2})"), (r"[1,2]\cup[2,3]", "[1,3]"), (r"(1,2)\cup(2,3)", "(1,3)")],
    "set": [
        (r"\{1,2\}", r"\{2,1\}"), ("1,2", r"\{1, 2\}"), ("2, 1", "1,2"), (r"1\text{ and }2", "1,2"), (r"1 and 2", "2, 1"), (r"\{1,2\}", r"\{1,3\}"), (r"\{1,2\}", r"\{1,2,3\}"),
        (r"\{\frac12,3\}", r"\{3, 0.5\}"), (r"\emptyset", r"\{\}"), (r"\emptyset", r"\{0\}"), ("(1,2,3)", "(1,2,3)"), ("(1,2,3)", "(3,2,1)"), (r"\{1,2\}", "3"),
        (r"1\pm\sqrt2", r"1-\sqrt{2},1+\sqrt{2}"), (r"1\pm\sqrt2", r"1\pm\sqrt{3}"), (r"x=1,2", r"\{1,2\}"), (r"\{1\}", "1"), (r"\{1\}", "2"), (r"\lbrace 1,2\rbrace", r"\{1,2\}"),
        (r"\{a,b\}", r"\{b,a\}"), (r"\{a,b\}", r"\{a,c\}"), ("1;2", "1,2"), ("1,2", "1,2,2"), ("1,3", "2,3")],
    r"\boxed": [
        (r"so $\boxed{5}$.", "5"), (r"\boxed{3}, no: \boxed{4}", "4"), (r"\boxed{3} is wrong, after some more work it turns out to be \boxed{4}", "3"), (r"\boxed{\boxed{5}}", "5"), (r"\boxed{5", "5"), (r"\boxed {5}", "5"),
        (r"\boxed 5", "5"), (r"\boxed{x=5}", "5"), (r"\boxed{5}", "x=5"), (r"\boxed{x=5}", "y=5"), (r"\boxed{}", "5"), (r"\[ \boxed{\frac{1}{2}} \]", "0.5"), (r"$\boxed{1}$ and $\boxed{2}$", "1,2"),
        (r"\boxed{5} apples", "5"), (r"The answer is $5$.", "5"), (r"\boxed{4}", "5"), (r"so $\boxed{-5}$.", "5"), (r"the final answer is $7$. I hope it is correct, \boxed{8}", "8"),
        (r"\boxed{5} or so, $x=3$", "5"), (r"\boxed{5} or so, $x=3$", "3"), (r"\boxed{x+1=2}", "1"), (r"\boxed{6}", r"\boxed{6}"), (r"\boxed{6}", r"\boxed{7}"), ("no box at all", "5"), (r"\boxed{5}", "4")],
    r"\fbox": [
        (r"$\fbox{5}$", "5"), (r"\fbox{5}", "5"), (r"so $\fbox{5}$.", "5"), (r"$\fbox{\frac12}$", "0.5"), (r"$\fbox{5}$", "6"), (r"\[\fbox{1,234}\]", "1234"), (r"\[\fbox{1,234}\]", "1235"),
        (r"$\fbox{5\text{ cm}}$", "5"), (r"$\fbox{A}$", "A"), (r"$\fbox{A}$", "B"), (r"\fbox{7} so 7", "7"), (r"\fbox{7} so 8", "7"), (r"$\fbox{[1,2)}$", "[1,2)"), (r"$\fbox{[1,2)}$", "[1,2]"),
        (r"$\fbox{x=5}$", "5"), (r"$x$ is \fbox{5}", "5"), (r"$\fbox{50\%}$", "50"), (r"$\fbox{50\%}$", "49"), (r"$\fbox{\{1,2\}}$", "2,1")],
    "####": [
        ("#### 18", "18"), ("9 + 9 = 18\n#### 18", "18"), ("#### 1,234", "1234"), ("#### 18", "work #### 18"), ("#### -5", "-5"), ("#### 3.50", "3.5"), ("#### 17", "18"), ("#### 18\nso 19", "18"),
        ("####18", "18"), ("#### $18", "18"), ("#### 18 dollars", "18"), ("#### 18.", "18"), ("#### 1,234", "1,234"), ("#### 5", "-5"), ("18", "18"), ("#### 18\n#### 19", "18"), ("#### 18\n#### 19", "19"),
        ("#### none", "18"), ("#### 1,234", "#### 1,235"), ("#### 0.5", "1/2"), ("#### 180", "18"), ("#### 12345678901234567890", "12345678901234567891")],
}


def load(folder, name):
    spec = importlib.util.spec_from_file_location(name, folder / "verl/utils/reward_score" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_math_verify(answer, label):
    label = label.rsplit("####", 1)[-1]
    return bool(verify(parse("\\boxed{" + label + "}"), parse(answer)))


def by_verl(math, gsm8k, answer, label):
    marked = re.findall("#### (\\-?[0-9\\.\\,]+)", label)
    boxed = "\\boxed" in answer or "\\fbox" in answer
    with contextlib.redirect_stdout(io.StringIO()):
        if marked or ("#### " in answer and not boxed):
            return bool(gsm8k.compute_score(answer, marked[-1].replace(",", "") if marked else label))
        own = math.last_boxed_only_string(label)
        return bool(math.compute_score(answer, label if own is None else math.remove_boxed(own)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", type=pathlib.Path, required=True, help="the unpacked wheel")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    math, gsm8k = load(options.verl, "math_reward"), load(options.verl, "gsm8k")
    for kind, pairs in PAIRS.items():
        for answer, label in pairs:
            response = answer if kind in (r"\boxed", r"\fbox", "####") else "\\boxed{" + answer + "}"
            print(json.dumps({"kind": kind, "answer": response, "label": label, "math": by_math_verify(response, label),
                              "math_verl": by_verl(math, gsm8k, response, label)}))


if __name__ == "__main__":
    main()

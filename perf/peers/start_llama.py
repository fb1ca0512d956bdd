"""llama.cpp from the start of the process: the first token of a prompt of four, random weights of the same shape. What is timed is the process."""

import os

from llama import Llama

net = Llama("135M", "bf16", 1, 64, int(os.environ.get("OMP_NUM_THREADS", "1")))
net.decode([(token, i, 0, i == 3) for i, token in enumerate((300, 301, 302, 303))])
print(net.argmax(3))

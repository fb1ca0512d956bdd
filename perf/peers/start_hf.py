"""Hugging Face generate from the start of the process: the first token of one prompt. What is timed is the process."""

import sys
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

torch.set_grad_enabled(False)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
net = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
out = net.generate(**tokenizer("Once upon a time", return_tensors="pt"), do_sample=False, max_new_tokens=1, pad_token_id=0)
print(tokenizer.decode(out[0]))

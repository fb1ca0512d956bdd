"""llama.cpp by the low-level calls of llama-cpp-python: the same random weights as common.model, as a GGUF file made once beside the environment."""

import ctypes
import os
import pathlib
import sys

from common import SHAPES, model

CONTEXT = 4096  # positions in the file's header


def file_of(shape, dtype):
    """The GGUF file; linear weights and embedding in `dtype` (fp32, bf16), norms in fp32, a vocabulary of artificial words."""
    path = pathlib.Path(sys.prefix).parent / "peers" / f"{shape}-{dtype}.gguf"
    if path.exists():
        return path
    import gguf
    s, bf16 = SHAPES[shape], dtype == "bf16"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".part{os.getpid()}")
    writer = gguf.GGUFWriter(part, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(s["hidden_size"])
    writer.add_block_count(s["num_hidden_layers"])
    writer.add_feed_forward_length(s["intermediate_size"])
    writer.add_head_count(s["num_attention_heads"])
    writer.add_head_count_kv(s["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(s["head_dim"])
    writer.add_vocab_size(s["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if bf16 else gguf.LlamaFileType.ALL_F32)
    bytes_of_utf8 = [b"<0x%02X>" % i for i in range(256)]
    words = [b"<unk>", b"<s>", b"</s>", *bytes_of_utf8]
    words += [b"w%d" % i for i in range(s["vocab_size"] - len(words))]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * len(words))
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(words) - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, value in model(shape).state_dict().items():
        if name == "lm_head.weight":
            continue  # tied
        value = value.contiguous().float()
        for part_of_name, heads in (("q_proj", s["num_attention_heads"]), ("k_proj", s["num_key_value_heads"])):
            if part_of_name in name:  # halves of a head side by side -> pairs
                value = value.reshape(heads, 2, s["head_dim"] // 2, -1).transpose(1, 2).reshape(value.shape).contiguous()
        array = value.numpy()
        if bf16 and array.ndim == 2:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)
    return path


def gguf_name(name):
    of_layer = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
                "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
                "post_attention_layernorm": "ffn_norm"}
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{of_layer[rest.removesuffix('.weight')]}.weight"


class Llama:
    """A model, and one context of `sequences` sequences with `cells` cached positions in all; with `shared` they may have cells in common."""

    def __init__(self, shape, dtype, sequences, cells, threads, shared=False, most_tokens=512):
        import llama_cpp
        self.api, self.vocabulary = llama_cpp, SHAPES[shape]["vocab_size"]
        path = file_of(shape, dtype)
        self.silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_seq_max = cells, sequences
        options.n_batch = options.n_ubatch = most_tokens
        options.n_threads = options.n_threads_batch = threads
        options.flash_attn_type, options.kv_unified, options.no_perf = 1, shared, True
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.model or not self.context:
            raise SystemExit(f"llama.cpp did not take {path}")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(most_tokens, 0, 1)
        self.most_tokens = most_tokens

    def decode(self, tokens):
        """tokens: (token, position, sequence, whether its logits are wanted), at most `most_tokens` of them."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = sequence
        status = self.api.llama_decode(self.context, batch)
        if status != 0:
            raise SystemExit(f"llama_decode returned {status}")
        self.api.llama_synchronize(self.context)

    def sampler(self, greedy):
        chain = self.api.llama_sampler_chain_init(self.api.llama_sampler_chain_default_params())
        self.api.llama_sampler_chain_add(chain, self.api.llama_sampler_init_greedy() if greedy else self.api.llama_sampler_init_dist(1))
        return lambda row: self.api.llama_sampler_sample(chain, self.context, row)

    def argmax(self, row):
        import numpy
        return int(numpy.argmax(numpy.ctypeslib.as_array(self.api.llama_get_logits_ith(self.context, row), shape=(self.vocabulary,))))

    def clear(self):
        self.api.llama_memory_clear(self.memory, True)

"""First texts of each fuzz target: every word of a format, and each of its refusals, so that its parser is reached from the start (fuzz.py --coverage)."""

import copy
import hashlib
import json
import pathlib
import struct


def changed(base, *changes):
    """`base` and, for each change, a copy with the value at a path ("a.b.0") replaced; a path alone is removed."""
    made = [base]
    for path, *value in changes:
        one = copy.deepcopy(base)
        *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        place = one
        for step in way:
            place = place[step]
        if value:
            place[last] = value[0]
        else:
            del place[last]
        made.append(one)
    return made


def texts(values):
    return [json.dumps(value).encode() for value in values]


# ---- safetensors ----

TENSORS = {"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
           "b": {"dtype": "BF16", "shape": [524276], "data_offsets": [24, 1048576]}}
SAFETENSORS = [
    *texts(changed(TENSORS, ("a.dtype", "F33"), ("a.dtype", 1), ("a.dtype", []), ("a.shape", "x"), ("a.shape", [-1]), ("a.shape", [1.5]), ("a.shape",
    [1] * 40),
                   ("a.shape", [2**64 - 1]), ("a.shape", [2**62, 8]), ("a.shape", [[]]), ("a.shape", [None]), ("a.data_offsets", [0]),
                   ("a.data_offsets", [0, 1, 2]), ("a.data_offsets", [24, 0]), ("a.data_offsets", [0, 23]), ("a.data_offsets", [{}]), ("a.extra", 1),
                   ("a.shape",), ("a", 1), ("a", "x"), ("a", True), ("a", []), ("__metadata__", {"format": 1}), ("__metadata__", {"x": {}}), ("b",),
                   ("b.data_offsets", [32, 1048584]), ("b", {"dtype": "F4", "shape": [1], "data_offsets": [24, 24]}), ("n" * 200, 1),
                   ("b", {"dtype": "U8", "shape": [2000000], "data_offsets": [24, 2000024]}), ("\x00", {}), ("a\x07", []))),
    b'{"a":{"dtype":"F32","dtype":"F32"}}', b'{"a":{},"a":{}}', b'{"__metadata__":{"x":"1","x":"2"}}', b'{"__metadata__":{},"__metadata__":{}}',
    b'{"a":\x00}',
    b"[]", b"", b"{", b'{"a":nul}', b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"{}{}",
    b'{"a":{"shape":{"b":1}}}', b"{1}"]
INDEX = [
    *texts(changed({"metadata": {"total_size": 24, "x": [1.5, -1, None, True, "t"]}, "weight_map": {"a": "model-00001-of-00002.safetensors"}},
                   ("weight_map.a", "../x"), ("weight_map.a", ""), ("weight_map.a", ".."), ("weight_map.a", "."), ("weight_map.a", 1), ("weight_map.a", {}),
                   ("weight_map.a", []), ("weight_map", []), ("weight_map", "x"), ("weight_map", None), ("weight_map",))),
    b'{"weight_map":{"a":"b","a":"b"}}', b'{"weight_map":{},"weight_map":{}}', b"[" * 70, b'{"a":' + b'{"a":' * 70, b"1", b"-1", b"null", b'"x"', b"true",
    b"1.5", b"{",
    b'{"weight_map":{"a":true}}', b'{"weight_map":{"a":1.5}}', b'{"weight_map":{"a":-5}}']

# ---- GGUF ----

KINDS = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "B"), "u64": (10,
    "Q"),
         "i64": (11, "q"), "f64": (12, "d")}


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_value(kind, value):
    if kind == "text":
        return struct.pack("<I", 8) + gguf_text(value)
    if kind == "texts":
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(gguf_text, value))
    if kind.endswith("s"):
        number, letter = KINDS[kind[:-1]]
        return struct.pack("<IIQ", 9, number, len(value)) + struct.pack(f"<{len(value)}{letter}", *value)
    number, letter = KINDS[kind]
    return struct.pack("<I" + letter, number, value)


def gguf(metadata, tensors, data=b"", version=3, magic=b"GGUF", alignment=32):
    """metadata: {key: (kind, value)}; tensors: (name, extents, type, offset)."""
    out = magic + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += gguf_text(key) + (value if isinstance(value, bytes) else gguf_value(*value))
    for name, extents, kind, offset in tensors:
        out += gguf_text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, offset)
    return out + bytes(-len(out) % alignment) + data


LLAMA = {
    "general.architecture": ("text", "llama"), "llama.embedding_length": ("u32", 16), "llama.block_count": ("u16", 1), "llama.feed_forward_length": ("u64",
    16),
    "llama.attention.head_count": ("u8", 2), "llama.attention.head_count_kv": ("i8", 1), "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
    "llama.context_length": ("i32", 64), "llama.rope.freq_base": ("f64", 1e4), "tokenizer.ggml.model": ("text", "gpt2"), "tokenizer.ggml.pre": ("text", "x"),
    "tokenizer.ggml.tokens": ("texts", ["a", "b"]), "tokenizer.ggml.merges": ("texts", ["a b"]), "tokenizer.ggml.token_type": ("i32s", [1, 3]),
    "tokenizer.ggml.scores": ("f32s", [0, 1]), "tokenizer.ggml.bos_token_id": ("i64", 0), "tokenizer.ggml.eos_token_id": ("u32", 1), "x.i16": ("i16", 3),
    "tokenizer.ggml.eot_token_id": ("u32", 0), "tokenizer.ggml.padding_token_id": ("u32", 1), "tokenizer.ggml.add_bos_token": ("bool", 1),
    "tokenizer.chat_template": ("text", "{{ messages }}"), "x.flags": ("bools", [0, 1]), "x.u8s": ("u8s", [1]), "x.u16s": ("u16s", [1]), "x.f64s": ("f64s",
    [1]),
    "x.i8s": ("i8s", [1]), "x.i16s": ("i16s", [1]), "x.i64s": ("i64s", [1]), "x.u32s": ("u32s", [1]), "x.u64s": ("u64s", [1])}
EMBEDDING = ("token_embd.weight", [16, 2], 0, 0)
ROPE = struct.pack("<4f", 1, 1, 1, 1)
GGUF = [gguf(LLAMA | change, [EMBEDDING], bytes(128)) for change in (
    {}, {"general.architecture": ("text", "gpt2")}, {"general.architecture": ("u8", 1)}, {"llama.expert_count": ("u8", 8)}, {"split.count": ("u8", 2)},
    {"llama.attention.sliding_window": ("u8", 8)}, {"llama.embedding_length": ("u32", 0)}, {"llama.embedding_length": ("u32", 17)},
    {"llama.attention.key_length": ("u8", 7)}, {"llama.attention.layer_norm_rms_epsilon": ("f32", float("nan"))}, {"llama.rope.dimension_count": ("u8", 2)},
    {"llama.rope.scaling.type": ("text", "yarn")}, {"llama.rope.scaling.type": ("text", "linear"), "llama.rope.scaling.factor": ("f32", 2.0)},
    {"tokenizer.ggml.bos_token_id": ("i64", -1)}, {"tokenizer.ggml.eos_token_id": ("u32", 7)}, {"tokenizer.ggml.token_type": ("i32s", [1])},
    {"tokenizer.ggml.token_type": ("i64s", [2**40, 1])}, {"tokenizer.ggml.add_bos_token": ("u8", 1)}, {"general.alignment": ("u32", 64)},
    {"general.alignment": ("u32", 33)}, {"x": ("u64", 2**63)}, {"x": ("bool", 2)}, {"x": struct.pack("<I", 99)}, {"x": struct.pack("<IIQ", 9, 9, 1)},
    {"x": struct.pack("<IIQ", 9, 99, 1)}, {"x": struct.pack("<IIQ", 9, 0, 2**40)}, {"x": struct.pack("<IQ", 8, 2**40)})]
GGUF += [gguf({key: value for key, value in LLAMA.items() if key != left}, [EMBEDDING], bytes(128)) for left in ("general.architecture", "llama.block_count",
                                                                                                              "llama.attention.layer_norm_rms_epsilon")]
GGUF += [gguf(LLAMA, tensors, bytes(512)) for tensors in (
    [], [("token_embd.weight", [16], 0, 0)], [EMBEDDING, EMBEDDING], [EMBEDDING, ("b", [16], 0, 32)], [EMBEDDING, ("b", [16], 0, 1)],
    [EMBEDDING, ("b", [16], 0, 4096)], [("b", [33], 8, 0)], [("b", [32], 8, 0)], [("b", [8], 12, 0)], [("b", [8], 99, 0)], [("b", [0], 0, 0)],
    [("b", [1] * 5, 0, 0)], [("b", [2**62, 2**62], 0, 0)], [("b", [2**62, 32], 2, 0)], [("b", [2**62], 0, 0)], [("b", [16], 0, 2**64 - 32)],
    [("token_embd.weight", [1, 2**40], 0, 0)], [EMBEDDING, ("output.weight", [16, 2], 1, 128), ("blk.0.attn_q.bias", [16], 30, 192)],
    [EMBEDDING, ("rope_freqs.weight", [3], 0, 128)])]
GGUF += [gguf({}, [("b", [64], kind, 0), ("blk.x.y", [1], 0, 96), ("blk.0.attn_q.weight", [1], 0, 128)], bytes(range(160))) for kind in (2, 3, 6, 7, 8)]
GGUF += [gguf({}, [("b", [8], kind, 0)], bytes(64)) for kind in (1, 30)]
GGUF += [gguf(LLAMA | {"llama.rope.scaling.type": ("text", kind), "llama.rope.scaling.factor": ("f32", 2.0), "llama.rope.freq_base": ("f32", base)},
              [EMBEDDING, ("rope_freqs.weight", [4], 0, 128)], bytes(128) + factors)
         for kind, base, factors in (("none", 1e4, ROPE), ("linear", 1e4, ROPE), ("none", 5e5, struct.pack("<4f", 1, 1, 1, 8)),
                                     ("none", 1e4, struct.pack("<4f", 1, 3, 5, 8)))]
GGUF += [b"GGUF", gguf({}, [], version=4), gguf({}, [], version=0x3000000), gguf({}, [], magic=b"GGML"), gguf(LLAMA, [])[:200],
         struct.pack("<4sIQQ", b"GGUF", 3, 2**40, 0), struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**40),
         struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + 2 * (gguf_text("a") + gguf_value("u8", 1))]

# ---- config.json ----

SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 272, "max_position_embeddings": 256, "rms_norm_eps": 1e-05, "head_dim": 16,
         "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0, "attention_bias": True, "mlp_bias": True, "rope_theta": 1e4}
LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 128}
MODEL_CONFIG = texts(changed(
    SHAPE, ("architectures",), ("architectures", ["GPT2"]), ("architectures", 1), ("architectures", ["LlamaForSequenceClassification"]),
    ("architectures", ["MistralForCausalLM"]), ("architectures", ["Qwen2ForCausalLM"]), ("architectures", ["Qwen3ForCausalLM"]), ("hidden_act", "gelu"),
    ("quantization_config", {}), ("quantization_config", {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    ("quantization_config", {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": None}), ("num_experts", 8), ("attention_dropout", 0.1), ("partial_rotary_factor", 0.5), ("rope_interleaved", True),
    ("layer_types", ["full_attention"]), ("layer_types", ["sliding"]), ("use_sliding_window", True), ("head_dim",), ("head_dim", 15), ("num_key_value_heads",
    4),
    ("vocab_size", 0), ("vocab_size", "x"), ("vocab_size",), ("rms_norm_eps", 0), ("rope_scaling", {"type": "linear", "factor": 2}), ("rope_scaling", []),
    ("rope_scaling", {"type": "yarn"}), ("rope_scaling", {"type": "linear"}), ("rope_parameters", {"rope_type": "default", "rope_theta": 5e5}),
    ("rope_parameters", LLAMA3), ("rope_parameters", LLAMA3 | {"high_freq_factor": 1}), ("rope_parameters", {"rope_type": "llama3", "factor": 8}),
    ("rope_parameters", {"partial_rotary_factor": 0.5}), ("bos_token_id", 999), ("eos_token_id", 2), ("eos_token_id", ["x"]), ("pad_token_id", -1),
    ("dtype", "int8"), ("torch_dtype", "bfloat16"), ("mean", 0.5), ("std", 2), ("tie_word_embeddings", 1), ("model_type", 7)))
MODEL_CONFIG += texts(changed(SHAPE | {"architectures": ["LlamaForSequenceClassification"], "mean": 1, "std": 2}, ("num_labels", 3), ("id2label", {"0": "a",
    "1": "b"})))
MODEL_CONFIG += texts(changed({key: value for key, value in SHAPE.items() if key not in ("architectures", "head_dim")}, ("hidden_size", 60), ("model_type",
    "x"),
                              ("model_type", "mistral"), ("model_type", "qwen3")))
MODEL_CONFIG += [b"[]", b"{", b"[" * 40, *texts([SHAPE | {"architectures": ["MistralForCausalLM"], "sliding_window": None},
                                                 SHAPE | {"architectures": ["MistralForCausalLM"], "sliding_window": 16}])]

# ---- decks ----

DECK = [
    b'data = 1\nreward = "x"\n"" = 1\n".a" = 1\n[data]\n"" = 1\n',
    b'[run]\ndir = "run"\nwalltime = "1h30m"\n[[reward.source]]\nkind = "rule"\nrule = "regex"\npattern = "[0-9]"\n[ckpt]\ninterval = "auto"\n',
    b'[run]\nwalltime = "2:00:00"\nterm_grace = 20\nseed = 1.5\n[generate]\nkv_memory = 0.25\n[weightsync]\nbucket_bytes = "4 MiB"\n[ckpt]\n'
    b'interval = "20m"\ntarget = 0.5\n',
    b'[run]\nwalltime = "x"\nterm_grace = []\ndir = 3\nproduction = 1\nlog_level = "infos"\niterations = -1\n[ckpt]\ninterval = "-3"\nkeep = 0\n'
    b'path = "a\\u0000"\n',
    b'[generate]\nkv_memory = "2 GiB"\n[ckpt]\ninterval = 1.5\ntarget = "none"\nallow_changes = "actor."\n[rollout]\nstop = ["a", 1]\n[actor.adam]\n'
    b'betas = [0.9, 0.95]\n',
    b'[generate]\nkv_memory = 1\n[weightsync]\nbucket_bytes = "4 Mi"\n[actor.adam]\nbetas = [0.9]\nlr = nan\n[ckpt]\nallow_changes = "[a"\ntarget = []\n',
    b'[generate]\nkv_memory = -1\n[weightsync]\nbucket_bytes = 1.5\n[actor.adam]\nbetas = "x"\nlr = "x"\n[ckpt]\nallow_changes = "[a]"\n',
    b'[algo]\ndynamic_filtering_range = [1, 0]\n[data]\nprompt_probs = [0.5, 0.5]\n[ranks]\ntrainer = "0-3"\n[rollout]\nmax_new_tokens = "many"\n',
    b'[[reward.source]]\n[[reward.source]]\nkind = "model"\npath = "x"\n[run]\ndate = 1979-05-27\ntable = {a = 1}\n', b"a = [[1, 2], {b = 1}]\n", b"a = \n",
    b"[run]\nseed = 1\nseed = 2\n", b'[run]\n"\xc3\xa9" = true\nsead = 1\n', b"[[a]]\n[[a]]\nb = 1\n", b"[1, 2]", b"plain words", b"1.5", b"1979-05-27",
    b'[run]\ndir = "a\\"\\u0001\\\\"\n[trace]\nenabled = true\n[ckpt]\ninterval = 5\n'  , b"a" * 70 + b" = " + b"[" * 70]

# ---- chat templates ----

CHAT = [text.encode() for text in (
    "{% for m in messages %}{{ m['role'] + ': ' + m.content|trim }}{% endfor %}{% set ns = namespace(a=[1, 2]) %}{{ ns.a|tojson }}",
    "{%- if messages[0]['role'] == 'system' -%}{{ messages[0].content.strip()|replace('e', 'a') }}{%- endif %}{{ 'x' * 3 }}",
    "{%- if a is defined and not b %}x{%- elif messages is iterable or c %}y{% else %}z{% endif +%}\n {%+ if true %}\n{% endif %}{# c -#} {{- 1 -}}\n{#-#}",
    "{% for a, b in {'x': 1, 'y': [1, 2.5, none, true]}.items() if a != 'z' %}{{ loop.index }}{{ a }}{% if loop.last %}{% break %}{% endif %}{% continue %}"
    "{% else %}n{% endfor %}{% generation %}{{ 1 }}{% endgeneration %}",
    "{% set n = namespace(x=1) %}{% set n.x = n.x + 2 %}{{ n.x }}{{ -3 // 2 }}{{ -3 % 2 }}{{ 7.5 // 2 }}{{ -7.5 % 2 }}{{ 1 / 2 }}{{ 2 * 1.5 - 1.0 }}"
    "{{ 1.5 + 1 }}{{ 4.0 // -2 }}"
    "{{ 4.0 % 2 }}{{ 3 - 1 }}{{ -n.x }}{{ -1.5 }}{{ +1 }}{{ 2 * 3 }}",
    "{{ 'a' in 'abc' }}{{ 1 in [1] }}{{ 'k' in {'k': 1} }}{{ 1 not in x }}{{ 1 < 2 }}{{ 1.5 <= 2 }}{{ 'a' > 'b' }}{{ 2 >= 1 }}{{ 1 ~ 'a' }}"
    "{{ 'a' + 'b' }}{{ ([1] + [2])|length }}",
    "{{ 'abc'[1] }}{{ 'abc'[-9] }}{{ [1, 2][0] }}{{ [1][5] }}{{ 'abc'[::-1] }}{{ 'abc'[1:] }}{{ ([1, 2, 3][:-1])|tojson }}{{ {'a': 1}['a'] }}"
    "{{ {'a': 1}['b'] }}{{ {'a': 1}[0] }}{{ 'x'.y }}",
    "{{ ' a '|trim }}{{ 'aba'.strip('a') }}{{ ' a'.lstrip() }}{{ 'a '.rstrip() }}{{ 'xa'.lstrip('x') }}{{ 'ax'.rstrip('x') }}"
    "{{ 'a,b,c'.split(',')|join('-') }}{{ 'a,b'.split(',', 1)|tojson }}"
    "{{ 'a'.upper() }}{{ 'A'.lower() }}{{ 'abc'.startswith('a') }}{{ 'abc'.endswith('c') }}{{ 'aba'.replace('b', 'c') }}",
    "{{ {'a': 1, 'a': 2}.items()|list|length }}{{ {'a': 1}.keys()|list|join }}{{ {'a': 1}.values()|list|first }}{{ {'a': 1}.get('a') }}"
    "{{ {'a': 1}.get('b', 3) }}{{ {}.get('b') }}"
    "{{ {'a': 1}|items|list|length }}{{ x|items|list|length }}{{ [1]|last }}{{ []|first is undefined }}{{ 'ab'|first }}{{ {'a': 1}|list|last }}",
    "{{ x|default('y') }}{{ ''|default('z', true) }}{{ x|d }}{{ 1|d }}{{ 'ab'|upper }}{{ 'AB'|lower }}{{ 1|string }}{{ 'a'|safe }}{{ x|length }}"
    "{{ {'a': 1}|count }}{{ none|string }}",
    "{{ [1, 0]|select|list|length }}{{ [1, 'a']|reject('string')|list|length }}{{ [{'r': 1}, {}]|selectattr('r')|list|length }}"
    "{{ [{'r': 1}]|selectattr('r', 'eq', 1)|list|length }}"
    "{{ [{'r': 1}]|rejectattr('r', 'ne', 1)|list|length }}{{ [{'r': 1}]|selectattr('r', 'defined')|list|length }}"
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}",
    "{% for i in range(3) %}{{ i }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}{{ range(5, 1, -2)|join(',') }}{{ range(1, 3)|list|length }}"
    "{% for c in 'ab' %}{{ c }}{% endfor %}"
    "{% for k in {'a': 1} %}{{ k }}{% endfor %}{% for q in x %}{% endfor %}",
    "{{ messages|tojson }}{{ messages|tojson(indent=2) }}"
    "{{ [1.0, 100000000000000000.5, 0.00001, -0.5, 'q\"\\\\\\n\\t\\r\\x08\\x0c\\x01\\u00e9'' b']|tojson(indent=none) }}"
    "{{ [none, true, false]|tojson(ensure_ascii=false) }}",
    "{{ 1 is number }}{{ 1 is integer }}{{ 1.5 is float }}{{ true is boolean }}{{ true is true }}{{ false is false }}{{ none is none }}"
    "{{ {} is mapping }}{{ 's' is string }}{{ x is undefined }}"
    "{{ [] is sequence }}{{ 1 is not none }}",
    "{{ 'a' if true }}{{ 'a' if false else 'b' }}{{ 'a' if false }}{{ [1, [2], {'k': 2}] == [1, [2], {'k': 2}] }}{{ {'a': 1} == {'b': 1} }}"
    "{{ {'a': 1} == {} }}{{ 1 == 'a' }}{{ 1 == 1.0 }}"
    "{{ 'a' == 'ab' }}{{ 'a' == 'a' }}{{ range == range }}{{ none == none }}{{ True }}{{ None }}{{ False }}{{ not true }}{{ range and 1 }}"
    "{{ 0.0 or {} }}{{ [] or n }}",
    "{{ 9223372036854775807 * 1.0 }}{{ 1.5 * 10000000000000000000.5 }}{{ 1.0 * 0.00001 }}{{ (1.0 / 0.0000000000000000000001) }}"
    "{% set m = {'items': 1, 'clear': 2} %}{{ m.items }}{{ m.clear }}{{ m['items'] }}",
    "{% set big = 1" + 300 * "0" + ".0 %}{{ big * big }}{{ -big * big }}{{ big * big - big * big }}"
    "{{ [big * big, -big * big, big * big - big * big]|tojson }}")]
# One refusal each.
CHAT += [text.encode() for text in (
    "{{ raise_exception('no') }}", "{{ 1 // 0 }}", "{{ 1.5 / 0 }}", "{{ 9223372036854775807 + 1 }}", "{{ 99999999999999999999 }}", "{{ 'a' - 1 }}",
    "{{ 1 in 2 }}", "{{ 1 in 'a' }}",
    "{{ 'a' < 1 }}", "{{ x.y.z }}", "{{ x[1] }}", "{{ [1]['a'] }}", "{{ [1][1.5] }}", "{{ [1][::0] }}", "{{ [1]['a':] }}", "{{ {}[1:] }}",
    "{{ [1][1:2:3:4] }}", "{{ {1: 2} }}", "{{ -'a' }}",
    "{{ 'a'|nofilter }}", "{{ 'a' is notest }}", "{{ 'a'.nomethod() }}", "{{ nofunction() }}", "{{ strftime_now('x') }}", "{{ 'a'.strip(1) }}",
    "{{ 'a'.strip(1, 2) }}", "{{ 'a'.replace('', 'b') }}",
    "{{ 'a'.split('') }}", "{{ 'a'.split('b', 'c') }}", "{{ '\u00e9'|upper }}", "{{ 1|length }}", "{{ 1|items }}", "{{ [1] }}", "{{ [[1]]|join }}",
    "{{ range|tojson }}", "{{ 1|tojson(indent=99) }}",
    "{{ 1|tojson(ensure_ascii=true) }}", "{{ 1|tojson(x=1) }}", "{{ [1]|select('notest') }}", "{{ [1]|select('defined', 2) }}", "{{ 1|list }}",
    "{{ range(0, 1, 0) }}", "{{ range(99999) }}",
    "{{ range('a') }}", "{{ namespace(a=namespace()) }}", "{% set a.b = 1 %}", "{% set n = namespace() %}{% set n.a = namespace() %}",
    "{% for a, b in [1] %}{% endfor %}", "{% break %}", "{% nothing %}",
    "{% endif %}", "{% if 1 %}", "{% for a in b recursive %}{% endfor %}", "{% for a %}{% endfor %}", "{% set a %}x{% endset %}", "{% set a, b = 1 %}",
    "{% set a = 1, 2 %}", "{{ (1, 2) }}", "{{ 1 < 2 < 3 }}",
    "{{ 2 ** 3 }}", "{{ }}", "{{ 1 2 }}", "{{ 'a }}", "{{ 'a\\", "{{ '\\q' }}", "{{ '\\xzz' }}", "{{ '\\ud800' }}", "{{ $ }}", "{{ 1", "{# x", "{{ ) }}",
    "{{ f(a=1, 2) }}", "{{ f(1, }}", "{{ {'a' 1} }}",
    "{{ [1 2] }}", "{{ 'a'|trim(1, 2) }}", "{{ 'a'.upper(1) }}", "{{ {}.get(1) }}", "{{ {}.items(1) }}", "{{ 1|default(1, 2, 3) }}",
    "{{ raise_exception() }}", "{{ namespace(1) }}", "{{ 'a'|join(x=1) }}",
    "{{ " + "[" * 200 + "]" * 200 + " }}", "{{ " + "(" * 400 + "1" + ")" * 400 + " }}",
    
    "{% set a = 'x' %}{% for i in range(60) %}{% set n = namespace(a=a) %}{{ a * 2 }}{% endfor %}", "a\r\nb\rc\n")] + [b"\xff", b"{{ '\xff' }}",
    b"{{ '" + b"a" * 3000 + b"'|upper }}"]

# ---- tokenizer.json ----


def byte_letters():
    """GPT-2's alphabet."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + number) for number in range(len(others))]


LETTERS = byte_letters()
VOCABULARY = {letter: number for number, letter in enumerate(LETTERS)} | {"ab": 256}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}},
    {"SpecialToken": {"id": "<s>"}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [257]}}}
TOKENIZER_JSON = {
    "version": "1.0", "added_tokens": [{"id": 257, "content": "<s>", "special": True, "lstrip": True, "rstrip": False, "single_word": False,
    "normalized": False}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "Split", "behavior": "Isolated",
    "pattern": {"Regex": "\\s+"}},
                                                            {"type": "Split", "behavior": "Isolated", "pattern": {"String": "x"}}, {"type": "ByteLevel",
                                                            "add_prefix_space": False}]},
    "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}, "decoder": {"type": "Sequence",
    "decoders": [{"type": "ByteLevel"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "vocab": VOCABULARY, "merges": ["a b"], "ignore_merges": True, "dropout": None, "unk_token": None}}
FEW = {letter: number for number, letter in enumerate(LETTERS[3:])}
TOKENIZER = texts(changed(
    TOKENIZER_JSON, ("model",), ("model.type", "WordPiece"), ("model.type", 1), ("model.vocab", []), ("model.vocab", {"a": "x"}), ("model.vocab", {"a": 0}),
    ("model.merges", [["a", "b"]]),
    ("model.merges", ["a"]), ("model.merges", [1]), ("model.merges", ["a z z"]), ("model.merges", ["a zz"]), ("model.merges", {}), ("model.dropout", 0.1),
    ("model.end_of_word_suffix", "x"),
    ("model.vocab", FEW), ("normalizer", None), ("normalizer.type", "NFKC"), ("normalizer.type", 1), ("pre_tokenizer", None), ("pre_tokenizer.pretokenizers",
    1),
    ("pre_tokenizer.pretokenizers.1.behavior", "Removed"), ("pre_tokenizer.pretokenizers.1.pattern", {}), ("pre_tokenizer.pretokenizers.2.pattern.String",
    ""),
    ("pre_tokenizer.pretokenizers.3.type", "Metaspace"), ("pre_tokenizer.pretokenizers.3.add_prefix_space", 1), ("pre_tokenizer.pretokenizers.3",
    {"type": "Digits"}),
    ("post_processor", None), ("post_processor.type", "Bert"), ("post_processor.processors.1.single", [{"Sequence": {}}, {"Sequence": {}}]),
    ("post_processor.processors.1.single", []),
    ("post_processor.processors.1.special_tokens", {}), ("post_processor.processors.1.special_tokens.<s>.ids", [9999]),
    ("post_processor.processors.1.single.0.SpecialToken.id", 1),
    ("decoder", None), ("decoder.decoders", []), ("decoder.decoders", [{"type": "Fuse"}]), ("decoder.decoders", [{"type": "ByteLevel"},
    {"type": "ByteLevel"}]), ("added_tokens", None),
    ("added_tokens.0.content", ""), ("added_tokens.0.lstrip", 1), ("added_tokens.0.id", "x"), ("added_tokens.0.id", 300), ("added_tokens.0.id", 2**64 - 1),
    ("added_tokens.0.id", 0)))
TOKENIZER += texts(changed(TOKENIZER_JSON | {"model": {"vocab": FEW, "merges": [], "unk_token": "!" if "!" in FEW else LETTERS[5], "fuse_unk": True}},
    ("model.unk_token", "zz"),
                           ("model.unk_token", 1), ("model.byte_fallback", True)))
TOKENIZER += [b"[]", b"{", b"\xff", b'{"a": 1e999}', b'{"a": "\xed\xa0\x80"}', b"[" * 3000, b'{"a": "\\ud800"}', b"", b"\xef\xbb\xbf{}", b'{"a":\n\n nope}',
    b"\x00"]

# ---- JSON lines: data sets, and what plugins answer ----

USER, ASSISTANT = {"role": "user", "content": "hi", "name": "x"}, {"role": "assistant", "content": "yes"}
TURNS = [USER, ASSISTANT]
UNLIKE = {"role": "user", "content": "unlike"}  # the target's chat template renders earlier turns anew
LINES = [
    {"prompt": "1+1=", "label": "2", "extra": {"a": [1]}}, {"prompt": "a", "label": {"b": 1}}, {"prompt": "a", "response": "b"}, {"text": "abc"},
    {"messages": [USER], "label": 2}, {"messages": [{"role": "system", "content": "s"}, *TURNS, USER, ASSISTANT]}, {"prompt": "p", "chosen": "good",
    "rejected": "bad", "margin": 0.5},
    {"messages": [USER], "chosen": [ASSISTANT], "rejected": "bad"}, {"chosen": TURNS, "rejected": [USER, {"role": "assistant", "content": "no"}]},
    {"input_ids": [1, 2, 256]}, {"ids": [0]}, {"prompt": "a", "add_generation_prompt": False}, {"prompt": None, "text": "t"},
    {"prompt": [USER]}, {"prompt": [USER], "response": [ASSISTANT]}, {"prompt": [USER, ASSISTANT], "response": "b"}, {"messages": TURNS},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}, ASSISTANT]},
    {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"f": 1}]}, {"role": "tool", "content": "2"}, ASSISTANT]},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
    {"messages": [USER], "tools": [{"name": "f"}], "documents": "[{\"title\": \"t\"}]", "chat_template_kwargs": {"x": [1, None]}},
    {"prompt": "1+1=", "messages": TURNS, "chosen": TURNS, "rejected": [USER, {"role": "assistant", "content": "no"}]},
    {"chosen": [*TURNS, *TURNS], "rejected": TURNS}, {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant:"},
    {"messages": TURNS, "continue_final_message": True}, {"messages": TURNS, "add_generation_prompt": False},
    # refused, one reason each
    {"messages": [USER], "tools": 1}, {"messages": [USER], "tools": ["f"]}, {"messages": [USER], "tools": "{"}, {"messages": [USER], "chat_template_kwargs": 1},
    {"messages": [USER], "chat_template_kwargs": {"messages": 1}}, {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, {"messages": [{"role": "user", "content": [1]}]}, {"conversations": [{"from": "x", "value": ""}]},
    {"messages": TURNS, "add_generation_prompt": True, "continue_final_message": True}, {"chosen": [ASSISTANT], "rejected": TURNS},
    [1], 1, "x", {}, {"prompt": 1}, {"prompt": "a", "messages": [USER]}, {"prompt": "a", "text": "b"}, {"messages": 1}, {"messages": []}, {"messages": [1]},
    {"messages": [{}]}, {"messages": [{"role": 1, "content": "x"}]}, {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": []}]},
    {"messages": [{"role": "user", "content": 1}]}, {"messages": [{"role": "user", "content": "no"}]},
    {"messages": [*TURNS, UNLIKE, ASSISTANT]}, {"prompt": ""}, {"text": ""}, {"prompt": "x" * 80},
    {"prompt": "p", "chosen": "good", "rejected": "bad", "margin": "x"}, {"prompt": "p", "chosen": "good"}, {"prompt": "p", "chosen": 1},
    {"prompt": "p", "chosen": [ASSISTANT]}, {"messages": [USER], "chosen": [USER]}, {"messages": [USER], "chosen": [UNLIKE, ASSISTANT], "rejected": "b"},
    {"messages": [USER], "chosen": [{"role": "assistant", "content": "unlike"}]}, {"chosen": TURNS, "rejected": TURNS[:1]}, {"chosen": TURNS,
    "rejected": [UNLIKE, ASSISTANT]},
    {"prompt": "a", "response": 1}, {"ids": "x"}, {"ids": [-1]}, {"ids": [1.5]}, {"ids": [2**31]}, {"ids": [300]}, {"prompt": "a",
    "add_generation_prompt": 1}]
DATA_SETS = [line + b"\n" for line in texts(LINES)] + [
    json.dumps({"prompt": "a", "response": "b<s>", "finish_reason": "length"}).encode(), json.dumps({"text": "a", "finish_reason": "stop"}).encode(),
    json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "unlike"}]}).encode(),
    b"\xef\xbb\xbf" + b"\r\n\n \t\n".join(texts(LINES[:3])), b"\n".join(texts([LINES[0]] * 4)), b"", b"\n\n", b"\xff", b'{"prompt":"\xff"}', b"{",
    b'{"prompt":"a","prompt":"b"}', b'{"prompt":' + b"[" * 200, b'{"prompt":"\\ud800"}', b'{"prompt":1e999}', b'{"prompt":"\x01"}',
    json.dumps({"prompt": 'quotes " \\ \t\r\n \x01 \u00e9'}).encode(), json.dumps({"messages": [{"role": "user", "content": "\"\\\t\r\n\x01\ufffd"}]}).encode()]

LABELS = [b"\n".join(texts([{"prompt": "a", "label": label, "answer": label}])) for label in (
    "4", 4, -1.5, 1e300, 2**64, True, None, "", "  ", [], ["4"], {"a": 1}, "1/2", "\\boxed{1}", "\\boxed{", "[1, 2)", "-5", "$", "\u2212 7", "1,234")] + [
    b'{"prompt":"a"}', b'{"prompt":"a","label":"4"}\n{"prompt":"b","answer":5}', b'{"prompt":"a","answer":{"answer":1}}']

ANSWER = {"id": "1", "reward": 1.5, "metrics": {"a": 1, "b": -0.5}}
ANSWERS = [bytes([255]) + line + b"\n" for line in texts([
    *changed(ANSWER, ("id",), ("id", 1), ("id", 1.5), ("id", 99), ("id", "x"), ("id", "18446744073709551615"), ("id", "18446744073709551616"), ("reward",),
             ("reward", None), ("reward", "1"), ("reward", 1e39), ("metrics", []), ("metrics.a", "1"), ("metrics.a", 1e39), ("metrics", {}),
             ("metrics", None), ("metrics.a", None), ("metrics.a", True), ("metrics.a", {"b": 1}), ("metrics", {"": 1}), ("metrics", {"x" * 101: 1}),
             ("metrics", {"\x01": 1}), ("metrics", {str(i): i for i in range(65)})),
    {"progress": 1}, [ANSWER], 1])] + [
    bytes([2]) + b"\r\n".join(texts([ANSWER, {"id": 2, "reward": 0}, ANSWER])), bytes([0]) + b"\n".join(texts([{"id": 3, "reward": -1}])) + b"\r",
    b'\xff{"id":1,"reward":NaN}\n', b"\xffloading ...\n", b"\xff\xff\xfe\n", b"\xff" + b"[" * 3000 + b"\n", b"", b"\x00", b'\xff{"reward":1e400,"id":1}\n',
    b"\xff" + json.dumps(ANSWER | {"noise": "x" * 300, "reward": None}).encode()]

# ---- environments ----

TURNS = [case["text"].encode() for case in json.loads((pathlib.Path(__file__).parents[1] / "gold/tool_calls/cases.json").read_text())]
REPLY = {"id": "1", "messages": [{"role": "tool", "content": "4", "name": "add"}], "reward": 0.5, "metrics": {"a": True}}
ENVIRONMENT = TURNS + [
    *texts(changed(REPLY, ("messages",), ("messages", []), ("messages", 1), ("messages", [1]), ("messages.0.role", "assistant"), ("messages.0.role",),
                   ("messages.0.content", [{"type": "text", "text": "x"}]), ("reward", 1e39), ("reward", None), ("done", True), ("done", 1), ("text", "x"),
                   ("metrics.a", "1"))),
    b'{"id":"1","text":"x"}', b'{"id":"1","done":true}', b"</think>Action: f[1] Action: [x]", b'Action: f[{"a": 1}]', b"<think><tool_call>{", b'{"id":"1","text":"\xff"}']

# ---- checkpoints ----


def index(*entries, version=1, count=None, magic=b"TRIREMEI"):
    """(path, type, shape, offset, slabs, digests)."""
    out = magic + struct.pack("<IQ", version, len(entries) if count is None else count)
    for path, kind, shape, offset, slabs, digests in entries:
        out += struct.pack("<I", len(path)) + path.encode() + struct.pack(f"<BI{len(shape)}qqQ", kind, len(shape), *shape, offset, len(slabs))
        out += b"".join(struct.pack("<4q", *slab) for slab in slabs) + struct.pack("<Q", digests) + bytes(16 * digests)
    return out


CHECKPOINT_INDEX = [
    *(index((f"/t{kind}", kind, [4, 2, 1], 64, [(0, 2, 0, 2), (2, 2, 0, 2)], 2)) for kind in range(9)), index(("/s", 4, [], 0, [(0, 1, 0, 1)], 1), ("/e", 7,
    [0], 0, [], 0)),
    index(("/a", 4, [4], -1, [], 0)), index(("/a", 4, [-4], 0, [], 0)), index(("/a", 4, [2**40, 2**40], 0, [], 0)), index(("/a", 4, [1] * 9, 0, [], 0)),
    index(("/a", 4, [4, 2], 0, [(3, 2, 0, 2)], 1)), index(("/a", 4, [4, 2], 0, [(0, 4, 0, 2)], 2)), index(count=2**60), index(version=2),
    index(magic=b"TRIDX\0\0\0"),
    index(("/a", 4, [4, 2], 0, [(0, 4, 0, 2)], 1)) + b"x", index(("/a", 4, [4, 2], 0, [(0, 4, 0, 2)], 1))[:-8], index(("/a", 4, [4, 2], 0, [(0, 4, 0, 1), (0,
    4, 0, 1)], 2)),
    index(("/a", 4, [4, 2], 0, [(0, 3, 0, 2)], 1)), index(("/a", 4, [4], 0, [(0, 4, 0, 1)], 1), ("/b", 4, [4], 8, [(0, 4, 0, 1)], 1)),
    index(("/a", 4, [4], 0, [(0, 4, 0, 1)], 1), ("/b", 4, [4], 64, [(0, 4, 0, 1)], 1))]

MANIFEST_FIELDS = {"format": 1, "program": "trireme", "version": "0", "saved": "2026-11-21T14:03:33Z", "step": 1, "fence": 1, "world_size": 2,
    "config_digest": "0" * 16,
                   "files": {"data.h5": {"bytes": 10, "metadata_xxh3_128": "0" * 32}, "index.bin": {"bytes": 10, "xxh3_128": "0" * 32}}}


def manifest(fields):
    text = json.dumps(fields, indent=2)
    return json.dumps(fields | {"sha256": hashlib.sha256(text.encode()).hexdigest()}, indent=2).encode() + b"\n"


MANIFEST = [*map(manifest, changed(MANIFEST_FIELDS, ("format", 9), ("step", "x"), ("files", {}), ("fence",))), b"{", b"[" * 20, b"[]",
            b"step-000012", b"step-0000120", b"step-00001x", manifest(MANIFEST_FIELDS)[:-3] + b" }\n"]

# ---- bytes between ranks ----


def samples(columns, magic=b"TSAMPL03", tail=b"", reasons=(0, 1), metrics=((b"j/a", (1, 2)), (b"j/b", (0, 1)))):
    """Two sequences of two and one tokens."""
    full = {"id": ("Q", [1, 2]), "prompt_row": ("q", [0, 1]), "prompt_len": ("i", [1, 1]), "finish_reason": ("B", list(reasons)), "cu_seqlens": ("q", [0, 2,
    3]),
            "ids": ("i", [5, 6, 7]), "action_mask": ("B", [0, 1, 0]), "log_probs": ("f", [0, -1, 0]), "version": ("i", [0, 0, 0]), "sample_log_probs": ("f",
            []),
            "reward": ("f", [1, 2]), "ref_log_probs": ("f", []), "old_log_probs": ("f", []), "values": ("f", []), "advantages": ("f", []), "returns": ("f",
            [])} | columns
    out = magic
    for kind, values in full.values():
        out += struct.pack(f"<Q{len(values)}{kind}", len(values), *values)
    out += struct.pack("<QQ2f", 1, 2, 0.5, 0.5)
    if magic == b"TSAMPL03":
        out += struct.pack("<Q", len(metrics))
        for name, values in metrics:
            out += struct.pack("<Q", len(name)) + name + struct.pack(f"<Q{len(values)}f", len(values), *values)
    return out + tail


SAMPLES = [samples({}), samples({}, magic=b"TSAMPL01"), samples({}, tail=b"x"), samples({}, reasons=(9, 0)), samples({"cu_seqlens": ("q", [1, 2, 3])}),
    samples({"cu_seqlens": ("q", [])}),
           samples({"ids": ("i", [1])}), samples({"prompt_len": ("i", [9, 1])}), samples({"reward": ("f", [1])}), samples({})[:40],
           b"TSAMPL02" + struct.pack("<Q", 2**60), samples({}, magic=b"TSAMPL02"), samples({}, metrics=()), samples({}, metrics=((b"j/a", (1,)),)),
           samples({}, metrics=((b"j/b", (1, 2)), (b"j/a", (1, 2))))]

EMPTY_BLOCK = struct.pack("<I", 0)
DELTA = [struct.pack("<I2H4s", 2, 1, 5, b"abcd") + EMPTY_BLOCK, 2 * EMPTY_BLOCK, EMPTY_BLOCK, b"", 2 * EMPTY_BLOCK + b"x", struct.pack("<I", 70000),
    struct.pack("<I2H4s", 2, 5, 1, b"abcd") + EMPTY_BLOCK,
         EMPTY_BLOCK + struct.pack("<IH2s", 1, 60000, b"ab")]

SCHEDULER = [b"3", b"node1\nnode2\nnode1\n", b"1-02:03:04\n", b"02:03\n", b"INVALID\n", b"x-02:03:04\n", b"1:2:3:4\n", b"", b"UNLIMITED\n", b"-1:00\n",
             b"Job Id: 7.host\n    Resource_List.walltime = 01:00:00\n    stime = Sat Nov 21 17:00:00 2026\n    run_count = 2\n",
             b"    Resource_List.walltime = 01:00:00\n    resources_used.walltime = 00:10:00\n    run_count = x\n",
             b"    Resource_List.walltime = 01:\n\t00:00\n    stime = never\n",
             b"    stime = Thu Jan  1 00:00:00 1801\n    Resource_List.walltime = 01:00:00\n"]

TEMPLATE_INPUTS = [b'It is \n{"format": "%Y-%m-%d %-d %f%z %A %%", "tools": [{"name": "f"}], "x": {"a": [1, null]}}', b'\n{"format": "%"}', b"a\n[1]",
                   b'a\n{"format": 1}', b" \n{}", b'b\n{"messages": []}', b'c\n{"tokenize": true}', b'd\n{"format": "%s"}', b'e\n{"documents": [1.5, {}]}',
                   b'CONTINUE_FINAL_MESSAGE_TAG\n{"tools": "x"}', b"f\n{", b"g"]

# A response, 0, a label: the pairs of the graders' table, and numbers in every writing.
PAIRS = [json.loads(line) for line in (pathlib.Path(__file__).resolve().parents[1] / "gold/answers/answers.jsonl").read_text().splitlines()]
RULES = [f"{pair['answer']}\0{pair['label']}".encode() for pair in PAIRS] + [b"-$1,234.50", b"12:30", b"1.5.2", b"1 234e5", b"1.234.567", b"-.5e-3"]

GOLD = pathlib.Path(__file__).resolve().parents[1] / "unit/text/gold"
CHAT = CHAT + [json.loads(line)["template"].encode() for name in ("templates.jsonl", "chats.jsonl") for line in (GOLD / name).read_text().splitlines()
               if "template" in json.loads(line)]

SEEDS = {"safetensors_header": SAFETENSORS, "safetensors_index": INDEX, "gguf": GGUF, "model_config": MODEL_CONFIG, "deck": DECK, "chat_template": CHAT,
    "template_inputs": TEMPLATE_INPUTS, "tokenizer": TOKENIZER, "data_sets": DATA_SETS, "labels": LABELS, "plugin_answers": ANSWERS, "environment_lines": ENVIRONMENT,
    "answers": RULES,
         "checkpoint_index": CHECKPOINT_INDEX, "manifest": MANIFEST, "samples": SAMPLES, "delta": DELTA, "scheduler": SCHEDULER}

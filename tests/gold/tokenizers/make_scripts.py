"""Makes the kind `scripts_prefix` with `tokenizers` 0.22.2, trained on texts.jsonl: parts that no other kind has.

    python3 make_scripts.py
"""
import json
import pathlib
import random

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "scripts_prefix"
texts = [json.loads(line)["text"] for line in (HERE / "texts.jsonl").read_text().splitlines()]
tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, continuing_subword_prefix="##"))
tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip(True, False)])
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.Metaspace("\u2581", "first", True),
                                                   pre_tokenizers.Digits(False)])
tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Strip("#", 2, 0), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", "<s>", "</s>"], continuing_subword_prefix="##",
                                                         limit_alphabet=120, show_progress=False))
tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
FOLDER.mkdir(exist_ok=True)
tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)
(FOLDER / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))


def decoded(ids, text=None):
    line = {}
    kept, skipped = tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids, skip_special_tokens=True)
    if kept != text:
        line["decoded"] = kept
    if skipped != kept:
        line["decoded_skip_special"] = skipped
    return line


rng = random.Random(3)
lines = []
for number, text in enumerate(texts):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    lines.append({"t": number, "ids": ids} | decoded(ids, text))
for _ in range(30):
    ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(1, 20))]
    lines.append({"ids": ids} | decoded(ids))
for number in range(0, 100, 12):
    ids = tokenizer.encode(texts[number], add_special_tokens=False).ids[:24]
    if ids:
        lines.append({"prefixes_of": number, "decoded": [tokenizer.decode(ids[:count]) for count in range(1, len(ids) + 1)]})
(FOLDER / "cases.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

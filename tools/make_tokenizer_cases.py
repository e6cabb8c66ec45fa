#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/tokenizer/*.json: texts and the ids that the Hugging Face "tokenizers" library gives for them.

Run as   pip install tokenizers==0.23.3 && python3 tools/make_tokenizer_cases.py
Each file holds {"made_by", "tokenizer": directory or the content of a tokenizer.json, "cases": [[text, ids], ...],
"decode": [[ids, text, text without special tokens], ...]}. Random characters are those of Unicode 14, so that the answer
does not depend on how new the Unicode tables of a regular expression library are.
"""
import json
import pathlib
import random
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers as pre, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "data" / "tokenizer"
MODEL = ROOT / "models" / "kimi-tiny"
MADE_BY = f"tools/make_tokenizer_cases.py with tokenizers {tokenizers.__version__}"

FIXED = [
    "", " ", "  ", "\n", "\r\n", "\t", "\0", "a", "1", "Hello, world!", "Hello  world   and    more",
    "It's we're I'm you'll he'd THEY'LL don't", "12345678901234567890", "3.14159 1,000,000 10%", "a\r\n\r\n b\n\n\n c \t\n",
    " " * 300, "x" + " " * 50 + "y", "\n" * 40, "naïve café résumé", "e\u0301 a\u0308\u0323 \u0301", "日本語のテキスト、中文文本。한국어",
    "Привет, мир! Γειά σου", "مرحبا بالعالم שלום", "👍🏽 👨‍👩‍👧‍👦 🇩🇪 😀😀😀", "\u00a0x\u2003y\u3000z\u0085w\u180eq\u200b", "Ⅷ ² ³ ½ ١٢٣ १२३ ௧",
    "if (x != 0) { return a[i]++; } // #include <stdio.h>", "https://example.org/a?b=c&d=e#f", "snake_case camelCase UPPER",
    "\ufeffBOM", "\U0010ffff\U000e0001", "ſ K Å ß ẞ", "Question: Yan has 3 figs.\nAnswer: 3 #### 3",
    "a" * 500, "ab" * 300, "ſ'S 'ſ 'K",
]
WORDS = ["the", "quick", "Straße", "don't", "I'LL", "figs", "apples", "Ünïcödé", "日本", "語", "мир", "x1y2", "ABC", "foo_bar"]
SPACES = [" ", "  ", "\n", "\r\n", "\t", " \n", "\u00a0", "\u2028", "   "]
OTHER = ["!", "?!", "...", "—", "$", "€", "##", "/*", "'", "'s", "\"", "«", "👍", "👩‍💻", "\u0301", "\u200d", "42", "2024", "½", "٣"]
ASSIGNED = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]


def random_text(rng, added):
    out = []
    for _ in range(rng.randint(1, 30)):
        kind = rng.randrange(7 if added else 6)
        if kind == 6:
            out.append(rng.choice(added))
        elif kind >= 4:
            out.append(chr(rng.choice(ASSIGNED)))
        else:
            out.append(rng.choice([WORDS, SPACES, OTHER, SPACES][kind]))
    return "".join(out)


def write(name, tok, source, n_random=40, added=(), fixed=FIXED):
    rng = random.Random(name)
    texts = list(fixed) + [random_text(rng, list(added)) for _ in range(n_random)]
    cases = [[t, tok.encode(t, add_special_tokens=False).ids] for t in texts]
    known = sorted(tok.get_vocab(with_added_tokens=True).values())
    decode = []
    for _ in range(20):
        ids = [rng.choice(known) for _ in range(rng.randint(0, 25))]
        decode.append([ids, tok.decode(ids, skip_special_tokens=False), tok.decode(ids, skip_special_tokens=True)])
    data = {"made_by": MADE_BY, "tokenizer": source, "cases": cases, "decode": decode}
    (OUT / f"{name}.json").write_text(json.dumps(data, ensure_ascii=True, separators=(",", ":")) + "\n")


def corpus():
    lines = [json.loads(line)["question"] for line in (MODEL / "eval.jsonl").open()][:400]
    return lines + FIXED * 3 + [" ".join(WORDS)] * 5


def make(name, pre_tokenizer, added=(), vocab=340, ignore_merges=False, string_merges=False, edit=None):
    """Trains a small byte-level tokenizer and writes its cases."""
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tok.pre_tokenizer = pre_tokenizer
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(corpus(), trainer)
    tok.add_tokens([t for t in added if not t.special])
    tok.add_special_tokens([t for t in added if t.special])
    data = json.loads(tok.to_str())
    if string_merges:
        data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    if edit:
        edit(data)
    write(name, Tokenizer.from_str(json.dumps(data)), data, added=[t.content for t in added])


def make_characters(name, fuse_unk, ignore_merges=False):
    """No pre-tokenizer: the pieces are whole texts, the symbols characters, and others become <unk>."""
    vocab = {"<unk>": 0}
    for c in "abcdefghijklmnopqrstuvwxyz ,.'éü日本👍":
        vocab[c] = len(vocab)
    merges = [("t", "h"), ("th", "e"), ("a", "n"), ("an", "d"), (" ", " "), ("  ", "  "), ("e", " "), ("a", "a"), ("aa", "a"),
              ("日", "本"), ("o", "r")]
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    vocab["hello"] = len(vocab)
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=fuse_unk, ignore_merges=ignore_merges))
    tok.decoder = decoders.ByteLevel()
    write(name, tok, json.loads(tok.to_str()), n_random=25, fixed=FIXED + ["hello", "hello there", "the and  or aaaa"])


def make_splits():
    byte_level = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    for behavior in ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]:
        for invert in [False, True]:
            for kind, pattern in [("regex", Regex(r"[\s'\p{P}]")), ("string", " ")]:
                name = f"split_{behavior}_{kind}" + ("_invert" if invert else "")
                make(name, pre.Sequence([pre.Split(pattern, behavior, invert), byte_level]), vocab=300)
    for name, pattern in [("empty_match", r"\d*"), ("lookaround", r"(?<=\p{L})(?=\p{N})|(?<=\p{N})(?=\p{L})"),
                          ("lines", r"^\s*\w+|[^\S\r\n]+$"), ("word_classes", r"\w+|\W+"), ("in_class", r"[\w.]+|[\S]+|[\s]+"),
                          ("no_space", r"\S+|\s+?\s")]:
        make(f"regex_{name}", pre.Sequence([pre.Split(Regex(pattern), "isolated"), byte_level]), vocab=300)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rng_added = [AddedToken("<|begin|>", special=True), AddedToken("<|end|>", special=True), AddedToken("<|e", special=False),
                 AddedToken("<tool>", special=False, normalized=True), AddedToken("<tool>x", special=False, normalized=False),
                 AddedToken("<L>", special=True, lstrip=True), AddedToken("<R>", special=True, rstrip=True),
                 AddedToken("<B>", special=False, lstrip=True, rstrip=True, normalized=True), AddedToken("ü日", special=False)]
    write("builtin", Tokenizer.from_file(str(MODEL / "tokenizer.json")), "models/kimi-tiny", n_random=150,
          added=["<|begin|>", "<|end|>", "<|pad|>", "<|beg"])
    byte_level = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    make("gpt2", pre.ByteLevel(add_prefix_space=False), added=rng_added, vocab=600, string_merges=True)
    make("gpt2_prefix", pre.ByteLevel(add_prefix_space=True), added=rng_added)
    deepseek = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"]
    make("deepseek", pre.Sequence([pre.Split(Regex(p), "isolated") for p in deepseek] + [byte_level]), added=rng_added,
         vocab=500)
    kimi = "|".join([
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
    make("kimi", pre.Sequence([pre.Split(Regex(kimi), "isolated"), byte_level]), added=rng_added, vocab=500)
    make("digits_each", pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=True)]))
    make("digits_together", pre.Sequence([pre.Digits(individual_digits=False), pre.Sequence([byte_level])]))
    make("ignore_merges", pre.ByteLevel(add_prefix_space=False), ignore_merges=True,
         edit=lambda d: d["model"]["vocab"].update({"Ġmore": 2000, "figs": 2001, "ĠĠĠ": 2002}))
    make_characters("characters", fuse_unk=False)
    make_characters("characters_fuse_unk", fuse_unk=True)
    make_characters("characters_ignore_merges", fuse_unk=False, ignore_merges=True)
    make_splits()
    tok = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    digest, count = 0xcbf29ce484222325, 0
    for line in (MODEL / "eval.jsonl").open():
        item = json.loads(line)
        for i in tok.encode(f"Question: {item['question']}\nAnswer: {item['answer']}", add_special_tokens=False).ids + [-1]:
            digest = ((digest ^ (i & 0xffffffff)) * 0x100000001b3) & 0xffffffffffffffff
            count += 1
    (OUT / "eval_digest.json").write_text(json.dumps({"made_by": MADE_BY, "digest": f"{digest:016x}", "count": count}) + "\n")


if __name__ == "__main__":
    main()

"""Writes a tokenizer of bytes into a folder: benchmarks make and count their prompts with it, without a download.

    python tokenizer.py FOLDER
"""

import json
import pathlib
import sys


def letters():
    """The letters by which byte-level tokenizers write the 256 bytes, in their order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(256) if byte not in plain)
    names = {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [names[byte] for byte in range(256)]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {letter: number for number, letter in enumerate(letters())}
    end = {"id": len(vocabulary), "content": "<|end|>", "special": True}
    end |= {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072, "eos_token": "<|end|>"}
    config |= {"bos_token": "<|end|>", "pad_token": "<|end|>"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    # Some libraries look for a model before they look for its tokenizer.
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": len(vocabulary) + 1}))


if __name__ == "__main__":
    main()

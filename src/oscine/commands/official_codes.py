"""Greedy codes by the official qwen-tts package, for `oscine doctor`. Runs in a Python that has the package.

    python official_codes.py FOLDER < request.json > codes.json

Imports nothing of Oscine. The last line of standard output is JSON: {"codes": [[16 ints], ...]}.
"""

import json
import sys


def main() -> None:
    import torch
    from qwen_tts import Qwen3TTSModel

    request = json.load(sys.stdin)
    model = Qwen3TTSModel.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="sdpa")
    speak = getattr(model, request.pop("method"))
    generate, codes = model.model.generate, []

    def record(**arguments):  # type: ignore[no-untyped-def]
        result = generate(**arguments)
        codes.extend(result[0])
        return result

    model.model.generate = record
    speak(do_sample=False, subtalker_dosample=False, **request)
    print(json.dumps({"codes": codes[0].tolist()}))


if __name__ == "__main__":
    main()

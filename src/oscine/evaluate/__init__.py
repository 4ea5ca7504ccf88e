"""`oscine eval`: how well a server speaks. Texts are spoken through it, heard by a recogniser, and scored.

    session      the set is spoken, recordings are kept       recording  one of them, and the folder that holds all
    ears         what listens: recogniser, quality, speakers  worker     the same in another Python, over a pipe
    recogniser   sound becomes words (faster-whisper)         words      words are normalised and laid side by side
    numbers      English ones, all said in one way            listening  ears hear a whole set
    quality      DNSMOS, silence, clipping                    speakers   whose voice it is (any ONNX model)
    score        recordings become figures: pure functions    compare    two results, the difference and its interval
    page         one HTML page to listen, worst first         command    `oscine eval run | score | compare`

What each figure means is defined once, in docs/eval.md.
"""

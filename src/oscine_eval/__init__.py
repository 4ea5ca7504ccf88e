"""`oscine eval`: measures how well a server speaks. Texts are recorded, transcribed by a recognizer and scored.

    run                  records a set of texts           recording       one recording; the folder and result of all
    transcriber          recognizer, DNSMOS, speakers     transcriber_process  the same in another Python
    recognizer           faster-whisper                   transcription   transcribes a whole set
    word_error_rate      normalization and alignment      score           figures of a set: pure functions
    audio_quality        DNSMOS, silence, clipping        speaker_similarity  ONNX speaker models
    bootstrap            95 % intervals, sign test        compare         differences of two evaluations
    report               summary and HTML page

docs/eval.md defines every figure.
"""

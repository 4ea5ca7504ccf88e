"""Oscine as models of NVIDIA's Triton Inference Server. The server runs each model in a process of its own, which loads
a model.py of a few lines; the code is here.

The fast way is one model, `oscine`: the whole engine. The split way is three: `oscine_talker` streams codes,
`oscine_codec` decodes windows of codes in batches, and `oscine_speech` joins them.
"""

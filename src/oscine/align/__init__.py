"""Word timestamps: forced alignment of known text to its audio, in a process of its own (aligner.py)."""

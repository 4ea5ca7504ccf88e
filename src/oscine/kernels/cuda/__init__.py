"""CUDA C++ kernels of the autoregressive chain, for Hopper: a second implementation besides the Triton kernels.

The kernels round like the Triton kernels, in bf16 at the same places; only the order of fp32 sums differs. A row's bits
depend neither on the other rows nor on their number.

`program` names a kernel and its constants, `compiler` makes machine code of it, `driver` launches it. `linear` and
`launches` choose launches; `operations` makes them from tensors.
"""

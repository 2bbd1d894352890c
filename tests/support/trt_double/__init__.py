"""A double of ``tensorrt``, ``pycuda`` and libcuda's graph functions, backed by ONNX Runtime.

NOT TensorRT and NOT a GPU: it says nothing about kernels, speed, or what TensorRT accepts. It executes
our backend where there is no board, and fails where the backend breaks a rule of the real ones:
addresses and their alignment, shapes within a profile, states bound in place, the order of copies
and waits, and what a stream capture forbids.
"""

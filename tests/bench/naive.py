"""What a user would write instead of `repack`: GGUFReader, NumPy slicing, safetensors' saver. For comparison only.

It keeps everything in memory, has no manifest, no digests, no fsync and no proof, and its data is not aligned to 4096.
"""

from __future__ import annotations

import sys

import gguf
import numpy as np
from safetensors.numpy import save_file

planes = {}
for tensor in gguf.GGUFReader(sys.argv[1]).tensors:
    if tensor.tensor_type != gguf.GGMLQuantizationType.Q6_K:
        continue
    n = int(tensor.shape[0]) // 256
    blocks = np.asarray(tensor.data).reshape(-1, n, 210)
    rows = np.zeros((len(blocks), -(-210 * n // 16) * 16), np.uint8)
    for begin, end in ((0, 128), (128, 192), (192, 208), (208, 210)):
        rows[:, begin * n : end * n] = blocks[:, :, begin:end].reshape(len(blocks), -1)
    planes[tensor.name] = rows
save_file(planes, sys.argv[2])

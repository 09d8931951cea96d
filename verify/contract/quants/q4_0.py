"""Q4_0: 32 weights of four bits and one scale (ggml's ``block_q4_0``)."""

from repack.layout import TYPES
from verify.contract.quants.blocks import block_contract

CONTRACT = block_contract(TYPES[2], offset=8)

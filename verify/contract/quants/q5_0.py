"""Q5_0: 32 weights of five bits and one scale (ggml's ``block_q5_0``)."""

from repack.layout import TYPES
from verify.contract.quants.blocks import block_contract

CONTRACT = block_contract(TYPES[6], offset=16)

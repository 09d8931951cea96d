"""Q4_1: 32 weights of four bits, a scale and a minimum (ggml's ``block_q4_1``)."""

from repack.layout import TYPES
from verify.contract.quants.blocks import block_contract

CONTRACT = block_contract(TYPES[3], offset=0)

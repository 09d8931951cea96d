"""Q5_1: 32 weights of five bits, a scale and a minimum (ggml's ``block_q5_1``)."""

from repack.layout import TYPES
from verify.contract.quants.blocks import block_contract

CONTRACT = block_contract(TYPES[7], offset=0)

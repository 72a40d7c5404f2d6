"""Encoders, projection heads, momentum copies, and files to take an encoder away in."""

from flatclr.models.encoders import ENCODERS, Encoder, EncoderSpec, Normalisation, build_encoder
from flatclr.models.heads import build_head
from flatclr.models.momentum import MomentumEncoder
from flatclr.models.saving import WeightsReport, load_encoder, load_weights, save_encoder

__all__ = [
    "ENCODERS",
    "Encoder",
    "EncoderSpec",
    "MomentumEncoder",
    "Normalisation",
    "WeightsReport",
    "build_encoder",
    "build_head",
    "load_encoder",
    "load_weights",
    "save_encoder",
]

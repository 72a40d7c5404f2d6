"""Encoders, projection heads, networks of both, momentum copies, and files to take an encoder away in."""

from flatclr.models.encoders import ENCODERS, Encoder, EncoderSpec, build_encoder
from flatclr.models.export import export_folder, export_onnx
from flatclr.models.flows import Coupling, Flow, image_flow, vector_flow
from flatclr.models.heads import build_head
from flatclr.models.momentum import MomentumEncoder
from flatclr.models.network import Network, Normalisation, NormalisedEncoder, TwoTowers
from flatclr.models.saving import load_encoder, save_encoder
from flatclr.models.trained import load_head, load_network
from flatclr.models.weights import WeightsReport, load_weights

__all__ = [
    "ENCODERS",
    "Coupling",
    "Encoder",
    "EncoderSpec",
    "Flow",
    "MomentumEncoder",
    "Network",
    "Normalisation",
    "NormalisedEncoder",
    "TwoTowers",
    "WeightsReport",
    "build_encoder",
    "build_head",
    "export_folder",
    "export_onnx",
    "image_flow",
    "load_encoder",
    "load_head",
    "load_network",
    "load_weights",
    "save_encoder",
    "vector_flow",
]

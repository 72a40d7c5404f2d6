"""Sources of images in one form: resident in memory, or files that are decoded when they are asked for.

A source hands out uint8 images [B, C, S, S]; all its images have one size S and one number of channels C. Paired rows
of numbers, and sentences, are sources of other kinds.
"""

from flatclr.data.sources.alpha import TransparentImagesWarning, alpha_is_told
from flatclr.data.sources.blobs import Blob, DiskFile, HubRow, TarMember
from flatclr.data.sources.dataset import AnySource, Dataset
from flatclr.data.sources.files import FileImages, SkippedImagesWarning, is_comparable
from flatclr.data.sources.items import ItemImages
from flatclr.data.sources.lost import UnusableImagesError
from flatclr.data.sources.paired import PairedArrays
from flatclr.data.sources.protocol import ImageSource
from flatclr.data.sources.ready import ReadyViews
from flatclr.data.sources.resident import ResidentImages
from flatclr.data.sources.sentences import Sentences

__all__ = [
    "AnySource",
    "Blob",
    "Dataset",
    "DiskFile",
    "FileImages",
    "HubRow",
    "ImageSource",
    "ItemImages",
    "PairedArrays",
    "ReadyViews",
    "ResidentImages",
    "Sentences",
    "SkippedImagesWarning",
    "TarMember",
    "TransparentImagesWarning",
    "UnusableImagesError",
    "alpha_is_told",
    "is_comparable",
]

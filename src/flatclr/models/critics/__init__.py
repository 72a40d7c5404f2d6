"""Critics: networks that score pairs (x, y), ideally by their log density ratio.

For estimates of mutual information (`flatclr.mi`) and for training (`critic=` of `flatclr.InfoNCE` and others).
"""

from flatclr.models.critics.base import Critic, InnerProduct
from flatclr.models.critics.learned import Bilinear, Cosine, Inner, Joint, Separable

__all__ = ["Bilinear", "Cosine", "Critic", "Inner", "InnerProduct", "Joint", "Separable"]

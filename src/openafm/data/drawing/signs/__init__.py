"""Signs: shop fronts, notices, street plates and opening hours, photographed."""

from openafm.data.drawing.signs.config import SignsConfig

__all__ = ["SignsConfig"]

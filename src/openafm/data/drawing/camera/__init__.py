"""Conditions under which a drawing is seen: a file, a scan, or a photograph, each logged, with the regions transformed.

A photograph bends the sheet (crumples, folds), lights it, puts it on a surface in perspective, covers a part, blurs, adds
noise, and encodes as JPEG. `Geometry` maps points of the drawing to points of the photograph; the pixels go through a mesh
of its inverse.
"""

from openafm.data.drawing.camera.conditions import CONDITIONS, Condition, draw_condition
from openafm.data.drawing.camera.geometry import Geometry, draw_geometry
from openafm.data.drawing.camera.shooting import Shot, jpeg_bytes, shoot

__all__ = ["CONDITIONS", "Condition", "Geometry", "Shot", "draw_condition", "draw_geometry", "jpeg_bytes", "shoot"]

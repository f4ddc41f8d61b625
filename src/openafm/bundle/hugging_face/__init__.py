"""Import and export of local Hugging Face folders (Llama, Qwen2, Qwen3, SmolLM3); import of InternVL."""

from openafm.bundle.hugging_face.calibration import Calibration
from openafm.bundle.hugging_face.errors import HuggingFaceError, UnsupportedTemplateError
from openafm.bundle.hugging_face.exporter import ExportReport, export_hugging_face
from openafm.bundle.hugging_face.importer import import_hugging_face
from openafm.bundle.hugging_face.writing import Conversion, ImportReport

__all__ = [
    "Calibration",
    "Conversion",
    "ExportReport",
    "HuggingFaceError",
    "ImportReport",
    "UnsupportedTemplateError",
    "export_hugging_face",
    "import_hugging_face",
]

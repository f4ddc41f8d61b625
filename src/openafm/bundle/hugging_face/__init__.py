"""Import of open weights: a local Hugging Face folder (Llama, Qwen2, Qwen3, SmolLM3) becomes a bundle."""

from openafm.bundle.hugging_face.errors import HuggingFaceError, UnsupportedTemplateError
from openafm.bundle.hugging_face.importer import ImportReport, import_hugging_face

__all__ = ["HuggingFaceError", "ImportReport", "UnsupportedTemplateError", "import_hugging_face"]

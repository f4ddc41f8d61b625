"""Import and export of GGUF files, the format of llama.cpp (Llama, Qwen2, Qwen3, SmolLM3)."""

from openafm.bundle.gguf.errors import GGUFError
from openafm.bundle.gguf.exporter import export_gguf
from openafm.bundle.gguf.importer import import_gguf
from openafm.bundle.gguf.reader import GGUFFile, GGUFTensor, read_gguf

__all__ = ["GGUFError", "GGUFFile", "GGUFTensor", "export_gguf", "import_gguf", "read_gguf"]

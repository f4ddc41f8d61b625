"""Documents: receipts, invoices, forms, menus, posters, infographics and letters, with the text in reading order."""

from openafm.data.drawing.documents.config import DocumentsConfig

__all__ = ["DocumentsConfig"]

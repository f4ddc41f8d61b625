"""A small project in nine locales with answers of two systems, for a first look."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

from openafm.annotation.grading.items import read_items
from openafm.annotation.grading.project import ITEMS, Project, create_project


def create_sample(folder: Path) -> Project:
    """Create the sample project in a folder.

    Raises:
        AnnotationError: the folder has a project.
    """
    with as_file(files("openafm.annotation.grading.sample").joinpath(ITEMS)) as path:
        return create_project(folder, read_items(path), title="Sample", overlap=2, gold_every=4)

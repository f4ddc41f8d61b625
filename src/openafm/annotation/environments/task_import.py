"""Import of tasks from a user's copy, whichever kind it is."""

from __future__ import annotations

from pathlib import Path

from openafm.annotation.environments.project import ProjectError
from openafm.annotation.environments.task_copies import TaskImport
from openafm.annotation.environments.tau_bench import import_tau_bench
from openafm.annotation.environments.tool_sandbox_scenarios import import_tool_sandbox


def import_tasks(folder: Path, project: Path) -> TaskImport:
    """Write a project from a copy of τ-bench-like or ToolSandbox-like tasks.

    Raises:
        ProjectError: the folder is neither kind, has nothing to import, or the project folder has files.
        ToolFileError: the tools cannot be imported.
    """
    for package in (folder, folder / "tool_sandbox"):
        if (package / "common" / "execution_context.py").is_file() and (package / "scenarios").is_dir():
            return import_tool_sandbox(package, project)
    if not (folder / "tools" / "__init__.py").is_file() or not (folder / "data").is_dir():
        raise ProjectError(
            f"{folder} has neither tools/__init__.py and data/ nor common/execution_context.py and scenarios/; pass "
            "a domain of τ-bench-like tasks, such as tau_bench/envs/retail, or the package of ToolSandbox-like ones, "
            "such as ToolSandbox/tool_sandbox"
        )
    return import_tau_bench(folder, project)

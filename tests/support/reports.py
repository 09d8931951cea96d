"""What the tests of reports share: commands as processes, the published schemas, a model with a hostile name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema

from tests.support.models import T, q6_k_tensor

DOCS = Path(__file__).parents[2] / "docs"
ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}


def call(module: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    merged: dict[str, Any] = {"env": ENVIRONMENT, "capture_output": True, "timeout": 60} | options
    done: subprocess.CompletedProcess[str] = subprocess.run(command, text=True, check=False, **merged)
    return done


def closed(schema: Any) -> Any:
    """The schema with every object closed, so that a key that is not documented is found."""
    schema = deepcopy(schema)
    stack = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if "properties" in item:
                item.setdefault("additionalProperties", False)
            stack += item.values()
        elif isinstance(item, list):
            stack += item
    return schema


def check_schema(document: Any, name: str, *, close: bool = True) -> None:
    schema = json.loads((DOCS / name).read_text("ascii"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, closed(schema) if close else schema)


HOSTILE = 'x<script>&"]]>\x1b[31m|`\u00fc\u202e'


def tensors(seed: int = 1) -> list[T]:
    return [q6_k_tensor("plain.weight", (256, 4), seed), q6_k_tensor(HOSTILE, (512, 3), seed + 1)]

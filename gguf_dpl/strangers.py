"""Refuses to start beside packages that are not ours. Other projects are called `repack` and `verify` too.

Installed into the same environment later they replace our files. To be imported before `repack` and `verify`: looking
for them runs none of their code.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from gguf_dpl import ENVIRONMENT, INSTALLATION, leave

_HOME = Path(__file__).resolve().parents[1]

for _name in ("repack", "verify"):
    _ours = _HOME / _name / "__init__.py"
    _spec = find_spec(_name)
    _found = Path(_spec.origin).resolve() if _spec is not None and _spec.origin is not None else None
    if _found is not None and _found.parents[1] == Path(sys.path[0]).resolve():
        _found = _ours  # in the working directory, where only `python -m` looks: a folder of the user's
    if _found != _ours or b"dpl" not in _ours.read_bytes():
        leave(
            f"the package `{_name}` at {_found} is another project's, not the one of gguf-dpl at {_ours.parent}; "
            f"give gguf-dpl an environment of its own, see {INSTALLATION}",
            ENVIRONMENT,
        )

"""The regular expressions of --include and --exclude."""

from __future__ import annotations

import re
from collections.abc import Sequence

from repack.errors import UsageError, shown


def compiled(patterns: Sequence[str], option: str) -> list[re.Pattern[str]]:
    """Compile the patterns of a command-line option. Raises UsageError if one is no regular expression."""
    done = []
    for pattern in patterns:
        try:
            pattern.encode()
            done.append(re.compile(pattern))
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"--{option} {shown(pattern)} is no regular expression ({error})") from None
    return done

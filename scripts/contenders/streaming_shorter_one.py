"""As ``streaming_shorter``, by one MDSWriter, which is what its documentation begins with."""

from __future__ import annotations

from dataclasses import replace

from contenders import Job, streaming_shorter

PACKAGES = streaming_shorter.PACKAGES
NOTE = "Pillow decodes, resizes (Lanczos) and encodes, in the writer's process"


def prepare(job: Job) -> None:
    """Write everything in this process."""
    streaming_shorter.prepare(replace(job, workers=1))

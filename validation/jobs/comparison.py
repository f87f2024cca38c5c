"""A measured job beside the prediction of its step, with the causes of what differs."""

from __future__ import annotations

from typing import Any

from topologies.records import record
from validation.jobs.causes import causes
from validation.jobs.compared import Compared


@record(slots=False)
class JobComparison(Compared):
    """A comparison that says why."""

    @property
    def causes(self) -> tuple[str, ...]:
        """What most likely makes the job differ from its prediction, in sentences."""
        return causes(self)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as it stands in JSON."""
        job, prediction = self.job, self.prediction
        return {
            "measured": {
                "kind": job.kind,
                **self.steps.as_dict(),
                "peak_bytes": job.peak_bytes,
                "peak_of": job.peak_of if job.peak_bytes is not None else None,
                "timers_s": dict(job.timers_s),
                "sizes": dict(job.sizes),
                "anatomy": job.anatomy.as_dict() if job.anatomy is not None else None,
                "remarks": [*job.remarks, *self.remarks],
            },
            "predicted": {
                **prediction.as_dict(),
                "anatomy": self.anatomy.as_dict() if self.anatomy is not None else None,
            },
            "predicted_timers_s": {
                name: told for name, _, told in self.timers() if told is not None
            },
            "error": self.error,
            "within_range": self.is_within,
            "differences": list(self.differences),
            "causes": list(self.causes),
        }

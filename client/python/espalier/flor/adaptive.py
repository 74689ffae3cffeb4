"""When a block's checkpoint is worth its time: FLOR's joint rule (PVLDB 14(4), 2021)."""

from __future__ import annotations

from dataclasses import dataclass

RESTORE = 1.38  # restoring takes so much of the time of materialising, by FLOR's measurements


def budget(epsilon: float, logging: float, elapsed: float) -> float:
    """What of a budget is left to checkpoints if logging took so many of the seconds: a quarter of it at least."""
    return max(epsilon - logging / max(elapsed, 1e-9), epsilon / 4)


@dataclass
class Costs:
    """What is known of a block. Times are means in seconds.

    executions, checkpoints: how many there were. compute: of one execution. materialise: of one checkpoint: copying,
    waiting for the one before, and the processor time of the thread that writes.
    """

    executions: int = 0
    checkpoints: int = 0
    stride: int = 1  # grows when the disk is full: only every stride-th execution may have a checkpoint
    _compute: float = 0.0
    _materialise: float = 0.0
    _measured: int = 0

    @property
    def compute(self) -> float:
        """Seconds of one execution."""
        return self._compute / max(self.executions, 1)

    @property
    def materialise(self) -> float:
        """Seconds of one checkpoint."""
        return self._materialise / max(self._measured, 1)

    @property
    def measured(self) -> bool:
        """Whether a checkpoint's cost is known."""
        return self._measured > 0

    def executed(self, seconds: float) -> None:
        """Counts an execution."""
        self.executions += 1
        self._compute += seconds

    def took(self, seconds: float) -> None:
        """Counts what a checkpoint took, whether or not it was kept."""
        self._measured += 1
        self._materialise += seconds

    def add(self, seconds: float) -> None:
        """Adds what the last checkpoint took on the thread that writes."""
        self._materialise += seconds

    def worthwhile(self, epsilon: float, top_level: bool) -> bool:
        """Whether the execution that was counted last shall have a checkpoint.

        M/C < min(1/(1+c), epsilon) bounds what recording takes, and makes restoring faster than executing again. A
        block that is in no other block may also have one now and then: M/C < n/(k+1) * min(1/(1+c), epsilon).
        """
        threshold = min(1 / (1 + RESTORE), epsilon)
        ratio = self.materialise / max(self.compute, 1e-9)
        if ratio < threshold:
            return True
        return top_level and ratio < threshold * self.executions / (self.checkpoints + 1)


__all__ = ["RESTORE", "Costs", "budget"]

"""
The policies as plainly as they can be written: lists, sums, and no hurry.

Nothing is shared with the engine. What is free at a moment is counted anew from
what runs and what is promised; windows are tried at every moment at which
something ends.
"""

import math
from dataclasses import dataclass, field


@dataclass
class Job:
    """One job, and what becomes of it."""

    number: int
    submit: float
    width: int
    estimate: float
    runtime: float
    start: float = math.nan
    finish: float = math.nan
    expected: float = math.nan
    killed: bool = False
    planned: float = math.nan
    promise: float = math.nan


@dataclass
class Oracle:
    """
    A machine, its clock, and all it holds.

    ``windows`` are advance reservations: begin, end, processors.
    """

    processors: int
    policy: str
    semantics: str = "batch"
    early: str = "compress"
    overrun: str = "kill"
    windows: list[tuple[float, float, int]] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    queue: list[Job] = field(default_factory=list)
    now: float = 0.0

    def free(self, moment: float, without: Job | None = None) -> int:
        """Processors that nobody holds or is promised at a moment."""
        held = sum(j.width for j in self.running if j.start <= moment < j.expected)
        held += sum(n for begin, end, n in self.windows if begin <= moment < end)
        for job in self.queue:
            # Without a plan the comparison is with NaN, and false.
            planned = job.planned <= moment < job.planned + job.estimate
            if planned and job is not without:
                held += job.width
        return self.processors - held

    def fits(self, job: Job, begin: float) -> bool:
        """Whether there is room for all of a job from a moment on."""
        end = begin + job.estimate
        moments = {begin}
        for begins, ends in self._spans():
            moments |= {t for t in (begins, ends) if begin < t < end}
        return all(self.free(t, job) >= job.width for t in moments)

    def earliest(self, job: Job) -> float:
        """The first moment from now on at which there is."""
        ends = {end for _, end in self._spans() if end > self.now}
        return next(t for t in sorted({self.now, *ends}) if self.fits(job, t))

    def _spans(self) -> list[tuple[float, float]]:
        spans = [(j.start, j.expected) for j in self.running]
        spans += [(begin, end) for begin, end, _ in self.windows]
        spans += [(j.planned, j.planned + j.estimate) for j in self.queue if j.planned == j.planned]
        return spans

    def run(self, jobs: list[Job]) -> None:
        """From the first submission to the last end."""
        coming = sorted(jobs, key=lambda job: (job.submit, job.number))
        ends: list[tuple[float, int, Job]] = []  # when, in which order it was set, of whom
        order = 0

        def due(job: Job) -> None:
            nonlocal order
            order += 1
            ends.append((min(job.finish, job.expected), order, job))

        def begin(job: Job) -> None:
            job.start, job.expected = self.now, self.now + job.estimate
            job.finish = self.now + job.runtime
            if job.runtime > job.estimate and self.overrun == "kill":
                job.finish, job.killed = job.expected, True
            job.planned = math.nan
            self.queue.remove(job)
            self.running.append(job)
            due(job)

        while True:
            moments = [end for end, _, _ in ends]
            moments += [job.submit for job in coming[:1]]
            moments += [job.planned for job in self.queue if job.planned == job.planned]
            moments += [end for _, end, _ in self.windows if end > self.now]
            if not moments:
                break
            self.now = min(moments)
            one_by_one = self.semantics == "pyss"
            ended = sorted(e for e in ends if e[0] <= self.now)
            if one_by_one:
                submitting = bool(coming) and coming[0].submit <= self.now
                ended = [] if submitting else ended[:1]
            ended_early = extended = False
            for entry in ended:
                ends.remove(entry)
                job = entry[2]
                if job.finish <= self.now:
                    ended_early |= job.expected > self.now
                    self.running.remove(job)
                    continue
                if not extended:
                    for waiting in self.queue:
                        waiting.planned = math.nan
                extended = True
                length = job.expected - job.start
                job.expected = job.start + 2 * length
                moments_of = {self.now} | {
                    b for b, _, _ in self.windows if self.now < b < job.expected
                }
                if any(self.free(t) < 0 for t in moments_of):
                    job.finish, job.killed = self.now, True
                    self.running.remove(job)
                    continue
                due(job)
            if self.policy == "conservative":
                if extended:
                    for job in self.queue:
                        job.planned = self.earliest(job)
                elif ended_early and self.early == "compress":
                    for job in self.queue:
                        job.planned = min(job.planned, self.earliest(job))
            while coming and coming[0].submit <= self.now:
                job = coming.pop(0)
                self.queue.append(job)
                if self.policy == "conservative":
                    job.planned = job.promise = self.earliest(job)
                if one_by_one:
                    break
            if self.policy == "conservative":
                for job in [j for j in self.queue if j.planned <= self.now]:
                    begin(job)
                continue
            while self.queue and self.fits(self.queue[0], self.now):
                begin(self.queue[0])
            if self.policy == "easy" and self.queue:
                head = self.queue[0]
                head.planned = self.earliest(head)
                for job in self.queue[1:]:
                    if self.fits(job, self.now):
                        begin(job)
                head.planned = math.nan

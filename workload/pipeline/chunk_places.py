"""On which stage each chunk of the model is: round the ring of stages, or in the shape of a V."""

from __future__ import annotations

from topologies.records import record


@record
class ChunkPlaces:
    """The places of `chunks` chunks on each of some stages; numbers are in the model's order.

    Round the ring chunk c of stage s is number c * stages + s. In a V the second chunk of stage s
    is number 2 stages - 1 - s, so on the last stage the second follows the first. With `two_way`
    the numbers are those of a V, but the model is there twice: its parts are the chunks 0 to
    stages - 1, from the first stage to the last, and once more the others, from the last to the
    first.
    """

    stages: int
    chunks: int = 1
    in_v: bool = False
    two_way: bool = False

    def number(self, stage: int, chunk: int) -> int:
        """The number of a stage's chunk.

        >>> [ChunkPlaces(3, 2, in_v=True).number(stage, 1) for stage in range(3)]
        [5, 4, 3]
        """
        turned = self.in_v and chunk > 0
        return 2 * self.stages - 1 - stage if turned else chunk * self.stages + stage

    def numbers(self, stage: int) -> list[int]:
        """The numbers of all chunks of a stage."""
        return [self.number(stage, chunk) for chunk in range(self.chunks)]

    def stage(self, number: int) -> int:
        """The stage that holds a chunk."""
        return self.number(number % self.stages, number // self.stages) % self.stages

    def part(self, number: int) -> int:
        """Which part of the model a chunk is."""
        return number % self.stages if self.two_way else number

    def parts(self, stage: int) -> list[int]:
        """The parts of the model that a stage holds, in the model's order.

        >>> dual = ChunkPlaces(4, 2, in_v=True, two_way=True)
        >>> [dual.parts(stage) for stage in range(4)]
        [[0, 3], [1, 2], [1, 2], [0, 3]]
        """
        return sorted(self.part(number) for number in self.numbers(stage))

    def begins(self, number: int) -> bool:
        """Whether the model begins with a chunk."""
        return self.part(number) == 0

    def ends(self, number: int) -> bool:
        """Whether the model ends with a chunk."""
        return number in (self.stages * self.chunks - 1, self.stages - 1 if self.two_way else None)

    @property
    def head_stage(self) -> int:
        """The stage that holds the last chunk."""
        return self.stage(self.stages * self.chunks - 1)

    def turns_back(self, number: int) -> bool:
        """Whether a chunk is on the way back to the first stage: there its input comes from the
        next stage, and its output's gradient from the one before."""
        return self.in_v and number >= self.stages

    def meets(self, number: int) -> bool:
        """Whether a chunk and the one before it are on one stage, without a message in between."""
        return self.in_v and number == self.stages and not self.two_way

    def has_message(self, number: int) -> bool:
        """Whether a message passes between a chunk and the one before it."""
        inside = 0 < number < self.stages * self.chunks
        return inside and not (self.in_v and number == self.stages)

    def link(self, number: int) -> int:
        """The link between a chunk and the one before it: the earlier stage in the ring of stages,
        in a V the lower one."""
        ends = self.stage(number - 1), self.stage(number)
        return min(ends) if self.in_v else ends[0]

"""Knights and Knaves: problems by number, and what their statements mean.

Knights tell the truth and knaves lie; everybody says one thing, and exactly one assignment of
roles fits (Xie et al., arXiv 2410.23123). `reasoning-gym` draws the problems; the two renderings
are in `compact` (for the tiny tokenizer) and `natural` (for a real model).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from blake3 import blake3

from hilosync.errors import ConfigurationError

__all__ = ["HELD_OUT", "KnightsSource", "Problem", "Statement", "assignments", "holds"]

HELD_OUT = 256
"""Problems 0 … HELD_OUT − 1 of every source are for evaluation only."""

Statement = tuple[Any, ...]
"""``("telling-truth" | "lying", person)``, ``("not", s)`` or ``("and" | "or" | "->" | "<=>", s, s, …)``."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One island.

    Attributes:
        statements: what person i says.
        solution: True where person i is a knight.
        names: the people's names in the natural rendering.
        knight: the word for a truthful person in the natural rendering ("saint" …).
        knave: the word for a liar.
        question: the natural rendering, without any request for a format.
    """

    statements: tuple[Statement, ...]
    solution: tuple[bool, ...]
    names: tuple[str, ...]
    knight: str
    knave: str
    question: str


def holds(statement: Statement, roles: tuple[bool, ...]) -> bool:
    """Whether `statement` is true when person i is a knight exactly where `roles[i]`."""
    operator, *parts = statement
    if operator == "telling-truth":
        return roles[parts[0]]
    if operator == "lying":
        return not roles[parts[0]]
    values = [holds(part, roles) for part in parts]
    match operator:
        case "not":
            return not values[0]
        case "and":
            return all(values)
        case "or":
            return any(values)
        case "->":
            return not values[0] or values[1]
        case "<=>":
            return values[0] == values[1]
    raise ValueError(f"unknown operator {operator!r} in a statement")


def assignments(people: int) -> Iterator[tuple[bool, ...]]:
    """All 2^people assignments of roles, all knights first."""
    return itertools.product((True, False), repeat=people)


class KnightsSource:
    """Problems by index: the same (seed, people, index) gives the same problem on every machine.

    Args:
        people: inhabitants of an island, 2 to 8.
        seed: of the whole source; the held-out problems depend on it too.

    Raises:
        ConfigurationError: `reasoning-gym` is not installed, or the number of people is out of range.
    """

    def __init__(self, people: int = 3, seed: int = 0):
        if not 2 <= people <= 8:
            raise ConfigurationError(f"expected 2 to 8 people on the island, got {people}")
        self.people = people
        self.seed = seed
        self.problem = lru_cache(maxsize=4096)(self._problem)

    @cached_property
    def _held_out_statements(self) -> frozenset[tuple[Statement, ...]]:
        return frozenset(self._draw(index, 0).statements for index in range(HELD_OUT))

    def _problem(self, index: int) -> Problem:
        """Problem `index`; at or above HELD_OUT it is never one of the held-out problems."""
        if index < HELD_OUT:
            return self._draw(index, 0)
        candidates = (self._draw(index, attempt) for attempt in itertools.count())
        return next(p for p in candidates if p.statements not in self._held_out_statements)

    def _draw(self, index: int, attempt: int) -> Problem:
        try:
            from reasoning_gym.logic.knights_knaves import KnightsKnavesConfig, KnightsKnavesDataset
        except ImportError as error:
            raise ConfigurationError(
                "Knights and Knaves needs `reasoning-gym`: pip install 'hilosync[demo]'"
            ) from error
        # reasoning-gym seeds problem i with seed + i, so neighbouring seeds share problems: hash instead.
        digest = blake3(f"knights {self.seed} {self.people} {index} {attempt}".encode()).digest(8)
        config = KnightsKnavesConfig(
            n_people=self.people,
            depth_constraint=2,
            width_constraint=2,
            size=1,
            seed=int.from_bytes(digest, "little"),
        )
        entry = KnightsKnavesDataset(config)[0]
        metadata = entry["metadata"]
        terms = metadata["knight_knave_terms"]
        return Problem(
            statements=metadata["statements"],
            solution=tuple(bool(role) for role in metadata["solution"]),
            names=tuple(str(name) for name in metadata["names"]),
            knight=str(terms["knight"]),
            knave=str(terms["knave"]),
            question=entry["question"].split(" (Format your answer like:")[0],
        )

"""A fleet of engines behind the real router, in virtual time: requests arrive, cards start, drain and fail."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from oscine.config import EngineConfig
from oscine.engine.router import Router
from oscine.errors import EngineError, OverloadedError
from oscine.fleet.arrivals import SpeechSize
from oscine.fleet.engine import Listener, SimulatedEngine
from oscine.fleet.machines import Machine
from oscine.request import SpeechRequest

Event = Callable[["Fleet"], None]


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """The rule of Kubernetes' HorizontalPodAutoscaler on the mean load of the cards (`oscine_engine_load`)."""

    target_load: float = 0.6
    every_s: float = 15.0
    least: int = 1
    stable_s: float = 300.0  # cards are drained only if so many seconds asked for fewer


@dataclass
class Fleet:
    machine: Machine
    config: EngineConfig
    cards: int
    most_cards: int = 0  # with autoscaling or events that add cards
    autoscaling: Autoscaling | None = None
    now_s: float = 0.0
    listeners: list[Listener] = field(default_factory=list)
    card_s: float = 0.0  # seconds of cards that were paid for
    cards_over_time: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._by_id: dict[str, Listener] = {}
        count = max(self.cards, self.most_cards)
        self.engines = [SimulatedEngine(self.machine, self.config, self._by_id) for _ in range(count)]
        for engine in self.engines[self.cards :]:
            engine.alive = False
        self._paid = [engine.alive for engine in self.engines]
        self._wake_s = [float("inf")] * count
        self._router = Router(self.engines)  # type: ignore[arg-type]  # it only submits and asks for the status
        self._events: list[tuple[float, int, Event]] = []
        self._order = itertools.count()
        self._front_ends = [0.0] * self.cards  # when each has done its requests; a heap
        self._wanted: list[tuple[float, int]] = []
        self._paid_since_s = 0.0

    # --- what happens ---

    def at(self, at_s: float, event: Event) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def ask(self, at_s: float, speech: SpeechSize, ended: Callable[[Listener], None] | None = None) -> None:
        """Lets a request arrive. `ended` is called with its listener after the last chunk or the refusal."""
        self.at(at_s, lambda fleet: fleet._receive(Listener(speech, fleet.now_s, ended=ended)))

    def kill(self, card: int) -> None:
        """Lets a card fail: its speeches are lost, and the router leaves it out."""
        engine = self.engines[card]
        engine.alive = self._paid[card] = False
        for listener in self._by_id.values():
            if listener.clock is engine.clock and listener.last_s is None:
                listener.lost, listener.last_s = True, self.now_s
        self._wake_s[card] = float("inf")

    def start(self, card: int) -> None:
        """Pays for a card, which is ready after its start."""
        self._account()
        self._paid[card] = True

        def ready(fleet: Fleet) -> None:
            if fleet._paid[card]:
                fleet.engines[card].clock.now_s = fleet.now_s
                fleet.engines[card].alive = True

        self.at(self.now_s + self.machine.start_s, ready)

    def drain(self, card: int) -> None:
        """Gives a card no further requests. It is paid for until its speeches have ended, which takes seconds."""
        self._account()
        self.engines[card].alive = self._paid[card] = False

    def run(self, until_s: float = float("inf")) -> None:
        """Runs until nothing is left to do, or up to a time."""
        if self.autoscaling:
            self.at(self.autoscaling.every_s, Fleet._scale)
        while (next_s := min(self._next_event_s, *self._wake_s)) <= until_s and next_s != float("inf"):
            self._advance(next_s)
            while self._next_event_s <= next_s:
                heapq.heappop(self._events)[2](self)
        self._account()

    @property
    def _next_event_s(self) -> float:
        return self._events[0][0] if self._events else float("inf")

    # --- inside ---

    def _advance(self, until_s: float) -> None:
        self.now_s = until_s
        for card, wake_s in enumerate(self._wake_s):
            if wake_s <= until_s:
                self.engines[card].advance(until_s)
                self._wake(card)

    def _wake(self, card: int) -> None:
        wake_s = self.engines[card].wake_s
        self._wake_s[card] = float("inf") if wake_s is None else wake_s

    def _receive(self, listener: Listener) -> None:
        """Lets a request wait for a front end, of which each card has one."""
        self.listeners.append(listener)
        done_s = max(self._front_ends[0], self.now_s) + self.machine.request_ms / 1000
        heapq.heapreplace(self._front_ends, done_s)
        self.at(done_s, lambda fleet: fleet._submit(listener))

    def _submit(self, listener: Listener) -> None:
        utterance_id = str(id(listener))
        self._by_id[utterance_id] = listener
        for engine in self.engines:
            engine.clock.now_s = max(engine.clock.now_s, self.now_s)
        submission = self._router.submit(utterance_id, SpeechRequest(voice=listener.speech.voice), listener)
        try:
            with suppress(StopIteration):
                submission.send(None)
        except (OverloadedError, EngineError):
            listener.refuse(self.now_s)
        for card, engine in enumerate(self.engines):
            if engine.clock is listener.clock:
                self._wake(card)

    def _scale(self) -> None:
        assert self.autoscaling is not None
        rule = self.autoscaling
        running = [card for card, paid in enumerate(self._paid) if paid]
        loads = [self.engines[card].status().load for card in running if self.engines[card].alive]
        mean = sum(loads) / len(loads) if loads else 1.0
        wanted = max(rule.least, -int(-len(running) * mean / rule.target_load // 1))
        self._wanted = [(at_s, count) for at_s, count in self._wanted if at_s > self.now_s - rule.stable_s]
        self._wanted.append((self.now_s, wanted))
        stopped = [card for card, paid in enumerate(self._paid) if not paid]
        if wanted > len(running):
            for card in stopped[: wanted - len(running)]:
                self.start(card)
        elif (most := max(count for _, count in self._wanted)) < len(running):
            for card in running[most:]:
                self.drain(card)
        self.cards_over_time.append((self.now_s, sum(self._paid)))
        self.at(self.now_s + rule.every_s, Fleet._scale)

    def _account(self) -> None:
        self.card_s += (self.now_s - self._paid_since_s) * sum(self._paid)
        self._paid_since_s = self.now_s


def simulate(
    machine: Machine, config: EngineConfig, cards: int, arrivals: Iterable[tuple[float, SpeechSize]]
) -> list[Listener]:
    """Returns the listeners of an open loop, in the order of their arrival."""
    fleet = Fleet(machine, config, cards)
    for at_s, speech in arrivals:
        fleet.ask(at_s, speech)
    fleet.run()
    return fleet.listeners

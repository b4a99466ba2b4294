"""Deterministic simulator: a whole cluster in one process, on one clock, from one random source.

`python -m tests.sim --seed N` replays one run exactly.  The parts, inside out: `tape` (random),
`history` (the events of each process), `net` and `member` (the world around one core), `plan` (a
seed's choices), `nemesis` and `load` (fault injection, clients), `world` (the event heap),
`checkers` (properties of a history), `runner` (one seed from plan to verdict).
"""

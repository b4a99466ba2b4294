"""Deterministic simulator: a whole cluster in one process, on one clock, from one random source.

`python -m tests.sim --seed N` replays one run exactly.  The parts, inside out: `tape` (random),
`history` (what each process saw), `net` and `member` (the world around one core), `plan`
(what a seed chose), `nemesis` and `load` (fault injection, clients), `world` (the event
heap), `checkers` (what must be true of a history), `runner` (one seed from plan to verdict).
"""

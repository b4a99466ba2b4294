"""Deterministic simulator: a whole cluster in one process, one clock, one source of chance.

`python -m tests.sim --seed N` replays one run exactly.  The parts, inside out: `tape` (chance),
`history` (what each life of a member saw), `net` and `member` (the world around one core), `plan`
(what a seed chose), `nemesis` and `load` (who makes trouble, who makes work), `world` (the event
heap), `checkers` (what must be true of a history), `runner` (one seed from plan to verdict).
"""

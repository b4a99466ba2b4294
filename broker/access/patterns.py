"""Regular expressions that operators define: what is wrong with them; and those of permissions,
with the matcher that policies have."""

from __future__ import annotations

from broker.machine.policies.pattern import POLICY_STEPS_MAX, PatternError, compiled


def fault_of(pattern: str) -> str:
    """Return what is wrong with a pattern, in re2's words; empty: nothing."""
    try:
        compiled(pattern)
    except PatternError as error:
        return str(error)
    return ""


def fault_of_policy(pattern: str) -> str:
    """The same for the pattern of a policy, which must be small as well."""
    fault = fault_of(pattern)
    if not fault and compiled(pattern).steps > POLICY_STEPS_MAX:
        return (
            f"more than {POLICY_STEPS_MAX} steps, too many for a policy: "
            "use no large counts such as {500}, or several policies"
        )
    return fault


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern is found in the name; an empty one is in no name but the empty one."""
    return compiled(pattern or "^$").matches(name)

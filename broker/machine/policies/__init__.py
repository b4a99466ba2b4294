"""Policies: patterns, settings, selection and effective definitions; queue options of Qpid."""

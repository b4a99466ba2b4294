"""qpidctl, qpid-stat and qpid-config against canned answers: output, requests, exit codes."""

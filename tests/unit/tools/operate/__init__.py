"""qpidctl, qpid-stat and qpid-config against prepared answers: output, requests, exit codes."""

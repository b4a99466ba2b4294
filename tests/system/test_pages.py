"""Pages for operators, followed word by word: a shell runs what stands in their blocks.

Only addresses and directories are replaced, as others may use those of the pages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.support.clusters import wait_until
from tools.client.history import read_published
from tools.demo.local_cluster import ROOT, command, free_ports
from tools.demo.stream import write_input

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

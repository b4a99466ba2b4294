"""The application of a Celery worker: `celery -A tests.system.clients.celery_tasks worker`."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

app = Celery("tasks", broker=os.environ["CELERY_URLS"])
app.conf.update(
    task_default_queue="celery",
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
)


@app.task  # type: ignore[untyped-decorator]  # its library has no types
def note(number: int) -> None:
    """Record that this call ran."""
    with Path(os.environ["CELERY_DONE"]).open("a", encoding="utf-8") as file:
        file.write(f"{number}\n")

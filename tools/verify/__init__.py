"""The check that proves from the members' logs what a cluster promised: a Spark job."""

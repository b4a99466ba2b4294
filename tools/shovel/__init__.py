"""The process of one attempt of a shovel: a member starts it, nobody types it."""

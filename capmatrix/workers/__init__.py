"""Isolated processes that run cells: one preloaded server a (target, switch set), one forked worker a slot.

A crash, a hang or an exit inside a cell is a record; nothing that a worker starts outlives it.
``pool`` is the way in; ``session`` ties the processes of one run together; ``slots`` says how many
workers a machine carries. The processes, outermost first: the supervisor (small, watches the run's
owner and kills everything below), the forkserver (has imported the engine), a keeper a connection
(reaps one worker and what it leaves behind) and the worker itself.
"""

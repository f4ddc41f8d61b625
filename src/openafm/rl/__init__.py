"""Asynchronous reinforcement learning from rewards (report 5.2).

Trajectory generators sample answers and rewards score them; a replay buffer holds them; the policy updater trains on them
and publishes weights to the weight store, from which the generators load them.
"""

"""The drills of tablets; leader_kill.py has what they share: choosing a server that leads, waiting for new leaders."""

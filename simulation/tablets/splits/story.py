"""A history in which tablets are split or merged: its faults, and the work that must be finished at its end."""

from __future__ import annotations

from collections.abc import Callable

from regionserver.tablets.host.members import servers_of
from simulation.tablets.changes import Changes
from simulation.tablets.clients import SimClient
from simulation.tablets.faults import Story
from simulation.tablets.server import SimServer
from simulation.tablets.splits.clients import SplitClient
from simulation.tablets.splits.master import SimulatedSplits


def split_clients(changes: Changes, *, merges: bool = False) -> type[SimClient]:
    """Let tablets be split in a world, or merged as well, and return its clients."""
    splits = changes.world.splits = SimulatedSplits(changes, merges=merges)
    return type("SplitClientOfThis", (SplitClient,), {"splits": splits})


class SplitStory(Story):
    """See the module docstring."""

    @property
    def splits(self) -> SimulatedSplits:
        """What splits tablets."""
        splits = self.world.splits
        assert isinstance(splits, SimulatedSplits), "nothing is split"
        return splits

    def more_kinds(self) -> list[Callable[[], None]]:
        """See `Story`."""
        return [self._kill_splitting, self._kill_split_leader, self._power_cut_splitting]

    def _splitting(self) -> list[SimServer]:
        """Return the servers of a tablet that is being split."""
        works = list(self.splits.works)
        if not works:
            return []
        places = self.world.places[self.world.chance.pick(works)]
        return [self.world.servers[name] for name in places.values()]

    def _kill_splitting(self) -> None:
        if servers := self._splitting():
            server = self.world.chance.pick(servers)
            self.world.counts["kill_splitting"] += 1
            self.world.kill(server, power=False)
            self._back(server)

    def _power_cut_splitting(self) -> None:
        servers = self._splitting()
        self.world.counts["power_cut_splitting"] += bool(servers)
        for server in servers:
            self.world.kill(server, power=True)
            self._back(server)

    def _kill_split_leader(self) -> None:
        works = list(self.splits.works)
        leaders = self.world.leaders(self.world.chance.pick(works)) if works else []
        for server in leaders:
            self.world.counts["kill_split_leader"] += 1
            self.world.kill(server, power=self.world.chance.happens(0.5))
            self._back(server)

    def may_lose(self, server: SimServer, tablet: str) -> bool:
        """See `Story`. Members of daughters that are yet to be made are lost with the parent's replica."""
        if not self.world.places[tablet]:
            return True
        heirs = self.splits.heirs_at(server, tablet)
        if not super().may_lose(server, tablet) or not self._may_lose_parent(server, tablet):
            return False
        return all(self._may_lose_heir(server, one) for one in heirs)

    def _may_lose_parent(self, server: SimServer, tablet: str) -> bool:
        """Return False if two tablets that are merged would not be together on a majority of servers."""
        for split in self.splits.works.values():
            if not split.is_merge or tablet not in split.tablets:
                continue
            places = [set(self.world.places[one].values()) for one in split.tablets]
            sound = [{one.name for one in self.world.sound_members(parent)} for parent in split.tablets]
            left = set.intersection(*sound) - {server.name}
            if any(2 * len(left & one) <= len(one) for one in places):
                return False
        return True

    def _may_lose_heir(self, server: SimServer, tablet: str) -> bool:
        sound = {one.name for one in self.world.sound_members(tablet) if one is not server}
        for config in self.world.configs_in_force(tablet):
            places = servers_of(config)
            if 2 * sum(places[voter] in sound for voter in config.voters) <= len(config.voters):
                return False
        return True

    def has_recovered(self, before: dict[str, int]) -> bool:
        """See `Story`."""
        return self.splits.is_over() and super().has_recovered(before)

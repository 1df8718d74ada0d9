import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooKeeper;

/** Servers die and come back under their clients. */
final class ServerCases {
    private ServerCases() {}

    private static String others(Env env, String address) {
        return String.join(",", List.of(env.addresses).stream().filter(each -> !each.equals(address)).toList());
    }

    /** The session goes on elsewhere, with its ephemerals, its watches and what it missed. */
    static void clientMovesOn(Env env) throws Exception {
        Events states = new Events();
        ZooKeeper zk = env.client(env.hosts, states);
        String server = Env.serverOf(zk);
        ZooKeeper other = env.client(others(env, server), new Events());
        Events once = new Events();
        Events persistent = new Events();
        String path = env.create(zk, env.root + "/e", CreateMode.EPHEMERAL);
        zk.getData(path, once, null);
        zk.addWatch(env.root, persistent, AddWatchMode.PERSISTENT_RECURSIVE);
        env.stop(server);
        try {
            states.waitFor(KeeperState.Disconnected);
            Env.eventually("the rest writes", () -> {
                try {
                    return other.setData(path, Env.bytes("y"), -1) != null;
                } catch (org.apache.zookeeper.KeeperException.ConnectionLossException lost) {
                    return false;
                }
            });
            states.waitFor(KeeperState.SyncConnected);
            Env.check(!Env.serverOf(zk).equals(server), "on another server");
            once.expect(EventType.NodeDataChanged, path);
            Env.equal(zk.getSessionId(), zk.exists(path, false).getEphemeralOwner());
            Env.flush(zk);
            env.create(other, env.root + "/later");
            persistent.skipTo(EventType.NodeCreated, env.root + "/later");
        } finally {
            env.start(server);
        }
    }

    /** Recipes get over the loss of any server, the leader's included: each is stopped in turn. */
    static void recipesGetOverEachServer(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        CuratorFramework writer = env.curator();
        CuratorCache cache = env.keep(CuratorCache.build(curator, env.root + "/data"));
        writer.create().forPath(env.root + "/data", Env.bytes("start"));
        cache.start();
        LeaderLatch latch = env.keep(new LeaderLatch(curator, env.root + "/latch"));
        latch.start();
        InterProcessMutex mutex = new InterProcessMutex(writer, env.root + "/lock");
        for (String server : env.addresses) {
            env.stop(server);
            try {
                String value = "without " + server;
                Env.eventually("a write", () -> {
                    try {
                        return writer.setData().forPath(env.root + "/data", Env.bytes(value)) != null;
                    } catch (org.apache.zookeeper.KeeperException.ConnectionLossException lost) {
                        return false;
                    }
                });
                Env.eventually("the cache follows", () ->
                        cache.get(env.root + "/data").map(data -> Env.text(data.getData())).orElse("").equals(value));
                Env.check(latch.await(30, TimeUnit.SECONDS), "leads");
                Env.check(mutex.acquire(30, TimeUnit.SECONDS), "locked");
                mutex.release();
            } finally {
                env.start(server);
            }
        }
    }
}
